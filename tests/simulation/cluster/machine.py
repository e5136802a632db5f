"""A host: its log, which the simulation writes, and its process around `ClusterHost`."""

from collections.abc import Callable, Iterator
from math import inf
from random import Random
from typing import Final

from liveness.cluster.format import configuration_of
from liveness.core.devices import user_of
from liveness.core.records import MOVED, OFFLINE, ONLINE, OnlineRow, Record, Uid
from liveness.outlets.cluster.host import ClusterHost
from liveness.outlets.cluster.host_state import HostIdentity, HostTerms, nonce_of
from liveness.outlets.cluster.partition import MALFORMED, Partition
from liveness.outlets.cluster.session_changes import Change, Piece, Tally
from tests.simulation.cluster.world import TIMEOUT_S, Flight, World
from tests.simulation.scales import by_scale
from tests.simulation.situations import reached

# How many leases a machine with a slow disk needs for a piece of a list: of some, more
# than one in all.
SLOW: Final = (0.0, 0.3, 0.7)
UIDS: Final = (
    *("ada/phone", "ada/pad", "bob", "eve/x", 7, "7", "kim", "bob/tv"),
    *("ada/tv", "eve/y", "lee", "kim/1"),
)
GATEWAYS: Final = ("g1", "g2")
# A process that is asked so often at one moment goes in circles.
CIRCLES: Final = 300
MOST_WRONG_S: Final = (
    1.6e9  # of a wall clock: back to the seventies, or ahead by as much
)


class Log:
    """A sidecar's log and online set.

    Args:
        name: Its id.
        separator: Of user and device; empty: no devices.
        random: For what happens.
    """

    def __init__(self, name: str, separator: str, random: Random) -> None:
        self.name, self._separator, self._random = name, separator, random
        self.records: list[Record] = []
        self.began: dict[int, float] = {}  # sessions: when, by the clock of the world
        self.trimmed_to = 0  # records up to this seq are gone
        self.newest = 0
        self.online: dict[str, OnlineRow] = {}  # by the text of the uid

    def happen(self, uid: Uid, at_ms: int, now: float) -> None:
        """A user comes, moves or goes."""
        random = self._random
        self.began[self.newest + 1] = self.began[self.newest + 2] = now
        self.newest += random.choice((1, 1, 2))  # there are records of timers too
        have, gateway = self.online.get(str(uid)), random.choice(GATEWAYS)
        moves = have and have.gateway != gateway and random.random() < 0.4
        if have is None or moves:
            kind, session, reason = MOVED if have else ONLINE, self.newest, "login"
            self.online[str(uid)] = OnlineRow(session, uid, at_ms, None, gateway, None)
        else:
            del self.online[str(uid)]
            kind, reason = OFFLINE, random.choice(("silence", "logout"))
            uid, gateway, session = have.uid, have.gateway, have.session
        size = devices = None
        if self._separator:
            user = user_of(uid, self._separator)
            size = len(str(user)) if user != uid else 0
            users = [str(user_of(it, self._separator)) for it in self.online]
            devices = users.count(str(user))
        before = have if moves else None
        # Logs of an early schema do not tell which session was left.
        is_old = random.random() < 0.05
        self.records.append(
            Record(
                *(self.newest, kind, uid, gateway, session, None, reason, at_ms),
                from_gateway=before.gateway if before else None,
                from_session=before.session if before and not is_old else None,
                user_size=size,
                devices=devices,
            )
        )

    def trim(self) -> None:
        """Its oldest records are deleted."""
        count = self._random.randrange(len(self.records) + 1)
        self.records = self.records[count:]
        first = self.records[0].seq if self.records else self.newest + 1
        self.trimmed_to = first - 1


