"""All that is read at the moment of a scrape."""

from dataclasses import dataclass, field

from liveness.metrics.cluster_now import ClusterNow
from liveness.metrics.counts import Counts
from liveness.metrics.families import Values, counter, gauge
from liveness.metrics.outlet_now import OutletNow


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
    slot_users: list[int] = gauge(
        "liveness_wheel_slot_users", "Users due in each slot of the wheel.", "slot"
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
    feed_watchers: int = gauge("liveness_feed_watchers", "Connected watchers.")
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
