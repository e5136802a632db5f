"""All that is read at the moment of a scrape."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from liveness.metrics.counts import Counts
from liveness.metrics.families import Histogram, Values, counter, gauge, histogram

# The answers of Redis that alerts name, from 0 on; others are counted once they come.
CLUSTER_CALLS: Final = tuple(
    ("begin", answer) for answer in ("keep", "reset", "epoch", "replaced", "config")
)
# Why a call may fail, and how questions about users of all hosts are answered.
CLUSTER_ERRORS: Final = (
    "timeout", "connection", "readonly", "memory", "moving", "auth", "permission",
    "loading", "other",
)  # fmt: skip
CLUSTER_QUESTIONS: Final = ("answered", "slow", "away")
PARTITION_MODES: Final = ("beginning", "asserting", "following")
OUTLET_STATES: Final = ("following", "retrying", "stopped")
# Of outlets: from the moment that a record was decided to its acknowledgement.
DELIVERY_S: Final = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 15, 60, 300, 1_800, 7_200, 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNow:
    """One gateway at the moment of a scrape."""

    name: str
    unacked: int = gauge("liveness_link_unacked", "Records sent and not acknowledged.")
    users: int = gauge("liveness_gateway_users", "Users online through each gateway.")
    timeout_s: float = gauge(
        "liveness_gateway_timeout_seconds",
        "The silence timeout of each gateway's users.",
    )
    interval_s: float | None = gauge(  # None: not known
        "liveness_gateway_interval_seconds",
        "How long each gateway's users are usually silent, where that is known.",
    )
    mutes: int = counter(
        "liveness_gateway_mute",
        "How often each gateway was silent for longer than it promised.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNow:
    """The publishing of this host's sessions at the moment of a scrape."""

    host: str
    state: str  # following, beginning, away, replaced or refused
    since: int  # since when it is in this state, Unix milliseconds
    detail: str  # why it does not follow; empty if it does
    is_up: bool = gauge(
        "liveness_cluster_up", "1 if the newest call to Redis succeeded, else 0."
    )
    lag_records: int = gauge(
        "liveness_cluster_lag_records", "Records that Redis does not have yet."
    )
    lag_s: float = gauge(
        "liveness_cluster_lag_seconds",
        "Age of the oldest change that Redis does not have.",
    )
    partitions: Values = gauge(  # by PARTITION_MODES
        "liveness_cluster_partitions",
        "Partitions by what this host does in them; all should be following.",
        "mode",
    )
    lease_age_s: float = gauge(
        "liveness_cluster_lease_age_seconds",
        "Time since the last answer of the partition that has waited the longest.",
    )
    lease_s: float = gauge(
        "liveness_cluster_lease_seconds",
        "Silence after which the other hosts declare this one lost.",
    )
    users: int = gauge("liveness_cluster_users", "Users online on any host.")
    calls: Mapping[tuple[str, str], int] = counter(
        "liveness_cluster_calls",
        "Calls to Redis that were answered.",
        "function",
        "answer",
    )
    errors: Values = counter(  # by CLUSTER_ERRORS
        "liveness_cluster_errors", "Calls to Redis that failed.", "kind"
    )
    audit_mismatches: int = counter(
        "liveness_cluster_audit_mismatches",
        "Times that Redis had other users than hosts had brought. Must stay 0.",
    )
    fences: int = counter(
        "liveness_cluster_fences",
        "Hosts that this one declared lost, once for each partition.",
    )
    sessions_reaped: int = counter(
        "liveness_cluster_sessions_reaped",
        "Sessions of lost hosts, and outdated ones, that this host ended.",
    )
    questions: Values = counter(  # by CLUSTER_QUESTIONS
        "liveness_cluster_questions",
        "Questions about users of all hosts, by how they were answered.",
        "answer",
    )

    def as_map(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "state": self.state,
            "since": self.since,
            "detail": self.detail,
            "users": self.users,
            "lag_records": self.lag_records,
            "lag_s": round(self.lag_s, 3),
            "partitions": dict(self.partitions),
        }


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """All metrics at the moment of a scrape."""

    events: Values = counter("liveness_events", "Events received.", "event")
    ignored: Values = counter(
        "liveness_events_ignored", "Events that changed no session.", "why"
    )
    began_unused: Values = counter(
        "liveness_began_unused",
        "Connections whose `began` was not used: their `age` counts.",
        "why",
    )
    users: int = gauge("liveness_users_online", "Users online.")
    distinct_users: int = gauge(
        "liveness_users_distinct",
        "Users online; where devices are counted, several of one user count once.",
    )
    opened: Values = counter("liveness_online", "Sessions begun.", "reason")
    ended: Values = counter("liveness_offline", "Sessions ended.", "reason")
    moved: int = counter("liveness_moved", "Sessions displaced by a newer connection.")
    early: int = counter(
        "liveness_early_offline",
        "Offlines for silence before the whole timeout. Must stay 0.",
    )
    hand_lag_s: float = gauge(
        "liveness_hand_lag_seconds",
        "The largest delay of the wheel's hand within the last 15 to 30 s.",
    )
    unattended_s: float = counter(
        "liveness_unattended_seconds",
        "Time in which links were not read; it does not count as silence.",
    )
    held: Values = gauge(
        "liveness_users_held",
        "Due users that are held, because of their gateway or a storm.",
        "why",
    )
    storms: int = counter(
        "liveness_storms",
        "Storms: too many users of a gateway came due at once, and were held.",
    )
    links: Values = gauge("liveness_links", "Connected gateways and watchers.", "role")
    unread: Values = gauge(
        "liveness_unread_bytes", "Bytes of answers that were not read yet.", "where"
    )
    unfinished_bytes: int = gauge(
        "liveness_unfinished_bytes", "Bytes of incomplete frames."
    )
    gateways: list[GatewayNow]
    counts: Counts
    build: dict[str, str]  # version, and kind of wheel
    log_seq: int = gauge("liveness_log_seq", "The newest durable record.")
    log_pending: int = gauge(
        "liveness_log_pending", "Records decided and not durable yet."
    )
    write_failures: Values = counter(
        "liveness_write_failures", "Failed tries to write to the disk.", "what"
    )
    log_bytes: int = gauge("liveness_log_bytes", "Bytes of the database in use.")
    log_damaged: int = gauge(
        "liveness_log_damaged_records",
        "Records of the log that were found damaged on disk.",
    )
    streams: Values = gauge("liveness_streams", "Open HTTP streams.", "stream")
    timers: Values = gauge("liveness_timers", "Timers in the table.", "state")
    timers_loaded: int = gauge(
        "liveness_timers_loaded", "Timers in memory, those of the coming hour."
    )
    timer_attempts: Values = counter(
        "liveness_timer_attempts",
        "Attempts of timers that ended, and answers that came too late.",
        "result",
    )
    is_ready: bool = gauge("liveness_ready", "1 while /readyz says ready, else 0.")
    cluster: ClusterNow | None = None  # None: none is configured
    outlets: list[OutletNow] = field(default_factory=list)
