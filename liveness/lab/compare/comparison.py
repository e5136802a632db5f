"""Matches the offlines that two detectors report: here (the sidecar) and there (the other).

Pure: the caller passes in the offlines of both sides as they arrive, and the current time.
`Comparison` returns each offline once it is settled.

For each user, the closest two offlines of different sides are paired first, then the
closest two of the rest, and so on, as long as they are within the tolerance. So the result
does not depend on the order of arrival, or on which side was first. An offline between the
closest two would be closer to one of them, so only neighbours in time are compared, and two
neighbours can be paired as soon as neither is closer to its other neighbour.

An offline is settled when no closer one can arrive any more: after twice the tolerance, as
lines may be written late. An offline on one side alone counts only if the other side was
watching for the whole tolerance before and after it.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import Final, NamedTuple, TypeAlias

from liveness.core.records import LOGOUT, Record, Uid, identity

# 0.8 GB, for a million users who go offline at once on both sides. Above this number the
# oldest are settled early, and counted.
MOST_PENDING: Final = 2_000_000
# A user who goes offline again and again within the tolerance would never be settled. So
# offlines older than this many tolerances are settled up to the widest gap.
LONGEST_RUN: Final = 10

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
        # By the identity of a user: its offlines, in order of time.
        self._waiting: dict[str, list[Offline]] = {}
        # A heap of moments with their users. Some offlines are settled before their turn.
        self._moments: list[tuple[int, str]] = []
        self.pending = 0
        self.before = 0  # lines older than the start of this side
        self.hurried = 0  # offlines settled early, because too many were waiting

    def add(self, offline: Offline) -> None:
        if isinstance(offline, Line) and offline.at < self._here.begin:
            self.before += 1
            return
        user = identity(offline.uid)
        # Those of one moment are ordered by side and number, not by arrival.
        insort(
            self._waiting.setdefault(user, []),
            offline,
            key=lambda each: (each.at, isinstance(each, Line), each[0]),
        )
        heappush(self._moments, (offline.at, user))
        self.pending += 1

    def settle(self, now: float) -> Iterator[Outcome]:
        """Yields what is settled at *now* (Unix milliseconds), roughly in order of time."""
        return self._settle(now - 2 * self._within_ms, now)

    def finish(self, now: float) -> Iterator[Outcome]:
        """Settles everything that is waiting; neither side reports anything after *now*."""
        return self._settle(inf, now)

    # --- internals ------------------------------------------------------------

    def _settle(self, upto: float, now: float) -> Iterator[Outcome]:
        moments = self._moments
        while moments and (moments[0][0] < upto or self.pending > MOST_PENDING):
            at, user = heappop(moments)
            waiting = self._waiting.get(user, [])
            if at < upto:
                count = self._settled(waiting, at)
            else:
                count = len(waiting)
                self.hurried += count
            for offlines in paired(waiting[:count], self._within_ms):
                yield self._outcome(offlines, now)
            self.pending -= count
            del waiting[:count]
            if not waiting:
                self._waiting.pop(user, None)

    def _settled(self, waiting: list[Offline], at: int) -> int:
        """How many of a user's offlines are settled once all up to *at* have arrived."""
        count = bisect_right(waiting, at, key=lambda offline: offline.at)
        if count == len(waiting) or waiting[count].at - at > self._within_ms:
            return count
        if not count or at - waiting[0].at <= LONGEST_RUN * self._within_ms:
            return 0  # the next offline may make a pair with one of these
        return max(
            range(1, count + 1), key=lambda n: (waiting[n].at - waiting[n - 1].at, n)
        )

    def _outcome(self, offlines: Iterable[Offline], now: float) -> Outcome:
        here = next((each for each in offlines if isinstance(each, Record)), None)
        there = next((each for each in offlines if isinstance(each, Line)), None)
        if here is not None and there is not None:
            return Outcome(BOTH, here, there)
        if here is not None and here.reason == LOGOUT:
            return Outcome(LOGGED_OUT, here, there)
        verdict, other = (THERE, self._here) if here is None else (HERE, self._there)
        begin = other.begin + self._within_ms
        end = min(other.end, now) - self._within_ms
        is_judged = all(begin <= offline.at <= end for offline in offlines)
        return Outcome(verdict if is_judged else NOT_JUDGED, here, there)


def paired(run: Iterable[Offline], within_ms: int) -> Iterator[tuple[Offline, ...]]:
    """Pairs one user's offlines, given in order of time; some stay alone.

    Offlines without their next neighbour wait on a stack, where each two neighbours are
    closer than the two below: so only the last two can be the closest.
    """
    stack = list[Offline]()
    for offline in (*run, None):
        while len(stack) > 1 and _apart_ms(*stack[-2:]) <= min(
            within_ms, _apart_ms(stack[-1], offline)
        ):
            yield stack.pop(), stack.pop()
        if offline is not None:
            stack.append(offline)
    yield from ((alone,) for alone in stack)


def _apart_ms(first: Offline, second: Offline | None) -> float:
    """The distance of two neighbours that may be a pair; infinite for others."""
    if second is None or isinstance(first, Line) == isinstance(second, Line):
        return inf
    return second.at - first.at
