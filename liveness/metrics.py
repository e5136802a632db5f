"""The metrics: plain counters and histograms, and Prometheus families made of them.

Counting adds to an `int`, and observing a duration costs a bisection. Prometheus objects
exist only while a scrape is answered. The number of series does not depend on the number
of users: only the label `gateway` grows, and it is capped.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from liveness.errors import Code

Values = Mapping[str, int]  # by the value of a label
GATEWAY: Final = "gateway"
OUTLET: Final = "outlet"
Label = TypeVar("Label", str, tuple[str, str])

# Gateways after the first 64 share the label `other`.
MOST_GATEWAYS: Final = 64
OTHER: Final = "other"

SOCKETS: Final = ("gateway", "http", "admin")
DOORS: Final = ("http", "admin")
# The files that are watched for removal (`service.file_watch`).
FILES: Final = ("gateway", "admin", "state")
# Limits that `limits_met` counts: those that refuse or delay something. A full window
# and a deleted old record concern only their reader.
LIMITS: Final = (
    "limits.hello_s", "limits.max_frame_bytes", "limits.max_unfinished_bytes",
    "limits.max_batch", "limits.max_where_rows", "limits.max_replies", "limits.max_reply_bytes",
    "limits.max_unread_bytes", "limits.max_spool_bytes", "limits.unread_s",
    "limits.max_refused", "limits.max_links", "limits.max_handshakes",
    "limits.max_gateways", "limits.max_names", "limits.max_gateway_users",
    "limits.max_users", "limits.pause_firing", "limits.pause_reading",
    "limits.max_settling", "timers.max_live", "timers.max_pending", "http.max_streams",
    "http.max_backlog", "cluster.max_questions", "cluster.max_link_questions",
)  # fmt: skip
LATENESS_STAGES: Final = ("decided", "durable", "sent")
# Finest around the promises: 50 ms decided, 100 ms delivered.
LATENESS_S: Final = (
    0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60,
)  # fmt: skip
# What Redis may answer to each function of the cluster, why a call may fail, and how
# questions about users of all hosts are answered.
CLUSTER_CALLS: Final = tuple(
    (function, answer)
    for function, answers in {
        "begin": ("keep", "reset", "epoch", "replaced", "config"),
        "assert": (
            *("ok", "gap", "late", "epoch", "unknown", "damaged"),
            *("live", "fenced"),
        ),
        "apply": (
            *("ok", "gap", "late", "epoch", "unknown", "damaged"),
            *("fenced", "asserting"),
        ),
        "beat": ("ok", "gap", "epoch", "unknown", "damaged", "fenced", "asserting"),
        "look": ("ok", "later", "unknown", "damaged"),
        "fence": ("ok", "behind", "heard", "epoch", "fenced", "unknown"),
        "reap": ("ok", "unknown", "damaged"),
    }.items()
    for answer in answers
)
CLUSTER_ERRORS: Final = (
    "timeout", "connection", "readonly", "memory", "moving", "auth", "permission",
    "loading", "other",
)  # fmt: skip
CLUSTER_QUESTIONS: Final = ("answered", "slow", "away")
PARTITION_MODES: Final = ("beginning", "asserting", "following")
OUTLET_STATES: Final = ("following", "retrying", "stopped")
# Of outlets: from the moment that a record was decided to its acknowledgement.
DELIVERY_S: Final = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 15, 60, 300, 1_800, 7_200, 86_400)
COMMIT_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class HttpRefusal(StrEnum):
    """Why an HTTP listener refused a connection or a request."""

    CONNECTIONS = "connections"  # all are in use
    SLOW = "slow"  # the request did not arrive, or its answer was not read, in time
    MALFORMED = "malformed"  # not HTTP/1
    HEAD = "head"  # too large
    BODY = "body"  # too large
    ACCESS = "access"  # the user has no access
    HOST = "host"  # missing, or not a name of this sidecar
    METHOD = "method"  # it would change something
    TOKEN = "token"  # missing or wrong
    TRIES = "tries"  # too many wrong tokens
    ORIGIN = "origin"  # a sign-in or sign-out from another site's page


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
        """Count one observation."""
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations at or below it), ending with +Inf."""
        total, rows = 0, []
        for bound, count in zip((*self.bounds, None), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound is None else f"{bound:g}", float(total)))
        return rows


