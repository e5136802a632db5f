"""Runs the chosen scenarios; prints the table and the summary, and writes the report."""

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from liveness import __version__
from liveness.console.progress import Share, Stage, progress_bar
from liveness.console.terminal import report_line
from liveness.errors import LivenessError
from liveness.lab.bench import BenchOptions, machine, scenarios, system_kinds
from liveness.lab.bench.client_cost import client
from liveness.lab.bench.cluster_cost import cluster, missing_for_cluster
from liveness.lab.bench.cost import cost
from liveness.lab.bench.device_cost import devices
from liveness.lab.bench.lateness import lateness
from liveness.lab.bench.outlet_cost import missing_for_outlets, outlets
from liveness.lab.bench.program import ProgramError, exit_on_signals
from liveness.lab.bench.steady import impossible_rate, steady
from liveness.lab.bench.timer_scenario import timers
from liveness.lab.common.figures import Figure, are_met, as_table, summary

MISSED: Final = 1
USAGE: Final = 2
# Version of the report; `report.schema.json` describes it.
SCHEMA: Final = 3

MEASURED: Final[dict[str, Callable[[BenchOptions, Stage], list[Figure]]]] = {
    scenario.__name__: scenario
    for scenario in (
        scenarios.idle,
        scenarios.logins,
        steady,
        scenarios.silence,
        scenarios.day,
        scenarios.restart,
        timers,
        devices,
        cluster,
        outlets,
        client,
        cost,
        lateness,
    )
}
# What scenarios need that may be missing.
_NEEDS: Final[dict[str, Callable[[], str]]] = {
    cluster.__name__: missing_for_cluster,
    outlets.__name__: missing_for_outlets,
}
# The scenarios that also measure other systems.
COMPARISONS: Final = frozenset({"cost", "lateness"})


class BenchError(LivenessError):
    """The bench cannot go on. The figures until then are printed."""


def run(chosen: Iterable[str], options: BenchOptions, *, report: str | None) -> int:
    """Runs scenarios and prints their figures; the exit code says if a floor was missed.

    Args:
        chosen: The scenarios, in this order; repetitions are ignored.
        options: The parameters.
        report: The file for the report as JSON. With `-` the report goes to stdout, and
            all other output to stderr. None: no report.
    Returns:
        0 if all floors were met, 1 if one was missed, 2 if the options do not go
        together.
    Raises:
        BenchError: A scenario failed, or the report cannot be written.
    """
    names = list(dict.fromkeys(chosen))
    left_out = list[str]()
    is_everything = names == [*MEASURED]
    has_comparison = bool(COMPARISONS & {*names})
    problem = impossible_rate(options) if "steady" in names else ""
    for name, what_misses in _NEEDS.items():
        if name in names and (missing := what_misses()):
            if is_everything:
                names.remove(name)
                left_out.append(f"{name}: {missing}")
            elif not problem:
                problem = f"{name} cannot be measured: {missing}"
    if not problem and has_comparison:
        problem = system_kinds.missing_program(options)
    if problem:
        report_line(problem)
        return USAGE
    out = sys.stderr if report == "-" else sys.stdout
    began, facts = datetime.now(UTC), machine.facts(options.folder)
    print(machine.as_line(facts), file=out, flush=True)
    if has_comparison:
        left_out += system_kinds.plan(options).left_out
    for line in left_out:
        print(f"left out: {line}", file=out, flush=True)
    figures = measured(names, options, out)
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


def measured(names: Sequence[str], options: BenchOptions, out: TextIO) -> list[Figure]:
    """All figures; printed on *out* even if an error or a signal ends the run early.

    Raises:
        BenchError: A scenario failed.
    """
    figures: list[Figure] = []
    try:
        with (
            _without_garbage_collection(),
            exit_on_signals(),
            progress_bar(sys.stderr) as show,
        ):
            for number, name in enumerate(names, start=1):
                position = f"{number}/{len(names)} {name}"

                def stage(what: str, share: Share, position: str = position) -> None:
                    show(f"{position}: {what}", share)

                figures += MEASURED[name](options, stage)
    except (LivenessError, OSError) as error:
        if isinstance(error, ProgramError):
            print(error.last_lines, file=sys.stderr)
        raise BenchError(f"{name} could not be measured: {error}") from error
    finally:
        if figures:
            print(as_table(figures), file=out, flush=True)
    return figures


def _write(text: str, place: str) -> None:
    if place == "-":
        sys.stdout.write(text)
        return
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"the report cannot be written to {place} ({error.strerror})"
        raise BenchError(f"{message}; give it another place with --json") from error


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection would pause the load, and count as lateness of the server."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
