"""The report of `liveness compare`: a line for each outcome, and the totals at the end."""

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from math import ceil
from typing import Final

from liveness.console.record_lines import text_line
from liveness.core.records import LOGOUT, OFFLINE_REASONS, Uid
from liveness.lab.compare.causes import CAUSES, NO_CAUSE, Cause, Evidence, cause_of
from liveness.lab.compare.comparison import (
    BOTH,
    HERE,
    LOGGED_OUT,
    NOT_JUDGED,
    THERE,
    Comparison,
    Outcome,
)
from liveness.lab.compare.offline_lines import LineReader
from liveness.text import escaped, local_time, uid_text

AGREE: Final = 0
DIFFER: Final = 3  # 1 and 2 are failures of the command itself
# The most users that are looked up: each may take seconds in a large log.
MOST_LOOKUPS: Final = 1_000

Lookup = Callable[[Uid], Evidence]


class ComparisonReport:
    """Prints the outcomes of *comparison* to stdout, and counts them.

    `lookup` finds what the log has of a user.
    """

    def __init__(
        self,
        comparison: Comparison,
        reader: LineReader,
        lookup: Lookup,
        *,
        within_s: float,
        shows_all: bool,
    ) -> None:
        self._comparison, self._reader, self._lookup = comparison, reader, lookup
        self._within_s, self._shows_all = within_s, shows_all
        self._lookups_left = MOST_LOOKUPS
        self._verdicts = Counter[str]()
        self._reasons = {BOTH: Counter[str](), HERE: Counter[str]()}
        self._causes = Counter[str]()
        # Counted by millisecond: no more keys than the tolerance has milliseconds.
        self._later_ms = Counter[int]()

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Counts outcomes, and prints their lines unless the options leave them out."""
        for outcome in outcomes:
            verdict, here, there = outcome
            self._verdicts[verdict] += 1
            cause = NO_CAUSE
            if verdict == THERE and there is not None:
                if self._lookups_left:
                    self._lookups_left -= 1
                    cause = cause_of(there.at, self._lookup(there.uid))
                self._causes[cause.kind] += 1
            elif here is not None and verdict in self._reasons:
                self._reasons[verdict][here.reason] += 1
                if outcome.later_ms is not None and here.reason != LOGOUT:
                    self._later_ms[outcome.later_ms] += 1
            if verdict in (HERE, THERE) or self._shows_all:
                sys.stdout.write(f"{_line(outcome, cause)}\n")
        sys.stdout.flush()

    def end(self) -> int:
        sys.stdout.writelines(f"{line}\n" for line in self._rows())
        sys.stdout.flush()
        found = self._verdicts
        alone = found[HERE] or found[THERE] or self._reader.bad
        return AGREE if found[BOTH] and not alone else DIFFER

    def _rows(self) -> Iterator[str]:
        found = self._verdicts
        reasons = {
            verdict: {reason: counts[reason] for reason in OFFLINE_REASONS}
            for verdict, counts in self._reasons.items()
        }
        yield _row("both", found[BOTH], reasons[BOTH])
        if self._later_ms:
            yield from self._later_rows()
        yield _row("only here", found[HERE], reasons[HERE])
        causes = {cause: self._causes[cause] for cause in CAUSES}
        yield _row("only there", found[THERE], causes)
        near = f"within {self._within_s:g} s of where one side begins or ends"
        yield _row("not judged", found[NOT_JUDGED], near)
        yield _row("logouts here", found[LOGGED_OUT], "not reported there")
        special = {"bad": self._reader.bad, "before": self._comparison.before}
        yield _row("lines", self._reader.lines, special)

    def _later_rows(self) -> Iterator[str]:
        """How much later the other side reported silent users."""
        ordered = sorted(self._later_ms)
        ranks = [*accumulate(self._later_ms[ms] for ms in ordered)]
        shown = list[str]()
        for name, share in {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}.items():
            place = bisect_left(ranks, max(1, ceil(share * ranks[-1])))
            shown.append(f"{name} {ordered[place] / 1000:+.3f} s")
        yield f"{'later there':<14}{', '.join(shown)}"
        counts = {
            "earlier": sum(self._later_ms[ms] for ms in ordered if ms < 0),
            "same": self._later_ms[0],
            "later": sum(self._later_ms[ms] for ms in ordered if ms > 0),
        }
        yield f"{'':<14}{_parts(counts)}"


def _row(name: str, number: int, details: str | Mapping[str, int]) -> str:
    text = details if isinstance(details, str) else _parts(details)
    return f"{name:<14}{number:,}" + (f"  ({text})" if text and number else "")


def _parts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _line(outcome: Outcome, cause: Cause) -> str:
    verdict, here, there = outcome
    line = f"{verdict:<10}  "
    if here is not None:
        line += text_line(here.as_map())
    elif there is not None:
        line += f"{local_time(there.at)}  {escaped(uid_text(there.uid))}"
    if there is not None:
        line += f"  line {there.number}"
    if outcome.later_ms is not None:
        line += f"  {outcome.later_ms / 1000:+.3f} s there"
    return f"{line}  {cause.text}" if cause.text else line
