"""Records that have come, until every reader has finished with them.

Each reader, a `View`, has a queue of its own and finishes a record by asking for the
next one. What all of them have finished may be acknowledged: one number, as the ack is
cumulative. What comes while nobody reads waits for the first who does, and a view that
lasts waits for the next reader who wants the same. All this is bounded by the sidecar,
which sends no more than its window unacknowledged. A timer's record waits for nobody:
the timer itself lies in `tasks`.
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
    waits: bool = True  # for the first reader, if there is none yet
    number: int = 0  # counted by the inbox, over all logs


class View:
    """One reader's queue; one that lasts outlives its reader."""

    def __init__(
        self, inbox: "Inbox", wants: Callable[[Arrival], bool], *, lasts: bool
    ) -> None:
        self.wants = wants
        self.lasts = lasts
        self.queue: deque[Arrival] = deque()
        self.in_hand: Arrival | None = None
        self.behind = inbox.count  # it was given what came after that many
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
        firsts = [] if self.in_hand is None else [self.in_hand]
        firsts += [self.queue[0]] if self.queue else []
        lowest = min((first.seq for first in firsts), default=self._inbox.seen + 1)
        return max(lowest - 1, 0)

    def take_over(self, view: "View") -> None:
        """Put in front what *view* has not finished and this was never given."""
        missing = [one for one in view.unfinished if one.number <= self.behind]
        self.queue.extendleft(reversed(missing))
        self.behind = min(self.behind, view.behind)


class Inbox:
    """What has come in on this log."""

    def __init__(self) -> None:
        self.seen = 0  # the newest seq
        self.count = 0
        self.duplicates = 0
        # Views whose reader left, and whether for good. Whoever adds one may be anywhere,
        # in any thread: it is the garbage collector that notices a loop that was left.
        self.left: deque[tuple[View, bool]] = deque()
        self._views: list[View] = []
        self._paused: dict[Callable[[Arrival], bool], View] = {}  # of them, by `wants`
        self._waiting: deque[Arrival] = deque()  # while there is no view

    def view(self, wants: Callable[[Arrival], bool], *, lasts: bool = True) -> View:
        """Open a view, or go on with one that was left; the first gets what came before.

        Args:
            wants: Which records it is for.
            lasts: Whether nothing of it may be lost between two readers. What is not read
                then is not acknowledged either.
        """
        self._settle_left()
        if wants in self._paused:
            return self._paused.pop(wants)
        view = View(self, wants, lasts=lasts)
        if not self._views:
            view.queue.extend(filter(wants, self._waiting))
            view.behind = 0  # whatever is unfinished
            self._waiting.clear()
        self._views.append(view)
        return view

    def is_new(self, seq: int) -> bool:
        """Whether *seq* has not come before; counts it if it has."""
        self.duplicates += seq <= self.seen
        return seq > self.seen

    def add(self, arrival: Arrival) -> None:
        """Put a record, newer than all before, into each queue that is for it."""
        self._settle_left()
        self.seen = arrival.seq
        self.count += 1
        arrival.number = self.count
        if not self._views and arrival.waits:
            self._waiting.append(arrival)
        for view in self._views:
            if view.wants(arrival):
                view.queue.append(arrival)

    @property
    def finished(self) -> int:
        """Up to which seq every view has finished: what may be acknowledged."""
        self._settle_left()
        if self._views:
            return min(view.finished for view in self._views)
        return max(self._waiting[0].seq - 1, 0) if self._waiting else self.seen

    def new_log(self) -> None:
        """Begin again at 0. What was not finished still has to be."""
        self._settle_left()
        self.seen = 0
        for unfinished in (self._waiting, *(view.unfinished for view in self._views)):
            for arrival in unfinished:
                arrival.seq = 0

    def _settle_left(self) -> None:
        while self.left:
            view, is_for_good = self.left.popleft()
            others = (one for one in self._views if one is not view)
            twins = [one for one in others if one.wants is view.wants]
            if twins and not is_for_good:
                twins[0].take_over(view)
            if twins or is_for_good:
                self._views.remove(view)
                continue
            view.queue, view.in_hand = view.unfinished, None
            if view.lasts:
                self._paused[view.wants] = view
                continue
            self._views.remove(view)
            if not self._views:
                self._waiting.extend(one for one in view.queue if one.waits)
