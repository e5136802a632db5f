"""Fills the tables of `performance.md` from the reports in `results`: `make performance`.

The reports are what `liveness bench --json` wrote. Those made before it noted the commit
have that of the commit which added them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from liveness.lab.bench import full_options
from liveness.lab.bench.cost import BATCHES, MEMORY, RATIOS_USERS, SINGLES
from liveness.lab.bench.suite import SCENARIOS
from liveness.lab.bench.systems import COMPARED_SYSTEMS
from liveness.lab.common.figures import OURS, Figure

PAGE: Final = Path(__file__).with_suffix(".md")
RESULTS: Final = PAGE.with_name("results")
BEGIN: Final = "<!-- {} written by `make performance`: -->\n"
END: Final = "<!-- until here -->"
# Those that the bench does not measure any more are in earlier reports.
SYSTEMS: Final = {
    OURS: "the sidecar",
    "reference": "the sidecar with its wheel in Python",
    **COMPARED_SYSTEMS,
    "etcd": "etcd, a lease for each user",
}
# The table of systems: the head of each column, and the name of its figure.
COLUMNS: Final = {
    "CPU per event": SINGLES,
    "in batches": BATCHES,
    "events per second": "events a second, one-uid frames",
    "memory per user": MEMORY,
    "reported p50": "reported p50",
    "reported p99": "reported p99",
    "reported within a minute": "reported within 60 s",
    "of": "fell silent",
}
RESTARTS: Final = {
    "`SIGTERM`": (
        "SIGTERM to ready",
        "late beyond that p99",
        "late beyond that, if due at once",
    ),
    "`kill -9`": ("kill -9 to ready", "late beyond that and a timeout p99"),
}


class PerformanceReport:
    """One run of the bench."""

    def __init__(self, path: Path) -> None:
        self.content = json.loads(path.read_text(encoding="utf-8"))
        self.users: int = self.content["parameters"]["users"]
        self.figures = [*map(_figure, self.content["figures"])]


def _figure(row: dict[str, Any]) -> Figure:
    fields = {name: value for name, value in row.items() if name != "met"}
    # Earlier reports measured a restart both with a load and without one, and had another
    # word for what is reported.
    name = row["name"].removesuffix(" under load")
    fields["name"] = name.replace("told ", "reported ")
    fields["value"] = math.nan if row["value"] is None else row["value"]
    return Figure(**fields)


def reports(folder: Path = RESULTS) -> list[PerformanceReport]:
    """The runs, those with fewer users first."""
    found = [PerformanceReport(path) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda run: (run.users, run.content["date"]))


def systems(runs: Sequence[PerformanceReport]) -> Iterator[Sequence[str]]:
    """Each system with the most users up to those of the promised ratios."""
    yield ("users", "system", *COLUMNS)
    figures = [figure for run in runs for figure in run.figures if figure.users]
    found = {(it.system, it.users, it.name): it.amount for it in figures}
    for system, description in SYSTEMS.items():
        sizes = {it.users or 0 for it in figures if it.system == system}
        users = max((size for size in sizes if size <= RATIOS_USERS), default=0)
        cells = [found.get((system, users, name), "") for name in COLUMNS.values()]
        if users:
            yield (f"{users:,}", description, *cells)


def restarts(runs: Sequence[PerformanceReport]) -> Iterator[Sequence[str]]:
    """Both ways in which a process is replaced, by users."""
    yield (
        *("users", "ended by", "from the signal to ready", "late beyond that, p99"),
        *("due just then, at most", "lost, early, false, missing"),
    )
    for run in runs:
        found = {it.name: it for it in run.figures if it.scenario == "restart"}
        wrong = sum(it.value for it in found.values() if it.most == 0)
        for how, names in RESTARTS.items() if found else ():
            cells = [
                found[name].amount if found[name].value > 0 else "none"
                for name in names
            ]
            cells += [""] * (3 - len(cells))
            yield (f"{run.users:,}", how, *cells, f"{wrong:g}")


def floors(runs: Sequence[PerformanceReport]) -> Iterator[Sequence[str]]:
    """What is promised; promises of zero errors share a row for each run."""
    yield ("users", "promise", "limit", "measured", "")
    for run in runs:
        promised = [
            figure
            for figure in run.figures
            if figure.is_met is not None and figure.scenario in SCENARIOS
        ]
        mistakes = [figure for figure in promised if figure.most == 0]
        for figure in promised:
            if figure.most != 0:
                name = f"{figure.scenario}: {figure.name}"
                yield _promise(figure.users or run.users, name, figure)
        if mistakes:
            total = Figure("", "", sum(it.value for it in mistakes), "", most=0.0)
            which = ", ".join(dict.fromkeys(figure.scenario for figure in mistakes))
            yield _promise(run.users, f"{which}: early, false or missing", total)


def _promise(users: int, name: str, figure: Figure) -> Sequence[str]:
    return f"{users:,}", name, figure.floor, figure.amount, figure.verdict


def measured(runs: Sequence[PerformanceReport]) -> Iterator[Sequence[str]]:
    """What was measured, where, and how to measure it again."""
    yield ("date", "liveness", "measured by", "machine")
    for run in runs:
        content, machine = run.content, run.content["machine"]
        facts = (
            "{cores} cores ({cpu}), {memory_mb:,} MB, {disk}, Linux {kernel}, "
            "Python {python}, {wheel} wheel"
        ).format(**machine)
        for name in ("redis", "valkey", "etcd"):
            facts += f", {name} {machine[name]}" if machine.get(name) else ""
        release = content["liveness"]
        product = (
            f"{release}, commit {content['commit']}" if content["commit"] else release
        )
        load = f"load before it {machine['load_before'][0]:g}"
        command = f"`{command_of(content['parameters'])}`"
        yield content["date"][:10], product, command, f"{facts}; {load}"


def command_of(parameters: dict[str, Any]) -> str:
    """The command line that repeats a run."""
    usual, users = full_options(parameters["users"]), parameters["users"]
    scenarios = [name for name in parameters["scenarios"] if name in SCENARIOS]
    words = ["liveness bench", *scenarios, f"--users {users}"]
    words += [
        f"--{name} {parameters[name]:g}"
        for name in ("rate", "seconds")
        if parameters[name] != getattr(usual, name)
    ]
    if tuple(parameters["sizes"]) != usual.sizes:
        words.append(f"--sizes {','.join(map(str, parameters['sizes']))}")
    words += [f"--without {name}" for name in parameters["without"]]
    return " ".join(words)


TABLES: Final = {
    table.__name__: table for table in (systems, restarts, floors, measured)
}


def filled(page: str, runs: Sequence[PerformanceReport]) -> str:
    """The page with its tables rewritten."""
    for name, table in TABLES.items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        if not end:
            raise ValueError(f"{PAGE} lacks the marks of the table {name}")
        page = f"{before}{begin}{_markdown(table(runs))}{end}{after}"
    return page


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(
        filled(PAGE.read_text(encoding="utf-8"), reports()), encoding="utf-8"
    )
