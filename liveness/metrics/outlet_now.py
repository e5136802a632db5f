"""The metrics of outlets: what is read of each at a scrape."""

from typing import Annotated, Any, Final, NamedTuple

from liveness.metrics.families import counter, gauge, histogram
from liveness.metrics.histogram import Histogram

OUTLET_STATES: Final = ("following", "retrying", "stopped")
# Of outlets: from the moment that a record was decided to its acknowledgement.
DELIVERY_S: Final = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 15, 60, 300, 1_800, 7_200, 86_400)


class OutletNow(NamedTuple):
    """One outlet at the moment of a scrape."""

    outlet: str  # the section of its settings, such as webhooks.mail
    state: str  # one of OUTLET_STATES
    since: int  # since when it is in this state, Unix milliseconds
    detail: str  # why it does not follow; empty if it does
    lag_records: Annotated[
        int,
        gauge(
            "liveness_outlet_lag_records",
            "Records that an outlet has not read, or not delivered.",
        ),
    ]
    lag_s: Annotated[
        float,
        gauge(
            "liveness_outlet_lag_seconds",
            "For how long there have been records that an outlet has not delivered.",
        ),
    ]
    sent: Annotated[
        int,
        counter(
            "liveness_outlet_records_sent",
            "Records that an outlet's receiver acknowledged.",
        ),
    ]
    retries: Annotated[
        int, counter("liveness_outlet_retries", "Tries of an outlet after a first one.")
    ]
    dead: Annotated[
        int,
        counter(
            "liveness_outlet_records_dead",
            "Records that became dead letters: a receiver refused them, or all attempts failed.",
        ),
    ]
    dead_kept: Annotated[
        int, gauge("liveness_outlet_dead_letters", "Dead letters that are kept.")
    ]
    dead_deleted: Annotated[
        int,
        counter(
            "liveness_outlet_dead_letters_deleted",
            "Dead letters that were deleted, as there were too many.",
        ),
    ]
    missed: Annotated[
        int,
        counter(
            "liveness_outlet_records_missed",
            "Records that were deleted from the log before an outlet had read them.",
        ),
    ]
    damped: Annotated[
        int,
        counter(
            "liveness_outlet_records_damped",
            "Offlines and onlines left out, as a user was back soon.",
        ),
    ]
    settling_overflows: Annotated[
        int,
        counter(
            "liveness_outlet_settling_overflows",
            "Offlines passed on early, as too many waited.",
        ),
    ]
    settling: Annotated[
        int,
        gauge(
            "liveness_outlet_settling",
            "Offlines that wait to see whether their user comes back.",
        ),
    ]
    latency: Annotated[
        Histogram,
        histogram(
            "liveness_outlet_delivery_seconds",
            "From a record's decision to its acknowledgement, of the oldest of a batch.",
        ),
    ]

    def as_map(self) -> dict[str, Any]:
        """As the summary shows it."""
        shown = self._asdict()
        del shown["latency"]
        return {**shown, "lag_s": round(self.lag_s, 3)}
