"""Writes the measurements in `docs/performance.md`, and the plots, from committed reports.

    python -m liveness.lab.bench.performance

`results/` has reports of `liveness bench --json`, unchanged. Each number in the section is
taken from them. `make performance` runs this.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liveness.lab.bench import COMPARED_SYSTEMS, SCENARIOS, full_options
from liveness.lab.bench.cost import BATCHES, CPU, MEMORY, RATIOS_USERS, SINGLES
from liveness.lab.bench.lateness import PATIENCE_S, TOLD
from liveness.lab.common.figures import OURS, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results"
PAGE: Final = HERE.parents[2] / "docs/performance.md"
BEGIN: Final = "<!-- written by `make performance`: -->\n"
END: Final = "<!-- until here -->\n"
PLOTS: Final = {
    "cost.svg": "CPU time per event, by the number of users",
    "lateness.svg": "When a client receives a silence report, by the number of users",
}
# No longer in the bench; the committed reports have its figures.
ETCD: Final = "etcd"
SYSTEMS: Final = {
    OURS: "the sidecar",
    **COMPARED_SYSTEMS,
    ETCD: "etcd, a lease for each user",
}
# The table of systems: the head of each column, and the name of its figure.
COLUMNS: Final = {
    "CPU per event": f"{CPU}, {SINGLES}",
    "in batches": f"{CPU}, {BATCHES}",
    "events per second": f"events a second, {SINGLES}",
    "memory per user": MEMORY,
    "reported p50": "told p50",
    "reported p99": "told p99",
    "reported within a minute": TOLD.format(PATIENCE_S),
    "of": "fell silent",
}
INTRO: Final = """\
Measured by `liveness bench`: the real server is a process of its own, and another process
drives it over its socket. Other systems are measured in the same run. CPU and memory are
from the process table; lateness is what the client saw. Users send in random order, uids
have 17 bytes, and the best of several rounds counts. A promise that was broken, or not
measured, is marked MISSED.
"""
# Choices of ours that affect the figures.
CHOSEN: Final = """\
To measure CPU per event, the sidecar runs with slots of one second over an hour
(`--timeout 3600 --slots 3600`), so that each event really moves its user. redis-server
writes a reply to each SETEX, the sidecar none. The sorted set is swept once a second. In
the scenario `day`, a million users log in as fast as the disk takes them.
"""
NOTHING: Final = """\
No report is committed. `make bench` measures the promises on this machine.
"""
GREY: Final = "#808080"
COLOURS: Final = dict(
    zip(
        SYSTEMS,
        ("#2f81f7", "#8a6df0", "#e5534b", "#d9822b", "#c2569b", "#3fa45b", "#b0872c"),
        strict=True,
    )
)
STYLE: Final[dict[Any, Any]] = {  # the type of its keys lists 300 names
    "svg.hashsalt": "liveness",
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10.0,
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), GREY),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor"), GREY),
}
SIZE_IN: Final = (8.0, 4.5)


def draw(figures: Sequence[Figure], folder: Path, digest: str) -> None:
    """Writes the plots into a folder, each with the digest of the reports."""
    # Only plots need it: it comes with the level dev, and tests of the rest run without.
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(STYLE):
        cost, lateness = (Canvas(figsize=SIZE_IN, layout="constrained") for _ in PLOTS)
        axes = _axes(cost, "server CPU per event, ns (dashed: in batches of 1,000)")
        _lines(axes, figures, f"{CPU}, {SINGLES}", "-")
        _lines(axes, figures, f"{CPU}, {BATCHES}", "--")
        axes = _axes(lateness, "reported after the deadline, p99, ms")
        _lines(axes, figures, "told p99", "-")
        _shares(axes, figures)
        for name, canvas in zip(PLOTS, (cost, lateness), strict=True):
            canvas.legend(
                loc="outside lower center", ncols=2, frameon=False, fontsize="small"
            )
            about = {"Title": PLOTS[name], "Description": f"Of the reports {digest}."}
            metadata = {"Date": None, **about}
            canvas.savefig(folder / name, transparent=True, metadata=metadata)


def _axes(canvas: "Canvas", label: str) -> "Axes":
    axes = canvas.add_subplot(xlabel="users", ylabel=label, xscale="log", yscale="log")
    axes.grid(visible=True, color=GREY, alpha=0.25, linewidth=0.5)
    return axes


def _points(figures: Iterable[Figure], system: str, name: str) -> dict[int, float]:
    return {
        figure.users: figure.value
        for figure in figures
        if figure.users and figure.system == system and figure.name == name
    }


def _lines(axes: "Axes", figures: Sequence[Figure], name: str, dashes: str) -> None:
    for system, colour in COLOURS.items():
        points = sorted(_points(figures, system, name).items())
        if points:
            users, values = zip(*points, strict=True)
            label = SYSTEMS[system] if dashes == "-" else None
            (line,) = axes.plot(users, values, dashes, marker="o", markersize=4)
            line.set(color=colour, label=label)


def _shares(axes: "Axes", figures: Sequence[Figure]) -> None:
    """Writes beside a point how many users were reported, if not all."""
    for system, colour in COLOURS.items():
        silent = _points(figures, system, "fell silent")
        reported = _points(figures, system, TOLD.format(PATIENCE_S))
        for users, late_ms in _points(figures, system, "told p99").items():
            if reported[users] < silent[users]:
                axes.annotate(
                    f"{reported[users]:,.0f} of {silent[users]:,.0f}",
                    (users, late_ms),
                    xytext=(-6, -12),
                    textcoords="offset points",
                    ha="right",
                    fontsize="small",
                    color=colour,
                )


class PerformanceReport(NamedTuple):
    """One run of the bench."""

    content: Mapping[str, Any]
    figures: list[Figure]


def reports(folder: Path = RESULTS) -> list[PerformanceReport]:
    """The committed runs, those with fewer users first."""
    contents = [
        json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")
    ]
    contents.sort(key=lambda content: (content["parameters"]["users"], content["date"]))
    return [PerformanceReport(content, [*figures_of(content)]) for content in contents]


def digest(folder: Path = RESULTS) -> str:
    """A hash of the reports; each plot contains it."""
    hashed = sha256()
    for path in sorted(folder.glob("*.json")):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


def section(runs: Sequence[PerformanceReport]) -> str:
    """The section's text."""
    if not runs:
        return NOTHING
    figures = [figure for run in runs for figure in run.figures]
    parts = [
        _paragraph(INTRO),
        _paragraph(CHOSEN),
        *_promises(runs),
        *_systems(figures),
        *_dates_of_etcd(runs),
    ]
    if has_others(figures):
        links = (
            f"![{title}](../liveness/lab/bench/results/{name})"
            for name, title in PLOTS.items()
        )
        parts.append("\n\n".join(links))
    parts += [_facts(run.content) for run in runs]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def has_others(figures: Iterable[Figure]) -> bool:
    """Whether there are figures to draw."""
    return any(figure.users is not None for figure in figures)


