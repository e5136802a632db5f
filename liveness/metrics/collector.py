"""Builds the metric families from what a scrape reads."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from liveness.metrics.counts import Counts
from liveness.metrics.families import Family, families_of
from liveness.metrics.now import OUTLET_STATES, ClusterNow, GatewayNow, Now, OutletNow

# Gateways after the first 64 share the label `other`.
MOST_GATEWAYS: Final = 64
OTHER: Final = "other"

OUTLET: Final = "outlet"
_FAMILIES: Final = {
    Now: families_of(Now),
    Counts: families_of(Counts),
    GatewayNow: families_of(GatewayNow, "gateway"),
    ClusterNow: families_of(ClusterNow),
    OutletNow: families_of(OutletNow, OUTLET),
}
_OUTLET_STATE: Final = Family(
    GaugeMetricFamily,
    "liveness_outlet_state",
    "1 for the state that an outlet is in, 0 for the others.",
    (OUTLET, "state"),
)
# These cannot be added up, so `other` has none.
_NOT_SUMMED: Final = ("timeout_s", "interval_s")


class Collector:
    """Builds the families when Prometheus asks."""

    def __init__(self, now: Callable[[], Now]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Every family; `docs/metrics.md` lists them."""
        now = self._now()
        yield from _filled(now)
        yield from _filled(now.counts)
        for name, family in _FAMILIES[GatewayNow].items():
            yield family.of(_by_gateway(now.gateways, name))
        if now.cluster is not None:
            yield from _filled(now.cluster)
        if now.outlets:
            yield _OUTLET_STATE.of(
                {
                    (row.outlet, state): row.state == state
                    for row in now.outlets
                    for state in OUTLET_STATES
                }
            )
            for name, family in _FAMILIES[OutletNow].items():
                yield family.of({row.outlet: getattr(row, name) for row in now.outlets})
        yield InfoMetricFamily("liveness_build", "This build.", now.build)


def _filled(source: Now | Counts | ClusterNow) -> Iterator[Metric]:
    for name, family in _FAMILIES[type(source)].items():
        yield family.of(getattr(source, name))


def _by_gateway(gateways: Iterable[GatewayNow], name: str) -> dict[str, float]:
    """One number of each gateway; of those after the first 64 the sum, as `other`."""
    shown: dict[str, float] = {}
    for position, gateway in enumerate(gateways):
        is_named = position < MOST_GATEWAYS
        value = getattr(gateway, name)
        if value is not None and (is_named or name not in _NOT_SUMMED):
            label = gateway.name if is_named else OTHER
            shown[label] = shown.get(label, 0) + value
    return shown
