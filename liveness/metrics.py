"""The numbers: plain integers where they happen, families when someone scrapes.

The hot path adds to an `int`; an observation costs a bisection. Prometheus objects
exist only while a scrape is answered. The number of series does not depend on the
number of users: the only label that grows is `gateway`, and that is capped.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from liveness.errors import Code

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)

# Names after the first 64 share the label `other`.
MOST_GATEWAYS: Final = 64
OTHER: Final = "other"

SOCKETS: Final = ("gateway", "http", "admin")
DOORS: Final = ("http", "admin")
# What others may remove or replace while it is used.
FILES: Final = ("gateway", "admin", "state")
# The bounds that are counted here when they are met. What is missing is no refusal: a
# full window and an old record are a reader's own affair.
LIMITS: Final = (
    "limits.hello_s", "limits.max_frame_bytes", "limits.max_unfinished_bytes",
    "limits.max_batch", "limits.max_replies", "limits.max_reply_bytes",
    "limits.max_unread_bytes", "limits.max_spool_bytes", "limits.unread_s",
    "limits.max_refused", "limits.max_links", "limits.max_handshakes",
    "limits.max_gateways", "limits.max_names", "limits.max_gateway_users",
    "limits.max_users", "limits.pause_firing", "limits.pause_reading", "timers.max_live",
    "timers.max_pending", "http.max_streams", "http.max_backlog",
)  # fmt: skip
LATENESS_STAGES: Final = ("decided", "durable", "sent")
# Around the promises: 50 ms decided, 100 ms delivered; above, how bad it was.
LATENESS_S: Final = (
    0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60,
)  # fmt: skip
COMMIT_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class HttpRefusal(StrEnum):
    """Why a door refused a connection or a request."""

    CONNECTIONS = "connections"  # there are as many as there may be
    SLOW = "slow"  # it did not come, or its answer was not read, in time
    MALFORMED = "malformed"  # it is no HTTP/1
    HEAD = "head"  # it is too large
    BODY = "body"  # it is too large
    ACCESS = "access"  # who connected may not
    HOST = "host"  # it is missing, or not ours
    METHOD = "method"  # it would change something
    TOKEN = "token"  # there is none, or a wrong one
    TRIES = "tries"  # there were too many wrong ones
    ORIGIN = "origin"  # another site's page would sign in or out


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
    """Estimates a quantile as PromQL does: evenly spread within a bucket.

    Args:
        q: Between 0 and 1.
        buckets: Upper bounds, ascending and the last infinite, with cumulative counts.
    Returns:
        At most the largest finite bound, even if it lies beyond; None without samples.
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


def _lateness() -> dict[str, Histogram]:
    return {stage: Histogram(LATENESS_S) for stage in LATENESS_STAGES}


