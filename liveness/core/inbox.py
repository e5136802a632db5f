"""Records that have come, until every reader has finished with them.

Each reader, a `View`, has a queue of its own and finishes a record by asking for the
next one. What all of them have finished may be acknowledged: one number, as the ack is
cumulative. Records that come while nobody reads wait for the first who does. All this
is bounded by the sidecar, which sends no more than its window unacknowledged.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from liveness.core.records import Uid

RecordMap: TypeAlias = Mapping[str, Any]


class End(NamedTuple):
    """A connection of this gateway's that has ended: it is to be closed.

    `conn` is as it was reported, None if it was reported without one. `reason` is
    "silence" or "gateway_lost", or "moved" where the user is on a newer connection, here
    or elsewhere; later versions may know more. `record` is what the sidecar wrote, with
    its evidence.
    """

    uid: Uid
    conn: int | None
    reason: str
    record: RecordMap


@dataclass(slots=True)
class Arrival:
    """A record, and the end that it is for this gateway."""

    seq: int  # 0: of a log that is no more; nobody asks for its ack
    record: RecordMap
    end: End | None  # may be taken back until it is handed over


class View:
    """One reader's queue."""

    def __init__(self, inbox: "Inbox", wants: Callable[[Arrival], bool]) -> None:
        self.wants = wants
        self.queue: deque[Arrival] = deque()
        self.in_hand: Arrival | None = None
        self._inbox = inbox

    def next(self) -> Arrival | None:
        """Finish the record in hand; take the next one that is still wanted, if any."""
        self.in_hand = None
        while self.queue and self.in_hand is None:
            arrival = self.queue.popleft()
            if self.wants(arrival):
                self.in_hand = arrival
        return self.in_hand

    @property
    def unfinished(self) -> deque[Arrival]:
        """What this reader has not finished, the record in hand first."""
        in_hand = () if self.in_hand is None else (self.in_hand,)
        return deque((*in_hand, *self.queue))

    @property
    def finished(self) -> int:
        """Up to which seq this reader has finished."""
        first = self.in_hand or (self.queue[0] if self.queue else None)
        return self._inbox.seen if first is None else max(first.seq - 1, 0)


class Inbox:
    """What has come in on this log."""

    def __init__(self) -> None:
        self.seen = 0  # the newest seq
        self.duplicates = 0
        # Views that were given up. Whoever adds to it may be anywhere, in any thread: it
        # is the garbage collector that notices a loop that was left.
        self.left: deque[View] = deque()
        self._views: list[View] = []
        self._waiting: deque[Arrival] = deque()  # while there is no view

    def view(self, wants: Callable[[Arrival], bool]) -> View:
        """Open a view; the first one also gets what has come before."""
        self._drop_left()
        view = View(self, wants)
        if not self._views:
            view.queue.extend(filter(wants, self._waiting))
            self._waiting.clear()
        self._views.append(view)
        return view

    def is_new(self, seq: int) -> bool:
        """Whether *seq* has not come before; counts it if it has."""
        self.duplicates += seq <= self.seen
        return seq > self.seen

    def add(self, arrival: Arrival) -> None:
        """Put a record, newer than all before, into each queue that is for it."""
        self._drop_left()
        self.seen = arrival.seq
        if not self._views:
            self._waiting.append(arrival)
        for view in self._views:
            if view.wants(arrival):
                view.queue.append(arrival)

    @property
    def finished(self) -> int:
        """Up to which seq every view has finished: what may be acknowledged."""
        self._drop_left()
        if self._views:
            return min(view.finished for view in self._views)
        return max(self._waiting[0].seq - 1, 0) if self._waiting else self.seen

    def new_log(self) -> None:
        """Begin again at 0. What was not finished still has to be."""
        self._drop_left()
        self.seen = 0
        for unfinished in (self._waiting, *(view.unfinished for view in self._views)):
            for arrival in unfinished:
                arrival.seq = 0

    def _drop_left(self) -> None:
        while self.left:
            view = self.left.popleft()
            self._views.remove(view)
            if not self._views:
                self._waiting = view.unfinished

