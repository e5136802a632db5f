"""What two detectors say of the same users, put side by side: here, and there.

Pure: both are told to a `Comparison` as they come, with the moment that it is; it gives
back what is settled, and an `Account` adds that up.

Of one user's offlines those belong together that are closest: of all pairs within the
tolerance the closest is taken out first, then the closest of what is left, and so on. So
it does not matter in which order they were told, or which side was first. The closest of
all has nothing between its two, as that would be closer to one of them: it is enough to
look at neighbours in time, and a user with k offlines takes k log k.

An offline is settled once nothing can come any more that would be closer: when the
tolerance is over, and as much again, for lines that are written late. What is offline on
one side alone counts only where the other side was there to tell it: for the whole
tolerance before and after.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, pairwise
from math import ceil, inf
from typing import Any, Final, NamedTuple

from liveness.core.records import (
    LOGOUT,
    OFFLINE,
    OFFLINE_REASONS,
    ONLINE,
    Record,
    Uid,
)

# A million users who go offline at once on both sides: 0.8 GB. What is more is
# settled before its time, the oldest first, and counted.
MOST_PENDING: Final = 2_000_000
# Who goes offline again and again within the tolerance is never done with. After so many
# tolerances the older ones are settled.
LONGEST_RUN: Final = 10

BOTH: Final = "both"
HERE: Final = "only here"
THERE: Final = "only there"
# Where the other side was not there to tell; and what one by silence never tells.
NOT_JUDGED: Final = "not judged"
LOGGED_OUT: Final = "logout"

# Why only they called a user offline: what is known here of that moment.
ALIVE: Final = "alive"  # heard again later, without another login
STILL_ONLINE: Final = "online"
ALREADY: Final = "already"  # offline
UNKNOWN: Final = "unknown"
UNLOOKED: Final = "unlooked"
WHYS: Final = (ALIVE, STILL_ONLINE, ALREADY, UNKNOWN, UNLOOKED)


class Line(NamedTuple):
    """An offline that was told there: when, in Unix milliseconds, and by which line."""

    at: int
    number: int


class Span(NamedTuple):
    """From when to when a side tells whom it calls offline, in Unix milliseconds."""

    begin: float = -inf
    end: float = inf


class Settled(NamedTuple):
    """What became of one offline, or of two that belong together."""

    verdict: str
    uid: Uid
    here: Record | None
    there: Line | None

    @property
    def later_ms(self) -> int | None:
        """How much later it was told there; negative: earlier. None: not by both."""
        if self.here is None or self.there is None:
            return None
        return self.there.at - self.here.at


class _Unmatched:
    """One user's offlines that are not settled yet, and when to look at them again."""

    __slots__ = ("look_at", "offlines")

    def __init__(self, look_at: int) -> None:
        self.look_at = look_at
        self.offlines: list[Record | Line] = []


