"""Leaves out the offlines of users who come back within a moment.

A phone in a tunnel loses its connection and makes a new one. Its gateway decided well both
times, but a friends' list that shows both flickers. A `Damper` passes an offline on when
the user has been away for `settle_ms`. If the user is back before that, neither the offline
nor the online is passed on; if through another gateway, a move takes their place.

    records      offline ada g1 . online ada g1 . . . offline bob g1 . . . . . . . . . .
    passed on    . . . . . . . . . . . . . . . . . . . . . . . . . . . . . offline bob g1

Only offlines wait. So records of different users may record places; those of one user
never do. An offline waits until the log was read up to a moment `settle_ms` after it: a
reader that is far behind leaves out the same records as one that follows.

A reader must not store a position behind an offline that waits (`oldest_seq`): after a
restart the offline would be lost. So a restarted reader reads again what it may have passed
on before. Of an offline that was in the log when it began (`doubtful_until`), it does not
know whether that was passed on before. If its user comes back, the online is passed on
alone, which is right either way.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from liveness.core.records import MOVED, OFFLINE, ONLINE, Record

MOST_SETTLE_S: Final = 600.0

T = TypeVar("T")


class DampedRecord(NamedTuple):
    """What a damper has to know of a record of a session."""

    seq: int
    kind: str
    user: Hashable  # whom the record is about: a user, or a device
    gateway: str
    at: int  # Unix milliseconds


@dataclass(slots=True)
class DampingCounts:
    """What the dampers of one reader, or of several, did."""

    left_out: int = 0  # records, offlines and onlines
    hurried: int = 0  # offlines that were passed on early, as too many waited


class _Waiting(NamedTuple, Generic[T]):
    item: T
    record: DampedRecord
    until: int


class Damper(Generic[T]):
    """Decides which records of one reader are passed on, and when.

    Args:
        settle_ms: How long a user must be away.
        most: Offlines that may wait; above it, the oldest is passed on early.
        move: Makes what is passed on of a user who is back through another gateway, from
            the items of the offline and the online: a move. None: nothing is.
        doubtful_until: Records up to this seq may have been passed on before.
        counts: What is counted.

    An item is whatever the reader has of a record.
    """

    def __init__(
        self,
        settle_ms: int,
        *,
        most: int,
        move: Callable[[T, T], Iterable[T]] | None,
        doubtful_until: int = 0,
        counts: DampingCounts | None = None,
    ) -> None:
        self.counts = DampingCounts() if counts is None else counts
        self._settle_ms = settle_ms
        self._most = most
        self._move = move
        self._doubtful_until = doubtful_until
        self._waiting = OrderedDict[Hashable, _Waiting[T]]()

    def __len__(self) -> int:
        """How many offlines wait."""
        return len(self._waiting)

    @property
    def oldest_seq(self) -> int | None:
        """The seq of the oldest offline that waits; None if none does."""
        return next((found.record.seq for found in self._waiting.values()), None)

    @property
    def next_at(self) -> int | None:
        """When to call `read_until` again, in Unix milliseconds; None if none waits."""
        return next((found.until for found in self._waiting.values()), None)

    def add(self, item: T, record: DampedRecord) -> Iterator[T]:
        """Take the next record of the log; yield what is passed on now, in order.

        The iterator must be used up before the next call.
        """
        yield from self._settled(record.at)
        before = self._waiting.pop(record.user, None)
        if before is not None and record.kind == ONLINE:
            yield from self._back(before, item, record)
            return
        if before is not None:  # the records between are lost
            yield before.item
        if record.kind != OFFLINE:
            yield item
            return
        until = record.at + self._settle_ms
        self._waiting[record.user] = _Waiting(item, record, until)
        if len(self._waiting) > self._most:
            self.counts.hurried += 1
            yield self._pop_oldest()

    def read_until(self, wall_ms: int) -> Iterator[T]:
        """Note that the log has no more records now; yield what is passed on, in order.

        Args:
            wall_ms: Now, in Unix milliseconds.
        """
        most = wall_ms + self._settle_ms
        if (self.next_at or 0) > most:
            # The wall clock was set back: nobody waits for longer than `settle_ms`.
            for user, found in self._waiting.items():
                self._waiting[user] = found._replace(until=min(found.until, most))
        yield from self._settled(wall_ms)

    def flush(self) -> Iterator[T]:
        """Yield all that waits, in order: for a gap, in which users may have come back."""
        while self._waiting:
            yield self._pop_oldest()

    def _back(self, before: _Waiting[T], item: T, record: DampedRecord) -> Iterator[T]:
        """A user is back whose offline waits."""
        if before.record.seq <= self._doubtful_until:
            self.counts.left_out += 1
            yield item
            return
        self.counts.left_out += 2
        if self._move is not None and record.gateway != before.record.gateway:
            yield from self._move(before.item, item)

    def _settled(self, now_ms: int) -> Iterator[T]:
        while self._waiting and next(iter(self._waiting.values())).until <= now_ms:
            yield self._pop_oldest()

    def _pop_oldest(self) -> T:
        return self._waiting.popitem(last=False)[1].item


def damped_record(record: Record, *, users: bool) -> DampedRecord:
    """What a damper has to know of a record; *users*: it speaks of users, not devices."""
    user = record.user if users else record.uid
    return DampedRecord(record.seq, record.kind, user, record.gateway, record.at)


def moved(offline: Record, online: Record) -> Record:
    """The move of a user whose offline and online were left out.

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
