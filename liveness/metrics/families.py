"""Histograms, and how a field declares its metric family.

Prometheus objects exist only while a scrape is answered.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

Values = Mapping[str, int]  # by the value of a label
Label = TypeVar("Label", str, tuple[str, str])


class Histogram:
    """A classic histogram: counts by bucket, and a sum.

    Args:
        bounds: Upper bounds, ascending, in seconds; infinity is added.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations at or below it), ending with +Inf."""
        total, rows = 0, []
        for bound, count in zip((*self.bounds, None), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound is None else f"{bound:g}", float(total)))
        return rows


@dataclass(frozen=True, slots=True)
class Family:
    """The metric family of a field of `Now`, `Counts`, …."""

    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    text: str
    labels: tuple[str, ...]

    def of(self, values: Any) -> Metric:
        """The family with its samples.

        Args:
            values: A number or histogram; with labels a mapping of them by label
                value, by a tuple for two labels.
        """
        family = self.kind(self.name, self.text, labels=self.labels)
        if not self.labels:
            values = {(): values}
        for labels, value in values.items():
            labelled = [labels] if isinstance(labels, str) else labels
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(labelled, value.cumulative(), value.sum)
            else:
                family.add_metric(labelled, value)
        return family


def _declared(kind: Any, name: str, text: str, *labels: str, **default: Any) -> Any:
    """A field of a table, with its family; *default* is as for `field`."""
    family = Family(kind, name, text, labels)
    return field(metadata={"family": family}, **default)


counter: Final = partial(_declared, CounterMetricFamily)
gauge: Final = partial(_declared, GaugeMetricFamily)
histogram: Final = partial(_declared, HistogramMetricFamily)


def zeros(labels: Iterable[Label]) -> Counter[Label]:
    """Counters that start at 0: a rate needs a first value."""
    return Counter(dict.fromkeys(labels, 0))


def families_of(table: type, *labels: str) -> dict[str, Family]:
    """The families of a table by field, in order; *labels* are those of all of them."""
    return {
        item.name: replace(family, labels=labels + family.labels)
        for item in fields(table)
        if (family := item.metadata.get("family"))
    }
