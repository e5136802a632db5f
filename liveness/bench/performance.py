"""The measurements in `docs/performance.md`, and their plots, from the reports committed here.

    python -m liveness.bench.performance

`results/` has reports of `liveness bench --json`, as they were written. Everything that
the section says is taken from them, so that no number in it is a memory; whatever is
not in them is not said. `make performance` is this.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from liveness.bench import OTHERS, SCENARIOS, full
from liveness.bench.cost import BATCHES, CPU, MEMORY, RATIOS_USERS, SINGLES
from liveness.bench.figures import OURS, Figure
from liveness.bench.lateness import PATIENCE_S, TOLD

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results"
PAGE: Final = HERE.parents[1] / "docs/performance.md"
BEGIN: Final = "<!-- written by `make performance`: -->\n"
END: Final = "<!-- until here -->\n"
PLOTS: Final = {
    "cost.svg": "CPU time per event, by the number of users",
    "lateness.svg": "When a client receives a silence report, by the number of users",
}
SYSTEMS: Final = {OURS: "the sidecar", **OTHERS}
# Of each system: the head of a column, and the figure in it.
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
# Our choices, which others might make differently.
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
        ("#2f81f7", "#8a6df0", "#e5534b", "#d9822b", "#b0872c", "#3fa45b"),
        strict=True,
    )
)
STYLE: Final[dict[Any, Any]] = {  # its keys have a type of 300 names
    "svg.hashsalt": "liveness",
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10.0,
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "xtick.color",
            "ytick.color",
        ),
        GREY,
    ),
}
SIZE_IN: Final = (8.0, 4.5)


def draw(figures: Sequence[Figure], folder: Path, digest: str) -> None:
    """Writes the plots.

    Args:
        figures: What was measured.
        folder: Where to.
        digest: What it was measured in, for whoever compares.
    """
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
            canvas.savefig(
                folder / name,
                transparent=True,
                metadata={
                    "Date": None,
                    "Title": PLOTS[name],
                    "Description": f"Of the reports {digest}.",
                },
            )


def _axes(canvas: Canvas, what: str) -> Axes:
    axes = canvas.add_subplot(xlabel="users", ylabel=what, xscale="log", yscale="log")
    axes.grid(visible=True, color=GREY, alpha=0.25, linewidth=0.5)
    return axes


def _points(figures: Iterable[Figure], system: str, name: str) -> dict[int, float]:
    return {
        one.users: one.value
        for one in figures
        if one.users and one.system == system and one.name == name
    }


def _lines(axes: Axes, figures: Sequence[Figure], name: str, dashes: str) -> None:
    for system, colour in COLOURS.items():
        points = sorted(_points(figures, system, name).items())
        if points:
            users, values = zip(*points, strict=True)
            label = SYSTEMS[system] if dashes == "-" else None
            axes.plot(
                users,
                values,
                dashes,
                marker="o",
                markersize=4,
                color=colour,
                label=label,
            )


def _shares(axes: Axes, figures: Sequence[Figure]) -> None:
    """Write beside a point how many users were reported, if not all."""
    for system, colour in COLOURS.items():
        silent = _points(figures, system, "fell silent")
        told = _points(figures, system, TOLD.format(PATIENCE_S))
        for users, late_ms in _points(figures, system, "told p99").items():
            if told[users] < silent[users]:
                axes.annotate(
                    f"{told[users]:,.0f} of {silent[users]:,.0f}",
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
    """The runs committed, those with fewer users first."""
    contents = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    contents.sort(key=lambda one: (one["parameters"]["users"], one["date"]))
    return [PerformanceReport(one, [*_figures(one)]) for one in contents]


def digest(folder: Path = RESULTS) -> str:
    """What tells these reports from any others; each plot carries it."""
    both = sha256()
    for path in sorted(folder.glob("*.json")):
        both.update(path.read_bytes())
    return both.hexdigest()


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
    ]
    if has_others(figures):
        links = (
            f"![{what}](../liveness/bench/results/{name})"
            for name, what in PLOTS.items()
        )
        parts.append("\n\n".join(links))
    parts += [_facts(run.content) for run in runs]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def has_others(figures: Iterable[Figure]) -> bool:
    """Whether there is anything to draw."""
    return any(figure.users is not None for figure in figures)


def main() -> None:
    """Writes it all."""

    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    runs = reports()
    PAGE.write_text(f"{before}{BEGIN}{section(runs)}{END}{after}")
    figures = [figure for run in runs for figure in run.figures]
    if has_others(figures):
        draw(figures, RESULTS, digest())


# --- within -------------------------------------------------------------------


def _figures(content: Mapping[str, Any]) -> Iterator[Figure]:
    for one in content["figures"]:
        fields = {name: one[name] for name in one if name != "met"}
        yield Figure(
            **fields | {"value": math.nan if one["value"] is None else one["value"]}
        )


def _promises(runs: Sequence[PerformanceReport]) -> Iterator[str]:
    """Every promise and what became of it; mistakes, of which there may be none, as one."""
    rows = []
    for run in runs:
        users = run.content["parameters"]["users"]
        promised = [one for one in run.figures if one.is_met is not None]
        rows += [
            _row(one.users or users, f"{one.scenario}: {one.name}", one)
            for one in promised
            if one.most != 0
        ]
        mistakes = [one for one in promised if one.most == 0]
        if mistakes:
            scenarios = dict.fromkeys(one.scenario for one in mistakes)
            total = sum(one.value for one in mistakes)
            told = f"{', '.join(scenarios)}: early, false or missing"
            rows.append(_row(users, told, Figure("", "", total, "", most=0.0)))
    if rows:
        yield _table(("users", "promise", "limit", "measured", ""), rows)


def _row(users: int, told: str, figure: Figure) -> tuple[str, ...]:
    return f"{users:,}", told, figure.floor, figure.amount, figure.verdict


def _systems(figures: Iterable[Figure]) -> Iterator[str]:
    """What each system costs and how late it is, with as many users as were promised."""
    found = {
        (one.system, one.users, one.name): one.amount for one in figures if one.users
    }
    heads = ("users", "system", *COLUMNS)
    rows = []
    for system, what in SYSTEMS.items():
        counts = [n for of, n, _ in found if of == system and n and n <= RATIOS_USERS]
        if counts:
            users = max(counts)
            cells = (found.get((system, users, name), "") for name in COLUMNS.values())
            rows.append((f"{users:,}", what, *cells))
    if rows:
        yield _table(heads, rows)


def _facts(content: Mapping[str, Any]) -> str:
    """What it was measured on, and how to do it again."""
    machine = content["machine"]
    beside = [f"{name} {machine[name]}" for name in ("redis", "etcd") if machine[name]]
    versions = ", ".join(
        [f"Python {machine['python']}", f"SQLite {machine['sqlite']}", *beside]
    )
    told = (
        f"{content['date'][:10]}, liveness {content['liveness']}, {machine['wheel']} wheel: "
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_mb']:,} MB, "
        f"{machine['disk']}, Linux {machine['kernel']}, huge pages {machine['huge_pages']}; "
        f"{versions}; load before it {machine['load_before'][0]:g}."
    )
    left_out = "".join(f" Left out: {what}." for what in content["left_out"])
    return f"{told}{left_out}\n\n```sh\n{command(content['parameters'])}\n```"


def command(parameters: Mapping[str, Any]) -> str:
    """The command line for the same again."""
    usual = full(parameters["users"])
    words = ["liveness", "bench"]
    if parameters["scenarios"] != [*SCENARIOS]:
        words += parameters["scenarios"]
    words += ["--users", str(parameters["users"])]
    for flag, name in (
        ("rate", "rate"),
        ("seconds", "seconds"),
        ("timeout", "timeout_s"),
    ):
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
    """One line, as all of the section's paragraphs are."""
    return " ".join(text.split())


if __name__ == "__main__":
    main()