class Process:
    """A sidecar's process, as far as it publishes.

    Args:
        world: Where it lives.
        machine: Its host.
    """

    def __init__(self, world: World, machine: "Machine") -> None:
        self._world, self._log, self._random = world, machine.log, world.random
        self._machine = machine
        self._clock_s, separator, plan = machine.clock_s, machine.separator, world.plan
        self._booted = world.now - self._random.random() * 1e5
        terms = HostTerms(
            name=machine.name,
            log=self._log.name,
            lease_s=plan.lease_s,
            linger_s=plan.linger_s,
            keep_s=plan.keep_s,
            configuration=configuration_of(plan.partitions, separator),
        )
        identity = HostIdentity(
            terms,
            nonce=nonce_of(self.wall_ms, self._random),
            epoch=self.wall_ms,
            random=self._random,
            on_fenced=machine.on_fenced,
        )
        self.host = ClusterHost(
            identity,
            partitions=plan.partitions,
            separator=separator,
            limits=plan.limits,
        )
        self._flights: dict[int, Flight] = {}
        self._lists: dict[int, tuple[int, Iterator[Piece]]] = {}
        self._piece_at: dict[int, float] = {}  # partitions that wait for one
        self._woken = set(world.partitions)
        self.read_at = world.now
        self._asked = (0.0, 0)  # when last, and how often at that moment

    @property
    def wall_ms(self) -> int:
        """Its wall clock."""
        return self._world.now_ms + self.wrong_ms

    @property
    def wrong_ms(self) -> int:
        """By how much that is wrong."""
        return round(self._clock_s * 1000)

    @property
    def _mono(self) -> float:
        return self._world.now - self._booted

    def next_at(self) -> float:
        """When there is something to do, by the clock of the world."""
        if self._woken - self._flights.keys():
            return self._world.now
        times = [self.read_at, *self._piece_at.values()]
        times += [flight.until for flight in self._flights.values()]
        times += [
            part.next_at() + self._booted + 1e-6
            for part in self.host.partitions
            if part.number not in self._flights
        ]
        return min(times)

    def go(self) -> None:
        """Do what there is to do now."""
        now = self._world.now
        at, times = self._asked
        self._asked = now, times + 1 if at == now else 0
        if self._asked[1] > CIRCLES:
            raise AssertionError(f"{self._machine.name} goes in circles")
        identity = self.host.identity
        was_stopped = identity.is_stopped
        if now >= self.read_at:
            self._read()
        for part in self.host.partitions:
            self._serve(part)
            self._talk(part)
        if identity.is_stopped != was_stopped:
            self._woken.update(self._world.partitions)

    def _read(self) -> None:
        self.read_at = inf
        log, host = self._log, self.host
        host.identity.newest = log.newest
        start = host.read_from()
        if start is None:
            return
        if start < log.trimmed_to:
            reached("cluster: a host needs records that its log has deleted")
            host.lose_records(start, log.trimmed_to)
        else:
            behind = [record for record in log.records if record.seq > start]
            records = behind[: self._world.plan.read_at_once]
            read_to = records[-1].seq if len(records) < len(behind) else log.newest
            host.distribute(
                start,
                records,
                read_to,
                self._mono,
                decided_ms=lambda record: record.at - self.wrong_ms,
            )
        self._woken.update(self._world.partitions)
        if host.read_from() not in (None, start):
            self.read_at = self._world.now + self._random.choice((0.0, 0.05))

    def _serve(self, part: Partition) -> None:
        """Give a partition what it needs of the online set."""
        number = part.number
        if part.wants_tally and self._random.random() < 0.5:
            part.tally = self._tally(self._rows(number))
        if part.wants_list:
            self._lists[number] = part.lists, self._pieces(self._rows(number))
        wanted, pieces = self._lists.get(number, (0, iter(())))
        if not part.wants_piece or wanted != part.lists:
            self._piece_at.pop(number, None)
        elif self._piece_at.setdefault(number, self._ready_at()) <= self._world.now:
            del self._piece_at[number]
            part.give_piece(next(pieces))
            self._woken.add(number)

    def _ready_at(self) -> float:
        is_slow = self._world.faults.get("slow")
        leases = self._random.choice(SLOW) if is_slow else 0.0
        return self._world.now + leases * self._world.plan.lease_s

    def _rows(self, number: int) -> list[Change]:
        online, wrong_ms = self._log.online.values(), self.wrong_ms
        rows = [self.host.session_of(row, -wrong_ms) for row in online]
        mine = [change for partition, change in rows if partition == number]
        self._random.shuffle(mine)
        return mine

    def _pieces(self, rows: list[Change]) -> Iterator[Piece]:
        tally = self._tally(rows)
        seq = tally.reached
        count, size = max(len(rows), 1), self._world.plan.rows
        return iter(
            [
                Piece(rows[at : at + size], seq, tally if at + size >= count else None)
                for at in range(0, count, size)
            ]
        )

    def _tally(self, rows: list[Change]) -> Tally:
        tally = Tally(self._log.newest)
        for change in rows:
            tally.begin(change.session)
        return tally

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
                self._machine.disturb(world.now)
            is_late = world.now - flight.sent > 2 * TIMEOUT_S  # after a pause
            if answer is None or (is_late and self._random.random() < 0.5):
                part.failed(self._mono)
            elif part.answered(answer, self._mono) == MALFORMED:
                reached("cluster: an answer has lost its end")
            self.read_at = min(self.read_at, world.now)
        if number not in self._woken and self._mono < part.next_at():
            return
        self._woken.discard(number)
        call = part.next_call(self._mono, self._world.now_ms)
        if call is not None:
            is_cut = world.now < self._machine.cut_until
            self._flights[number] = world.send(number, call, is_cut=is_cut)


