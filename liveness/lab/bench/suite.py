"""Runs the chosen scenarios; prints the table and the summary, and writes the report."""

import gc
import json
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from liveness.console.terminal import report_line
from liveness.errors import LivenessError
from liveness.lab.bench import BenchOptions, Stage, machine, scenarios, systems
from liveness.lab.bench.cluster_cost import cluster
from liveness.lab.bench.cost import cost, lateness
from liveness.lab.bench.outlet_cost import outlets
from liveness.lab.bench.replacement import restart
from liveness.lab.bench.timer_scenario import timers
from liveness.lab.common.figures import Figure, are_met, as_table, summary
from liveness.lab.common.processes import (
    ProgramError,
    first_error,
    missing_package,
    missing_program,
)

MISSED: Final = 1
USAGE: Final = 2
# Version of the report; `report.schema.json` describes it.
SCHEMA: Final = 4


Scenario = Callable[[BenchOptions, Stage], list[Figure]]
SCENARIOS: Final[dict[str, Scenario]] = {
    "idle": scenarios.idle,
    "logins": scenarios.logins,
    "steady": scenarios.steady,
    "silence": scenarios.silence,
    "restart": restart,
    "timers": timers,
    "cluster": cluster,
    "outlets": outlets,
    "cost": cost,
    "lateness": lateness,
}
# The scenarios that also measure other systems.
COMPARISONS: Final = frozenset({"cost", "lateness"})


class BenchError(LivenessError):
    """The bench cannot go on. The figures until then are printed."""


def run(chosen: Iterable[str], options: BenchOptions, *, report: Path | None) -> int:
    """Runs scenarios and prints their figures; the exit code says if a floor was missed."""
    names, left_out = list(dict.fromkeys(chosen)), list[str]()
    is_everything = names == [*SCENARIOS]
    for name in [*names]:
        problem = _problem(name, options)
        if problem and is_everything:
            names.remove(name)
            left_out.append(f"{name}: {problem}")
        elif problem:
            report_line(f"{name} cannot be measured: {problem}")
            return USAGE
    if report is not None:
        try:
            report.touch()
        except OSError as error:
            why = f"the report cannot be written to {report} ({error.strerror})"
            raise BenchError(f"{why}; give it another place with --json") from error
    began, facts = datetime.now(UTC), machine.facts(options.folder)
    if COMPARISONS & {*names}:
        left_out += systems.plan(options)[1]
    print(machine.as_line(facts))
    for line in left_out:
        print(f"left out: {line}", flush=True)
    figures = measured(names, options)
    print(summary(figures), flush=True)
    if report is not None:
        content = {
            "schema": SCHEMA,
            **machine.product(),
            "date": f"{began:%Y-%m-%dT%H:%M:%SZ}",
            "machine": facts,
            "parameters": {"scenarios": names, **asdict(options)},
            "left_out": left_out,
            "met": are_met(figures),
            "figures": [figure.as_map() for figure in figures],
        }
        text = json.dumps(content, indent=2, default=str)
        report.write_text(f"{text}\n", encoding="utf-8")
    return 0 if are_met(figures) else MISSED


def _problem(name: str, options: BenchOptions) -> str:
    match name:
        case "cluster":
            return missing_program("redis-server") or missing_package(
                "coredis", "cluster"
            )
        case "outlets":
            return missing_package("confluent_kafka", "kafka")
        case "cost" | "lateness":
            return systems.missing_system(options)
        case _:
            return ""


def measured(names: Sequence[str], options: BenchOptions) -> list[Figure]:
    """All figures; printed even if an error or a signal ends the run early."""
    figures: list[Figure] = []
    _exit_on_signals()
    gc.disable()  # a collection would pause the load, and count as the server's lateness
    try:
        for number, name in enumerate(names, start=1):
            position = f"{number}/{len(names)} {name}"

            def stage(what: str, position: str = position) -> None:
                print(f"{position}: {what}", file=sys.stderr, flush=True)

            figures += SCENARIOS[name](options, stage)
    except (LivenessError, OSError, ExceptionGroup) as raised:
        error = first_error(raised)
        if not isinstance(error, LivenessError | OSError):
            raise
        if isinstance(error, ProgramError):
            print(error.last_lines, file=sys.stderr)
        raise BenchError(f"{name} could not be measured: {error}") from error
    finally:
        gc.enable()
        if figures:
            print(as_table(figures), flush=True)
    return figures


def _exit_on_signals() -> None:
    """Lets SIGTERM and SIGHUP end the bench as Ctrl-C does, so that it cleans up.

    The exit code is then that of a shell, as 1 means a missed floor.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, end)
