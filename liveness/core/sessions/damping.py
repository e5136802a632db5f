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

A reader must not store a position past an offline that waits (`oldest_seq`), or past the
offline of a move that is not delivered (`Passed.floor`): a restart would lose it. So a
restarted reader reads some records again. It cannot know whether an offline that was in
the log when it began (`doubtful_until`) was passed on before. If that user comes back, it
passes on the online alone, which is right either way.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from liveness.core.records import MOVED, OFFLINE, ONLINE, Record, identity

MOST_SETTLE_S: Final = 600.0

T = TypeVar("T")


class DampedRecord(NamedTuple):
    """The parts of a session's record that a damper needs."""

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
    """Counters of the dampers of one reader, or of several."""

    left_out: int = 0  # records, offlines and onlines
    hurried: int = 0  # offlines passed on early, as too many waited


@dataclass(slots=True)
class SettlingRoom:
    """How many offlines may wait in one damper, or in several together."""

    most: int
    used: int = 0


class _Waiting(NamedTuple, Generic[T]):
    item: T
    record: DampedRecord
    until: int


class Damper(Generic[T]):
    """Decides which records of one reader are passed on, and when.

    Args:
        settle_ms: How long a user must be away.
        room: How many offlines may wait; above it, the oldest is passed on early.
        move: Makes the item of a move from those of an offline and an online.
        wants_moves: Whether the reader wants moves.
        has_gateways: Whether it wants the records of some gateways only. Without moves,
            it would then miss that a user has left them or come to them: so it gets the
            offline and the online.
        doubtful_until: Records up to this seq may have been passed on before.
        counts: The counters.

    An item is a record in the reader's own form.
    """

    def __init__(
        self,
        settle_ms: int,
        *,
        room: SettlingRoom,
        move: Callable[[T, T], T],
        wants_moves: bool = True,
        has_gateways: bool = False,
        doubtful_until: int = 0,
        counts: DampingCounts | None = None,
    ) -> None:
        self.counts = DampingCounts() if counts is None else counts
        self._settle_ms = settle_ms
        self._room = room
        self._move = move
        self._wants_moves = wants_moves
        self._has_gateways = has_gateways
        self._doubtful_until = doubtful_until
        self._waiting = OrderedDict[str, _Waiting[T]]()

    def __len__(self) -> int:
        """How many offlines wait."""
        return len(self._waiting)

    @property
    def oldest_seq(self) -> int | None:
        """The seq of the oldest offline that waits; None if none does."""
        return next((found.record.seq for found in self._waiting.values()), None)

    @property
    def next_at(self) -> int | None:
        """When the oldest settles, by the reader's clock; None if none waits."""
        return next((found.until for found in self._waiting.values()), None)

    def pop_settled(self, now_ms: int) -> Passed[T] | None:
        """The next offline that has settled by now; None if none has.

        *now_ms* is the time of the next record in the log; at the end of the log, the
        moment up to which it is complete.
        """
        if self.next_at is None:
            return None
        most = now_ms + self._settle_ms
        if self.next_at > most:
            # The wall clock was set back between these records, or before they were
            # read: no offline waits for longer than `settle_ms`.
            for user, found in self._waiting.items():
                self._waiting[user] = found._replace(until=min(found.until, most))
        return self.pop_oldest() if self.next_at <= now_ms else None

    def pop_oldest(self) -> Passed[T] | None:
        """Take the oldest offline; None if none waits. A gap may hide returns: pop all."""
        if not self._waiting:
            return None
        self._room.used -= 1
        found = self._waiting.popitem(last=False)[1]
        return Passed(found.item, found.record.seq)

    def add(self, item: T, record: DampedRecord) -> list[Passed[T]]:
        """Take the next record of the log; return the items to pass on now, in order.

        To be called when `pop_settled` has no more for the time of this record.
        """
        before = self._waiting.pop(record.user, None)
        if before is not None:
            self._room.used -= 1
            if record.kind == ONLINE:
                return self._back(before, item, record)
        passed = []
        if before is not None:  # the records between are lost
            passed.append(Passed(before.item, before.record.seq))
        if record.kind != OFFLINE:
            return [*passed, Passed(item, record.seq)]
        until = record.at + self._settle_ms
        self._waiting[record.user] = _Waiting(item, record, until)
        self._room.used += 1
        if self._room.used > self._room.most and (oldest := self.pop_oldest()):
            self.counts.hurried += 1
            passed.append(oldest)
        return passed

    def close(self) -> None:
        """Forget the waiting offlines."""
        self._room.used -= len(self._waiting)
        self._waiting.clear()

    def _back(
        self, before: _Waiting[T], item: T, record: DampedRecord
    ) -> list[Passed[T]]:
        """Take the online of a user with an offline that waits."""
        offline, online = before.record, Passed(item, record.seq)
        is_elsewhere = record.gateway != offline.gateway
        if is_elsewhere and self._wants_moves:
            self.counts.left_out += 2
            return [Passed(self._move(before.item, item), offline.seq)]
        if is_elsewhere and self._has_gateways:
            return [Passed(before.item, offline.seq), online]
        if offline.seq <= self._doubtful_until:
            self.counts.left_out += 1
            return [online]
        self.counts.left_out += 2
        return []


def damped_record(record: Record, *, users: bool, at: int) -> DampedRecord:
    """The parts of a record, of a user or a device, that a damper needs.

    *at* is when it was decided, in milliseconds of the reader's clock.
    """
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
