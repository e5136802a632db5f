"""What `liveness compare` reads and writes: lines of the other detector, and the account."""

import json
from collections.abc import Callable, Iterable, Iterator
from math import inf
from time import perf_counter
from typing import Any, Final, NamedTuple, TextIO

from liveness.compare.comparison import (
    BOTH,
    HERE,
    LOGGED_OUT,
    MOST_PENDING,
    NOT_JUDGED,
    THERE,
    UNLOOKED,
    WHYS,
    Account,
    Comparison,
    Evidence,
    Line,
    Settled,
    Why,
    why_only_there,
)
from liveness.compare.offline_lines import offline_in
from liveness.console.record_lines import text_line
from liveness.core.records import OFFLINE_REASONS, Uid
from liveness.errors import LivenessError
from liveness.text import escaped, json_ready, local_time, uid_text

AGREE: Final = 0
DIFFER: Final = 3  # 1 and 2 are failures of the command itself
# How many bad lines are told one by one; all are counted.
MOST_TOLD: Final = 10
# How many users are looked up, which may take seconds each in a large log, and how many
# may wait meanwhile to be settled.
MOST_LOOKS: Final = 1_000
MOST_WHILE_LOOKING: Final = MOST_PENDING // 2

Look = Callable[[Uid], Evidence]
Tell = Callable[[str], None]


class ComparisonOptions(NamedTuple):
    """How it is compared, and told.

    `within_s` is the tolerance; `is_all`: those that both called offline have a line, too;
    `as_json`: a line is an object, and not for a person; `out` is where lines and account
    go; `tell` is told of the rest.
    """

    within_s: float
    is_all: bool
    as_json: bool
    out: TextIO
    tell: Tell

    @property
    def within_ms(self) -> int:
        """The tolerance in milliseconds."""
        return round(self.within_s * 1000)


class LineReader:
    """Understands lines; what is wrong with one is told and counted.

    Args:
        tell: Is told of the first bad ones.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.lines = 0
        self.bad = 0

    def read(self, lines: Iterable[bytes | None]) -> Iterator[tuple[Uid, Line]]:
        """Who went offline by each line, and when; None is a line that was too long."""
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
        if self.bad <= MOST_TOLD:
            self._tell(f"line {self.lines} is left out: {error}")
        if self.bad == MOST_TOLD:
            self._tell("further lines that are left out are only counted")


class ComparisonReport:
    """Writes what is settled, and at the end the account.

    Args:
        comparison: What settles it.
        reader: What it was read by.
        options: How.
    """

    def __init__(
        self, comparison: Comparison, reader: LineReader, options: ComparisonOptions
    ) -> None:
        self._comparison = comparison
        self._reader = reader
        self._options = options
        self._account = Account()
        self._looks = 0
        self._look_until = inf

    def wants_look(self, settled: Settled) -> bool:
        """Whether it is to be looked up what is known here of this user."""
        return (
            settled.verdict == THERE
            and self._looks < MOST_LOOKS
            and perf_counter() < self._look_until
            and self._comparison.pending <= MOST_WHILE_LOOKING
        )

    def look_for(self, seconds: float) -> None:
        """Has users looked up for so long yet, and then no more."""
        self._look_until = perf_counter() + seconds

    def why(self, settled: Settled, look: Look) -> Why | None:
        """What is known here of a user whom only they called offline."""
        assert settled.there is not None
        self._looks += 1
        try:
            return why_only_there(settled.there.at, look(settled.uid))
        except LivenessError as error:
            self._looks = MOST_LOOKS
            self._options.tell(f"no more users are looked up: {error}")
            return None

    def write(self, settled: Settled, why: Why | None = None) -> None:
        """Counts what is settled, and writes a line of it if it is to have one."""
        self._account.add(settled, why and why.kind)
        if settled.verdict in (HERE, THERE) or self._options.is_all:
            form = _as_json if self._options.as_json else _as_text
            self._options.out.write(f"{form(settled, why)}\n")

    def flush(self) -> None:
        """Has what was written seen."""
        self._options.out.flush()

    def end(self) -> int:
        """Writes the account; the exit code."""
        if self._options.as_json:
            self._options.out.write(f"{json.dumps({'account': self._as_map()})}\n")
        else:
            self._options.out.writelines(f"{line}\n" for line in self._as_rows())
        self._options.out.flush()
        return AGREE if self._account.agrees and not self._reader.bad else DIFFER

    def _as_map(self) -> dict[str, Any]:
        of = self._comparison
        return {
            "within_s": self._options.within_s,
            **self._account.as_map(),
            "lines": self._reader.lines,
            "bad_lines": self._reader.bad,
            "lines_before": of.before,
            "late": of.late,
            "hurried": of.hurried,
        }

    def _as_rows(self) -> Iterator[str]:
        account, of = self._account, self._comparison
        reasons, counts = account.reasons, account.verdicts
        yield _row("both", counts[BOTH], _parts(OFFLINE_REASONS, reasons[BOTH]))
        later = account.later_s()
        if later is not None:
            shown = ", ".join(f"{name} {value:+.3f} s" for name, value in later.items())
            yield f"{'later there':<14}{shown}"
            yield f"{'':<14}{_parts(('earlier', 'same', 'later'), account.later())}"
        yield _row("only here", counts[HERE], _parts(OFFLINE_REASONS, reasons[HERE]))
        yield _row("only there", counts[THERE], _parts(WHYS, account.whys))
        near = f"within {self._options.within_s:g} s of where one side begins or ends"
        yield _row("not judged", counts[NOT_JUDGED], near)
        yield _row("logouts here", counts[LOGGED_OUT], "not told there")
        told = {"bad": self._reader.bad, "before": of.before, "late": of.late}
        told["hurried"] = of.hurried
        yield _row("lines", self._reader.lines, _parts(tuple(told), told))


def _row(name: str, number: int, told: str) -> str:
    return f"{name:<14}{number:,}" + (f"  ({told})" if told and number else "")


def _parts(names: Iterable[str], counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {counts[name]:,}" for name in names if counts.get(name))


def _as_text(settled: Settled, why: Why | None) -> str:
    """One line for a person."""
    head, there = f"{settled.verdict:<10}", settled.there
    if settled.here is None:
        assert there is not None
        uid = escaped(uid_text(settled.uid))
        told = f"{head}  {local_time(there.at)}  {uid}  line {there.number}"
        return told if why is None else f"{told}  {why.told}"
    told = f"{head}  {text_line(settled.here.as_map())}"
    if there is None or settled.later_ms is None:
        return told
    return f"{told}  line {there.number}  {settled.later_ms / 1000:+.3f} s there"


def _as_json(settled: Settled, why: Why | None) -> str:
    """One line of JSON, all ASCII: nothing in it can steer a terminal."""
    here, there, later_ms = settled.here, settled.there, settled.later_ms
    shown: dict[str, Any] = {
        "verdict": settled.verdict,
        **json_ready({"uid": settled.uid}),
    }
    if here is not None:
        shown["here"] = json_ready(here.as_map())
    if there is not None:
        shown["there"] = {"at": there.at, "line": there.number}
    if later_ms is not None:
        shown["later_s"] = later_ms / 1000
    if settled.verdict == THERE:
        shown["why"] = why.kind if why else UNLOOKED
        shown["told"] = why.told if why else ""
    return json.dumps(shown, separators=(",", ":"))
