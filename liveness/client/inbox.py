"""Records from the sidecar, kept until every reader has finished them.

Each reader has a `ReaderQueue`. It finishes a record by taking the next one. A record may
be acknowledged once all readers have finished it and all before it: an ack is one number
and covers everything up to it.

Without a reader, records wait for the first one. A persistent queue outlives its reader
and waits for the next reader of the same records. The sidecar's window, the most records
that may be unacknowledged, bounds all of this. Records of timers never wait for a reader,
because `tasks` keeps the timer itself.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from liveness.core.records import Uid

RecordMap: TypeAlias = Mapping[str, Any]


class End(NamedTuple):
    """A connection that has ended for the sidecar, and that the gateway has to close.

    `conn` is the one that the gateway reported, if any. `reason` is "silence" or
    "gateway_lost", or "moved" if the user has a newer connection, here or elsewhere; later
    versions may add reasons. `record` is the sidecar's record, with its evidence.
    """

    uid: Uid
    conn: int | None
    reason: str
    record: RecordMap


@dataclass(slots=True)
class Arrival:
    """A record that has arrived, with the end that it implies for this gateway."""

    seq: int  # 0 if its log no longer exists; then it needs no ack
    record: RecordMap
    end: End | None  # None once the connection closes before a reader gets this
    waits_for_reader: bool = True
    number: int = 0  # set by the inbox; continues over a new log


class ReaderQueue:
    """The records that one reader has not finished."""

    def __init__(
        self, inbox: "Inbox", wants: Callable[[Arrival], bool], *, persists: bool
    ) -> None:
        self.wants = wants
        self.persists = persists
        self.queued: deque[Arrival] = deque()
        self.current: Arrival | None = None  # taken by the reader, and not finished
        self.opened_after = inbox.count  # arrivals up to this number are not queued
        self._inbox = inbox

    def next(self) -> Arrival | None:
        """Finish the current record; take the next one that is still needed, if any."""
        self.current = None
        while self.queued and self.current is None:
            arrival = self.queued.popleft()
            if self.wants(arrival):
                self.current = arrival
        return self.current

    @property
    def unfinished(self) -> deque[Arrival]:
        """The current record, and those queued behind it."""
        current = () if self.current is None else (self.current,)
        return deque((*current, *self.queued))

    @property
    def finished(self) -> int:
        """The seq up to which this reader has finished all records."""
        firsts = [] if self.current is None else [self.current]
        firsts += [self.queued[0]] if self.queued else []
        lowest = min((first.seq for first in firsts), default=self._inbox.newest + 1)
        return max(lowest - 1, 0)

    def inherit(self, queue: "ReaderQueue") -> None:
        """Put the unfinished records of an older queue in front, except those it has."""
        missing = [
            each for each in queue.unfinished if each.number <= self.opened_after
        ]
        self.queued.extendleft(reversed(missing))
        self.opened_after = min(self.opened_after, queue.opened_after)


class Inbox:
    """The records that have arrived from the current log."""

    def __init__(self) -> None:
        self.newest = 0  # seq
        self.count = 0
        self.duplicates = 0
        # Queues without a reader, and whether it closed them. The garbage collector may add
        # the queue of a dropped iterator in any thread and at any moment; so it is only
        # noted here, and removed later.
        self.abandoned: deque[tuple[ReaderQueue, bool]] = deque()
        self._queues: list[ReaderQueue] = []
        # Queues that wait for a new reader, by their `wants`.
        self._unread: dict[Callable[[Arrival], bool], ReaderQueue] = {}
        self._waiting: deque[Arrival] = deque()  # while there is no queue

    def open_queue(
        self, wants: Callable[[Arrival], bool], *, persists: bool = True
    ) -> ReaderQueue:
        """Open a queue, or take over one of the same records that lost its reader.

        Args:
            wants: Chooses the records.
            persists: Whether records that a reader leaves wait for the next reader.
                They are not acknowledged until then.
        """
        self._clear_abandoned()
        if wants in self._unread:
            return self._unread.pop(wants)
        queue = ReaderQueue(self, wants, persists=persists)
        if not self._queues:
            queue.queued.extend(filter(wants, self._waiting))
            queue.opened_after = 0  # it has all unfinished records
            self._waiting.clear()
        self._queues.append(queue)
        return queue

    def is_new(self, seq: int) -> bool:
        """Whether *seq* arrives for the first time; if not, count a duplicate."""
        self.duplicates += seq <= self.newest
        return seq > self.newest

    def add(self, arrival: Arrival) -> None:
        """Add a record, newer than all before, to each queue that wants it."""
        self._clear_abandoned()
        self.newest = arrival.seq
        self.count += 1
        arrival.number = self.count
        if not self._queues and arrival.waits_for_reader:
            self._waiting.append(arrival)
        for queue in self._queues:
            if queue.wants(arrival):
                queue.queued.append(arrival)

    @property
    def finished(self) -> int:
        """The seq up to which all readers have finished: it may be acknowledged."""
        self._clear_abandoned()
        if self._queues:
            return min(queue.finished for queue in self._queues)
        return max(self._waiting[0].seq - 1, 0) if self._waiting else self.newest

    def begin_log(self) -> None:
        """Count seqs from 0 again, for a new log. Unfinished records stay."""
        self._clear_abandoned()
        self.newest = 0
        for unfinished in (
            self._waiting,
            *(queue.unfinished for queue in self._queues),
        ):
            for arrival in unfinished:
                arrival.seq = 0

    def _clear_abandoned(self) -> None:
        while self.abandoned:
            queue, is_closed = self.abandoned.popleft()
            others = (other for other in self._queues if other is not queue)
            twins = [other for other in others if other.wants is queue.wants]
            if twins and not is_closed:
                twins[0].inherit(queue)
            if twins or is_closed:
                self._queues.remove(queue)
                continue
            queue.queued, queue.current = queue.unfinished, None
            if queue.persists:
                self._unread[queue.wants] = queue
                continue
            self._queues.remove(queue)
            if not self._queues:
                self._waiting.extend(
                    each for each in queue.queued if each.waits_for_reader
                )
