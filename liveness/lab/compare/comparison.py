"""Matches the offlines that two detectors report: here (the sidecar) and there (the other).

Pure: the caller passes in offlines of both sides as they come, and the current time.
`Comparison` returns each offline once it is settled; `Totals` adds the results up.

For each user, the closest two offlines of different sides are paired first, then the
closest two of the rest, and so on, as long as they are within the tolerance. So the result
does not depend on the order of arrival, or on which side was first. An offline between the
closest two would be closer to one of them, so only neighbours in time are compared, and k
offlines of a user take O(k log k).

An offline is settled when no closer one can come any more: after the tolerance, and as
much again for lines that are written late. An offline on one side alone counts only if the
other side was watching for the whole tolerance before and after it.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, count, pairwise
from math import ceil, inf
from typing import Any, Final, NamedTuple, TypeAlias

from liveness.core.records import (
    LOGOUT,
    OFFLINE,
    OFFLINE_REASONS,
    ONLINE,
    Record,
    Uid,
    identity,
)

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

# What the sidecar knows of a user at an offline that only the other side reported.
ALIVE: Final = "alive"  # heard again later, without another login
STILL_ONLINE: Final = "online"
ALREADY: Final = "already"  # offline
UNKNOWN: Final = "unknown"
UNLOOKED: Final = "unlooked"
CAUSES: Final = (ALIVE, STILL_ONLINE, ALREADY, UNKNOWN, UNLOOKED)


class Line(NamedTuple):
    """An offline that the other side reported: Unix milliseconds, and the line's number."""

    at: int
    number: int


Offline: TypeAlias = Record | Line


class Span(NamedTuple):
    """The period in which a side reports offlines, in Unix milliseconds."""

    begin: float = -inf
    end: float = inf


class Outcome(NamedTuple):
    """The verdict on one offline, or on a pair of them."""

    verdict: str
    uid: Uid
    here: Record | None
    there: Line | None

    @property
    def later_ms(self) -> int | None:
        """How much later it was reported there; negative: earlier. None: no pair."""
        if self.here is None or self.there is None:
            return None
        return self.there.at - self.here.at


class _Unmatched:
    """One user's offlines that are not settled yet, and when to check them again."""

    __slots__ = ("check_at", "offlines", "uid")

    def __init__(self, uid: Uid, check_at: int) -> None:
        self.uid = uid
        self.check_at = check_at
        self.offlines: list[Offline] = []


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
        self._spans = {HERE: here, THERE: there}
        self._most = most
        self._unmatched: dict[str, _Unmatched] = {}  # by the identity of the user
        self._due: list[tuple[float, int, str]] = []
        self._numbers = count()
        self._settled_to = -inf
        self.pending = 0
        self.before = 0  # lines from before this side began
        self.late = 0  # offlines that came when their time had been settled
        self.hurried = 0  # offlines settled early, because too many were waiting

    def begin(self, now: float) -> None:
        """Both sides watch from now on."""
        self._spans = {HERE: Span(now), THERE: Span(now)}

    def add_record(self, record: Record) -> None:
        """Takes an offline of this side."""
        self._add(record.uid, record)

    def add_line(self, uid: Uid, line: Line) -> None:
        """Takes an offline of the other side."""
        if line.at < self._spans[HERE].begin:
            self.before += 1
        else:
            self._add(uid, line)

    def settle(self, now: float) -> Iterator[Outcome]:
        """Yields what is settled at *now* (Unix milliseconds), roughly in order of time."""
        upto = now - 2 * self._within_ms
        self._settled_to = max(self._settled_to, upto)
        while self._due and (self._due[0][0] < upto or self.pending > self._most):
            check_at, _, user = heappop(self._due)
            unmatched = self._unmatched.get(user)
            if unmatched is None or unmatched.check_at != check_at:
                continue  # it was checked earlier
            if check_at < upto:
                yield from self._settle_user(user, upto, now)
            else:
                self.hurried += len(unmatched.offlines)
                yield from self._settle_user(user, inf, now)

    def finish(self, now: float) -> Iterator[Outcome]:
        """Settles everything that is waiting; neither side reports anything after *now*."""
        for user in list(self._unmatched):
            yield from self._settle_user(user, inf, now)
        self._due.clear()

    # --- internals ------------------------------------------------------------

    def _add(self, uid: Uid, offline: Offline) -> None:
        unmatched = self._unmatched.get(identity(uid))
        # An offline up to a tolerance earlier than the user's check can wait for that.
        if unmatched is None or offline.at < unmatched.check_at - self._within_ms:
            unmatched = self._check_at(offline.at, uid)
        unmatched.offlines.append(offline)
        self.pending += 1
        self.late += offline.at < self._settled_to

    def _check_at(self, at: int, uid: Uid) -> _Unmatched:
        user = identity(uid)
        unmatched = self._unmatched.setdefault(user, _Unmatched(uid, at))
        unmatched.check_at = at
        heappush(self._due, (at, next(self._numbers), user))
        return unmatched

    def _settle_user(self, user: str, upto: float, now: float) -> list[Outcome]:
        """Settles a user's offlines before *upto*; a pair only if both are before it."""
        outcomes, left = list[Outcome](), list[Offline]()
        check_at: float = inf
        unmatched = self._unmatched.pop(user)
        uid = unmatched.uid
        for run in _runs(unmatched.offlines, self._within_ms):
            is_over = run[-1].at < upto
            if not is_over:
                check_at = min(check_at, run[-1].at)
                if run[0].at >= upto - LONGEST_RUN * self._within_ms:
                    left += run
                    continue
            for pair in paired(run, self._within_ms):
                if is_over or all(side is None or side.at < upto for side in pair):
                    outcomes.append(Outcome(self._verdict(*pair, now), uid, *pair))
                    self.pending -= 2 - pair.count(None)
                else:
                    left += filter(None, pair)
        if left:
            self._check_at(round(check_at), uid).offlines = left
        return outcomes

    def _verdict(self, here: Record | None, there: Line | None, now: float) -> str:
        if here is None:
            assert there is not None
            verdict, at, other = THERE, there.at, self._spans[HERE]
        elif there is not None:
            return BOTH
        elif here.reason == LOGOUT:
            return LOGGED_OUT
        else:
            verdict, at, other = HERE, here.at, self._spans[THERE]
        begin = other.begin + self._within_ms
        end = min(other.end, now) - self._within_ms
        return verdict if begin <= at <= end else NOT_JUDGED


