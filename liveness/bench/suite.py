"""The command: scenario after scenario, then the table, the report and the verdict."""

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from liveness import __version__
from liveness.bench import BenchOptions, delays, machine, others, scenarios
from liveness.bench.client_cost import client
from liveness.bench.cost import cost
from liveness.bench.figures import Figure, are_met, as_table, summary
from liveness.bench.lateness import lateness
from liveness.bench.process import ended_by_signals
from liveness.bench.program import ProgramError
from liveness.console.progress import Share, Stage, shown
from liveness.console.terminal import tell
from liveness.errors import LivenessError

MISSED: Final = 1
USAGE: Final = 2
# Of the report, as `report.schema.json` describes it.
SCHEMA: Final = 2

MEASURED: Final[dict[str, Callable[[BenchOptions, Stage], list[Figure]]]] = {
    one.__name__: one
    for one in (
        scenarios.idle,
        scenarios.logins,
        scenarios.steady,
        scenarios.silence,
        scenarios.day,
        scenarios.restart,
        delays.timers,
        client,
        cost,
        lateness,
    )
}
# Those that measure other systems too.
BESIDE: Final = frozenset({"cost", "lateness"})


class BenchError(LivenessError):
    """The bench cannot go on. What was measured until then is printed."""


def run(chosen: Iterable[str], options: BenchOptions, *, report: str | None) -> int:
    """Measures, prints, and says by the exit code whether every floor was met.

    Args:
        chosen: The scenarios, in this order; each once.
        options: How much of everything.
        report: The file for the report as JSON; `-` is stdout, and what is for a person
            then goes to stderr. None: no report.
    Returns:
        0 if all floors were met, 1 if one was missed, 2 if the options do not go
        together.
    Raises:
        BenchError: Something could not be measured, or the report not be written.
    """
    names = list(dict.fromkeys(chosen))
    if why_not := _why_not(names, options):
        tell(why_not)
        return USAGE
    out = sys.stderr if report == "-" else sys.stdout
    began, facts = datetime.now(UTC), machine.facts(options.folder)
    print(machine.as_line(facts), file=out, flush=True)
    left_out = others.plan(options).left_out if BESIDE & {*names} else []
    for what in left_out:
        print(f"left out: {what}", file=out, flush=True)
    with _undisturbed(), ended_by_signals():
        figures = _measured(names, options, out)
    print(summary(figures), file=out, flush=True)
    if report is not None:
        content = {
            "schema": SCHEMA,
            "liveness": __version__,
            "date": f"{began:%Y-%m-%dT%H:%M:%SZ}",
            "machine": facts,
            "parameters": {"scenarios": names, **asdict(options)},
            "left_out": left_out,
            "met": are_met(figures),
            "figures": [figure.as_map() for figure in figures],
        }
        _write(f"{json.dumps(content, indent=2, default=str)}\n", report)
    return 0 if are_met(figures) else MISSED


def _why_not(names: Sequence[str], options: BenchOptions) -> str:
    """Why these cannot be measured, and what could; nothing if they can."""
    why_not = scenarios.why_not(options) if "steady" in names else ""
    return why_not or (others.missing(options) if BESIDE & {*names} else "")


def _measured(names: Sequence[str], options: BenchOptions, out: TextIO) -> list[Figure]:
    """All figures; printed on *out* also if an error or a signal ends them early."""
    figures: list[Figure] = []
    try:
        with shown(sys.stderr) as begin:
            for number, name in enumerate(names, start=1):
                place = f"{number}/{len(names)} {name}"
                stage = partial(_begin, begin, place)
                figures += MEASURED[name](options, stage)
    except (LivenessError, OSError) as error:
        if isinstance(error, ProgramError):
            print(error.last_lines, file=sys.stderr)
        raise BenchError(f"{name} could not be measured: {error}") from error
    finally:
        if figures:
            print(as_table(figures), file=out, flush=True)
    return figures


def _begin(begin: Stage, place: str, what: str, share: Share) -> None:
    begin(f"{place}: {what}", share)


def _write(text: str, place: str) -> None:
    if place == "-":
        sys.stdout.write(text)
        return
    try:
        Path(place).write_text(text)
    except OSError as error:
        told = f"the report cannot be written to {place} ({error.strerror})"
        raise BenchError(f"{told}; give it another place with --json") from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the collector: its pauses would count as the server's lateness."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