def quantile(q: float, buckets: Iterable[tuple[float, float]]) -> float | None:
    """Estimate a quantile as PromQL does: values are spread evenly within a bucket.

    Args:
        q: Between 0 and 1.
        buckets: Upper bounds, ascending and the last infinite, with cumulative counts.
    Returns:
        At most the largest finite bound, even if the quantile is above it; None without
        samples.
    """
    ascending = sorted(buckets)
    total = ascending[-1][1] if ascending else 0
    below, low = 0.0, 0.0
    for bound, count in ascending:
        if total and count >= q * total:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (q * total - below) / (count - below)
        below, low = count, bound
    return None


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


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(CounterMetricFamily, name, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(GaugeMetricFamily, name, text, labels)


def _histogram(name: str, text: str, *labels: str) -> Family:
    return Family(HistogramMetricFamily, name, text, labels)


def _zeros(labels: Iterable[Label]) -> Counter[Label]:
    """Counters that start at 0: a rate needs a first value."""
    return Counter(dict.fromkeys(labels, 0))


def with_zeros(
    labels: Iterable[Label], counted: Mapping[Label, int]
) -> dict[Label, int]:
    """What was counted, and 0 for every other of these labels."""
    return {**dict.fromkeys(labels, 0), **counted}


@dataclass(slots=True)
class Counts:
    """What is counted outside the core: one object for all parts of a sidecar."""

    lateness: Annotated[
        dict[str, Histogram],
        _histogram(
            "liveness_offline_lateness_seconds",
            "From a silent user's deadline to each stage of its offline.",
            "stage",
        ),
    ] = field(
        default_factory=lambda: {
            stage: Histogram(LATENESS_S) for stage in LATENESS_STAGES
        }
    )
    accepts_put_off: Annotated[
        Counter[str],
        _counter(
            "liveness_accepts_put_off",
            "Failed tries to accept a connection, for lack of a descriptor or memory.",
            "socket",
        ),
    ] = field(default_factory=lambda: _zeros(SOCKETS))
    http_refused: Annotated[
        Counter[tuple[str, str]],
        _counter(
            "liveness_http_refused",
            "HTTP connections and requests refused.",
            "door",
            "why",
        ),
    ] = field(
        default_factory=lambda: _zeros(
            (door, why.value) for door in DOORS for why in HttpRefusal
        )
    )
    notices_sent: Annotated[
        int, _counter("liveness_notices_sent", "Records sent on links.")
    ] = 0
    notices_acked: Annotated[
        int, _counter("liveness_notices_acked", "Records acknowledged.")
    ] = 0
    refused: Annotated[
        Counter[str],
        _counter("liveness_frames_refused", "Frames and links refused.", "code"),
    ] = field(default_factory=lambda: _zeros(code.value for code in Code))
    limits_met: Annotated[
        Counter[str],
        _counter("liveness_limits_met", "How often a limit was met.", "limit"),
    ] = field(default_factory=lambda: _zeros(LIMITS))
    files_lost: Annotated[
        Counter[str],
        _counter(
            "liveness_files_lost",
            "Times that a socket's file or a file of the state was removed or replaced.",
            "file",
        ),
    ] = field(default_factory=lambda: _zeros(FILES))
    commits: Annotated[
        Histogram,
        _histogram("liveness_log_commit_seconds", "Time a commit of the log takes."),
    ] = field(default_factory=lambda: Histogram(COMMIT_S))
    timer_lateness: Annotated[
        Histogram,
        _histogram(
            "liveness_timer_lateness_seconds",
            "From a timer's due moment to its firing.",
        ),
    ] = field(default_factory=lambda: Histogram(LATENESS_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNow:
    """One gateway at the moment of a scrape."""

    name: str
    unacked: Annotated[
        int,
        _gauge("liveness_link_unacked", "Records sent and not acknowledged.", GATEWAY),
    ]
    users: Annotated[
        int,
        _gauge("liveness_gateway_users", "Users online through each gateway.", GATEWAY),
    ]
    timeout_s: Annotated[
        float,
        _gauge(
            "liveness_gateway_timeout_seconds",
            "The silence timeout of each gateway's users.",
            GATEWAY,
        ),
    ]
    interval_s: Annotated[
        float | None,  # None: not known
        _gauge(
            "liveness_gateway_interval_seconds",
            "How long each gateway's users are usually silent, where that is known.",
            GATEWAY,
        ),
    ]
    mutes: Annotated[
        int,
        _counter(
            "liveness_gateway_mute",
            "How often each gateway was silent for longer than it promised.",
            GATEWAY,
        ),
    ]


class ClusterNow(NamedTuple):
    """The publishing of this host's sessions at the moment of a scrape."""

    host: str
    state: str  # following, beginning, away, replaced or refused
    since: int  # since when it is in this state, Unix milliseconds
    detail: str  # why it does not follow; empty if it does
    is_up: Annotated[
        bool,
        _gauge(
            "liveness_cluster_up", "1 if the newest call to Redis succeeded, else 0."
        ),
    ]
    lag_records: Annotated[
        int,
        _gauge("liveness_cluster_lag_records", "Records that Redis does not have yet."),
    ]
    lag_s: Annotated[
        float,
        _gauge(
            "liveness_cluster_lag_seconds",
            "Age of the oldest change that Redis does not have.",
        ),
    ]
    partitions: Annotated[
        Values,  # by PARTITION_MODES
        _gauge(
            "liveness_cluster_partitions",
            "Partitions by what this host does in them; all should be following.",
            "mode",
        ),
    ]
    lease_age_s: Annotated[
        float,
        _gauge(
            "liveness_cluster_lease_age_seconds",
            "Time since the last answer of the partition that has waited the longest.",
        ),
    ]
    lease_s: Annotated[
        float,
        _gauge(
            "liveness_cluster_lease_seconds",
            "Silence after which the other hosts declare this one lost.",
        ),
    ]
    users: Annotated[int, _gauge("liveness_cluster_users", "Users online on any host.")]
    calls: Annotated[
        Mapping[tuple[str, str], int],  # by CLUSTER_CALLS
        _counter(
            "liveness_cluster_calls",
            "Calls to Redis that were answered.",
            "function",
            "answer",
        ),
    ]
    errors: Annotated[
        Values,  # by CLUSTER_ERRORS
        _counter("liveness_cluster_errors", "Calls to Redis that failed.", "kind"),
    ]
    lists: Annotated[
        int,
        _counter(
            "liveness_cluster_lists",
            "Times that a partition began to list all sessions of this host anew.",
        ),
    ]
    audit_mismatches: Annotated[
        int,
        _counter(
            "liveness_cluster_audit_mismatches",
            "Times that Redis had other sessions of this host than its log. Must stay 0.",
        ),
    ]
    fences: Annotated[
        int,
        _counter(
            "liveness_cluster_fences",
            "Hosts that this one declared lost, once for each partition.",
        ),
    ]
    sessions_reaped: Annotated[
        int,
        _counter(
            "liveness_cluster_sessions_reaped",
            "Sessions of lost hosts, and outdated ones, that this host ended.",
        ),
    ]
    questions: Annotated[
        Values,  # by CLUSTER_QUESTIONS
        _counter(
            "liveness_cluster_questions",
            "Questions about users of all hosts, by how they were answered.",
            "answer",
        ),
    ]

    def as_map(self) -> dict[str, Any]:
        """As the summary shows it."""
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


class OutletNow(NamedTuple):
    """One outlet at the moment of a scrape."""

    outlet: str  # the section of its settings, such as webhooks.mail
    state: str  # one of OUTLET_STATES
    since: int  # since when it is in this state, Unix milliseconds
    detail: str  # why it does not follow; empty if it does
    lag_records: Annotated[
        int,
        _gauge(
            "liveness_outlet_lag_records",
            "Records that an outlet has not read, or not delivered.",
            OUTLET,
        ),
    ]
    lag_s: Annotated[
        float,
        _gauge(
            "liveness_outlet_lag_seconds",
            "For how long there have been records that an outlet has not delivered.",
            OUTLET,
        ),
    ]
    sent: Annotated[
        int,
        _counter(
            "liveness_outlet_records_sent",
            "Records that an outlet's receiver acknowledged.",
            OUTLET,
        ),
    ]
    retries: Annotated[
        int,
        _counter(
            "liveness_outlet_retries", "Tries of an outlet after a first one.", OUTLET
        ),
    ]
    dead: Annotated[
        int,
        _counter(
            "liveness_outlet_records_dead",
            "Records that became dead letters: a receiver refused them, or all attempts failed.",
            OUTLET,
        ),
    ]
    dead_kept: Annotated[
        int,
        _gauge("liveness_outlet_dead_letters", "Dead letters that are kept.", OUTLET),
    ]
    dead_deleted: Annotated[
        int,
        _counter(
            "liveness_outlet_dead_letters_deleted",
            "Dead letters that were deleted, as there were too many.",
            OUTLET,
        ),
    ]
    missed: Annotated[
        int,
        _counter(
            "liveness_outlet_records_missed",
            "Records that were deleted from the log before an outlet had read them.",
            OUTLET,
        ),
    ]
    damped: Annotated[
        int,
        _counter(
            "liveness_outlet_records_damped",
            "Offlines and onlines left out, as a user was back soon.",
            OUTLET,
        ),
    ]
    settling_overflows: Annotated[
        int,
        _counter(
            "liveness_outlet_settling_overflows",
            "Offlines passed on early, as too many waited.",
            OUTLET,
        ),
    ]
    settling: Annotated[
        int,
        _gauge(
            "liveness_outlet_settling",
            "Offlines that wait to see whether their user comes back.",
            OUTLET,
        ),
    ]
    latency: Annotated[
        Histogram,
        _histogram(
            "liveness_outlet_delivery_seconds",
            "From a record's decision to its acknowledgement, of the oldest of a batch.",
            OUTLET,
        ),
    ]

    def as_map(self) -> dict[str, Any]:
        """As the summary shows it."""
        shown = self._asdict()
        del shown["latency"]
        return {**shown, "lag_s": round(self.lag_s, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """All metrics at the moment of a scrape."""

    events: Annotated[Values, _counter("liveness_events", "Events received.", "event")]
    ignored: Annotated[
        Values,
        _counter("liveness_events_ignored", "Events that changed no session.", "why"),
    ]
    began_unused: Annotated[
        Values,
        _counter(
            "liveness_began_unused",
            "Connections whose `began` was not used: their `age` counts.",
            "why",
        ),
    ]
    users: Annotated[int, _gauge("liveness_users_online", "Users online.")]
    distinct_users: Annotated[
        int,
        _gauge(
            "liveness_users_distinct",
            "Users online; where devices are counted, several of one user count once.",
        ),
    ]
    opened: Annotated[Values, _counter("liveness_online", "Sessions begun.", "reason")]
    ended: Annotated[Values, _counter("liveness_offline", "Sessions ended.", "reason")]
    moved: Annotated[
        int, _counter("liveness_moved", "Sessions displaced by a newer connection.")
    ]
    early: Annotated[
        int,
        _counter(
            "liveness_early_offline",
            "Offlines for silence before the whole timeout. Must stay 0.",
        ),
    ]
    slot_users: Annotated[
        list[int],
        _gauge(
            "liveness_wheel_slot_users", "Users due in each slot of the wheel.", "slot"
        ),
    ]
    hand_lag_s: Annotated[
        float,
        _gauge(
            "liveness_hand_lag_seconds",
            "The largest delay of the wheel's hand within the last 15 to 30 s.",
        ),
    ]
    unattended_s: Annotated[
        float,
        _counter(
            "liveness_unattended_seconds",
            "Time in which links were not read; it does not count as silence.",
        ),
    ]
    held: Annotated[
        Values,
        _gauge(
            "liveness_users_held",
            "Due users that are held, because of their gateway or a storm.",
            "why",
        ),
    ]
    storms: Annotated[
        int,
        _counter(
            "liveness_storms",
            "Storms: too many users of a gateway came due at once, and were held.",
        ),
    ]
    links: Annotated[
        Values, _gauge("liveness_links", "Connected gateways and watchers.", "role")
    ]
    unread: Annotated[
        Values,
        _gauge(
            "liveness_unread_bytes", "Bytes of answers that were not read yet.", "where"
        ),
    ]
    unfinished_bytes: Annotated[
        int,
        _gauge("liveness_unfinished_bytes", "Bytes of incomplete frames."),
    ]
    gateways: list[GatewayNow]
    counts: Counts
    build: dict[str, str]  # version, and kind of wheel
    log_seq: Annotated[int, _gauge("liveness_log_seq", "The newest record on disk.")]
    log_pending: Annotated[
        int, _gauge("liveness_log_pending", "Records waiting to be written.")
    ]
    write_failures: Annotated[
        Values,
        _counter(
            "liveness_write_failures", "Failed tries to write to the disk.", "what"
        ),
    ]
    wal_overflows: Annotated[
        Values,
        _counter(
            "liveness_wal_overflows",
            "Times that a write-ahead log was above its bound, and commits waited.",
            "what",
        ),
    ]
    log_bytes: Annotated[
        int, _gauge("liveness_log_bytes", "Bytes of the database in use.")
    ]
    log_damaged: Annotated[
        int,
        _gauge(
            "liveness_log_damaged_records",
            "Records of the log that were found damaged on disk.",
        ),
    ]
    feed_watchers: Annotated[
        int, _gauge("liveness_feed_watchers", "Connected watchers.")
    ]
    streams: Annotated[
        Values, _gauge("liveness_streams", "Open HTTP streams.", "stream")
    ]
    timers: Annotated[
        Values, _gauge("liveness_timers", "Timers in the table.", "state")
    ]
    timers_loaded: Annotated[
        int,
        _gauge("liveness_timers_loaded", "Timers in memory, those of the coming hour."),
    ]
    timer_attempts: Annotated[
        Values,
        _counter(
            "liveness_timer_attempts",
            "Attempts of timers that ended, and answers that came too late.",
            "result",
        ),
    ]
    is_ready: Annotated[
        bool, _gauge("liveness_ready", "1 while /readyz says ready, else 0.")
    ]
    cluster: ClusterNow | None = None  # None: none is configured
    outlets: list[OutletNow] = field(default_factory=list)


def _families(table: type) -> dict[str, Family]:
    """The families of a table by field, in order."""
    hints = get_type_hints(table, include_extras=True)
    return {
        name: found
        for name, hint in hints.items()
        for found in getattr(hint, "__metadata__", ())
    }


_FAMILIES: Final = {
    table: _families(table)
    for table in (Now, Counts, GatewayNow, ClusterNow, OutletNow)
}
_OUTLET_STATE: Final = _gauge(
    "liveness_outlet_state",
    "1 for the state that an outlet is in, 0 for the others.",
    OUTLET,
    "state",
)
# These cannot be added up, so `other` has none.
_NOT_SUMMED: Final = ("timeout_s", "interval_s")


class Collector:
    """Builds the families when Prometheus asks.

    Args:
        now: Reads the numbers.
    """

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
