"""One random history of hosts and faults, and what must hold at its end."""

import traceback
from collections.abc import Mapping
from itertools import pairwise
from math import inf
from typing import Final

from liveness.cluster.format import (
    StoredSession,
    StreamEntry,
    entry_of,
    sessions_of,
)
from liveness.cluster.functions import Functions
from liveness.core.records import MOVED, OFFLINE, ONLINE
from tests.simulation.cluster.machine import LEASE_S, Machine
from tests.simulation.cluster.redis import Connection
from tests.simulation.cluster.watcher import Watcher, fold
from tests.simulation.cluster.world import KEYS, PARTITIONS, World, pairs

# What may happen, and how often in comparison; `net`: the share of calls that go wrong.
PROFILES: Final[Mapping[str, Mapping[str, float]]] = {
    "calm": {},
    "net": {"net": 0.15},
    "pause": {"net": 0.05, "pause": 1},
    "failover": {"net": 0.05, "failover": 1},
    "skew": {"net": 0.05, "failover": 1, "skew": 1},
    "outage": {"outage": 1, "failover": 1},
    "memory": {"net": 0.05, "memory": 1, "pause": 0.3},
    "empty": {"net": 0.05, "empty": 1},
    "slow": {"empty": 1, "slow": 1, "pause": 0.3},
    "damage": {"net": 0.05, "damage": 1},
    "step": {"net": 0.05, "step": 1},
    "names": {"net": 0.05, "names": 1, "failover": 1},
    "state": {"net": 0.05, "state": 1, "trim": 1, "pause": 0.5, "clock": 1},
    "all": {
        "net": 0.12,
        "pause": 1,
        "failover": 1,
        "outage": 1,
        "memory": 0.5,
        "empty": 0.3,
        "state": 0.5,
        "skew": 1,
        "trim": 1,
        "names": 0.3,
        "clock": 1,
    },
}
STEPS: Final = 120
ALWAYS: Final = {"event": 12, "time": 10, "poll": 8, "replicate": 3}
WEIGHTS: Final = {
    "pause": 0.5,
    "failover": 0.8,
    "outage": 0.3,
    "memory": 0.4,
    "empty": 0.25,
    "damage": 0.4,
    "step": 0.8,
    "state": 0.3,
    "trim": 0.8,
    "names": 0.5,
}
HOSTS: Final = "ABC"
MOST_HOSTS: Final = 6
# A watcher reads so often in a row: enough for a list.
READS: Final = 12
# Within this time after all was mended, the state is that of the hosts again.
MENDED_S: Final = 3 * LEASE_S
# A host may be declared lost for so long after something befell it.
GRACE_S: Final = 2 * LEASE_S + 5
# A session is on Redis within this time, if nothing befell its host.
PUBLISHED_S: Final = 15.0
# After these Redis may lack sessions, though no host lists its own.
LOSSY: Final = frozenset({"failover", "memory", "state", "names"})


def faults_of(redis: Connection, library: Functions, seed: int, profile: str) -> str:
    """What is wrong with one history; nothing, if all is well.

    Args:
        redis: A connection to a server of our own.
        library: The functions that are loaded on it.
        seed: Of all that is drawn.
        profile: What may happen.
    """
    history = History(redis, library, seed, profile)
    try:
        history.run()
        history.mend()
        history.check()
    except Exception:  # of whatever kind: it is a fault of this history
        history.world.faults_found.append(traceback.format_exc())
    return "\n".join(history.world.faults_found)


