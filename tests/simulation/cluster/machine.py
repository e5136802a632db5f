"""A host: its log, which the simulation writes, and its process around `ClusterHost`."""

from collections.abc import Callable
from math import inf
from typing import Final

from liveness.cluster.format import configuration_of
from liveness.core.records import MOVED, OFFLINE, ONLINE, OnlineRow, Record
from liveness.core.wheel.devices import user_of
from liveness.service.outlets.cluster.host import ClusterHost
from liveness.service.outlets.cluster.host_state import HostIdentity, nonce_of
from liveness.service.outlets.cluster.partition import MALFORMED, Partition
from liveness.service.outlets.cluster.session_changes import Change, SessionList
from tests.simulation.cluster.world import TIMEOUT_S, Flight, World
from tests.simulation.scales import by_scale
from tests.simulation.situations import reached

# How many leases a machine with a slow disk needs for a list: of some, more
# than one in all.
SLOW: Final = (0.0, 0.3, 0.7)
UIDS: Final = (
    *("ada/phone", "ada/pad", "bob", "eve/x", 7, "7", "kim", "bob/tv"),
    *("ada/tv", "eve/y", "lee", "kim/1"),
)
GATEWAYS: Final = ("g1", "g2")
# Of a wall clock: back to the seventies, or ahead by as much.
MOST_WRONG_S: Final = 1.6e9


