"""Matches the offlines that two detectors report: here (the sidecar) and there (the other).

Pure: the caller passes in offlines of both sides as they come, and the current time.
`Comparison` returns each offline once it is settled.

For each user, the closest two offlines of different sides are paired first, then the
closest two of the rest, and so on, as long as they are within the tolerance. So the result
does not depend on the order of arrival, or on which side was first. An offline between the
closest two would be closer to one of them, so only neighbours in time are compared, and k
offlines of a user take O(k log k).

An offline is settled when no closer one can come any more: after the tolerance, and as
much again for lines that are written late. An offline on one side alone counts only if the
other side was watching for the whole tolerance before and after it.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple, TypeAlias

from liveness.core.records import LOGOUT, Record, Uid, identity

# Takes 0.8 GB: a million users who go offline at once on both sides. Beyond it the oldest
# are settled early, and counted.
MOST_PENDING: Final = 2_000_000
# A user who goes offline again and again within the tolerance would never be settled.
# So offlines older than this many tolerances are settled all the same.
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
Pair: TypeAlias = tuple[Record | None, Line | None]


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
        most: How many offlines may wait to be settled.
    """

    def __init__(
        self, within_ms: int, *, here: Span, there: Span, most: int = MOST_PENDING
    ) -> None:
        self._within_ms = within_ms
        self._here, self._there = here, there
        self._most = most
        # By the identity of a user: its offlines, and when to look at them again. The heap
        # has these moments, and older ones that no longer count.
        self._waiting: dict[str, list[Offline]] = {}
        self._check_at: dict[str, float] = {}
        self._checks: list[tuple[float, str]] = []
        self._settled_to = -inf
        self.pending = 0
        self.before = 0  # lines from before this side began
        self.late = 0  # offlines that came when their time had been settled
        self.hurried = 0  # offlines settled early, because too many were waiting

    def add(self, offline: Offline) -> None:
        """Takes an offline of either side."""
        if isinstance(offline, Line) and offline.at < self._here.begin:
            self.before += 1
            return
        user = identity(offline.uid)
        self._waiting.setdefault(user, []).append(offline)
        # An offline up to a tolerance earlier than the user's check can wait for that.
        if offline.at < self._check_at.get(user, inf) - self._within_ms:
            self._check(user, offline.at)
        self.pending += 1
        self.late += offline.at < self._settled_to

    def settle(self, now: float) -> Iterator[Outcome]:
        """Yields what is settled at *now* (Unix milliseconds), roughly in order of time."""
        upto = now - 2 * self._within_ms
        self._settled_to = max(self._settled_to, upto)
        while self._checks:
            at, user = self._checks[0]
            if at >= upto and self.pending <= self._most:
                return
            heappop(self._checks)
            if self._check_at.get(user) != at:
                continue  # it was checked earlier
            if at < upto:
                yield from self._settle_user(user, upto, now)
            else:
                self.hurried += len(self._waiting[user])
                yield from self._settle_user(user, inf, now)

    def finish(self, now: float) -> Iterator[Outcome]:
        """Settles everything that is waiting; neither side reports anything after *now*."""
        for user in list(self._waiting):
            yield from self._settle_user(user, inf, now)
        self._checks.clear()

    # --- internals ------------------------------------------------------------

    def _check(self, user: str, at: float) -> None:
        self._check_at[user] = at
        heappush(self._checks, (at, user))

    def _settle_user(self, user: str, upto: float, now: float) -> list[Outcome]:
        """Settles a user's offlines before *upto*; a pair only if both are before it."""
        outcomes, left, check_at = list[Outcome](), list[Offline](), inf
        del self._check_at[user]
        for run in _runs(self._waiting.pop(user), self._within_ms):
            if run[-1].at >= upto:
                check_at = min(check_at, run[-1].at)
                if run[0].at >= upto - LONGEST_RUN * self._within_ms:
                    left += run
                    continue
            for here, there in paired(run, self._within_ms):
                both = [side for side in (here, there) if side is not None]
                if run[-1].at < upto or all(side.at < upto for side in both):
                    outcomes.append(
                        Outcome(self._verdict(here, there, now), here, there)
                    )
                    self.pending -= len(both)
                else:
                    left += both
        if left:
            self._waiting[user] = left
            self._check(user, check_at)
        return outcomes

    def _verdict(self, here: Record | None, there: Line | None, now: float) -> str:
        if here is None:
            assert there is not None
            verdict, at, other = THERE, there.at, self._here
        elif there is not None:
            return BOTH
        elif here.reason == LOGOUT:
            return LOGGED_OUT
        else:
            verdict, at, other = HERE, here.at, self._there
        begin = other.begin + self._within_ms
        end = min(other.end, now) - self._within_ms
        return verdict if begin <= at <= end else NOT_JUDGED


def _runs(offlines: list[Offline], within_ms: int) -> Iterator[list[Offline]]:
    """One user's offlines in order of time, split where the gap exceeds the tolerance."""
    run = list[Offline]()
    # Of one moment by side and number: not in the order in which they came.
    for offline in sorted(
        offlines, key=lambda it: (it.at, isinstance(it, Line), it[0])
    ):
        if run and offline.at - run[-1].at > within_ms:
            yield run
            run = []
        run.append(offline)
    yield run


def paired(run: Sequence[Offline], within_ms: int) -> Iterator[Pair]:
    """Pairs one user's offlines, given in order of time; None: the other side has none."""
    size = len(run)
    # The neighbours of each place, without those that are paired. Place -1 is the last
    # entry, so that it stands for both ends.
    before, after = [*range(-1, size)], [*range(1, size + 1), -1]
    partner = dict[int, int]()

    def apart(first: int) -> list[tuple[int, int, int]]:
        """How far this place is from its neighbour, if these may be a pair."""
        second = after[first]
        if first == -1 or second == size:
            return []
        apart_ms = run[second].at - run[first].at
        is_pair = isinstance(run[first], Line) != isinstance(run[second], Line)
        return [(apart_ms, first, second)] if is_pair and apart_ms <= within_ms else []

    pairs = [pair for first in range(size) for pair in apart(first)]
    heapify(pairs)
    while pairs:
        _, first, second = heappop(pairs)
        if first not in partner and second not in partner:
            partner[first], partner[second] = second, first
            left, right = before[first], after[second]
            after[left], before[right] = right, left
            for pair in apart(left):
                heappush(pairs, pair)
    for place, offline in enumerate(run):
        other = run[partner[place]] if place in partner else None
        if isinstance(offline, Line):
            if other is None:
                yield None, offline
        elif other is None or isinstance(other, Line):
            yield offline, other