class History:
    """Hosts, watchers, and what happens.

    Args:
        redis: A connection to a server of our own.
        library: The functions that are loaded on it.
        seed: Of all that is drawn.
        profile: What may happen.
    """

    def __init__(
        self, redis: Connection, library: Functions, seed: int, profile: str
    ) -> None:
        self.world = World(redis, library, seed, PROFILES[profile])
        self.world.online_since = self._online_since
        self._separator = self.world.random.choice(("/", "/", ""))
        self.machines = [self._machine(name) for name in HOSTS]
        self._watchers = [
            Watcher(self.world, partition)
            for partition in range(PARTITIONS)
            for _ in range(2)
        ]

    def _machine(self, name: str) -> Machine:
        return Machine(name, self.world, self._separator, self._fenced)

    def add(self, name: str) -> Machine:
        """A further host, or one more of a name."""
        self.machines.append(self._machine(name))
        return self.machines[-1]

    def _fenced(self, name: bytes, partition: int) -> None:
        """A host was declared lost: was it?"""
        now = self.world.now
        if not any(
            not machine.is_alive or now < machine.disturbed_until + GRACE_S
            for machine in self.machines
            if machine.name == name.decode()
        ):
            self.world.faults_found.append(f"{name!r} is fenced in {partition}")

    def _online_since(self, partition: int, moment: float) -> set[str]:
        """Users of hosts that nothing befell, whose sessions began before a moment."""
        if LOSSY & self.world.faults.keys():
            return set()
        return {
            change.field.decode()
            for machine in self.machines
            if machine.is_alive and moment > machine.disturbed_until + GRACE_S
            for row in machine.log.online.values()
            for number, change in [machine.process.host.session_of(row, 0)]
            if number == partition
            and machine.log.began[row.session] < moment - PUBLISHED_S
        }

    # --- what happens -----------------------------------------------------------

    def run(self) -> None:
        """Let things happen."""
        faults = self.world.faults
        kinds = ALWAYS | {
            kind: weight * faults[kind]
            for kind, weight in WEIGHTS.items()
            if faults.get(kind)
        }
        if faults.get("net"):
            kinds["late"] = 2
        names, weights = list(kinds), list(kinds.values())
        for kind in self.world.random.choices(names, weights, k=STEPS):
            getattr(self, f"_{kind}")()

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which nothing befalls anyone."""
        world = self.world
        end = world.now + seconds
        while True:
            times = [(it.next_at(), it) for it in self.machines if it.is_alive]
            first = min((at for at, _ in times), default=end)
            if first >= end:
                break
            world.now = max(world.now, first)
            due = [machine for at, machine in times if at <= world.now]
            world.random.shuffle(due)
            for machine in due:
                machine.process.go()
        world.now = end

    def _up(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.is_up]

    def _any_up(self) -> Machine | None:
        up = self._up()
        return self.world.random.choice(up) if up else None

    def _event(self) -> None:
        if machine := self._any_up():
            for _ in range(self.world.random.choice((1, 1, 1, 2, 7))):
                machine.happen()

    def _time(self) -> None:
        self.pass_time(self.world.random.choice((0.01, 0.05, 0.3, 1, 3)))

    def _poll(self) -> None:
        random = self.world.random
        watcher = random.choice(self._watchers)
        # One that has only its position relies on versions that grow over a failover. They
        # do not if the new master's clock is behind and the next host has just started.
        if not self.world.faults.get("skew") and random.random() < 0.05:
            watcher.restart()
        for _ in range(random.choice((1, 2, 5))):
            watcher.poll()

    def _replicate(self) -> None:
        self.world.replicate(self.world.random.randrange(PARTITIONS))

    def _late(self) -> None:
        self.world.deliver_late()

    def _failover(self) -> None:
        world, partition = self.world, self.world.random.randrange(PARTITIONS)
        world.down_until[partition] = world.now + world.random.choice((0, 0, 1, 5))
        world.fail_over(partition)

    def _outage(self) -> None:
        world = self.world
        for partition in range(PARTITIONS):
            wait = world.random.choice((3, 20, 45, 100))
            world.down_until[partition] = world.now + wait
        self.pass_time(world.random.choice((10, 60, 120)))

    def _memory(self) -> None:
        world = self.world
        for partition in range(PARTITIONS):
            wait = world.random.choice((3, 45, 100))
            world.full_until[partition] = world.now + wait
        self.pass_time(world.random.choice((10, 60, 120)))

    def _empty(self) -> None:
        random = self.world.random
        some = [random.randrange(PARTITIONS)]
        for partition in range(PARTITIONS) if random.random() < 0.7 else some:
            self.world.empty(partition)

    def _damage(self) -> None:
        self.world.damage(self.world.random.randrange(PARTITIONS))

    def _step(self) -> None:
        self.world.step(self.world.random.randrange(PARTITIONS))

    def _pause(self) -> None:
        machine, random, now = self._any_up(), self.world.random, self.world.now
        if machine is None:
            return
        until = now + random.choice((5, 12, 31, 60, 120))
        match random.choices("pcrd", (35, 35, 15, 15))[0]:
            case "p":
                machine.paused_until = until
                machine.disturb(until)
            case "c":
                machine.cut_until = until
                machine.disturb(until)
            case "r":
                machine.restart()
            case _:
                machine.is_alive = False
                self.add(f"{machine.name}'")

    def _state(self) -> None:
        if machine := self._any_up():
            machine.lose_log()

    def _trim(self) -> None:
        if machine := self._any_up():
            machine.log.trim()

    def _names(self) -> None:
        machine = self._any_up()
        if machine is None or len(self.machines) >= MOST_HOSTS:
            return
        for those in (machine, self.add(machine.name)):
            those.disturb(inf)

    # --- the end ------------------------------------------------------------------

    def mend(self) -> None:
        """Everything works again, and there is one host of each name; then wait."""
        world = self.world
        # What is true of the servers for good.
        lost = ("skew", "failover", "empty", "damage", "step", "slow")
        world.faults = {kind: it for kind, it in world.faults.items() if kind in lost}
        world.random.shuffle(self.machines)
        one_each = {
            machine.name: machine for machine in self.machines if machine.is_alive
        }
        for machine in self.machines:
            machine.is_alive = one_each.get(machine.name) is machine
            machine.paused_until = machine.cut_until = 0.0
        world.down_until = [0.0] * PARTITIONS
        world.full_until = [0.0] * PARTITIONS
        if world.random.random() < 0.5:
            self._deliver_all()
        for _ in range(10):
            self.pass_time(MENDED_S / 10)
            for watcher in self._watchers * READS:
                watcher.poll()
        if world.late:
            self._deliver_all()
            # One of them may have revived a host that is gone.
            self.pass_time(2 * LEASE_S)
        for watcher in self._watchers:
            for _ in range(40):
                watcher.poll()

    def _deliver_all(self) -> None:
        while self.world.late:
            self.world.deliver_late()

    def check(self) -> None:
        """Redis and the watchers have what the hosts have."""
        machines = [machine for machine in self.machines if machine.is_alive]
        for machine in machines:
            self._check_host(machine)
        for partition in range(PARTITIONS):
            self._check_partition(partition, machines)

    def _expect(self, is_so: bool, what: str) -> None:
        if not is_so:
            self.world.faults_found.append(what)

    def _check_host(self, machine: Machine) -> None:
        host, log = machine.process.host, machine.log
        self._expect(host.is_following, f"{machine.name} does not follow")
        published = min(part.last for part in host.partitions)
        self._expect(
            published == log.newest,
            f"{machine.name} published {published} of {log.newest}",
        )
        queued = sum(part.queued for part in host.partitions)
        self._expect(queued == 0, f"{machine.name} has a queue")
        counts = host.identity.counts
        self._expect(
            counts.audit_mismatches == 0 or "damage" in self.world.faults,
            f"{machine.name}: {counts.audit_mismatches} audits failed",
        )
        self._expect(
            all(part.tally is not None for part in host.partitions),
            f"{machine.name} is not audited",
        )

    def _check_partition(self, partition: int, machines: list[Machine]) -> None:
        expected = {}
        for machine in machines:
            for row in machine.log.online.values():
                number, change = machine.process.host.session_of(row, 0)
                if number == partition:
                    key = change.field.decode(), machine.name, change.device
                    expected[key] = row.session, change.gateway
        meta = self.world.meta(partition)
        owners = {
            int(field[1:]): value.decode().partition("\n")[0]
            for field, value in meta.items()
            if field.startswith(b"i")
        }
        stored = pairs(self.world.redis("HGETALL", KEYS[partition].users))
        found, newest = {}, {}
        for field, value in stored.items():
            user, sessions = field.decode(), list(sessions_of(value))
            newest[user] = owners.get(sessions[0].incarnation, ""), sessions[0].session
            order = [session.since for session in sessions]
            self._expect(order == sorted(order, reverse=True), f"{user}: {sessions}")
            self._check_order(
                partition,
                [(owners.get(it.incarnation, ""), it) for it in sessions],
                machines,
            )
            for session in sessions:
                key = user, owners.get(session.incarnation, ""), session.device
                self._expect(key not in found, f"twice: {key}")
                found[key] = session.session, session.gateway
        self._expect(found == expected, f"state {found}, hosts have {expected}")
        self._expect(
            sorted(owners.values()) == sorted(machine.name for machine in machines),
            f"incarnations {owners}",
        )
        for name, host in self.world.hosts(partition).items():
            has = sum(key[1] == name for key in found)
            self._expect(
                host.sessions == host.current == has,
                f"{name} counts {host.sessions}, {host.current}, has {has}",
            )
        self._check_stream(partition, newest)

    def _check_order(
        self,
        partition: int,
        sessions: list[tuple[str, StoredSession]],
        machines: list[Machine],
    ) -> None:
        """No session is behind one that began earlier, and that Redis took earlier."""
        if self.world.faults.get("clock"):
            return  # hosts do not know themselves when their sessions began
        logs = {machine.name: machine.log for machine in machines}
        known = [
            (logs[host].began[it.session], taken)
            for host, it in sessions
            if host in logs
            and (taken := self.world.taken.get((partition, it.incarnation, it.session)))
            is not None
        ]
        for (began, taken), (later, taken_later) in pairwise(known):
            self._expect(
                later <= began or taken_later < taken,
                f"{sessions}: the newest is not first, by {later - began} s",
            )

    def _check_stream(self, partition: int, newest: dict[str, tuple[str, int]]) -> None:
        for watcher in self._watchers:
            if watcher.partition == partition:
                self._expect(
                    watcher.state == newest,
                    f"watcher has {watcher.state}, is {newest}",
                )
        if self.world.counts["damage stream"]:
            return  # it does not begin where the partition began
        state: dict[str, tuple[str, int]] = {}
        last: StreamEntry | None = None
        for entry_id, fields in self.world.redis(
            "XRANGE", KEYS[partition].stream, "-", "+"
        ):
            entry = entry_of(partition, entry_id, pairs(fields))
            is_chain = entry.before == last.name if last else entry.before[:2] == "0."
            self._expect(is_chain, f"chain: {last} {entry}")
            last = entry
            for record in entry.records:
                before = state.get(str(record.user))
                ended = record.place if record.kind == OFFLINE else record.lost
                is_next = (before is None) == (record.kind == ONLINE)
                if record.kind in (OFFLINE, MOVED) and ended:
                    is_next = is_next and before == (ended.host, ended.session)
                self._expect(is_next, f"stream: {record} after {before}")
                fold(state, record)
        self._expect(state == newest, f"stream says {state}, is {newest}")
