"""Leaves out the offlines of users who come back within a moment.

A phone in a tunnel loses its connection and makes a new one. Both records are right, but
a friends' list that shows both flickers. A `Damper` passes an offline on when the user
has been away for `settle_ms`. If the user is back before that, neither the offline nor
the online is passed on; after a return through another gateway, a move replaces both.

    records      offline ada g1 . online ada g1 . . . offline bob g1 . . . . . . . . . .
    passed on    . . . . . . . . . . . . . . . . . . . . . . . . . . . . . offline bob g1

Only offlines wait. So records of different users may change places; those of one user
never do. An offline waits until the log was read up to a moment `settle_ms` after it: a
reader that is far behind leaves out the same records as one that follows.

A reader must not store a position past an offline that waits (`Damper.position`), or past
the offline of a move that is not delivered (`Passed.floor`): a restart would lose it. So a
restarted reader reads some records again. It cannot know whether an offline that was in
the log when it began (`doubtful_until`) was passed on before. If that user comes back, it
passes on the online alone, which is right either way.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from liveness.core.records import (
    GAP,
    MOVED,
    OFFLINE,
    ONLINE,
    SESSION_KINDS,
    Gap,
    Logged,
    Record,
    identity,
)

MOST_SETTLE_S: Final = 600.0
# A call of `take` looks at this many records for each one that it may return: so it takes
# only milliseconds, however few are wanted.
STEPS: Final = 4

T = TypeVar("T")


class DampedRecord(NamedTuple):
    """The parts of a record that a damper needs; a gap has its last seq."""

    seq: int
    kind: str
    user: str  # the identity of the user or the device that the record is about
    gateway: str
    at: int  # milliseconds of the reader's clock


class Passed(NamedTuple, Generic[T]):
    """An item passed on. Until it is delivered, the position stays below *floor*."""

    item: T
    floor: int


@dataclass(slots=True)
class DampingCounts:
    """What one damper, or several with one bound, have done, and how much waits."""

    most: int = 0  # offlines that may wait
    waiting: int = 0
    left_out: int = 0  # records, offlines and onlines
    hurried: int = 0  # offlines passed on early, as too many waited


class Damper(Generic[T]):
    """Decides which records of one reader are passed on, and when.

    The reader gives it all records of sessions in the order of the log (`put`), says at the
    end of the log up to which moment that is complete (`complete`), and takes what is
    passed on (`take`).

    Args:
        settle_ms: How long a user must be away.
        counts: The bound of the offlines that may wait, above which the oldest is passed
            on early; and the counters.
        move: Makes the item of a move from those of an offline and an online.
        wants: Whether the reader wants an item that is passed on.
        wants_moves: Whether the reader wants moves.
        has_gateways: Whether it wants the records of some gateways only. Without moves,
            it would then miss that a user has left them or come to them: so it gets the
            offline and the online.
        doubtful_until: Records up to this seq may have been passed on before.

    An item is a record in the reader's own form.
    """

    def __init__(
        self,
        settle_ms: int,
        *,
        counts: DampingCounts,
        move: Callable[[T, T], T],
        wants: Callable[[T], bool],
        wants_moves: bool = True,
        has_gateways: bool = False,
        doubtful_until: int = 0,
    ) -> None:
        self._settle_ms = settle_ms
        self._counts = counts
        self._move = move
        self._wants = wants
        self._wants_moves = wants_moves
        self._has_gateways = has_gateways
        self._doubtful_until = doubtful_until
        self._read = deque[tuple[T, DampedRecord]]()
        self._waiting = OrderedDict[str, tuple[T, DampedRecord]]()  # by user
        self._passed = deque[Passed[T]]()  # and not taken yet
        self._complete_until: float = -inf

    def __len__(self) -> int:
        """How many offlines wait."""
        return len(self._waiting)

    @property
    def position(self) -> int | None:
        """All records up to this seq were taken or left out; None: all were."""
        seqs = [passed.floor for passed in self._passed]
        if self._read:
            seqs.append(self._read[0][1].seq)
        if self._waiting:
            seqs.append(next(iter(self._waiting.values()))[1].seq)
        return min(seqs) - 1 if seqs else None

    @property
    def next_at(self) -> int | None:
        """When the oldest settles, by the reader's clock; None if none waits."""
        waiting = self._waiting.values()
        return next((record.at + self._settle_ms for _, record in waiting), None)

    @property
    def is_busy(self) -> bool:
        """Whether it was given records that it has not looked at, or not passed on."""
        return bool(self._read or self._passed)

    @property
    def has_more(self) -> bool:
        """Whether `take` has something to do."""
        next_at = self.next_at
        return self.is_busy or (next_at is not None and next_at <= self._complete_until)

    def put(self, item: T, record: DampedRecord) -> None:
        """Add the next record of the log."""
        self._read.append((item, record))
        self._complete_until = -inf

    def complete(self, until_ms: float) -> None:
        """Note that all records decided before a moment were given."""
        self._complete_until = until_ms

    def take(self, limit: float = inf) -> list[Passed[T]]:
        """Take the next items, at most *limit*, whose work is bounded by that.

        So it may return none although it `has_more`.
        """
        taken: list[Passed[T]] = []
        steps = 0
        while len(taken) < limit and steps < STEPS * limit:
            steps += 1
            if self._passed:
                passed = self._passed.popleft()
                if self._wants(passed.item):
                    taken.append(passed)
            elif not self._step():
                break
        return taken

    def flush(self) -> list[Passed[T]]:
        """Take all that waits, however long, as at the end of a log."""
        while self._waiting:
            self._passed.append(self._pop_oldest())
        return self.take()

    def close(self) -> None:
        """Forget the waiting offlines."""
        self._counts.waiting -= len(self._waiting)
        self._waiting.clear()

    def _step(self) -> bool:
        """Pass on the next offline that has settled, or look at the next record.

        Returns:
            Whether there was either.
        """
        if not self._read:
            has_settled = self._has_settled(self._complete_until)
            if has_settled:
                self._passed.append(self._pop_oldest())
            return has_settled
        item, record = self._read[0]
        # A gap may hide returns.
        if self._waiting and (record.kind == GAP or self._has_settled(record.at)):
            self._passed.append(self._pop_oldest())
        else:
            self._read.popleft()
            self._passed.extend(self._add(item, record))
        return True

    def _has_settled(self, now_ms: float) -> bool:
        """Whether the oldest offline that waits has settled by now.

        *now_ms* is the time of the next record in the log; at the end of the log, the
        moment up to which it is complete.
        """
        if self.next_at is None or now_ms == -inf:
            return False
        now_ms = int(now_ms)
        if self.next_at > now_ms + self._settle_ms:
            # The wall clock was set back between these records, or before they were
            # read: no offline waits for longer than `settle_ms`.
            for user, (item, record) in self._waiting.items():
                sooner = record._replace(at=min(record.at, now_ms))
                self._waiting[user] = item, sooner
        return self.next_at <= now_ms

    def _pop_oldest(self) -> Passed[T]:
        self._counts.waiting -= 1
        item, record = self._waiting.popitem(last=False)[1]
        return Passed(item, record.seq)

    def _add(self, item: T, record: DampedRecord) -> list[Passed[T]]:
        """Look at the next record; return the items to pass on now, in order."""
        if record.kind not in SESSION_KINDS:
            return [Passed(item, record.seq)]
        before = self._waiting.pop(record.user, None)
        passed = []
        if before is not None:
            self._counts.waiting -= 1
            if record.kind == ONLINE:
                return self._back(*before, item, record)
            # The records between are lost.
            passed.append(Passed(before[0], before[1].seq))
        if record.kind != OFFLINE:
            return [*passed, Passed(item, record.seq)]
        self._waiting[record.user] = item, record
        self._counts.waiting += 1
        if self._counts.waiting > self._counts.most:
            self._counts.hurried += 1
            passed.append(self._pop_oldest())
        return passed

    def _back(
        self, before: T, offline: DampedRecord, item: T, record: DampedRecord
    ) -> list[Passed[T]]:
        """Take the online of a user with an offline that waits."""
        online = Passed(item, record.seq)
        is_elsewhere = record.gateway != offline.gateway
        if is_elsewhere and self._wants_moves:
            self._counts.left_out += 2
            return [Passed(self._move(before, item), offline.seq)]
        if is_elsewhere and self._has_gateways:
            return [Passed(before, offline.seq), online]
        if offline.seq <= self._doubtful_until:
            self._counts.left_out += 1
            return [online]
        self._counts.left_out += 2
        return []


def damped_record(record: Logged | Gap, *, users: bool, at: int) -> DampedRecord:
    """The parts of a record, of a user or a device, that a damper needs.

    *at* is when it was decided, in milliseconds of the reader's clock.
    """
    if not isinstance(record, Record):
        return DampedRecord(record.seq, record.kind, "", "", at)
    user = record.user if users else record.uid
    return DampedRecord(record.seq, record.kind, identity(user), record.gateway, at)


def moved(offline: Record, online: Record) -> Record:
    """The move that replaces an offline and an online.

    It has the seq and the time of the online.
    """
    return Record(
        online.seq,
        MOVED,
        online.uid,
        online.gateway,
        online.session,
        online.conn,
        online.reason,
        online.at,
        from_gateway=offline.gateway,
        from_session=offline.session,
        from_conn=offline.conn,
        user_size=online.user_size,
        devices=online.devices,
    )
