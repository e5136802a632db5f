"""Input and output of `liveness compare`: the other detector's lines, and the report."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from time import perf_counter
from typing import Any, Final, NamedTuple

from liveness.console.record_lines import ascii_json, text_line
from liveness.console.terminal import report_line
from liveness.core.records import OFFLINE_REASONS, Uid
from liveness.errors import LivenessError
from liveness.lab.compare.comparison import (
    BOTH,
    CAUSES,
    HERE,
    LOGGED_OUT,
    MOST_PENDING,
    NOT_JUDGED,
    THERE,
    UNLOOKED,
    Cause,
    Comparison,
    Evidence,
    Line,
    Outcome,
    Totals,
    cause_of,
)
from liveness.lab.compare.offline_lines import LineSplitter, offline_in
from liveness.text import escaped, json_ready, local_time, uid_text

AGREE: Final = 0
DIFFER: Final = 3  # 1 and 2 are failures of the command itself
# How many bad lines are reported one by one; all are counted.
MOST_REPORTED: Final = 10
# How many users are looked up, as each may take seconds in a large log; and how many
# offlines may wait to be settled meanwhile.
MOST_LOOKUPS: Final = 1_000
MOST_WHILE_LOOKING: Final = MOST_PENDING // 2

Lookup = Callable[[Uid], Evidence]


class ComparisonOptions(NamedTuple):
    """Options of `liveness compare`.

    `within_s` is the tolerance; `shows_all` prints pairs, too; `as_json` prints objects in
    place of text.
    """

    within_s: float
    shows_all: bool
    as_json: bool

    @property
    def within_ms(self) -> int:
        """The tolerance in milliseconds."""
        return round(self.within_s * 1000)


class LineReader:
    """Parses the other detector's lines; counts the bad ones, and reports the first ten."""

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self.lines = 0
        self.bad = 0

    def feed(self, data: bytes) -> list[tuple[Uid, Line]]:
        """The offlines on the lines that *data* completes."""
        return [*self._parsed(self._splitter.feed(data))]

    def end(self) -> list[tuple[Uid, Line]]:
        """The offline on a last line without a newline, if there is one."""
        return [*self._parsed(self._splitter.end())]

    def _parsed(self, lines: Iterable[bytes | None]) -> Iterator[tuple[Uid, Line]]:
        for line in lines:
            self.lines += 1
            if line is not None and not line.strip():
                continue
            try:
                uid, at = offline_in(line)
            except ValueError as error:
                self._leave_out(error)
            else:
                yield uid, Line(at, self.lines)

    def _leave_out(self, error: ValueError) -> None:
        self.bad += 1
        if self.bad <= MOST_REPORTED:
            report_line(f"line {self.lines} is left out: {error}")
        if self.bad == MOST_REPORTED:
            report_line("further lines that are left out are only counted")


