"""One random history of hosts and faults, and what must hold at its end."""

import traceback
from itertools import pairwise
from math import inf
from random import Random
from typing import Final

from liveness.cluster.format import StoredSession, sessions_of
from liveness.service.outlets.cluster.partition import Mode
from liveness.service.outlets.cluster.partition_clock import SLEW
from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.plan import EVENTS, MOST_HOSTS, OF_HOSTS, Plan, plan_of
from tests.simulation.cluster.watcher import Newest, Watcher, fold
from tests.simulation.cluster.world import KEYS, START_S, TIMEOUT_S, World, pairs
from tests.simulation.scales import by_scale
from tests.simulation.situations import Tally, noted, reached

STEPS: Final = 120
ALWAYS: Final = {"event": 12, "time": 10, "poll": 8}
# How long a fault lasts, in leases: as much as a host may be silent, and a little less or
# more.
SPANS: Final = (0.17, 0.4, 0.48, 0.52, 0.98, 1.02, 1.5, 2, 4, 11)
# Reads in a row of a watcher: enough for a list.
READS: Final = 40
# This many leases after all faults have ended, the state is that of the hosts again.
MENDED: Final = 3
# Faults whose effects on a server remain when all is mended.
LASTING: Final = frozenset({"skew", "failover", "old", "empty", "damage", "step"})
# After these Redis may lack sessions, though no host lists its own.
LOSSY: Final = frozenset({"failover", "old", "memory", "state", "names"})
# A host with something to do so often at one moment goes in circles.
CIRCLES: Final = 300
# Of two sessions that began within this time either may be the newest.
UNSURE_S: Final = 5.0


def faults_of(seed: int, tally: Tally) -> str:
    """The faults of the history that a seed draws; empty if there are none."""
    random = Random(seed)
    with noted() as reached:
        history = History(random, plan_of(random))
        try:
            history.run()
            history.mend()
            history.check()
        except Exception:  # of whatever kind: it is a fault of this history
            history.world.faults_found.append(traceback.format_exc())
    tally.add(seed, reached, history.world.now - START_S)
    found = "\n".join(history.world.faults_found)
    return f"{found}\n{history.plan}" if found else ""