class Comparison:
    """Puts offlines of two sides together.

    Args:
        within_ms: The tolerance: what is further apart does not belong together.
        here: When this side was there to tell.
        there: When the other one was.
        most: How many may wait to be settled.
    """

    def __init__(
        self, within_ms: int, *, here: Span, there: Span, most: int = MOST_PENDING
    ) -> None:
        self._within_ms = within_ms
        self._spans = {HERE: here, THERE: there}
        self._most = most
        self._waiting: dict[Uid, _Unmatched] = {}
        self._due: list[tuple[float, int, Uid]] = []
        self._numbers = count()
        self._settled_to = -inf
        self.pending = 0
        self.before = 0  # of the lines: of a time of which nothing is known here
        self.late = 0  # of both: came when their time had been settled
        self.hurried = 0  # settled before their time, as too many were waiting

    def begin(self, now: float) -> None:
        """Both sides are there to tell from now on."""
        self._spans = {HERE: Span(now), THERE: Span(now)}

    def here(self, record: Record) -> None:
        """This side called a user offline."""
        self._add(record.uid, record)

    def there(self, uid: Uid, line: Line) -> None:
        """The other side did."""
        if line.at < self._spans[HERE].begin:
            self.before += 1
        else:
            self._add(uid, line)

    def settle(self, now: float) -> Iterator[Settled]:
        """What is settled at a moment, Unix milliseconds; about in the order of time."""
        upto = now - 2 * self._within_ms
        self._settled_to = max(self._settled_to, upto)
        while self._due and (self._due[0][0] < upto or self.pending > self._most):
            look_at, _, uid = heappop(self._due)
            waiting = self._waiting.get(uid)
            if waiting is None or waiting.look_at != look_at:
                continue  # looked at already, at an earlier moment
            if look_at < upto:
                yield from self._settled(uid, upto, now)
            else:
                self.hurried += len(waiting.offlines)
                yield from self._settled(uid, inf, now)

    def finish(self, now: float) -> Iterator[Settled]:
        """Whatever is still waiting, when neither side tells any more from *now* on."""
        for uid in list(self._waiting):
            yield from self._settled(uid, inf, now)
        self._due.clear()

    # --- within ---------------------------------------------------------------

    def _add(self, uid: Uid, one: Record | Line) -> None:
        waiting = self._waiting.get(uid)
        # What is a little earlier may as well wait for the rest.
        if waiting is None or one.at < waiting.look_at - self._within_ms:
            waiting = self._look_at(one.at, uid)
        waiting.offlines.append(one)
        self.pending += 1
        self.late += one.at < self._settled_to

    def _look_at(self, at: int, uid: Uid) -> _Unmatched:
        waiting = self._waiting.setdefault(uid, _Unmatched(at))
        waiting.look_at = at
        heappush(self._due, (at, next(self._numbers), uid))
        return waiting

    def _settled(self, uid: Uid, upto: float, now: float) -> list[Settled]:
        """Takes out what a user has waiting up to a moment; of a pair both, or neither."""
        settled, left = list[Settled](), list[Record | Line]()
        look_at: float = inf
        for run in _runs(self._waiting.pop(uid).offlines, self._within_ms):
            is_over = run[-1].at < upto
            if not is_over:
                look_at = min(look_at, run[-1].at)
                if run[0].at >= upto - LONGEST_RUN * self._within_ms:
                    left += run
                    continue
            for pair in paired(run, self._within_ms):
                if is_over or all(one is None or one.at < upto for one in pair):
                    settled.append(self._judged(uid, *pair, now))
                else:
                    left += filter(None, pair)
        if left:
            self._look_at(round(look_at), uid).offlines = left
        return settled

    def _judged(
        self, uid: Uid, here: Record | None, there: Line | None, now: float
    ) -> Settled:
        self.pending -= 1 if here is None or there is None else 2
        return Settled(self._verdict(here, there, now), uid, here, there)

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


def _runs(
    waiting: Iterable[Record | Line], within_ms: int
) -> Iterator[list[Record | Line]]:
    """One user's offlines in the order of time, cut where nothing can belong together."""
    run = list[Record | Line]()
    for one in sorted(waiting, key=_place):
        if run and one.at - run[-1].at > within_ms:
            yield run
            run = []
        run.append(one)
    yield run


def paired(
    run: Sequence[Record | Line], within_ms: int
) -> Iterator[tuple[Record | None, Line | None]]:
    """One user's offlines in the order of time, the closest of both sides together."""
    before: list[int | None] = [None, *range(len(run) - 1)]
    after: list[int | None] = [*range(1, len(run)), None]
    other: dict[int, int] = {}
    pairs = list[tuple[int, int, int]]()

    def offer(first: int | None, second: int | None) -> None:
        """Two that are neighbours by now."""
        if first is None or second is None:
            return
        apart_ms = run[second].at - run[first].at
        if type(run[first]) is not type(run[second]) and apart_ms <= within_ms:
            heappush(pairs, (apart_ms, first, second))

    for first, second in pairwise(range(len(run))):
        offer(first, second)
    while pairs:
        _, first, second = heappop(pairs)
        if first in other or second in other:
            continue
        other[first], other[second] = second, first
        left, right = before[first], after[second]
        if left is not None:
            after[left] = right
        if right is not None:
            before[right] = left
        offer(left, right)
    for place, one in enumerate(run):
        if place < other.get(place, len(run)):
            yield _sides(one, run[other[place]] if place in other else None)


def _sides(
    one: Record | Line, two: Record | Line | None
) -> tuple[Record | None, Line | None]:
    if isinstance(one, Line):
        assert not isinstance(two, Line)
        return two, one
    assert two is None or isinstance(two, Line)
    return one, two


def _place(one: Record | Line) -> tuple[int, bool, int]:
    """Where it stands in time; alike, whatever the order in which they were told."""
    if isinstance(one, Line):
        return one.at, True, one.number
    return one.at, False, one.seq


# --- why only there -------------------------------------------------------------------