class ComparisonReport:
    """Prints the outcomes of *comparison* to stdout, and the totals at the end."""

    def __init__(
        self, comparison: Comparison, reader: LineReader, options: ComparisonOptions
    ) -> None:
        self._comparison = comparison
        self._reader = reader
        self._options = options
        self._totals = Totals()
        self._lookups = 0
        self._lookups_until = inf

    def wants_lookup(self, outcome: Outcome) -> bool:
        """Whether to find out why only the other side reported this offline."""
        return (
            outcome.verdict == THERE
            and self._lookups < MOST_LOOKUPS
            and perf_counter() < self._lookups_until
            and self._comparison.pending <= MOST_WHILE_LOOKING
        )

    def limit_lookups(self, seconds: float) -> None:
        """Allows lookups for *seconds* more."""
        self._lookups_until = perf_counter() + seconds

    def cause(self, outcome: Outcome, lookup: Lookup) -> Cause | None:
        """Why only the other side reported this offline; None: the lookup failed."""
        assert outcome.there is not None
        self._lookups += 1
        try:
            return cause_of(outcome.there.at, lookup(outcome.uid))
        except LivenessError as error:
            self._lookups = MOST_LOOKUPS
            report_line(f"no more users are looked up: {error}")
            return None

    def write(self, outcome: Outcome, cause: Cause | None = None) -> None:
        """Counts an outcome, and prints its line unless the options leave it out."""
        self._totals.add(outcome, cause and cause.kind)
        if outcome.verdict in (HERE, THERE) or self._options.shows_all:
            form = _as_json if self._options.as_json else _as_text
            sys.stdout.write(f"{form(outcome, cause)}\n")

    def end(self) -> int:
        """Prints the totals; returns the exit code."""
        if self._options.as_json:
            sys.stdout.write(f"{json.dumps({'account': self._as_map()})}\n")
        else:
            sys.stdout.writelines(f"{line}\n" for line in self._as_rows())
        sys.stdout.flush()
        return AGREE if self._totals.agrees and not self._reader.bad else DIFFER

    def _as_map(self) -> dict[str, Any]:
        comparison = self._comparison
        return {
            "within_s": self._options.within_s,
            **self._totals.as_map(),
            "lines": self._reader.lines,
            "bad_lines": self._reader.bad,
            "lines_before": comparison.before,
            "late": comparison.late,
            "hurried": comparison.hurried,
        }

    def _as_rows(self) -> Iterator[str]:
        totals, comparison = self._totals, self._comparison
        reasons, counts = totals.reasons, totals.verdicts
        yield _row("both", counts[BOTH], _parts(OFFLINE_REASONS, reasons[BOTH]))
        later = totals.later_s()
        if later is not None:
            shown = ", ".join(f"{name} {value:+.3f} s" for name, value in later.items())
            yield f"{'later there':<14}{shown}"
            yield f"{'':<14}{_parts(('earlier', 'same', 'later'), totals.later())}"
        yield _row("only here", counts[HERE], _parts(OFFLINE_REASONS, reasons[HERE]))
        yield _row("only there", counts[THERE], _parts(CAUSES, totals.causes))
        near = f"within {self._options.within_s:g} s of where one side begins or ends"
        yield _row("not judged", counts[NOT_JUDGED], near)
        yield _row("logouts here", counts[LOGGED_OUT], "not reported there")
        special = {"bad": self._reader.bad, "before": comparison.before}
        special |= {"late": comparison.late, "hurried": comparison.hurried}
        yield _row("lines", self._reader.lines, _parts(special, special))


def _row(name: str, number: int, details: str) -> str:
    return f"{name:<14}{number:,}" + (f"  ({details})" if details and number else "")


def _parts(names: Iterable[str], counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {counts[name]:,}" for name in names if counts.get(name))


def _as_text(outcome: Outcome, cause: Cause | None) -> str:
    """One line for a person."""
    line, there = f"{outcome.verdict:<10}", outcome.there
    if outcome.here is None:
        assert there is not None
        uid = escaped(uid_text(outcome.uid))
        line += f"  {local_time(there.at)}  {uid}  line {there.number}"
        return line if cause is None else f"{line}  {cause.text}"
    line += f"  {text_line(outcome.here.as_map())}"
    if there is None or outcome.later_ms is None:
        return line
    return f"{line}  line {there.number}  {outcome.later_ms / 1000:+.3f} s there"


def _as_json(outcome: Outcome, cause: Cause | None) -> str:
    here, there, later_ms = outcome.here, outcome.there, outcome.later_ms
    shown = {"verdict": outcome.verdict, **json_ready({"uid": outcome.uid})}
    if here is not None:
        shown["here"] = json_ready(here.as_map())
    if there is not None:
        shown["there"] = {"at": there.at, "line": there.number}
    if later_ms is not None:
        shown["later_s"] = later_ms / 1000
    if outcome.verdict == THERE:
        shown["why"] = cause.kind if cause else UNLOOKED
        shown["told"] = cause.text if cause else ""
    return ascii_json(shown)
