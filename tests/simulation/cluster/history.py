"""One random history of hosts and faults, and what must hold at its end."""

import traceback
from itertools import pairwise
from math import inf
from random import Random
from typing import Final

from liveness.cluster.format import (
    StoredSession,
    entry_of,
    sessions_of,
)
from liveness.core.records import MOVED, OFFLINE, ONLINE
from liveness.outlets.cluster.partition import SLEW
from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.plan import EVENTS, MOST_HOSTS, Plan, plan_of
from tests.simulation.cluster.watcher import Watcher, fold
from tests.simulation.cluster.world import KEYS, START_S, TIMEOUT_S, World, pairs
from tests.simulation.scales import by_scale
from tests.simulation.situations import reached

STEPS: Final = 120
ALWAYS: Final = {"event": 12, "time": 10, "poll": 8}
# How long, in leases, something lasts that befalls a host or a server: as much as one may
# be silent, and a little less or more.
SPANS: Final = (0.17, 0.4, 0.48, 0.52, 0.98, 1.02, 1.5, 2, 4, 11)
# Reads in a row of a watcher: enough for a list.
READS: Final = 40
# So many leases after all was mended, the state is that of the hosts again.
MENDED: Final = 3
# After these Redis may lack sessions, though no host lists its own.
LOSSY: Final = frozenset({"failover", "old", "memory", "state", "names"})
# Of two sessions that began within this time either may be the newest.
UNSURE_S: Final = 5.0


def faults_of(seed: int) -> str:
    """What is wrong with the history that a seed draws; nothing, if all is well."""
    random = Random(seed)
    history = History(random, plan_of(random))
    try:
        history.run()
        history.mend()
        history.check()
    except Exception:  # of whatever kind: it is a fault of this history
        history.world.faults_found.append(traceback.format_exc())
    found = "\n".join(history.world.faults_found)
    return f"{found}\n{history.plan}" if found else ""


