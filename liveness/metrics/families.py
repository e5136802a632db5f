"""How a field declares its metric family: as an annotation.

Prometheus objects exist only while a scrape is answered.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar, get_type_hints

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

Values = Mapping[str, int]  # by the value of a label
Label = TypeVar("Label", str, tuple[str, str])


@dataclass(frozen=True, slots=True)
class Family:
    """The metric family of a field of `Now`, `Counts`, …; its annotation."""

    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    text: str
    labels: tuple[str, ...]

    def of(self, values: Any) -> Metric:
        """The family with its samples.

        Args:
            values: A number or histogram; with labels a mapping of them by label
                value (by a tuple for two labels), or a list, labelled by position.
        """
        family = self.kind(self.name, self.text, labels=self.labels)
        if isinstance(values, list):
            values = {str(position): value for position, value in enumerate(values)}
        elif not self.labels:
            values = {(): values}
        for labels, value in values.items():
            labelled = [labels] if isinstance(labels, str) else labels
            if isinstance(family, HistogramMetricFamily):
                family.add_metric(labelled, value.cumulative(), value.sum)
            else:
                family.add_metric(labelled, value)
        return family


def _declared(kind: Any, name: str, text: str, *labels: str) -> Family:
    return Family(kind, name, text, labels)


counter: Final = partial(_declared, CounterMetricFamily)
gauge: Final = partial(_declared, GaugeMetricFamily)
histogram: Final = partial(_declared, HistogramMetricFamily)


def zeros(labels: Iterable[Label]) -> Counter[Label]:
    """Counters that start at 0: a rate needs a first value."""
    return Counter(dict.fromkeys(labels, 0))


def with_zeros(
    labels: Iterable[Label], counted: Mapping[Label, int]
) -> dict[Label, int]:
    """What was counted, and 0 for every other of these labels."""
    return {**dict.fromkeys(labels, 0), **counted}


def families_of(table: type, *labels: str) -> dict[str, Family]:
    """The families of a table by field, in order; *labels* are those of all of them."""
    hints = get_type_hints(table, include_extras=True)
    return {
        name: replace(found, labels=labels + found.labels)
        for name, hint in hints.items()
        for found in getattr(hint, "__metadata__", ())
    }
