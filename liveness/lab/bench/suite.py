"""Runs the chosen scenarios; prints the table and the summary, and writes the report."""

import gc
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn, TextIO

from liveness.console.terminal import report_line
from liveness.errors import LivenessError
from liveness.lab.bench import BenchOptions, Stage, machine, scenarios, systems
from liveness.lab.bench.cluster_cost import cluster, missing_for_cluster
from liveness.lab.bench.cost import cost, lateness
from liveness.lab.bench.outlet_cost import missing_for_outlets, outlets
from liveness.lab.bench.replacement import restart
from liveness.lab.bench.timer_scenario import timers
from liveness.lab.common.figures import Figure, are_met, as_table, summary
from liveness.lab.common.processes import ProgramError, first_error

MISSED: Final = 1
USAGE: Final = 2
# Version of the report; `report.schema.json` describes it.
SCHEMA: Final = 4


class Scenario(NamedTuple):
    """A scenario's function, and how long that takes on two cores.

    In seconds: a fixed part, and parts for each second of the options and of the timeout, and
    for 100,000 users; in a comparison, all this for each system and number of users.
    """

    measure: Callable[[BenchOptions, Stage], list[Figure]]
    least_s: float
    windows: float
    timeouts: float
    many_s: float
    # Why it cannot be measured, and what to do; "" if it can.
    problem: Callable[[BenchOptions], str] = lambda _: ""


SCENARIOS: Final = {
    scenario.measure.__name__: scenario
    for scenario in (
        Scenario(scenarios.idle, 2.0, 0.17, 0.0, 0.0),
        Scenario(scenarios.logins, 4.0, 0.0, 0.0, 1.0),
        Scenario(scenarios.steady, 5.0, 2.0, 0.0, 1.0),
        Scenario(scenarios.silence, 3.0, 0.0, 1.0, 1.5),
        Scenario(restart, 3.0, 0.3, 4.0, 3.0),
        Scenario(timers, 9.0, 2.0, 0.0, 115.0),
        Scenario(cluster, 9.0, 3.0, 0.0, 45.0, lambda _: missing_for_cluster()),
        Scenario(outlets, 6.0, 3.0, 0.0, 50.0, lambda _: missing_for_outlets()),
        Scenario(cost, 1.0, 0.4, 0.0, 1.0, systems.missing_program),
        Scenario(lateness, 0.5, 0.7, 1.0, 1.0, systems.missing_program),
    )
}
# Left out of a run of all scenarios if a package is missing.
EXTRAS: Final = frozenset({"cluster", "outlets"})
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
    names, left_out = list(dict.fromkeys(chosen)), list[str]()
    is_everything = names == [*SCENARIOS]
    for name in [*names]:
        problem = SCENARIOS[name].problem(options)
        if problem and is_everything and name in EXTRAS:
            names.remove(name)
            left_out.append(f"{name}: {problem}")
        elif problem:
            report_line(f"{name} cannot be measured: {problem}")
            return USAGE
    out = sys.stderr if report == "-" else sys.stdout
    began, facts = datetime.now(UTC), machine.facts(options.folder)
    if COMPARISONS & {*names}:
        left_out += systems.plan(options).left_out
    print(machine.as_line(facts), file=out)
    for line in left_out:
        print(f"left out: {line}", file=out)
    print(f"takes about {_in_words(estimated_s(names, options))}", file=out, flush=True)
    figures = measured(names, options, out)
    print(summary(figures), file=out, flush=True)
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
        if report == "-":
            print(text)
        else:
            _write(f"{text}\n", Path(report))
    return 0 if are_met(figures) else MISSED


def _write(text: str, place: Path) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        why = f"the report cannot be written to {place} ({error.strerror})"
        raise BenchError(f"{why}; give it another place with --json") from error


def estimated_s(names: Iterable[str], options: BenchOptions) -> float:
    total_s, compared = 0.0, [users for users, _ in systems.plan(options).runs]
    for name in names:
        it = SCENARIOS[name]
        each_s = it.least_s + it.windows * options.seconds
        each_s += it.timeouts * options.timeout_s
        runs = compared if name in COMPARISONS else [options.users]
        total_s += each_s * len(runs) + it.many_s * sum(runs) / 100_000
    return total_s


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def measured(names: Sequence[str], options: BenchOptions, out: TextIO) -> list[Figure]:
    """All figures; printed on *out* even if an error or a signal ends the run early.

    Raises:
        BenchError: A scenario failed.
    """
    figures: list[Figure] = []
    gc.disable()  # a collection would pause the load, and count as the server's lateness
    try:
        with _exit_on_signals():
            for number, name in enumerate(names, start=1):
                position = f"{number}/{len(names)} {name}"

                def stage(what: str, position: str = position) -> None:
                    print(f"{position}: {what}", file=sys.stderr, flush=True)

                figures += SCENARIOS[name].measure(options, stage)
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
            print(as_table(figures), file=out, flush=True)
    return figures


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block as Ctrl-C does, so that it cleans up.

    The exit code is then that of a shell, as 1 means a missed floor.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                before = signal.signal(number, end)
                stack.callback(signal.signal, number, before)
        yield
