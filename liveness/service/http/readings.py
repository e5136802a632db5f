"""Reads the values of the metrics and the summary at one moment."""

from collections.abc import Mapping

from liveness import __version__
from liveness.config.compiled import WHEEL
from liveness.core.records import GATEWAY, LOGOUT, WATCHER
from liveness.metrics.cluster_now import ClusterNow
from liveness.metrics.counts import Counts
from liveness.metrics.now import GatewayNow, Now
from liveness.metrics.outlet_now import OutletNow
from liveness.service.engine.engine import Engine
from liveness.service.timers.state_writer import StateWriter


def readings(
    engine: Engine,
    log_writer: StateWriter,
    *,
    spool_bytes: int,
    streams: Mapping[str, int],
    counts: Counts,
    is_ready: bool,
    cluster: ClusterNow | None,
    outlets: list[OutletNow],
) -> Now:
    """Read all values of a scrape.

    Args:
        engine: Has the server.
        log_writer: Has the log.
        spool_bytes: Bytes on disk of unread answers.
        streams: The open streams of HTTP, by kind.
        counts: Counters since the start.
        is_ready: Whether the sidecar is ready.
        cluster: The state of publishing sessions to other hosts, if configured.
        outlets: The status of each outlet.
    """
    server = engine.server
    presence, registry, scheduler = server.presence, server.registry, server.scheduler
    wheel, firing = presence.wheel, server.firing
    return Now(
        events=presence.events,
        ignored=presence.ignored,
        began_unused=presence.began_unused,
        users=len(presence),
        distinct_users=wheel.users,
        opened=presence.opened,
        ended={**firing.ended, LOGOUT: presence.logouts},
        moved=presence.moved,
        early=firing.early,
        slot_users=wheel.slot_users(),
        hand_lag_s=engine.hand_lag,
        unattended_s=engine.unattended,
        held=firing.held(engine.attended),
        storms=0 if firing.guard is None else firing.guard.begun,
        links={role: registry.linked(role) for role in (GATEWAY, WATCHER)},
        unread={"memory": server.unread.memory, "disk": spool_bytes},
        unfinished_bytes=registry.unfinished.bytes,
        gateways=[
            GatewayNow(
                name=gateway.name,
                users=gateway.users,
                unacked=registry.unacked(gateway.name),
                timeout_s=wheel.timeout_of(gateway.number),
                interval_s=gateway.cadence.interval,
                mutes=gateway.mutes,
            )
            for gateway in server.gateways.by_name.values()
            if gateway.users or gateway.is_linked
        ],
        log_seq=log_writer.durable_seq,
        log_pending=log_writer.pending,
        write_failures=log_writer.write_failures,
        wal_overflows=log_writer.wal_overflows,
        log_bytes=log_writer.log_bytes,
        log_damaged=log_writer.store.damaged_records,
        feed_watchers=registry.linked(WATCHER),
        streams=dict(streams),
        timers=dict(scheduler.states),
        timers_loaded=scheduler.loaded,
        timer_attempts=dict(scheduler.results),
        is_ready=is_ready,
        cluster=cluster,
        outlets=outlets,
        counts=counts,
        build={"version": __version__, "wheel": WHEEL},
    )