class Machine:
    """A host: its log, its process as far as it publishes, and its faults."""

    def __init__(
        self, name: str, world: World, on_fenced: Callable[[bytes, int], None]
    ) -> None:
        self.name = name
        self._world, self._random, self._on_fenced = world, world.random, on_fenced
        self.is_alive = True
        self.paused_until = self.cut_until = 0.0
        self.disturbed_until = 0.0  # its last fault lasts until then
        self.starts = list[float]()  # when its processes started
        self.clock_set_at = 0.0  # of older sessions it does not know when they began
        self.clock_s = self._random.choice((0.0, -5.0, 7.0))
        self.lose_log()

    # --- its faults -------------------------------------------------------------

    def lose_log(self) -> None:
        """Its state is lost: it starts with an empty log."""
        self._log = f"{self.name}-{self._random.getrandbits(32):x}"  # its id
        self._records = list[Record]()
        self._trimmed_to = 0  # records up to this seq are gone
        self.newest = 0  # seq
        self._online = dict[str, OnlineRow]()  # by the text of the uid
        self.began = dict[int, float]()  # sessions: when, by the clock of the world
        self.restart()

    def restart(self) -> None:
        """A new process on its log; its wall clock may have been set meanwhile."""
        world, random, plan = self._world, self._random, self._world.plan
        if world.faults.get("clock") and random.random() < 0.6:
            wrong_s = by_scale(random, 0.001, MOST_WRONG_S)
            self.clock_s = random.choice((-1, 1)) * wrong_s
            self.clock_set_at = world.now
        self._booted = world.now - random.random() * 1e5
        self.wrong_ms = round(self.clock_s * 1000)  # by which its wall clock is ahead
        identity = HostIdentity(
            name=self.name,
            log=self._log,
            nonce=nonce_of(self.wall_ms, random),
            epoch=self.wall_ms,
            configuration=configuration_of(plan.partitions, plan.separator),
            lease_s=plan.lease_s,
            linger_s=plan.linger_s,
            keep_s=plan.keep_s,
            random=random,
            on_fenced=self._on_fenced,
            call_changes=plan.call_changes,
            most_queued=plan.most_queued,
            reap_users=plan.reap_users,
        )
        self.host = ClusterHost(
            identity, partitions=plan.partitions, separator=plan.separator
        )
        self._flights = dict[int, Flight]()
        self._lists = dict[int, SessionList]()
        self._list_at = dict[int, float]()  # partitions that wait for one
        self._woken = set(world.partitions)
        self._read_at = world.now
        self.starts.append(world.now)
        self.disturb(world.now)

    def disturb(self, until: float) -> float:
        """A fault lasts until then; returns that."""
        self.disturbed_until = max(self.disturbed_until, until)
        return until

    # --- its log ----------------------------------------------------------------

    def happen(self) -> None:
        """A user comes, moves or goes."""
        random, online, plan = self._random, self._online, self._world.plan
        uid = random.choice(UIDS[: plan.users])
        self.began[self.newest + 1] = self.began[self.newest + 2] = self._world.now
        self.newest += random.choice((1, 1, 2))  # there are records of timers too
        have, gateway = online.get(str(uid)), random.choice(GATEWAYS)
        moves = have and have.gateway != gateway and random.random() < 0.4
        at_ms = self.wall_ms
        if have is None or moves:
            kind, session, reason = MOVED if have else ONLINE, self.newest, "login"
            online[str(uid)] = OnlineRow(session, uid, at_ms, None, gateway, None)
        else:
            del online[str(uid)]
            kind, reason = OFFLINE, random.choice(("silence", "logout"))
            uid, gateway, session = have.uid, have.gateway, have.session
        user = user_of(uid, plan.separator) if plan.separator else uid
        # Logs of an early schema do not say which session was left.
        is_old = random.random() < 0.05
        self._records.append(
            Record(
                *(self.newest, kind, uid, gateway, session, None, reason, at_ms),
                from_session=have.session if have and moves and not is_old else None,
                user_size=len(str(user)) if user != uid else 0,
            )
        )
        read_at = self._world.now + random.choice((0.0, 0.01, 0.3))
        self._read_at = min(self._read_at, read_at)

    def trim_log(self) -> None:
        """Its oldest records are deleted."""
        records = self._records
        del records[: self._random.randrange(len(records) + 1)]
        self._trimmed_to = records[0].seq - 1 if records else self.newest

    # --- its process ------------------------------------------------------------

    @property
    def wall_ms(self) -> int:
        """Its wall clock."""
        return round(self._world.now * 1000) + self.wrong_ms

    @property
    def _mono(self) -> float:
        return self._world.now - self._booted

    def next_at(self) -> float:
        """When there is something to do, by the clock of the world."""
        if self._woken - self._flights.keys():
            return max(self._world.now, self.paused_until)
        times = [self._read_at, *self._list_at.values()]
        times += [flight.until for flight in self._flights.values()]
        times += [
            part.next_at() + self._booted + 1e-6
            for part in self.host.partitions
            if part.number not in self._flights
        ]
        return max(min(times), self.paused_until)

    def go(self) -> None:
        """Do what there is to do now."""
        identity = self.host.identity
        was_stopped = identity.is_stopped
        if self._world.now >= self._read_at:
            self._read()
        for part in self.host.partitions:
            self._serve(part)
            self._talk(part)
        if identity.is_stopped != was_stopped:
            self._woken.update(self._world.partitions)

    def _read(self) -> None:
        self._read_at = inf
        host = self.host
        host.identity.newest = self.newest
        start = host.read_from()
        if start is None:
            return
        if start < self._trimmed_to:
            reached("cluster: a host needs records that its log has deleted")
            host.lose_records(start, self._trimmed_to)
        else:
            behind = [record for record in self._records if record.seq > start]
            records = behind[: self._world.plan.read_at_once]
            read_to = records[-1].seq if len(records) < len(behind) else self.newest
            host.distribute(
                start,
                records,
                read_to,
                self._mono,
                decided_ms=lambda record: record.at - self.wrong_ms,
            )
        self._woken.update(self._world.partitions)
        if host.read_from() not in (None, start):
            self._read_at = self._world.now + self._random.choice((0.0, 0.05))

    def _serve(self, part: Partition) -> None:
        """Give a partition what it needs of the online set."""
        number = part.number
        if part.wants_list and number not in self._list_at:
            self._list_at[number] = self._ready_at()
            self._lists[number] = self._list(number)
        if self._list_at.get(number, inf) <= self._world.now:
            del self._list_at[number]
            made = self._lists.pop(number)
            if part.wants_list:  # perhaps not for the first time since it was made
                part.give_list(made)
                self._woken.add(number)

    def _ready_at(self) -> float:
        is_slow = self._world.faults.get("slow")
        leases = self._random.choice(SLOW) if is_slow else 0.0
        return self._world.now + leases * self._world.plan.lease_s

    def sessions(self, number: int) -> list[Change]:
        """Those of a partition."""
        rows = self._online.values()
        changes = [self.host.session_of(row, -self.wrong_ms) for row in rows]
        return [change for partition, change in changes if partition == number]

    def _list(self, number: int) -> SessionList:
        rows, made = self.sessions(number), SessionList()
        self._random.shuffle(rows)
        for count, row in enumerate(rows, 1):
            made.add(row)
            if count % self._world.plan.rows == 0:
                made.pack()
        made.pack()
        made.reached = self.newest
        return made

    def _talk(self, part: Partition) -> None:
        """Take the answer of a partition's call, or make its next one."""
        world, number = self._world, part.number
        flight = self._flights.get(number)
        if flight is not None:
            if world.now < flight.until:
                return
            del self._flights[number]
            self._woken.add(number)
            answer = world.answer_to(flight)
            silent_s = self._mono - part.answered_at
            if flight.is_slow and silent_s > world.plan.lease_s / 4:
                self.disturb(world.now)
            is_late = world.now - flight.sent > 2 * TIMEOUT_S  # after a pause
            if answer is None or (is_late and self._random.random() < 0.5):
                part.failed(self._mono)
            elif part.answered(answer, self._mono) == MALFORMED:
                reached("cluster: an answer has lost its end")
            self._read_at = min(self._read_at, world.now)
        if number not in self._woken and self._mono < part.next_at():
            return
        self._woken.discard(number)
        call = part.next_call(self._mono, round(world.now * 1000))
        if call is not None:
            is_cut = world.now < self.cut_until
            self._flights[number] = world.send(number, call, is_cut=is_cut)
