"""The kinds of panels of the dashboard, and how their expressions are written.

A colour means the same thing in every panel, and red is a fault. What is 0 as a rule
(refusals, limits, failures) is shown only while it counts.
"""

from typing import Final, Literal

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphDrawStyle,
    GraphGradientMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)

DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
# What is chosen at the top. The job, as other programs of a host have `up` and `process_…`
# too, and may have the same instance.
HERE: Final = 'job="liveness",instance=~"$instance"'
THROUGH: Final = f'{HERE},gateway=~"$gateway"'

GREEN: Final = "#73BF69"
YELLOW: Final = "#EAB839"
ORANGE: Final = "#FF9830"
RED: Final = "#F2495C"
BLUE: Final = "#5794F2"
PURPLE: Final = "#B877D9"
GREY: Final = "#8E8E8E"
LIGHT_GREEN: Final = "#C8F2C2"
LIGHT_BLUE: Final = "#C0D8FF"
LIGHT_PURPLE: Final = "#DEB6F2"

COLOURS: Final = {
    # What gateways report, and why a session began or ended.
    "login": GREEN,
    "keepalive": BLUE,
    "message": PURPLE,
    "logout": GREY,
    "moved": YELLOW,
    "silence": ORANGE,
    "gateway_lost": RED,
    # The stages of an offline.
    "decided p50": LIGHT_GREEN,
    "decided p99": GREEN,
    "durable p50": LIGHT_BLUE,
    "durable p99": BLUE,
    "sent p50": LIGHT_PURPLE,
    "sent p99": PURPLE,
    # Why users are held.
    "away": BLUE,
    "mute": PURPLE,
    "unread": YELLOW,
    "storm": RED,
    # The states of timers, and how their runs ended.
    "pending": BLUE,
    "fired": YELLOW,
    "done": GREEN,
    "failed": RED,
    "cancelled": GREY,
    "replaced": LIGHT_BLUE,
    "fail": RED,
    "unanswered": ORANGE,
    "late": YELLOW,
    # How questions about all hosts are answered.
    "answered": GREEN,
    "slow": YELLOW,
    # What outlets do.
    "following": GREEN,
    "retrying": YELLOW,
    "stopped": RED,
}

Unit = Literal["short", "s", "bytes", "cps", "reqps", "percentunit"]


# --- expressions ------------------------------------------------------------------------


def by(labels: str, gauge: str, over: str = HERE) -> str:
    """The sum of a gauge, by these labels."""
    return f"sum by ({labels}) ({gauge}{{{over}}})"


def rate(labels: str, counter: str, over: str = HERE) -> str:
    """How often a second something was counted, by these labels; without any, of all."""
    grouped = f" by ({labels})" if labels else ""
    return f"sum{grouped} (rate({counter}{{{over}}}[$__rate_interval]))"


def increase(labels: str, counter: str, over: str = HERE) -> str:
    """How many were counted in each step that is drawn, by these labels."""
    return f"sum by ({labels}) (increase({counter}{{{over}}}[$__rate_interval]))"


def quantile(share: float, histogram: str, *labels: str, over: str = HERE) -> str:
    """A quantile of a histogram, by these labels."""
    buckets = rate(", ".join(("le", *labels)), f"{histogram}_bucket", over)
    return f"histogram_quantile({share}, {buckets})"


def query(expression: str, legend: str = "__auto") -> prometheus.Dataquery:
    """One expression, over the time that is shown."""
    return (
        prometheus.Dataquery()
        .expr(expression)
        .legend_format(legend)
        .datasource(DATASOURCE)
        .ref_id("A")
        .range()
    )


# --- kinds of panels --------------------------------------------------------------------


def steps(*above: tuple[float, str]) -> build.ThresholdsConfig:
    """Green, and from each of these values on another colour."""
    all_of = [model.Threshold(None, GREEN)]
    all_of += [model.Threshold(value, colour) for value, colour in above]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(all_of)


def figure(
    title: str, says: str, expression: str, unit: Unit = "short", decimals: int = 0
) -> stat.Panel:
    """One large figure, with its course behind it; a sixth of the width."""
    return (
        stat.Panel()
        .title(title)
        .description(says)
        .datasource(DATASOURCE)
        .height(4)
        .span(4)
        .unit(unit)
        .decimals(decimals)
        .no_value("none")
        .thresholds(steps())
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query(expression, title))
    )


def curves(
    title: str,
    says: str,
    *queries: prometheus.Dataquery,
    unit: Unit = "short",
    width: int = 8,
    coloured: tuple[str, ...] = (),
) -> timeseries.Panel:
    """Lines over time, with the last and the highest value of each beside its name.

    Args:
        title: Its own; no other panel has it.
        says: What it shows, and what to do about it.
        queries: What is drawn.
        unit: Of the values, as Grafana names it.
        width: Columns, of 24.
        coloured: Names of lines that have a colour of their own, in `COLOURS`.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(says)
        .datasource(DATASOURCE)
        .height(8)
        .span(width)
        .unit(unit)
        .min(0)
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(1.5)
        .fill_opacity(8)
        .gradient_mode(GraphGradientMode.OPACITY)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(TooltipDisplayMode.MULTI)
            .sort(SortOrder.DESCENDING)
        )
        .targets([one.ref_id(ref) for ref, one in zip("ABC", queries, strict=False)])
    )
    for name in coloured:
        fixed = {"mode": "fixed", "fixedColor": COLOURS[name]}
        panel.override_by_name(name, [model.DynamicConfigValue("color", fixed)])
    return panel


def stacked(panel: timeseries.Panel) -> timeseries.Panel:
    """The same as areas upon each other: their height is the sum."""
    stack = common.StackingConfig().mode(StackingMode.NORMAL).group("A")
    return panel.stacking(stack).line_width(1).fill_opacity(25)


def seldom(panel: timeseries.Panel) -> timeseries.Panel:
    """The same as bars upon each other, for what is absent as a rule."""
    bars = stacked(panel).draw_style(GraphDrawStyle.BARS)
    return bars.fill_opacity(80).no_value("none")


def promised(panel: timeseries.Panel, most: float) -> timeseries.Panel:
    """The same with a dashed line at the most that there should be."""
    dashed = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    return panel.thresholds(steps((most, RED))).thresholds_style(dashed)
