"""The metrics of outlets: what is read of each at a scrape."""

from dataclasses import dataclass, fields
from typing import Any, Final

from liveness.metrics.families import counter, gauge, histogram
from liveness.metrics.histogram import Histogram

OUTLET_STATES: Final = ("following", "retrying", "stopped")
# Of outlets: from the moment that a record was decided to its acknowledgement.
DELIVERY_S: Final = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 15, 60, 300, 1_800, 7_200, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletNow:
    """One outlet at the moment of a scrape."""

    outlet: str  # the section of its settings, such as webhooks.mail
    state: str  # one of OUTLET_STATES
    since: int  # since when it is in this state, Unix milliseconds
    detail: str  # why it does not follow; empty if it does
    lag_records: int = gauge(
        "liveness_outlet_lag_records",
        "Records that an outlet has not read, or not delivered.",
    )
    lag_s: float = gauge(
        "liveness_outlet_lag_seconds",
        "For how long there have been records that an outlet has not delivered.",
    )
    sent: int = counter(
        "liveness_outlet_records_sent",
        "Records that an outlet's receiver acknowledged.",
    )
    retries: int = counter(
        "liveness_outlet_retries", "Tries of an outlet after a first one."
    )
    dead: int = counter(
        "liveness_outlet_records_dead",
        "Records that became dead letters: a receiver refused them, or all attempts failed.",
    )
    dead_kept: int = gauge(
        "liveness_outlet_dead_letters", "Dead letters that are kept."
    )
    dead_deleted: int = counter(
        "liveness_outlet_dead_letters_deleted",
        "Dead letters that were deleted, as there were too many.",
    )
    missed: int = counter(
        "liveness_outlet_records_missed",
        "Records that were deleted from the log before an outlet had read them.",
    )
    damped: int = counter(
        "liveness_outlet_records_damped",
        "Offlines and onlines left out, as a user was back soon.",
    )
    settling_overflows: int = counter(
        "liveness_outlet_settling_overflows",
        "Offlines passed on early, as too many waited.",
    )
    settling: int = gauge(
        "liveness_outlet_settling",
        "Offlines that wait to see whether their user comes back.",
    )
    latency: Histogram = histogram(
        "liveness_outlet_delivery_seconds",
        "From a record's decision to its acknowledgement, of the oldest of a batch.",
    )

    def as_map(self) -> dict[str, Any]:
        names = (item.name for item in fields(self) if item.name != "latency")
        shown = {name: getattr(self, name) for name in names}
        return {**shown, "lag_s": round(self.lag_s, 3)}