def _runs(offlines: Iterable[Offline], within_ms: int) -> Iterator[list[Offline]]:
    """One user's offlines in order of time, split where the gap exceeds the tolerance."""
    run = list[Offline]()
    for offline in sorted(offlines, key=_order):
        if run and offline.at - run[-1].at > within_ms:
            yield run
            run = []
        run.append(offline)
    yield run


def paired(
    run: Sequence[Offline], within_ms: int
) -> Iterator[tuple[Record | None, Line | None]]:
    """Pairs one user's offlines, given in order of time; None: the other side has none."""
    before: list[int | None] = [None, *range(len(run) - 1)]
    after: list[int | None] = [*range(1, len(run)), None]
    partner: dict[int, int] = {}
    pairs = list[tuple[int, int, int]]()

    def offer(first: int | None, second: int | None) -> None:
        """Queues two neighbours as a possible pair."""
        if first is None or second is None:
            return
        apart_ms = run[second].at - run[first].at
        if type(run[first]) is not type(run[second]) and apart_ms <= within_ms:
            heappush(pairs, (apart_ms, first, second))

    for first, second in pairwise(range(len(run))):
        offer(first, second)
    while pairs:
        _, first, second = heappop(pairs)
        if first in partner or second in partner:
            continue
        partner[first], partner[second] = second, first
        left, right = before[first], after[second]
        if left is not None:
            after[left] = right
        if right is not None:
            before[right] = left
        offer(left, right)
    for place, offline in enumerate(run):
        if place < partner.get(place, len(run)):
            yield _sides(offline, run[partner[place]] if place in partner else None)


def _sides(
    offline: Offline, partner: Offline | None
) -> tuple[Record | None, Line | None]:
    if isinstance(offline, Line):
        assert not isinstance(partner, Line)
        return partner, offline
    assert partner is None or isinstance(partner, Line)
    return offline, partner


def _order(offline: Offline) -> tuple[int, bool, int]:
    """A sort key that does not depend on the order of arrival."""
    if isinstance(offline, Line):
        return offline.at, True, offline.number
    return offline.at, False, offline.seq


# --- why only there -------------------------------------------------------------------


class Evidence(NamedTuple):
    """What the sidecar knows of a user.

    `seen` is when an online user was last heard, if that is known; `records` are the
    user's newest, newest first; `is_complete` is whether the search reached the beginning
    of the log.
    """

    is_online: bool
    seen: int | None
    records: Sequence[Record]
    is_complete: bool


