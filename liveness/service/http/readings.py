"""Reads the values of the metrics and the summary at one moment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liveness import __version__
from liveness.config.compiled import WHEEL
from liveness.core.records import GATEWAY, LOGOUT, WATCHER
from liveness.core.server import ServerParts
from liveness.metrics.counts import Counts
from liveness.metrics.now import GatewayNow, Now
from liveness.service.engine.engine import Engine
from liveness.service.http.event_stream import Streams
from liveness.service.storage.spools import Spools
from liveness.service.timers.state_writer import StateWriter

if TYPE_CHECKING:
    from liveness.service.outlets.supervisor import Outlets


@dataclass(eq=False, slots=True)
class Readings:
    """Reads all values of a scrape from the parts that have them."""

    engine: Engine
    parts: ServerParts
    log_writer: StateWriter
    spools: Spools
    streams: Streams
    counts: Counts
    outlets: "Outlets | None"
    why_not_ready: Callable[[], list[str]]

    def now(self) -> Now:
        """All values at this moment."""
        log_writer, outlets = self.log_writer, self.outlets
        cluster = None if outlets is None else outlets.cluster
        parts, presence, firing = self.parts, self.parts.presence, self.parts.firing
        registry = parts.registry
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
            slot_users=presence.wheel.slot_users(),
            hand_lag_s=self.engine.hand_lag,
            unattended_s=parts.attended.unattended,
            held=firing.held(parts.attended.now),
            storms=0 if firing.guard is None else firing.guard.begun,
            links={role: registry.linked(role) for role in (GATEWAY, WATCHER)},
            unread={"memory": parts.unread.memory, "disk": self.spools.bytes},
            unfinished_bytes=registry.unfinished.bytes,
            gateways=self._gateways(),
            log_seq=log_writer.durable_seq,
            log_pending=log_writer.pending,
            write_failures=log_writer.write_failures,
            wal_overflows=log_writer.wal_overflows,
            log_bytes=log_writer.log_bytes,
            log_damaged=log_writer.store.damaged_records(log_writer.first),
            feed_watchers=registry.linked(WATCHER),
            streams=dict(self.streams.open),
            timers=dict(parts.scheduler.states),
            timers_loaded=parts.scheduler.loaded,
            timer_attempts=dict(parts.scheduler.results),
            is_ready=not self.why_not_ready(),
            cluster=None if cluster is None else cluster.now(),
            outlets=[] if outlets is None else outlets.now(),
            counts=self.counts,
            build={"version": __version__, "wheel": WHEEL},
        )

    def _gateways(self) -> list[GatewayNow]:
        wheel, registry = self.parts.presence.wheel, self.parts.registry
        return [
            GatewayNow(
                name=gateway.name,
                users=gateway.users,
                unacked=registry.unacked(gateway.name),
                timeout_s=wheel.timeout_of(gateway.number),
                interval_s=gateway.cadence.interval,
                mutes=gateway.mutes,
            )
            for gateway in self.parts.gateways.by_name.values()
            if gateway.users or gateway.is_linked
        ]
