"""`liveness bench guard`: whether the sidecar costs more, beside Redis, than it did.

Times of two machines, or of two days, cannot be compared. But in one run Redis is a
yardstick: its ratios to the sidecar are compared with those of an earlier report.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from liveness.console.terminal import report_line
from liveness.errors import LivenessError
from liveness.lab.bench import COMPARED_SYSTEMS, full_options, suite, system_kinds
from liveness.lab.bench.cost import MORE_IS_BETTER, cost
from liveness.lab.bench.performance import RESULTS, figures_of
from liveness.lab.common.figures import Figure, number

REPORT: Final = RESULTS / "cost.json"
# So many users take a minute to measure, and are more than the caches of a processor hold.
USERS: Final = 100_000
# In four runs of the same code, on two quiet cores, the largest of a ratio was above the
# smallest by 21 % (one-uid frames), 15 % (batches) and 11 % (memory). What is worse by more
# than this has another cause.
TOLERANCE: Final = 0.25
OPTIONS: Final = replace(
    full_options(USERS),
    sizes=(USERS,),
    without=tuple(name for name in COMPARED_SYSTEMS if name != system_kinds.SETEX),
)


class RatioChange(NamedTuple):
    """One ratio, in an earlier report and now."""

    name: str
    before: float
    now: float  # NaN if it was not measured

    @property
    def worse_by(self) -> float:
        """By which share the sidecar is worse than before; negative if it is better."""
        is_share = not MORE_IS_BETTER[self.name]
        return (self.now / self.before if is_share else self.before / self.now) - 1

    @property
    def is_behind(self) -> bool:
        """Whether it is worse by more than the tolerance, or was not measured."""
        return not self.worse_by <= TOLERANCE

    def __str__(self) -> str:
        change = "not measured"
        if math.isfinite(self.now):
            word = "worse" if self.worse_by > 0 else "better"
            change = f"{number(self.now)} x now, {abs(self.worse_by):.0%} {word}"
        verdict = "FELL BEHIND" if self.is_behind else "kept"
        return f"{self.name}: {number(self.before)} x before, {change}: {verdict}"


class GuardError(LivenessError):
    """There is nothing to compare with."""


def guard(report: Path) -> int:
    """Measure, compare with *report*, and print each ratio.

    Returns:
        0 if no ratio is worse than in the report by more than the tolerance, 1 if one is,
        2 if redis-server or the report is missing.
    """
    try:
        before = earlier(report)
    except GuardError as error:
        report_line(str(error))
        return suite.USAGE
    if problem := system_kinds.missing_program(OPTIONS):
        report_line(problem)
        return suite.USAGE
    return verdict(before, suite.measured([cost.__name__], OPTIONS, sys.stdout))


def verdict(before: Mapping[str, float], measured: Sequence[Figure]) -> int:
    """Print how each ratio has changed; return the exit code."""
    now = _ratios(measured)
    changes = [
        RatioChange(name, before[name], now.get(name, math.nan))
        for name in MORE_IS_BETTER
    ]
    for change in changes:
        print(change)
    behind = sum(change.is_behind for change in changes)
    kept = len(changes) - behind
    print(f"{kept} of {len(changes)} ratios kept, within {TOLERANCE:.0%}")
    return suite.MISSED if behind else 0


def earlier(report: Path) -> dict[str, float]:
    """The ratios in a report, by name.

    Raises:
        GuardError: It cannot be read, or lacks one.
    """
    remedy = "name a report that `liveness bench cost --json FILE` wrote"
    try:
        figures = [*figures_of(json.loads(report.read_text(encoding="utf-8")))]
    except OSError as error:
        raise GuardError(f"{report}: {error.strerror}; {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GuardError(f"{report} is no report of the bench; {remedy}") from error
    found = _ratios(figures)
    for name in MORE_IS_BETTER:
        if not math.isfinite(found.get(name, math.nan)):
            raise GuardError(f"{report} lacks {name!r} for {USERS:,} users; {remedy}")
    return found


def _ratios(figures: Iterable[Figure]) -> dict[str, float]:
    return {
        figure.name: figure.value
        for figure in figures
        if figure.users == USERS and figure.name in MORE_IS_BETTER
    }
