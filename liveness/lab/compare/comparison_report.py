"""The report of `liveness compare`: a line for each outcome, and the totals at the end."""

import json
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from math import ceil
from typing import Any, Final, NamedTuple

from liveness.console.record_lines import ascii_json, text_line
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
from liveness.text import escaped, json_ready, local_time, uid_text

AGREE: Final = 0
DIFFER: Final = 3  # 1 and 2 are failures of the command itself
# The most users that are looked up: each may take seconds in a large log.
MOST_LOOKUPS: Final = 1_000

Lookup = Callable[[Uid], Evidence]


class ComparisonOptions(NamedTuple):
    within_s: float  # the tolerance
    shows_all: bool  # print pairs, too
    as_json: bool  # print objects in place of text


class ComparisonReport:
    """Prints the outcomes of *comparison* to stdout, and counts them.

    `lookup` finds what the log has of a user.
    """

    def __init__(
        self,
        comparison: Comparison,
        reader: LineReader,
        options: ComparisonOptions,
        lookup: Lookup,
    ) -> None:
        self._comparison, self._reader = comparison, reader
        self._options, self._lookup = options, lookup
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
            if verdict in (HERE, THERE) or self._options.shows_all:
                form = _as_json if self._options.as_json else _as_text
                sys.stdout.write(f"{form(outcome, cause)}\n")
        sys.stdout.flush()

    def end(self) -> int:
        totals = self._totals()
        if self._options.as_json:
            sys.stdout.write(f"{json.dumps({'account': totals})}\n")
        else:
            sys.stdout.writelines(f"{line}\n" for line in _rows(totals))
        sys.stdout.flush()
        alone = totals["only_here"] or totals["only_there"] or totals["bad_lines"]
        return AGREE if totals["both"] and not alone else DIFFER

    def _totals(self) -> dict[str, Any]:
        both, alone = self._reasons[BOTH], self._reasons[HERE]
        silent = [reason for reason in OFFLINE_REASONS if reason != LOGOUT]
        counts, later_ms = self._verdicts, self._later_ms.items()
        return {
            "within_s": self._options.within_s,
            "both": counts[BOTH],
            "both_by_reason": {reason: both[reason] for reason in OFFLINE_REASONS},
            "later_there_s": self._later_s(),
            "later_there": {
                "earlier": sum(many for ms, many in later_ms if ms < 0),
                "same": self._later_ms[0],
                "later": sum(many for ms, many in later_ms if ms > 0),
            },
            "only_here": counts[HERE],
            "only_here_by_reason": {reason: alone[reason] for reason in silent},
            "only_there": counts[THERE],
            "only_there_by_why": {cause: self._causes[cause] for cause in CAUSES},
            "not_judged": counts[NOT_JUDGED],
            "logouts_here": counts[LOGGED_OUT],
            "lines": self._reader.lines,
            "bad_lines": self._reader.bad,
            "lines_before": self._comparison.before,
        }

    def _later_s(self) -> dict[str, float] | None:
        """How much later the other side reported silent users; None: there is no pair."""
        if not self._later_ms:
            return None
        ordered = sorted(self._later_ms)
        ranks = [*accumulate(self._later_ms[ms] for ms in ordered)]
        shares = {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}
        return {
            name: ordered[bisect_left(ranks, max(1, ceil(share * ranks[-1])))] / 1000
            for name, share in shares.items()
        }


def _rows(totals: Mapping[str, Any]) -> Iterator[str]:
    yield _row("both", totals["both"], totals["both_by_reason"])
    if (later_s := totals["later_there_s"]) is not None:
        shown = ", ".join(f"{name} {value:+.3f} s" for name, value in later_s.items())
        yield f"{'later there':<14}{shown}"
        yield f"{'':<14}{_parts(totals['later_there'])}"
    yield _row("only here", totals["only_here"], totals["only_here_by_reason"])
    yield _row("only there", totals["only_there"], totals["only_there_by_why"])
    near = f"within {totals['within_s']:g} s of where one side begins or ends"
    yield _row("not judged", totals["not_judged"], near)
    yield _row("logouts here", totals["logouts_here"], "not reported there")
    special = {"bad": totals["bad_lines"], "before": totals["lines_before"]}
    yield _row("lines", totals["lines"], special)


def _row(name: str, number: int, details: str | Mapping[str, int]) -> str:
    text = details if isinstance(details, str) else _parts(details)
    return f"{name:<14}{number:,}" + (f"  ({text})" if text and number else "")


def _parts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def _as_text(outcome: Outcome, cause: Cause) -> str:
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


def _as_json(outcome: Outcome, cause: Cause) -> str:
    verdict, here, there = outcome
    offline = here or there
    assert offline is not None
    shown = {"verdict": verdict, **json_ready({"uid": offline.uid})}
    if here is not None:
        shown["here"] = json_ready(here.as_map())
    if there is not None:
        shown["there"] = {"at": there.at, "line": there.number}
    if outcome.later_ms is not None:
        shown["later_s"] = outcome.later_ms / 1000
    if verdict == THERE:
        shown |= {"why": cause.kind, "told": cause.text}
    return ascii_json(shown)
