"""What operators see of the sidecar: the metrics of a scrape, and summaries.

Once a second, whatever the load, the totals of all counters are sampled, and the samples of
the last five minutes are kept: rates, quantiles and history are differences of two samples.
The summary of a second is built when the first reader asks for it, and shared by all.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from liveness import __version__
from liveness.config.compiled import WHEEL
from liveness.core.records import GATEWAY, LOGOUT, WATCHER
from liveness.core.sessions.clearance import GatewayState
from liveness.metrics.collector import MOST_GATEWAYS
from liveness.metrics.counts import Counts
from liveness.metrics.now import GatewayNow, Now
from liveness.service.engine.engine import Engine
from liveness.service.http.event_stream import Streams
from liveness.service.storage.online_list import Spools
from liveness.text import json_line, utc_offset_s

if TYPE_CHECKING:
    from liveness.service.outlets.supervisor import Outlets

EVERY_S: Final = 1.0
KEPT_S: Final = 300
RATES_S: Final = 10
# The promise for the 99th percentile of `decided` (proto/README.md, "promises").
PROMISE_S: Final = 0.05
# Most storms in an answer; `more` has the number of others.
MAX_STORMS: Final = 1_000

CumulativeCounts = Sequence[tuple[str, float]]  # by upper bound


class _Sample(NamedTuple):
    """The counters at one moment."""

    at: int  # wall clock, in milliseconds
    mono: float
    users: int
    moved: int
    totals: Mapping[str, Mapping[str, int]]  # events, onlines and offlines
    lateness: Mapping[str, CumulativeCounts]


class Summaries:
    """Reads all metrics, samples the counters once a second, and builds summaries.

    *followers* are called once a second.
    """

    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        counts: Counts,
        spools: Spools,
        outlets: "Outlets | None",
        why_not_ready: Callable[[], list[str]],
    ) -> None:
        self.followers = set[Callable[[], None]]()
        self._engine = engine
        self._parts = engine.parts
        self._log_writer = engine.log_writer
        self._streams = streams
        self._counts = counts
        self._spools = spools
        self._outlets = outlets
        self._why_not_ready = why_not_ready
        self._began = engine.clock.mono()
        self._samples: deque[_Sample] = deque(maxlen=KEPT_S + 1)
        self._texts: dict[str, str] = {}  # of this second

    async def run(self) -> None:
        """Sample the counters once a second, forever."""
        at = trio.current_time()
        while True:
            self._samples.append(self._sample(self.now()))
            self._texts.clear()
            for notify in self.followers:
                notify()
            # Missed seconds are not made up for.
            at = max(at + EVERY_S, trio.current_time())
            await trio.sleep_until(at)

    @property
    def text(self) -> str:
        return self._cached("summary", self.summary)

    @property
    def history_text(self) -> str:
        return self._cached("history", self._columns)

    def _cached(self, name: str, build: Callable[[], dict[str, Any]]) -> str:
        if name not in self._texts:
            self._texts[name] = json_line(build())
        return self._texts[name]

    def now(self) -> Now:
        log_writer, outlets, parts = self._log_writer, self._outlets, self._parts
        cluster = None if outlets is None else outlets.cluster
        presence, firing, registry = parts.presence, parts.firing, parts.registry
        return Now(
            events=presence.events,
            ignored=presence.ignored,
            began_unused=presence.began_unused,
            users=len(presence),
            distinct_users=presence.wheel.users,
            opened=presence.opened,
            ended={**firing.ended, LOGOUT: presence.logouts},
            moved=presence.moved,
            early=firing.early,
            hand_lag_s=self._engine.hand_lag,
            unattended_s=parts.attended.unattended,
            held=firing.held(parts.attended.now),
            storms=firing.guard.begun,
            links={role: registry.linked(role) for role in (GATEWAY, WATCHER)},
            unread={"memory": parts.unread.memory, "disk": self._spools.bytes},
            unfinished_bytes=registry.unfinished_bytes,
            gateways=[
                GatewayNow(
                    name=gateway.name,
                    users=gateway.users,
                    unacked=registry.unacked(gateway.name),
                    timeout_s=presence.wheel.timeout_of(gateway.number),
                    interval_s=gateway.cadence.interval,
                    mutes=gateway.mutes,
                )
                for gateway in self._gateways()
            ],
            log_seq=log_writer.durable_seq,
            log_pending=log_writer.pending,
            write_failures=log_writer.write_failures,
            log_bytes=log_writer.log_bytes,
            log_damaged=log_writer.store.damaged_records(log_writer.first),
            streams=dict(self._streams.open),
            timers=dict(parts.scheduler.states),
            timers_loaded=parts.scheduler.loaded,
            timer_attempts=dict(parts.scheduler.results),
            is_ready=not self._why_not_ready(),
            cluster=None if cluster is None else cluster.now(),
            outlets=[] if outlets is None else outlets.now(),
            counts=self._counts,
            build={"version": __version__, "wheel": WHEEL},
        )

    def _gateways(self) -> list[GatewayState]:
        return [
            gateway
            for gateway in self._parts.gateways.by_name.values()
            if gateway.users or gateway.is_linked
        ]

    def _columns(self) -> dict[str, Any]:
        """The last minutes in columns, oldest first; rates are per second."""
        samples = [*self._samples][1:]
        rates = [_rates(before, after) for before, after in pairwise(self._samples)]

        def columns(name: str) -> dict[str, list[float]]:
            counted = rates[-1][name] if rates else ()
            return {key: [rate[name][key] for rate in rates] for key in counted}

        return {
            "every_s": EVERY_S,
            "at": [sample.at for sample in samples],
            "users": [sample.users for sample in samples],
            "events": columns("events"),
            "onlines": columns("onlines"),
            "offlines": columns("offlines"),
            "moved": [rate["moved"] for rate in rates],
        }

    def summary(self) -> dict[str, Any]:
        now, log_writer, parts = self.now(), self._log_writer, self._parts
        wheel, attended = parts.presence.wheel, parts.attended
        sample, why = self._sample(now), self._why_not_ready()
        oldest, storms = self._before(sample, KEPT_S), self._storms()
        return {
            "at": sample.at,
            "utc_offset_s": utc_offset_s(sample.at),
            **now.build,
            "uptime_s": round(sample.mono - self._began, 3),
            "ready": not why,
            "why": why,
            "log": log_writer.store.log,
            "seq": now.log_seq,
            "timeout": parts.gateways.timeout,
            "slots": wheel.slots,
            "slot_s": parts.gateways.timeout / wheel.slots,
            "hand": round(wheel.hand, 3),
            "stands": attended.is_paused,
            "hand_lag_s": round(now.hand_lag_s, 3),
            "slot_users": wheel.slot_users(),
            "due": sum(wheel.due(it.number) for it in parts.firing.due_gateways()),
            "users": now.users,
            "device_separator": parts.presence.device_separator,
            "distinct_users": now.distinct_users,
            "rates": _rates(self._before(sample, RATES_S), sample),
            "second": _rates(self._before(sample, EVERY_S), sample),
            "lateness": {
                "promise_s": PROMISE_S,
                "over_s": round(sample.mono - oldest.mono, 3),
                **_lateness(sample, oldest),
            },
            "total": {
                **sample.totals,
                "moved": sample.moved,
                "lateness": _lateness(sample),
            },
            "early": now.early,
            "held": now.held,
            "storms": storms[:MAX_STORMS],
            "storms_more": max(0, len(storms) - MAX_STORMS),
            "links": now.links,
            "stalled": self._stalled(),
            "link_troubles": self._troubles(),
            **self._gateways_shown(),
            "unattended_s": round(now.unattended_s, 3),
            "log_pending": now.log_pending,
            "log_bytes": now.log_bytes,
            "log_failure": log_writer.failure,
            "timers": now.timers,
            "cluster": None if now.cluster is None else now.cluster.as_map(),
            "outlets": [outlet.as_map() for outlet in now.outlets],
        }

    def _storms(self) -> list[dict[str, Any]]:
        storms = self._parts.firing.guard.storms(self._parts.attended.now)
        return [storm._asdict() for storm in storms]

    def _stalled(self) -> list[dict[str, Any]]:
        """The readers that take no more records, those stalled longest first."""
        rows = [
            {
                "role": role,
                "name": name,
                "why": link.outbox.stop,
                "unacked": link.outbox.unacked,
                "for_s": link.outbox.stalled_s,
            }
            for (role, name), link in self._parts.registry.named.items()
            if link.outbox.stalled_s
        ]
        return nlargest(MOST_GATEWAYS, rows, key=lambda row: row["for_s"])

    def _troubles(self) -> list[dict[str, Any]]:
        clock = self._engine.clock
        recent = self._parts.registry.troubles.recent(clock.state_ms())
        return [row.as_map(clock.wall_ahead_ms()) for row in recent]

    def _gateways_shown(self) -> dict[str, Any]:
        """The gateways with most users, and how many others there are."""
        gateways, parts = self._gateways(), self._parts
        return {
            "gateways": [
                {
                    "name": gateway.name,
                    "users": gateway.users,
                    "linked": gateway.is_linked,
                    "unacked": parts.registry.unacked(gateway.name),
                    "due": parts.presence.wheel.due(gateway.number),
                    "timeout": gateway.timeout or parts.gateways.timeout,
                    "interval": gateway.cadence.interval,
                    "ping": gateway.ping,
                    "mutes": gateway.mutes,
                }
                for gateway in nlargest(
                    MOST_GATEWAYS, gateways, key=lambda it: it.users
                )
            ],
            "gateways_more": max(0, len(gateways) - MOST_GATEWAYS),
        }

    def _sample(self, now: Now) -> _Sample:
        lateness = now.counts.lateness
        return _Sample(
            self._engine.clock.wall_ms(),
            self._engine.clock.mono(),
            now.users,
            now.moved,
            {
                "events": dict(now.events),
                "onlines": dict(now.opened),
                "offlines": dict(now.ended),
            },
            {stage: found.cumulative() for stage, found in lateness.items()},
        )

    def _before(self, sample: _Sample, seconds: float) -> _Sample:
        """The newest sample that is about *seconds* old; else the oldest.

        If the process did not run for a while, the sample is older.
        """
        since = sample.mono - seconds + EVERY_S / 2
        old_enough = (old for old in reversed(self._samples) if old.mono <= since)
        return next(old_enough, self._samples[0] if self._samples else sample)


def _buckets(
    counts: CumulativeCounts, before: CumulativeCounts = ()
) -> list[tuple[float, float]]:
    """Upper bounds in seconds, and the observations up to each since *before*."""
    rises = zip_longest(counts, before, fillvalue=("", 0.0))
    return [(float(bound), count - old) for (bound, count), (_, old) in rises]


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


def _quantiles(buckets: list[tuple[float, float]]) -> dict[str, float | None]:
    return {
        "count": int(buckets[-1][1]),
        "p50_s": quantile(0.5, buckets),
        "p99_s": quantile(0.99, buckets),
    }


def _lateness(sample: _Sample, before: _Sample | None = None) -> dict[str, Any]:
    """The quantiles of each stage, since *before* or since the start."""
    return {
        stage: _quantiles(_buckets(counts, before.lateness[stage] if before else ()))
        for stage, counts in sample.lateness.items()
    }


def _rates(before: _Sample, after: _Sample) -> dict[str, Any]:
    seconds = after.mono - before.mono

    def rate(rise: int) -> float:
        return round(rise / seconds, 2) if seconds else 0.0

    return {
        "over_s": round(seconds, 3),
        **{
            name: {
                key: rate(count - before.totals[name][key]) for key, count in it.items()
            }
            for name, it in after.totals.items()
        },
        "moved": rate(after.moved - before.moved),
    }