class History:
    """Hosts, watchers, and what happens."""

    def __init__(self, random: Random, plan: Plan) -> None:
        self.plan, self.world = plan, World(random, plan)
        lease_s = self.plan.lease_s
        # A host may be declared lost for so long after a fault.
        self._grace_s = 2 * lease_s + 5
        # A session is on Redis within this time, if its host had no fault.
        self._published_s = lease_s / 2 + self.plan.linger_s + 5 * TIMEOUT_S
        self.machines = list[Machine]()
        for name in "ABCDEF"[: self.plan.hosts]:
            self.add(name)
        self._watchers = [
            Watcher(self.world, partition, self._online_since)
            for partition in self.world.partitions
            for _ in range(2)
        ]

    def add(self, name: str) -> Machine:
        """A further host, or one more of a name."""
        self.machines.append(Machine(name, self.world, self._fenced))
        return self.machines[-1]

    def _fenced(self, name: bytes, partition: int) -> None:
        """A host was declared lost: was it?"""
        calm_since = self.world.now - self._grace_s
        alive = [it for it in self.machines if it.is_alive and it.name == name.decode()]
        if alive and all(calm_since >= it.disturbed_until for it in alive):
            self.world.faults_found.append(f"{name!r} is fenced in {partition}")

    def _online_since(self, partition: int, moment: float) -> set[str]:
        """Users of hosts without a fault, whose sessions began before a moment."""
        if LOSSY & self.world.faults.keys():
            return set()
        return {
            change.field.decode()
            for machine in self.machines
            if machine.is_alive and moment > machine.disturbed_until + self._grace_s
            for change in machine.sessions(partition)
            if machine.began[change.session] < moment - self._published_s
        }

    # --- what happens -----------------------------------------------------------

    def run(self) -> None:
        """Let things happen."""
        faults = self.world.faults
        kinds = ALWAYS | {kind: faults[kind] for kind in EVENTS if kind in faults}
        if faults.get("net"):
            kinds["late"] = 2
        random = self.world.random
        for kind in random.choices([*kinds], [*kinds.values()], k=STEPS):
            act = getattr(self, f"_{kind}")
            if kind not in ("event", *OF_HOSTS):
                act()
            elif up := self._up():
                act(random.choice(up))

    def pass_time(self, seconds: float) -> None:
        """Let time pass without a new fault."""
        world = self.world
        end, circles = world.now + seconds, 0
        while True:
            times = [(it.next_at(), it) for it in self.machines if it.is_alive]
            first = min((at for at, _ in times), default=end)
            if first >= end:
                break
            circles = 0 if first > world.now else circles + 1
            assert circles <= CIRCLES, "hosts go in circles"
            world.now = max(world.now, first)
            due = [machine for at, machine in times if at <= world.now]
            world.random.shuffle(due)
            for machine in due:
                machine.go()
        world.now = end

    def _up(self) -> list[Machine]:
        alive = [machine for machine in self.machines if machine.is_alive]
        return [it for it in alive if self.world.now >= it.paused_until]

    def _event(self, machine: Machine) -> None:
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
        """One of the calls that were late, or are repeated, arrives."""
        world = self.world
        if not world.late:
            return
        number = world.random.randrange(len(world.late))
        partition, call = world.late[number]
        if world.now < world.down_until[partition]:
            return
        del world.late[number]
        world.run(partition, call, is_old=True)
        for machine in self.machines:
            # An earlier process has its name now.
            if call.function == "begin" and machine.name == call.args[0]:
                machine.disturb(world.now)

    def _failover(self) -> None:
        world, partition = self.world, self._partition()
        for number in range(world.random.choice((1, 1, 2))):
            if number:
                reached("cluster: a second failover follows on the first")
                if world.random.random() < 0.5:
                    world.replicate(partition)
                self._time()
            world.down_until[partition] = world.now + world.random.choice((0, 0, 1, 5))
            world.fail_over(partition)

    def _old(self) -> None:
        self.world.fail_over(self._partition(), back=self.world.random.randint(2, 8))

    def _outage(self) -> None:
        self._fail_until(self.world.down_until)

    def _memory(self) -> None:
        self._fail_until(self.world.full_until)

    def _fail_until(self, until: list[float]) -> None:
        until[:] = [self.world.now + self._span_s() for _ in until]
        self._idle()

    def _empty(self) -> None:
        one = self._partition()
        is_all = self.world.random.random() < 0.7
        for partition in self.world.partitions if is_all else [one]:
            self.world.empty(partition)

    def _damage(self) -> None:
        self.world.damage(self._partition())

    def _step(self) -> None:
        self.world.set_clock(self._partition())

    def _pause(self, machine: Machine) -> None:
        machine.paused_until = machine.disturb(self.world.now + self._span_s())

    def _cut(self, machine: Machine) -> None:
        machine.cut_until = machine.disturb(self.world.now + self._span_s())

    def _restart(self, machine: Machine) -> None:
        machine.restart()
        if self.world.random.random() < 0.3:
            self.pass_time(self.world.random.choice((0, 0.0005, 0.01, 0.3)))
            reached("cluster: a process is started twice within a moment")
            machine.restart()

    def _replace(self, machine: Machine) -> None:
        machine.is_alive = False
        # Two processes of its name are followed by two of the new one.
        self.add(f"{machine.name}'").disturb(machine.disturbed_until)

    def _state(self, machine: Machine) -> None:
        machine.lose_log()

    def _trim(self, machine: Machine) -> None:
        machine.trim_log()

    def _names(self, machine: Machine) -> None:
        if len(self.machines) < MOST_HOSTS:
            machine.disturb(inf)
            self.add(machine.name).disturb(inf)

    # --- the end ------------------------------------------------------------------

    def mend(self) -> None:
        """Everything works again, and there is one host of each name; then wait."""
        world = self.world
        world.faults = {
            kind: it for kind, it in world.faults.items() if kind in LASTING
        }
        world.random.shuffle(self.machines)
        one_each = {it.name: it for it in self.machines if it.is_alive}
        self.machines = [*one_each.values()]
        for machine in self.machines:
            machine.paused_until = machine.cut_until = 0.0
        world.down_until = [0.0 for _ in world.partitions]
        world.full_until = [0.0 for _ in world.partitions]
        if world.random.random() < 0.5:
            self._deliver_all()
        lease_s = self.plan.lease_s
        for _ in range(10):
            self.pass_time((MENDED * lease_s + 20) / 10)
            self._catch_up()
            # A clock that goes on being set, by a little, does not keep lost hosts.
            for partition in world.partitions if "step" in world.faults else ():
                by_s = world.random.uniform(-1, 1) * lease_s / 4
                world.set_clock(partition, world.skew_s[partition] + by_s)
        if world.late:
            self._deliver_all()
            # One of them may have revived a host that is gone, or have taken a name.
            self.pass_time(MENDED * lease_s + 20)
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
        for machine in self.machines:
            self._check_host(machine)
        for partition in self.world.partitions:
            self._check_partition(partition)

    def _expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.world.faults_found.append(f"{what}: {found}, not {expected}")

    def _check_host(self, machine: Machine) -> None:
        for part in machine.host.partitions:
            self._expect(
                f"mode, last seq and queue of {machine.name}",
                (part.mode, part.last, part.queued),
                (Mode.FOLLOWING, machine.newest, 0),
            )
        if "damage" not in self.world.faults:
            mismatches = machine.host.identity.audit_mismatches
            self._expect(f"audits of {machine.name} that failed", mismatches, 0)

    def _check_partition(self, partition: int) -> None:
        world = self.world
        owners = {
            int(field[1:]): value.decode().partition("\n")[0]
            for field, value in world.meta(partition).items()
            if field.startswith(b"i")
        }
        found = list[tuple[str, str, str, int, str]]()
        newest = dict[str, Newest]()
        stored = pairs(world.redis("HGETALL", KEYS[partition].users))
        for user, value in stored.items():
            sessions = [
                (owners.get(it.incarnation, ""), it) for it in sessions_of(value)
            ]
            self._check_order(partition, sessions)
            newest[user.decode()] = sessions[0][0], sessions[0][1].session
            found += [
                (user.decode(), host, it.device, it.session, it.gateway)
                for host, it in sessions
            ]
        expected = [
            (it.field.decode(), machine.name, it.device, it.session, it.gateway)
            for machine in self.machines
            for it in machine.sessions(partition)
        ]
        self._expect("state", sorted(found), sorted(expected))
        names = sorted(machine.name for machine in self.machines)
        self._expect("incarnations", sorted(owners.values()), names)
        for name, known in world.hosts(partition).items():
            has = sum(it[1] == name for it in found)
            counts = known.sessions, known.current
            self._expect(f"sessions and current of {name}", counts, (has, has))
        self._check_stream(partition, newest)

    def _check_order(
        self, partition: int, sessions: list[tuple[str, StoredSession]]
    ) -> None:
        """No session is behind one that began earlier.

        Redis' clock may have been set since. Then one that came to Redis later may be in
        front; and a process that started soon after that knows the clock badly.
        """
        order = [-it.since for _, it in sessions]
        self._expect(f"order of {sessions}", order, sorted(order))
        world, by_name = self.world, {it.name: it for it in self.machines}
        sets, soon_s = world.clock_sets[partition], 5 * self.plan.lease_s
        known = [
            (began, world.taken.get((partition, it.incarnation, it.session)))
            for host, it in sessions
            if (machine := by_name.get(host))
            and (began := machine.began[it.session]) > machine.clock_set_at
            and not any(0 <= x - at <= soon_s for x in machine.starts for at in sets)
        ]
        for (began, taken), (later, taken_later) in pairwise(known):
            # A clock that was set back is slower until it is right.
            slower_s = 2 * SLEW * (world.now - began) if sets else 0.0
            is_known = not sets and later > began + UNSURE_S
            is_in_turn = taken and taken_later and taken < taken_later
            if is_known or (is_in_turn and later > began + slower_s):
                what = f"{sessions}: the newest is not first, by {later - began} s"
                world.faults_found.append(what)

    def _check_stream(self, partition: int, newest: dict[str, Newest]) -> None:
        world = self.world
        for watcher in self._watchers:
            if watcher.partition == partition:
                self._expect("state of a watcher", watcher.state, newest)
        stream = world.stream(partition)
        befores, names = [it.before for it in stream], [it.name for it in stream]
        self._expect("chain", befores[1:], names[:-1])
        if "stream" in world.damaged:
            return  # it does not begin where the partition began
        if not stream or befores[0][:2] != "0.":
            if world.now - START_S < self.plan.keep_s and newest:
                world.faults_found.append(f"trimmed: {stream[:1]}")
            if stream:
                reached("cluster: the oldest records are trimmed")
            return
        state = dict[str, Newest]()
        for record in (record for entry in stream for record in entry.records):
            self._expect("stream", fold(state, record), "")
        self._expect("state by the stream", state, newest)