def main() -> None:
    """Writes the section and the plots."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    runs = reports()
    PAGE.write_text(f"{before}{BEGIN}{section(runs)}{END}{after}", encoding="utf-8")
    figures = [figure for run in runs for figure in run.figures]
    if has_others(figures):
        draw(figures, RESULTS, digest())


def figures_of(content: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of a report."""
    for row in content["figures"]:
        fields = {name: value for name, value in row.items() if name != "met"}
        value = math.nan if row["value"] is None else row["value"]
        yield Figure(**fields | {"value": value})


def _promises(runs: Sequence[PerformanceReport]) -> Iterator[str]:
    """The table of promises; those of zero errors share a row for each run."""
    rows = []
    for run in runs:
        users = run.content["parameters"]["users"]
        promised = [figure for figure in run.figures if figure.is_met is not None]
        rows += [
            _row(figure.users or users, f"{figure.scenario}: {figure.name}", figure)
            for figure in promised
            if figure.most != 0
        ]
        mistakes = [figure for figure in promised if figure.most == 0]
        if mistakes:
            scenarios = dict.fromkeys(figure.scenario for figure in mistakes)
            total = sum(figure.value for figure in mistakes)
            promise = f"{', '.join(scenarios)}: early, false or missing"
            rows.append(_row(users, promise, Figure("", "", total, "", most=0.0)))
    if rows:
        yield _table(("users", "promise", "limit", "measured", ""), rows)


def _row(users: int, promise: str, figure: Figure) -> tuple[str, ...]:
    return f"{users:,}", promise, figure.floor, figure.amount, figure.verdict


def _systems(figures: Iterable[Figure]) -> Iterator[str]:
    """The table of systems, each with the most users up to the promised number."""
    found = {(f.system, f.users, f.name): f.amount for f in figures if f.users}
    heads = ("users", "system", *COLUMNS)
    rows = []
    for system, description in SYSTEMS.items():
        counts = [
            n for name, n, _ in found if name == system and n and n <= RATIOS_USERS
        ]
        if counts:
            users = max(counts)
            cells = (found.get((system, users, name), "") for name in COLUMNS.values())
            rows.append((f"{users:,}", description, *cells))
    if rows:
        yield _table(heads, rows)


def _dates_of_etcd(runs: Sequence[PerformanceReport]) -> Iterator[str]:
    dates = {
        run.content["date"][:10]
        for run in runs
        if any(figure.system == ETCD for figure in run.figures)
    }
    if dates:
        when = " and ".join(sorted(dates))
        yield f"etcd was measured on {when}; the bench no longer measures it."


def _facts(content: Mapping[str, Any]) -> str:
    """The machine and versions of a run, and the command to repeat it."""
    machine = content["machine"]
    others = [
        f"{name} {machine[name]}"
        for name in ("redis", "valkey", ETCD)
        if machine.get(name)
    ]
    versions = ", ".join(
        [f"Python {machine['python']}", f"SQLite {machine['sqlite']}", *others]
    )
    facts = (
        f"{content['date'][:10]}, liveness {content['liveness']}, {machine['wheel']} wheel: "
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_mb']:,} MB, "
        f"{machine['disk']}, Linux {machine['kernel']}, huge pages {machine['huge_pages']}; "
        f"{versions}; load before it {machine['load_before'][0]:g}."
    )
    left_out = "".join(f" Left out: {line}." for line in content["left_out"])
    return f"{facts}{left_out}\n\n```sh\n{command(content['parameters'])}\n```"


def command(parameters: Mapping[str, Any]) -> str:
    """The command line that repeats a run."""
    usual = full_options(parameters["users"])
    words = ["liveness", "bench"]
    if parameters["scenarios"] != [*SCENARIOS]:
        words += parameters["scenarios"]
    words += ["--users", str(parameters["users"])]
    flags = {"rate": "rate", "seconds": "seconds", "timeout": "timeout_s"}
    for flag, name in flags.items():
        if parameters[name] != getattr(usual, name):
            words += [f"--{flag}", f"{parameters[name]:g}"]
    if tuple(parameters["sizes"]) != usual.sizes:
        words += ["--sizes", ",".join(map(str, parameters["sizes"]))]
    for name in parameters["without"]:
        words += ["--without", name]
    return " ".join([*words, "--json", "report.json"])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _paragraph(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


if __name__ == "__main__":
    main()
