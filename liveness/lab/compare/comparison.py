"""Matches the offlines that two detectors report: here (the sidecar) and there (the other).

Pure: the caller passes in the offlines of both sides, roughly in order of time.

For each user, the closest two offlines of different sides are paired first, then the
closest two of the rest, and so on, as long as they are within the tolerance. So the result
does not depend on which side was first. An offline between the closest two would be closer
to one of them, so only neighbours in time are compared.

Offlines of a user that follow each other within the tolerance are paired together, when the
tolerance has passed after the last of them. An offline on one side alone counts only if the
other side was watching for the whole tolerance before and after it.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Final, NamedTuple, TypeAlias

from liveness.core.records import LOGOUT, Record, Uid, identity

BOTH: Final = "both"
HERE: Final = "only here"
THERE: Final = "only there"
# The other side was not watching at the time.
NOT_JUDGED: Final = "not judged"
# Logged out here; a detector of silence does not report that.
LOGGED_OUT: Final = "logout"


class Line(NamedTuple):
    """An offline that the other side reported."""

    number: int  # of the line
    at: int  # Unix milliseconds
    uid: Uid


Offline: TypeAlias = Record | Line


class Span(NamedTuple):
    """The period in which a side reports offlines, in Unix milliseconds."""

    begin: float = -inf
    end: float = inf


class Outcome(NamedTuple):
    """The verdict on one offline, or on a pair of them."""

    verdict: str
    here: Record | None
    there: Line | None

    @property
    def later_ms(self) -> int | None:
        """How much later it was reported there; negative: earlier. None: no pair."""
        if self.here is None or self.there is None:
            return None
        return self.there.at - self.here.at


class Comparison:
    """Pairs the offlines of both sides.

    Args:
        within_ms: The tolerance: offlines that are further apart make no pair.
        here: When this side was watching.
        there: When the other side was.
    """

    def __init__(self, within_ms: int, *, here: Span, there: Span) -> None:
        self._within_ms = within_ms
        self._here, self._there = here, there
        # By the identity of a user: its last offlines, in order of time. The user whose
        # offline came last is the last one.
        self._waiting = OrderedDict[str, list[Offline]]()
        self.before = 0  # lines older than the start of this side

    def add(self, offline: Offline) -> Iterator[Outcome]:
        """Yields what is settled when this offline has come: nothing is closer to it."""
        if isinstance(offline, Line) and offline.at < self._here.begin:
            self.before += 1
            return
        waiting, user = self._waiting, identity(offline.uid)
        while waiting and self._is_over(next(iter(waiting.values())), offline.at):
            yield from self._settled(waiting.popitem(last=False)[1])
        # Those of one moment are ordered by side and number, not by arrival.
        insort(
            waiting.setdefault(user, []),
            offline,
            key=lambda each: (each.at, isinstance(each, Line), each[0]),
        )
        waiting.move_to_end(user)

    def finish(self) -> Iterator[Outcome]:
        for run in self._waiting.values():
            yield from self._settled(run)
        self._waiting.clear()

    def _is_over(self, run: list[Offline], at: int) -> bool:
        return at - run[-1].at > self._within_ms

    def _settled(self, run: list[Offline]) -> Iterator[Outcome]:
        for offlines in paired(run, self._within_ms):
            yield self._outcome(offlines)

    def _outcome(self, offlines: Iterable[Offline]) -> Outcome:
        here = next((each for each in offlines if isinstance(each, Record)), None)
        there = next((each for each in offlines if isinstance(each, Line)), None)
        if here is not None and there is not None:
            return Outcome(BOTH, here, there)
        if here is not None and here.reason == LOGOUT:
            return Outcome(LOGGED_OUT, here, there)
        verdict, other = (THERE, self._here) if here is None else (HERE, self._there)
        begin = other.begin + self._within_ms
        end = other.end - self._within_ms
        is_judged = all(begin <= offline.at <= end for offline in offlines)
        return Outcome(verdict if is_judged else NOT_JUDGED, here, there)


def paired(run: Sequence[Offline], within_ms: int) -> Iterator[tuple[Offline, ...]]:
    """Pairs one user's offlines, given in order of time; some stay alone."""
    left, near = {*range(len(run))}, list[tuple[int, int, int]]()
    # The places of the neighbours that are left.
    before, after = [*range(-1, len(run) - 1)], [*range(1, len(run) + 1)]

    def look(i: int, j: int) -> None:
        if (
            i >= 0
            and j < len(run)
            and isinstance(run[i], Line) != isinstance(run[j], Line)
        ):
            heappush(near, (run[j].at - run[i].at, i, j))

    for place in range(1, len(run)):
        look(place - 1, place)
    while near and near[0][0] <= within_ms:
        _, i, j = heappop(near)
        if i in left and j in left:
            yield run[i], run[j]
            left -= {i, j}
            i, j = before[i], after[j]
            if i >= 0 and j < len(run):
                after[i], before[j] = j, i
            look(i, j)
    yield from ((run[place],) for place in sorted(left))