class Cause(NamedTuple):
    """Why only the other side reported an offline: one of `CAUSES`, and a sentence."""

    kind: str
    text: str


def cause_of(at: int, evidence: Evidence) -> Cause:
    """Why the other side alone reported an offline at *at*."""
    records = evidence.records
    before = next((record for record in records if record.at <= at), None)
    after = next((record for record in reversed(records) if record.at > at), None)
    if before is not None:
        was_online = before.kind != OFFLINE
    else:
        was_online = evidence.is_online if after is None else after.kind != ONLINE
    if was_online:
        return _online(at, after, evidence.seen)
    if before is not None:
        ago = _seconds(at - before.at)
        return Cause(
            ALREADY, f"offline here already, {ago} before that ({before.reason})"
        )
    text = "not known here before that"
    if not evidence.is_complete:
        text += ", as far back as was searched"
    return Cause(UNKNOWN, text)


def _online(at: int, after: Record | None, seen: int | None) -> Cause:
    """The cause for a user that was online here until the record *after*, if any."""
    text = "online here"
    if after is not None:
        # A login on a newer connection proves the user alive, too.
        seen = after.seen if after.kind == OFFLINE else after.at
        if after.kind == OFFLINE:
            text += (
                f", offline here {_seconds(after.at - at)} after that ({after.reason})"
            )
    if seen is None:
        return Cause(STILL_ONLINE, text)
    if seen > at:
        return Cause(ALIVE, f"{text}: heard {_seconds(seen - at)} after that")
    return Cause(STILL_ONLINE, f"{text}: last heard {_seconds(at - seen)} before that")


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f} s"


# --- totals ---------------------------------------------------------------------------


class Totals:
    """Adds up outcomes."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {BOTH: Counter(), HERE: Counter()}
        self.causes: Counter[str] = Counter()
        # Counted by millisecond: no more keys than the tolerance has milliseconds.
        self._later_ms: Counter[int] = Counter()

    def add(self, outcome: Outcome, cause: str | None = None) -> None:
        """Counts an outcome; *cause* belongs to one that only the other side reported."""
        here, later_ms = outcome.here, outcome.later_ms
        self.verdicts[outcome.verdict] += 1
        if here is not None and outcome.verdict in self.reasons:
            self.reasons[outcome.verdict][here.reason] += 1
        if outcome.verdict == THERE:
            self.causes[cause or UNLOOKED] += 1
        if here is not None and later_ms is not None and here.reason != LOGOUT:
            self._later_ms[later_ms] += 1

    @property
    def agrees(self) -> bool:
        """Whether both sides reported offlines, and neither reported one alone."""
        alone = self.verdicts[HERE] + self.verdicts[THERE]
        return bool(self.verdicts[BOTH]) and not alone

    def later_s(self) -> dict[str, float] | None:
        """How much later the other side reported silent users; None: there is no pair."""
        if not self._later_ms:
            return None
        ordered = sorted(self._later_ms)
        ranks = [*accumulate(self._later_ms[later_ms] for later_ms in ordered)]
        places = {"min": 1, "p50": ceil(0.5 * ranks[-1]), "p99": ceil(0.99 * ranks[-1])}
        places["max"] = ranks[-1]
        return {
            name: ordered[bisect_left(ranks, place)] / 1000
            for name, place in places.items()
        }

    def later(self) -> dict[str, int]:
        """How often the other side reported these earlier, at the same time, or later."""
        counts = Counter[str]()
        for later_ms, many in self._later_ms.items():
            counts["later" if later_ms > 0 else "earlier" if later_ms else "same"] += (
                many
            )
        return {name: counts[name] for name in ("earlier", "same", "later")}

    def as_map(self) -> dict[str, Any]:
        """All totals, as `compare --json` prints them."""
        both, alone = self.reasons[BOTH], self.reasons[HERE]
        silent = [reason for reason in OFFLINE_REASONS if reason != LOGOUT]
        return {
            "both": self.verdicts[BOTH],
            "both_by_reason": {reason: both[reason] for reason in OFFLINE_REASONS},
            "later_there_s": self.later_s(),
            "later_there": self.later(),
            "only_here": self.verdicts[HERE],
            "only_here_by_reason": {reason: alone[reason] for reason in silent},
            "only_there": self.verdicts[THERE],
            "only_there_by_why": {cause: self.causes[cause] for cause in CAUSES},
            "not_judged": self.verdicts[NOT_JUDGED],
            "logouts_here": self.verdicts[LOGGED_OUT],
        }