class History:
    """Hosts, watchers, and what happens.

    Args:
        random: For all that is drawn.
        plan: How the cluster is set up, and what may happen.
    """

    def __init__(self, random: Random, plan: Plan) -> None:
        self.plan, self.world = plan, World(random, plan)
        self.world.online_since = self._online_since
        lease_s = self.plan.lease_s
        # A host may be declared lost for so long after something befell it.
        self._grace_s = 2 * lease_s + 5
        # A session is on Redis within this time, if nothing befell its host.
        self._published_s = lease_s / 2 + self.plan.linger_s + 5 * TIMEOUT_S
        self.machines = [self._machine(name) for name in "ABCDEF"[: self.plan.hosts]]
        self._watchers = [
            Watcher(self.world, partition)
            for partition in self.world.partitions
            for _ in range(2)
        ]

    def _machine(self, name: str) -> Machine:
        return Machine(name, self.world, self.plan.separator, self._fenced)

    def add(self, name: str) -> Machine:
        """A further host, or one more of a name."""
        self.machines.append(self._machine(name))
        return self.machines[-1]

    def _fenced(self, name: bytes, partition: int) -> None:
        """A host was declared lost: was it?"""
        now = self.world.now
        if not any(
            not machine.is_alive or now < machine.disturbed_until + self._grace_s
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
            if machine.is_alive and moment > machine.disturbed_until + self._grace_s
            for row in machine.log.online.values()
            for number, change in [machine.process.host.session_of(row, 0)]
            if number == partition
            and machine.log.began[row.session] < moment - self._published_s
        }

    # --- what happens -----------------------------------------------------------

    def run(self) -> None:
        """Let things happen."""
        faults = self.world.faults
        kinds = ALWAYS | {kind: faults[kind] for kind in EVENTS if kind in faults}
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
        seconds = self.world.random.choice((0.01, 0.05, 0.3, 1, 3))
        scale = self.world.random.choice((1, self.plan.lease_s / 30))
        self.pass_time(seconds * scale)

    def _poll(self) -> None:
        random = self.world.random
        watcher = random.choice(self._watchers)
        # One that has only its position relies on versions that grow over a failover. They
        # do not if the new master's clock is behind and the next host has just started.
        is_skewed = {"skew", "step"} & self.world.faults.keys()
        if not is_skewed and random.random() < 0.05:
            watcher.restart()
        for _ in range(random.choice((1, 2, 5))):
            watcher.poll()

    def _idle(self) -> None:
        self.pass_time(self._span_s())

    def _partition(self) -> int:
        return self.world.random.choice(self.world.partitions)

    def _span_s(self) -> float:
        random, lease_s = self.world.random, self.plan.lease_s
        drawn = by_scale(random, 0.1, 4)
        return lease_s * random.choice((*SPANS, drawn, drawn, drawn))

    def _late(self) -> None:
        call = self.world.deliver_late()
        if call is None or call.function != "begin":
            return
        for machine in self.machines:
            if machine.name == call.args[0]:  # an earlier process has its name now
                machine.disturb(self.world.now)

    def _failover(self) -> None:
        world, partition = self.world, self._partition()
        for at_once in world.random.choice(((True,), (True,), (True, False))):
            if not at_once:
                reached("cluster: a second failover follows on the first")
                if world.random.random() < 0.5:
                    world.replicate(partition)
                self._time()
            world.down_until[partition] = world.now + world.random.choice((0, 0, 1, 5))
            world.fail_over(partition)

    def _old(self) -> None:
        self.world.fail_over(self._partition(), back=self.world.random.randint(2, 8))

    def _outage(self) -> None:
        now, down = self.world.now, self.world.down_until
        down[:] = [now + self._span_s() for _ in down]
        self._idle()

    def _memory(self) -> None:
        now, full = self.world.now, self.world.full_until
        full[:] = [now + self._span_s() for _ in full]
        self._idle()

    def _empty(self) -> None:
        some = [self._partition()]
        is_all = self.world.random.random() < 0.7
        for partition in self.world.partitions if is_all else some:
            self.world.empty(partition)

    def _damage(self) -> None:
        self.world.damage(self._partition())

    def _step(self) -> None:
        self.world.set_clock(self._partition())

    def _pause(self) -> None:
        if machine := self._any_up():
            machine.paused_until = machine.disturb(self.world.now + self._span_s())
            if not self._up():
                reached("cluster: all hosts stand still at once")

    def _cut(self) -> None:
        if machine := self._any_up():
            machine.cut_until = machine.disturb(self.world.now + self._span_s())

    def _restart(self) -> None:
        if machine := self._any_up():
            machine.restart()
            if self.world.random.random() < 0.3:
                self.pass_time(self.world.random.choice((0, 0.0005, 0.01, 0.3)))
                reached("cluster: a process is started twice within a moment")
                machine.restart()

    def _replace(self) -> None:
        if machine := self._any_up():
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
        lost = ("skew", "failover", "old", "empty", "damage", "step")
        world.faults = {kind: it for kind, it in world.faults.items() if kind in lost}
        world.random.shuffle(self.machines)
        one_each = {
            machine.name: machine for machine in self.machines if machine.is_alive
        }
        for machine in self.machines:
            machine.is_alive = one_each.get(machine.name) is machine
            machine.paused_until = machine.cut_until = 0.0
        world.down_until = [0.0 for _ in world.partitions]
        world.full_until = [0.0 for _ in world.partitions]
        if world.random.random() < 0.5:
            self._deliver_all()
        lease_s = self.plan.lease_s
        for _ in range(10):
            self.pass_time((MENDED * lease_s + 20) / 10)
            self._catch_up()
        if world.late:
            self._deliver_all()
            # One of them may have revived a host that is gone.
            self.pass_time(2 * lease_s)
        self._catch_up()

    def _catch_up(self) -> None:
        """Every watcher reads what there is."""
        for watcher in self._watchers:
            for _ in range(READS):
                if watcher.poll():
                    break

    def _deliver_all(self) -> None:
        while self.world.late:
            self._late()

    def check(self) -> None:
        """Redis and the watchers have what the hosts have."""
        machines = [machine for machine in self.machines if machine.is_alive]
        for machine in machines:
            self._check_host(machine)
        for partition in self.world.partitions:
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
        """No session is behind one that began earlier.

        Redis' clock may have been set since. Then one that came to Redis later may be in
        front; and a process that started soon after that knows the clock badly.
        """
        world, by_name = self.world, {machine.name: machine for machine in machines}
        sets, soon_s = world.clock_sets[partition], 5 * self.plan.lease_s
        known = [
            (began, world.taken.get((partition, it.incarnation, it.session)))
            for host, it in sessions
            if (machine := by_name.get(host))
            and (began := machine.log.began[it.session]) > machine.clock_set_at
            and not any(0 <= x - at <= soon_s for x in machine.starts for at in sets)
        ]
        for (began, taken), (later, taken_later) in pairwise(known):
            # A clock that was set back is slower until it is right.
            slower_s = 2 * SLEW * (world.now - began) if sets else 0.0
            is_known = not sets and later > began + UNSURE_S
            is_in_turn = taken and taken_later and taken < taken_later
            self._expect(
                not (is_known or (is_in_turn and later > began + slower_s)),
                f"{sessions}: the newest is not first, by {later - began} s",
            )

    def _check_stream(self, partition: int, newest: dict[str, tuple[str, int]]) -> None:
        for watcher in self._watchers:
            if watcher.partition == partition:
                self._expect(
                    watcher.state == newest,
                    f"watcher has {watcher.state}, is {newest}",
                )
        rows = self.world.redis("XRANGE", KEYS[partition].stream, "-", "+")
        entries = [entry_of(partition, name, pairs(fields)) for name, fields in rows]
        is_chain = all(last.name == it.before for last, it in pairwise(entries))
        self._expect(is_chain, f"no chain: {entries}")
        if "stream" in self.world.damaged:
            return  # it does not begin where the partition began
        if not entries or entries[0].before[:2] != "0.":
            is_old = self.world.now - START_S >= self.plan.keep_s
            self._expect(is_old or not newest, f"trimmed: {entries[:1]}")
            reached("cluster: the oldest records are trimmed")
            return
        state: dict[str, tuple[str, int]] = {}
        for record in (record for entry in entries for record in entry.records):
            before = state.get(str(record.user))
            ended = record.place if record.kind == OFFLINE else record.lost
            is_next = (before is None) == (record.kind == ONLINE)
            if record.kind in (OFFLINE, MOVED) and ended:
                is_next = is_next and before == (ended.host, ended.session)
            self._expect(is_next, f"stream: {record} after {before}")
            fold(state, record)
        self._expect(state == newest, f"stream says {state}, is {newest}")