@dataclass(slots=True)
class Counts:
    """What is counted outside the core. One object, made once, passed to its users."""

    lateness: dict[str, Histogram] = field(default_factory=_lateness)
    timer_lateness: Histogram = field(default_factory=lambda: Histogram(LATENESS_S))
    commits: Histogram = field(default_factory=lambda: Histogram(COMMIT_S))
    refused: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys((code.value for code in Code), 0))
    )
    limits_met: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys(LIMITS, 0))
    )
    accepts_put_off: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys(SOCKETS, 0))
    )
    files_lost: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys(FILES, 0))
    )
    http_refused: Counter[tuple[str, str]] = field(
        default_factory=lambda: Counter(
            {(door, why.value): 0 for door in DOORS for why in HttpRefusal}
        )
    )
    notices_sent: int = 0
    notices_acked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNow:
    """One gateway at the moment of a scrape."""

    name: str
    users: int
    unacked: int
    timeout_s: float
    interval_s: float | None  # None: not known
    mutes: int  # how often it broke its promise to ping


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The state that gauges show, read in one go at the moment of a scrape."""

    events: dict[str, int]
    ignored: dict[str, int]
    began_unused: dict[str, int]
    users: int
    opened: dict[str, int]
    ended: dict[str, int]
    moved: int
    early: int
    slot_users: list[int]
    hand_lag_s: float
    unattended_s: float
    held: dict[str, int]
    storms: int
    links: dict[str, int]
    unread: dict[str, int]
    unfinished_bytes: int
    gateways: list[GatewayNow]
    log_seq: int
    log_pending: int
    write_failures: dict[str, int]
    log_bytes: int
    log_damaged: int
    feed_watchers: int
    streams: dict[str, int]
    timers: dict[str, int]
    timers_loaded: int
    timer_attempts: dict[str, int]
    is_ready: bool
    version: str
    wheel: str


class Collector:
    """Builds the families when Prometheus asks.

    Args:
        counts: What is counted where it happens.
        now: Reads the rest.
    """

    def __init__(self, counts: Counts, now: Callable[[], Now]) -> None:
        self._counts = counts
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Every family, in the order of the table in `docs/metrics.md`."""
        now, counts = self._now(), self._counts
        yield _counter("events", "Events received.", "event", now.events)
        yield _counter(
            "events_ignored", "Events that changed no session.", "why", now.ignored
        )
        yield _counter(
            "began_unused",
            "Connections whose `began` was not used: their `age` counts.",
            "why",
            now.began_unused,
        )
        yield GaugeMetricFamily("liveness_users_online", "Users online.", now.users)
        yield _counter("online", "Sessions begun.", "reason", now.opened)
        yield _counter("offline", "Sessions ended.", "reason", now.ended)
        yield CounterMetricFamily(
            "liveness_moved", "Sessions displaced by a newer connection.", now.moved
        )
        yield self._lateness()
        yield CounterMetricFamily(
            "liveness_early_offline",
            "Offlines for silence before the whole timeout. Must stay 0.",
            now.early,
        )
        yield _gauge(
            "wheel_slot_users",
            "Users due in each slot of the ring.",
            "slot",
            {str(slot): users for slot, users in enumerate(now.slot_users)},
        )
        yield GaugeMetricFamily(
            "liveness_hand_lag_seconds",
            "How far the hand was behind where it should be, at most, within 15 to 30 s.",
            now.hand_lag_s,
        )
        yield CounterMetricFamily(
            "liveness_unattended_seconds",
            "Time in which nobody was listened to; it counts for nobody's silence.",
            now.unattended_s,
        )
        yield _gauge(
            "users_held",
            "Due users that wait for their gateway, or for the end of a storm.",
            "why",
            now.held,
        )
        yield CounterMetricFamily(
            "liveness_storms",
            "Storms: too many users of a gateway came due at once, and were held.",
            now.storms,
        )
        yield _gauge("links", "Connected gateways and watchers.", "role", now.links)
        yield _gauge(
            "unread_bytes",
            "Bytes of answers that are not read yet.",
            "where",
            now.unread,
        )
        yield GaugeMetricFamily(
            "liveness_unfinished_bytes",
            "Bytes of frames that are not whole yet.",
            now.unfinished_bytes,
        )
        yield _counter(
            "accepts_put_off",
            "Tries to accept a connection for which there was no descriptor or memory.",
            "socket",
            counts.accepts_put_off,
        )
        refused = CounterMetricFamily(
            "liveness_http_refused",
            "HTTP connections and requests refused.",
            labels=["door", "why"],
        )
        for labels, count in counts.http_refused.items():
            refused.add_metric(labels, count)
        yield refused
        yield self._by_gateway(
            "link_unacked",
            "Records sent and not acknowledged.",
            ((gateway.name, gateway.unacked) for gateway in now.gateways),
        )
        yield self._by_gateway(
            "gateway_users",
            "Users online through each gateway.",
            ((gateway.name, gateway.users) for gateway in now.gateways),
        )
        yield self._of_each(
            "gateway_timeout_seconds",
            "The silence timeout of each gateway's users.",
            ((gateway.name, gateway.timeout_s) for gateway in now.gateways),
        )
        yield self._of_each(
            "gateway_interval_seconds",
            "How often each gateway's users usually speak, where that is known.",
            ((gateway.name, gateway.interval_s) for gateway in now.gateways),
        )
        yield _counter(
            "gateway_mute",
            "How often each gateway was not heard for longer than it promised.",
            "gateway",
            _summed((gateway.name, gateway.mutes) for gateway in now.gateways),
        )
        yield CounterMetricFamily(
            "liveness_notices_sent", "Records sent on links.", counts.notices_sent
        )
        yield CounterMetricFamily(
            "liveness_notices_acked", "Records acknowledged.", counts.notices_acked
        )
        yield _counter(
            "frames_refused", "Frames and links refused.", "code", counts.refused
        )
        yield _counter(
            "limits_met",
            "How often a limit was met.",
            "limit",
            counts.limits_met,
        )
        yield GaugeMetricFamily(
            "liveness_log_seq", "The newest record on disk.", now.log_seq
        )
        yield GaugeMetricFamily(
            "liveness_log_pending", "Records waiting to be written.", now.log_pending
        )
        yield _counter(
            "write_failures",
            "Tries to write to the disk that failed.",
            "what",
            now.write_failures,
        )
        yield _counter(
            "files_lost",
            "Times that a socket's file or a file of the state was removed or replaced.",
            "file",
            counts.files_lost,
        )
        commits = HistogramMetricFamily(
            "liveness_log_commit_seconds", "Time a commit of the log takes."
        )
        commits.add_metric([], counts.commits.cumulative(), counts.commits.sum)
        yield commits
        yield GaugeMetricFamily(
            "liveness_log_bytes", "Bytes of the database in use.", now.log_bytes
        )
        yield GaugeMetricFamily(
            "liveness_log_damaged_records",
            "Records of the log that were found to be damaged on disk.",
            now.log_damaged,
        )
        yield GaugeMetricFamily(
            "liveness_feed_watchers", "Watchers that have a link.", now.feed_watchers
        )
        yield _gauge("streams", "Answers over HTTP that go on.", "stream", now.streams)
        yield _gauge("timers", "Timers in the table.", "state", now.timers)
        yield GaugeMetricFamily(
            "liveness_timers_loaded",
            "Timers in memory, those of the coming hour.",
            now.timers_loaded,
        )
        lateness = HistogramMetricFamily(
            "liveness_timer_lateness_seconds",
            "From a timer's due moment to its firing.",
        )
        late = counts.timer_lateness
        lateness.add_metric([], late.cumulative(), late.sum)
        yield lateness
        yield _counter(
            "timer_attempts",
            "Runs of timers that ended, and answers that came too late.",
            "result",
            now.timer_attempts,
        )
        yield GaugeMetricFamily(
            "liveness_ready", "1 while /readyz says ready, else 0.", now.is_ready
        )
        yield InfoMetricFamily(
            "liveness_build",
            "This build.",
            {"version": now.version, "wheel": now.wheel},
        )

    def _lateness(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(
            "liveness_offline_lateness_seconds",
            "From a silent user's deadline to each stage of its offline.",
            labels=["stage"],
        )
        for stage, histogram in self._counts.lateness.items():
            family.add_metric([stage], histogram.cumulative(), histogram.sum)
        return family

    @staticmethod
    def _by_gateway(
        name: str, text: str, values: Iterable[tuple[str, int]]
    ) -> GaugeMetricFamily:
        return _gauge(name, text, "gateway", _summed(values))

    @staticmethod
    def _of_each(
        name: str, text: str, values: Iterable[tuple[str, float | None]]
    ) -> GaugeMetricFamily:
        """Of what cannot be added up, there is none for `other`."""
        shown = islice(values, MOST_GATEWAYS)
        known = {gateway: value for gateway, value in shown if value is not None}
        return _gauge(name, text, "gateway", known)


def _summed(values: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By gateway; those after the first 64 are added up as `other`."""
    shown: dict[str, int] = {}
    for gateway, value in values:
        label = gateway if len(shown) < MOST_GATEWAYS else OTHER
        shown[label] = shown.get(label, 0) + value
    return shown


def _counter(
    name: str, text: str, label: str, values: Mapping[str, float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"liveness_{name}", text, labels=[label])
    return _filled(family, values)


def _gauge(
    name: str, text: str, label: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(f"liveness_{name}", text, labels=[label]), values)


def _filled(family: Family, values: Mapping[str, float]) -> Family:
    """The family with one sample for each value of its label."""
    for value, number in values.items():
        family.add_metric([value], number)
    return family
