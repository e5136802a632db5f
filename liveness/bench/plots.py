"""The plots of `docs/performance.md`: lines by system, on log axes.

They lie on no ground of their own, in a grey and in colours that can be read on white
as on black, and are the same bytes whenever the same figures are drawn.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from liveness.bench.cost import BATCHES, CPU, SINGLES
from liveness.bench.figures import Figure
from liveness.bench.lateness import PATIENCE_S, TOLD
from liveness.bench.performance import PLOTS, SYSTEMS

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