class Machine:
    """A host with its log and its process, and what befalls it.

    Args:
        name: Of the host.
        world: Where it lives.
        separator: Of user and device; empty: no devices.
        on_fenced: Called with a host that it declared lost, and the partition.
    """

    def __init__(
        self,
        name: str,
        world: World,
        separator: str,
        on_fenced: Callable[[bytes, int], None],
    ) -> None:
        self.name, self.world, self.separator = name, world, separator
        self.on_fenced = on_fenced
        self.is_alive = True
        self.paused_until = self.cut_until = 0.0
        self.disturbed_until = 0.0  # something befell it until then
        self.starts = list[float]()  # when its processes started
        self.clock_set_at = 0.0  # of older sessions it does not know when they began
        self.clock_s = world.random.choice((0.0, -5.0, 7.0))
        self.lose_log()

    def lose_log(self) -> None:
        """Its state is lost: it starts with an empty log."""
        random = self.world.random
        name = f"{self.name}-{random.getrandbits(32):x}"
        self.log = Log(name, self.separator, random)
        self.restart()

    def restart(self) -> None:
        """A new process on its log; its wall clock may have been set meanwhile."""
        self.set_clock()
        self.process = Process(self.world, self)
        self.starts.append(self.world.now)
        self.disturb(self.world.now)

    def set_clock(self) -> None:
        """Its wall clock is set, or is wrong at boot."""
        random = self.world.random
        if self.world.faults.get("clock") and random.random() < 0.6:
            wrong_s = by_scale(random, 0.001, MOST_WRONG_S)
            self.clock_s = random.choice((-1, 1)) * wrong_s
            self.clock_set_at = self.world.now

    def disturb(self, until: float) -> float:
        """Something befalls it, until then; returns that."""
        self.disturbed_until = max(self.disturbed_until, until)
        return until

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.is_alive and self.world.now >= self.paused_until

    def next_at(self) -> float:
        """When its process has something to do."""
        return max(self.process.next_at(), self.paused_until)

    def happen(self) -> None:
        """A user of it comes, moves or goes."""
        random, process = self.world.random, self.process
        uid = random.choice(UIDS[: self.world.plan.users])
        self.log.happen(uid, process.wall_ms, self.world.now)
        wait = random.choice((0.0, 0.01, 0.3))
        process.read_at = min(process.read_at, self.world.now + wait)
