"""All that is read at the moment of a scrape."""

from dataclasses import dataclass, field
from typing import Annotated

from liveness.metrics.cluster_now import ClusterNow
from liveness.metrics.counts import Counts
from liveness.metrics.families import Values, counter, gauge
from liveness.metrics.outlet_now import OutletNow


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNow:
    """One gateway at the moment of a scrape."""

    name: str
    unacked: Annotated[
        int, gauge("liveness_link_unacked", "Records sent and not acknowledged.")
    ]
    users: Annotated[
        int, gauge("liveness_gateway_users", "Users online through each gateway.")
    ]
    timeout_s: Annotated[
        float,
        gauge(
            "liveness_gateway_timeout_seconds",
            "The silence timeout of each gateway's users.",
        ),
    ]
    interval_s: Annotated[
        float | None,  # None: not known
        gauge(
            "liveness_gateway_interval_seconds",
            "How long each gateway's users are usually silent, where that is known.",
        ),
    ]
    mutes: Annotated[
        int,
        counter(
            "liveness_gateway_mute",
            "How often each gateway was silent for longer than it promised.",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """All metrics at the moment of a scrape."""

    events: Annotated[Values, counter("liveness_events", "Events received.", "event")]
    ignored: Annotated[
        Values,
        counter("liveness_events_ignored", "Events that changed no session.", "why"),
    ]
    began_unused: Annotated[
        Values,
        counter(
            "liveness_began_unused",
            "Connections whose `began` was not used: their `age` counts.",
            "why",
        ),
    ]
    users: Annotated[int, gauge("liveness_users_online", "Users online.")]
    distinct_users: Annotated[
        int,
        gauge(
            "liveness_users_distinct",
            "Users online; where devices are counted, several of one user count once.",
        ),
    ]
    opened: Annotated[Values, counter("liveness_online", "Sessions begun.", "reason")]
    ended: Annotated[Values, counter("liveness_offline", "Sessions ended.", "reason")]
    moved: Annotated[
        int, counter("liveness_moved", "Sessions displaced by a newer connection.")
    ]
    early: Annotated[
        int,
        counter(
            "liveness_early_offline",
            "Offlines for silence before the whole timeout. Must stay 0.",
        ),
    ]
    slot_users: Annotated[
        list[int],
        gauge(
            "liveness_wheel_slot_users", "Users due in each slot of the wheel.", "slot"
        ),
    ]
    hand_lag_s: Annotated[
        float,
        gauge(
            "liveness_hand_lag_seconds",
            "The largest delay of the wheel's hand within the last 15 to 30 s.",
        ),
    ]
    unattended_s: Annotated[
        float,
        counter(
            "liveness_unattended_seconds",
            "Time in which links were not read; it does not count as silence.",
        ),
    ]
    held: Annotated[
        Values,
        gauge(
            "liveness_users_held",
            "Due users that are held, because of their gateway or a storm.",
            "why",
        ),
    ]
    storms: Annotated[
        int,
        counter(
            "liveness_storms",
            "Storms: too many users of a gateway came due at once, and were held.",
        ),
    ]
    links: Annotated[
        Values, gauge("liveness_links", "Connected gateways and watchers.", "role")
    ]
    unread: Annotated[
        Values,
        gauge(
            "liveness_unread_bytes", "Bytes of answers that were not read yet.", "where"
        ),
    ]
    unfinished_bytes: Annotated[
        int, gauge("liveness_unfinished_bytes", "Bytes of incomplete frames.")
    ]
    gateways: list[GatewayNow]
    counts: Counts
    build: dict[str, str]  # version, and kind of wheel
    log_seq: Annotated[int, gauge("liveness_log_seq", "The newest record on disk.")]
    log_pending: Annotated[
        int, gauge("liveness_log_pending", "Records waiting to be written.")
    ]
    write_failures: Annotated[
        Values,
        counter(
            "liveness_write_failures", "Failed tries to write to the disk.", "what"
        ),
    ]
    wal_overflows: Annotated[
        Values,
        counter(
            "liveness_wal_overflows",
            "Times that a write-ahead log was above its bound, and commits waited.",
            "what",
        ),
    ]
    log_bytes: Annotated[
        int, gauge("liveness_log_bytes", "Bytes of the database in use.")
    ]
    log_damaged: Annotated[
        int,
        gauge(
            "liveness_log_damaged_records",
            "Records of the log that were found damaged on disk.",
        ),
    ]
    feed_watchers: Annotated[
        int, gauge("liveness_feed_watchers", "Connected watchers.")
    ]
    streams: Annotated[
        Values, gauge("liveness_streams", "Open HTTP streams.", "stream")
    ]
    timers: Annotated[Values, gauge("liveness_timers", "Timers in the table.", "state")]
    timers_loaded: Annotated[
        int,
        gauge("liveness_timers_loaded", "Timers in memory, those of the coming hour."),
    ]
    timer_attempts: Annotated[
        Values,
        counter(
            "liveness_timer_attempts",
            "Attempts of timers that ended, and answers that came too late.",
            "result",
        ),
    ]
    is_ready: Annotated[
        bool, gauge("liveness_ready", "1 while /readyz says ready, else 0.")
    ]
    cluster: ClusterNow | None = None  # None: none is configured
    outlets: list[OutletNow] = field(default_factory=list)
