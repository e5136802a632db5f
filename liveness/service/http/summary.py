"""Summaries of the sidecar for operators, one a second whatever the load.

Once a second the totals of all counters are sampled, and the samples of the last five
minutes are kept: rates, quantiles and history are differences of two samples. The summary
of a second is built when the first reader asks for it, and shared by all.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple

import trio

from liveness.core.server import ServerParts
from liveness.core.sessions.clearance import GatewayState
from liveness.core.sessions.storm_guard import Storm
from liveness.metrics.collector import MOST_GATEWAYS
from liveness.metrics.histogram import quantile
from liveness.metrics.now import Now
from liveness.service.common.clock import Clock
from liveness.service.timers.state_writer import StateWriter
from liveness.text import json_line, utc_offset_s

EVERY_S: Final = 1.0
KEPT_S: Final = 300
RATES_S: Final = 10
# The promise for the 99th percentile of `decided` (proto/README.md, "promises").
PROMISE_S: Final = 0.05
# Most storms in an answer; `more` has the number of others.
MAX_STORMS: Final = 1_000

Counted = Mapping[str, int]
CumulativeCounts = Sequence[tuple[str, float]]  # by upper bound


class SummarySample(NamedTuple):
    """The counters at one moment."""

    at: int  # wall clock, in milliseconds
    mono: float
    users: int
    moved: int
    events: Counted
    opened: Counted
    ended: Counted
    lateness: Mapping[str, CumulativeCounts]


class Summaries:
    """Samples the counters once a second, and builds summaries of them."""

    def __init__(
        self,
        now: Callable[[], Now],
        *,
        parts: ServerParts,
        log_writer: StateWriter,
        clock: Clock,
        why_not_ready: Callable[[], list[str]],
    ) -> None:
        self._now = now
        self._presence, self._firing = parts.presence, parts.firing
        self._table, self._registry = parts.gateways, parts.registry
        self._attended = parts.attended
        self._log_writer = log_writer
        self._clock = clock
        self._why_not_ready = why_not_ready
        self._began = clock.mono()
        self._samples: deque[SummarySample] = deque(maxlen=KEPT_S + 1)
        self._notifiers: dict[Callable[[], None], None] = {}
        self._text: str | None = None
        self._history: str | None = None

    async def run(self) -> None:
        """Sample the counters once a second, forever."""
        at = trio.current_time()
        while True:
            self._samples.append(self._sample(self._now()))
            self._text = self._history = None
            for notify in self._notifiers:
                notify()
            # Missed seconds are not made up for.
            at = max(at + EVERY_S, trio.current_time())
            await trio.sleep_until(at)

    def follow(self, notify: Callable[[], None]) -> None:
        """Call *notify* once a second."""
        self._notifiers[notify] = None

    def unfollow(self, notify: Callable[[], None]) -> None:
        """Stop calling *notify*."""
        self._notifiers.pop(notify, None)

    @property
    def text(self) -> str:
        """The summary of this second as JSON, built at the first use."""
        if self._text is None:
            self._text = json_line(self.summary())
        return self._text

    @property
    def history_text(self) -> str:
        """The last minutes as JSON, built at the first use in a second."""
        if self._history is None:
            self._history = json_line(self.history())
        return self._history

    def history(self) -> dict[str, Any]:
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
        """The state at this moment."""
        now, log_writer = self._now(), self._log_writer
        presence, wheel = self._presence, self._presence.wheel
        sample, why = self._sample(now), self._why_not_ready()
        guard = self._firing.guard
        storms = storms_shown([] if guard is None else guard.storms(self._attended.now))
        return {
            "at": sample.at,
            "utc_offset_s": utc_offset_s(sample.at),
            **now.build,
            "uptime_s": round(sample.mono - self._began, 3),
            "ready": not why,
            "why": why,
            "log": log_writer.store.log,
            "seq": now.log_seq,
            "timeout": self._table.timeout,
            "slots": wheel.slots,
            "slot_s": self._table.timeout / wheel.slots,
            "hand": round(wheel.hand, 3),
            "stands": self._attended.is_paused,
            "hand_lag_s": round(now.hand_lag_s, 3),
            "slot_users": now.slot_users,
            "layers": wheel.layer_users(),
            "due": sum(wheel.due(it.number) for it in self._firing.due_gateways()),
            "users": now.users,
            "device_separator": presence.device_separator,
            "distinct_users": now.distinct_users,
            "rates": _rates(self._before(sample, RATES_S), sample),
            "second": _rates(self._before(sample, EVERY_S), sample),
            "lateness": self._quantiles(sample),
            "total": _since_start(sample),
            "early": now.early,
            "held": now.held,
            "storms": storms["storms"],
            "storms_more": storms["more"],
            "links": now.links,
            "stalled": self._stalled(),
            **self._troubles(),
            **self._gateways(),
            "unattended_s": round(now.unattended_s, 3),
            "log_pending": now.log_pending,
            "log_bytes": now.log_bytes,
            "log_failure": log_writer.failure,
            "timers": now.timers,
            "cluster": None if now.cluster is None else now.cluster.as_map(),
            "outlets": [outlet.as_map() for outlet in now.outlets],
        }

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
            for (role, name), link in self._registry.named.items()
            if link.outbox.stalled_s
        ]
        return nlargest(MOST_GATEWAYS, rows, key=lambda row: row["for_s"])

    def _troubles(self) -> dict[str, Any]:
        """The links that were refused or replaced within the last hour."""
        troubles, ahead_ms = self._registry.troubles, self._clock.wall_ahead_ms()
        recent = troubles.recent(self._clock.state_ms())
        return {
            "link_troubles": [row.as_map(ahead_ms) for row in recent],
            "link_troubles_forgotten": troubles.forgotten,
        }

    def _gateways(self) -> dict[str, Any]:
        """The gateways with most users, and how many others there are."""
        gateways = [
            gateway
            for gateway in self._table.by_name.values()
            if gateway.users or gateway.is_linked
        ]
        shown = nlargest(MOST_GATEWAYS, gateways, key=lambda gateway: gateway.users)
        return {
            "gateways": [self._gateway(gateway) for gateway in shown],
            "gateways_more": len(gateways) - len(shown),
        }

    def _gateway(self, gateway: GatewayState) -> dict[str, Any]:
        return {
            "name": gateway.name,
            "users": gateway.users,
            "linked": gateway.is_linked,
            "unacked": self._registry.unacked(gateway.name),
            "due": self._presence.wheel.due(gateway.number),
            "timeout": gateway.timeout or self._table.timeout,
            "interval": gateway.cadence.interval,
            "ping": gateway.ping,
            "mutes": gateway.mutes,
        }

    def _sample(self, now: Now) -> SummarySample:
        lateness = now.counts.lateness
        return SummarySample(
            self._clock.wall_ms(),
            self._clock.mono(),
            now.users,
            now.moved,
            dict(now.events),
            dict(now.opened),
            dict(now.ended),
            {stage: found.cumulative() for stage, found in lateness.items()},
        )

    def _before(self, sample: SummarySample, seconds: float) -> SummarySample:
        """The newest sample that is about *seconds* old; else the oldest.

        If the process did not run for a while, the sample is older.
        """
        since = sample.mono - seconds + EVERY_S / 2
        old_enough = (old for old in reversed(self._samples) if old.mono <= since)
        return next(old_enough, self._samples[0] if self._samples else sample)

    def _quantiles(self, sample: SummarySample) -> dict[str, Any]:
        before = self._before(sample, KEPT_S)
        return {
            "promise_s": PROMISE_S,
            "over_s": round(sample.mono - before.mono, 3),
            **{
                stage: _quantiles(_buckets(counts, before.lateness[stage]))
                for stage, counts in sample.lateness.items()
            },
        }


def _buckets(
    counts: CumulativeCounts, before: CumulativeCounts = ()
) -> list[tuple[float, float]]:
    """Upper bounds in seconds, and the observations up to each since *before*."""
    rises = zip_longest(counts, before, fillvalue=("", 0.0))
    return [(float(bound), count - old) for (bound, count), (_, old) in rises]


def _quantiles(buckets: list[tuple[float, float]]) -> dict[str, float | None]:
    return {
        "count": int(buckets[-1][1]),
        "p50_s": quantile(0.5, buckets),
        "p99_s": quantile(0.99, buckets),
    }


def _since_start(sample: SummarySample) -> dict[str, Any]:
    return {
        "events": sample.events,
        "onlines": sample.opened,
        "offlines": sample.ended,
        "moved": sample.moved,
        "lateness": {
            stage: _quantiles(_buckets(counts))
            for stage, counts in sample.lateness.items()
        },
    }


def _rates(before: SummarySample, after: SummarySample) -> dict[str, Any]:
    """What happened between two samples, per second."""
    seconds = after.mono - before.mono

    def rate(rise: int) -> float:
        return round(rise / seconds, 2) if seconds else 0.0

    def rates(old: Counted, new: Counted) -> dict[str, float]:
        return {name: rate(count - old[name]) for name, count in new.items()}

    return {
        "over_s": round(seconds, 3),
        "events": rates(before.events, after.events),
        "onlines": rates(before.opened, after.opened),
        "offlines": rates(before.ended, after.ended),
        "moved": rate(after.moved - before.moved),
    }


def storms_shown(storms: Sequence[Storm]) -> dict[str, Any]:
    """The largest storms as JSON, and how many more there are."""
    return {
        "storms": [
            {
                "gateway": storm.gateway,
                "users": storm.users,
                "left_s": round(storm.left, 3),
            }
            for storm in storms[:MAX_STORMS]
        ],
        "more": max(0, len(storms) - MAX_STORMS),
    }