class Evidence(NamedTuple):
    """What is known here of a user.

    `seen` is when it was last heard, if it is online and that is known; `records` are its
    newest, newest first; `is_all` whether the log was looked through to its beginning.
    """

    is_online: bool
    seen: int | None
    records: Sequence[Record]
    is_all: bool


class Why(NamedTuple):
    """Why a user was called offline only there: of `WHYS`, and told to a person."""

    kind: str
    told: str


def why_only_there(at: int, known: Evidence) -> Why:
    """What is known here of a user at the moment when it was called offline there."""
    before = next((one for one in known.records if one.at <= at), None)
    after = next((one for one in reversed(known.records) if one.at > at), None)
    if before is not None:
        was_online = before.kind != OFFLINE
    else:
        was_online = known.is_online if after is None else after.kind != ONLINE
    if was_online:
        return _online(at, after, known)
    if before is not None:
        ago = _seconds(at - before.at)
        return Why(
            ALREADY, f"offline here already, {ago} before that ({before.reason})"
        )
    told = "not known here before that"
    return Why(UNKNOWN, told if known.is_all else f"{told}, as far as was looked back")


def _online(at: int, after: Record | None, known: Evidence) -> Why:
    """It was online here, until *after*."""
    seen, told = known.seen, "online here"
    if after is not None:
        # A newer connection is a sign of life, too.
        seen = after.seen if after.kind == OFFLINE else after.at
        if after.kind == OFFLINE:
            ended = (
                f"offline here {_seconds(after.at - at)} after that ({after.reason})"
            )
            told = f"{told}, {ended}"
    if seen is None:
        return Why(STILL_ONLINE, told)
    if seen > at:
        return Why(ALIVE, f"{told}: heard {_seconds(seen - at)} after that")
    return Why(STILL_ONLINE, f"{told}: last heard {_seconds(at - seen)} before that")


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f} s"


# --- the account ----------------------------------------------------------------------


class Account:
    """Adds up what was settled."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {BOTH: Counter(), HERE: Counter()}
        self.whys: Counter[str] = Counter()
        # By milliseconds, of which there are no more than the tolerance has.
        self._later_ms: Counter[int] = Counter()

    def add(self, settled: Settled, why: str | None = None) -> None:
        """Counts one; *why* is of one that only they called offline."""
        here, later_ms = settled.here, settled.later_ms
        self.verdicts[settled.verdict] += 1
        if here is not None and settled.verdict in self.reasons:
            self.reasons[settled.verdict][here.reason] += 1
        if settled.verdict == THERE:
            self.whys[why or UNLOOKED] += 1
        if here is not None and later_ms is not None and here.reason != LOGOUT:
            self._later_ms[later_ms] += 1

    @property
    def agrees(self) -> bool:
        """Whether both called somebody offline, and neither anybody alone."""
        alone = self.verdicts[HERE] + self.verdicts[THERE]
        return bool(self.verdicts[BOTH]) and not alone

    def later_s(self) -> dict[str, float] | None:
        """By how much later they called offline whom both found silent; None: nobody."""
        ordered = sorted(self._later_ms.items())
        total = self._later_ms.total()
        if not total:
            return None
        found = {"min": ordered[0][0], "max": ordered[-1][0]}
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            rank, passed = ceil(share * total), 0
            for later_ms, many in ordered:
                passed += many
                if passed >= rank:
                    found[name] = later_ms
                    break
        return {name: found[name] / 1000 for name in ("min", "p50", "p99", "max")}

    def later(self) -> dict[str, int]:
        """How many of those they called offline earlier, in the same moment, and later."""
        counts = {"earlier": 0, "same": 0, "later": 0}
        for later_ms, many in self._later_ms.items():
            name = "same" if not later_ms else "later" if later_ms > 0 else "earlier"
            counts[name] += many
        return counts

    def as_map(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "both": self.verdicts[BOTH],
            "both_by_reason": {it: self.reasons[BOTH][it] for it in OFFLINE_REASONS},
            "later_there_s": self.later_s(),
            "later_there": self.later(),
            "only_here": self.verdicts[HERE],
            "only_here_by_reason": {
                it: self.reasons[HERE][it] for it in OFFLINE_REASONS if it != LOGOUT
            },
            "only_there": self.verdicts[THERE],
            "only_there_by_why": {it: self.whys[it] for it in WHYS},
            "not_judged": self.verdicts[NOT_JUDGED],
            "logouts_here": self.verdicts[LOGGED_OUT],
        }
