"""Makes the server from the settings, for each of its shells.

The parts do not know `Config`: each gets plain numbers.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from liveness.config.compiled import Wheel
from liveness.config.settings import Config
from liveness.core.access import Access, Peer
from liveness.core.changes import Decisions
from liveness.core.disk import Disk
from liveness.core.effects import Effect
from liveness.core.limits import Limits
from liveness.core.links.back_pressure import BackPressure
from liveness.core.links.conversation import Conversation
from liveness.core.links.handshake import SkippedRanges
from liveness.core.links.link import Link
from liveness.core.links.link_registry import LinkCounts, LinkRegistry
from liveness.core.links.outbox import Outbox, UnreadReplies
from liveness.core.records import Instant
from liveness.core.server import Server, ServerParts
from liveness.core.sessions.attended_clock import AttendedClock
from liveness.core.sessions.firing import Firing
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.sessions.presence import Presence
from liveness.core.sessions.storm_guard import NO_GUARD, GuardRules
from liveness.core.timers.timer_scheduler import RING_S, RING_SLOTS, TimerScheduler
from liveness.core.wire.frames import CLUSTER, FEATURES, PROTOCOL

# After a restart, a long absence or a lost link, a gateway gets time to send its collected
# events: a second to reconnect, and one flush interval, of a second at most.
RECONNECT_S: Final = 1.0
MOST_FLUSH_S: Final = 1.0


def _reconnect_grace(config: Config) -> float:
    return RECONNECT_S + min(config.flush, MOST_FLUSH_S)


def _users(config: Config, decided: Decisions) -> tuple[GatewayTable, Presence, Firing]:
    separator, limits = config.presence.device_separator, config.limits
    wheel = Wheel(timeout=config.timeout_s, slots=config.slots, separator=separator)
    gateways = GatewayTable(
        wheel, timeout=config.timeout_s, reconnect_grace=_reconnect_grace(config)
    )
    presence = Presence(
        wheel,
        gateways,
        decided,
        max_users=limits.max_users,
        max_gateway_users=limits.max_gateway_users,
        device_separator=separator,
    )
    firing = Firing(
        wheel,
        gateways,
        decided,
        gateway_hold=limits.gateway_hold_s,
        guard=_guard_rules(config),
    )
    return gateways, presence, firing


def _guard_rules(config: Config) -> GuardRules:
    guard = config.guard
    if not guard.enabled:
        return NO_GUARD
    return GuardRules(
        guard.share,
        guard.least_users,
        guard.hold_s or config.timeout_s,
        config.timeout_s,
    )


def make_server(
    config: Config,
    *,
    version: str,
    disk: Disk,
    decided: Decisions,
    attended: AttendedClock,
    counts: LinkCounts,
    access: Access,
    at: Instant,
    new_conversation: Callable[[Limits], Conversation],
    host: str = "",
) -> tuple[Server, ServerParts]:
    """The server, without users and timers, for a `Shell`; and its parts, to be read.

    The decisions are empty and have the cursors on disk; the clock stands. *host* is the
    name of this host, if the shell can ask the cluster.
    """
    effects = deque[Effect]()
    unread, limits = UnreadReplies(), config.limits
    gateways, presence, firing = _users(config, decided)
    registry = LinkRegistry(
        effects,
        decided,
        attended=attended,
        unread=unread,
        counts=counts,
        access=access,
        gateways=gateways,
        limits=limits,
    )
    pressure = BackPressure(effects, disk, registry, counts=counts, limits=limits)
    parts = ServerParts(
        gateways=gateways,
        presence=presence,
        firing=firing,
        scheduler=_scheduler(config, decided, at),
        registry=registry,
        pressure=pressure,
        skipped=SkippedRanges(),
        unread=unread,
        attended=attended,
    )

    def new_link(number: int, peer: Peer, now: float) -> Link:
        outbox = Outbox(limits, unread, disk, decided.cursors)
        return Link(number, peer, now, new_conversation(limits), outbox)

    server = Server(
        parts,
        effects,
        decided=decided,
        disk=disk,
        counts=counts,
        terms=_terms(config, version, host),
        host=host,
        limits=limits,
        new_link=new_link,
    )
    return server, parts


def _terms(config: Config, version: str, host: str) -> dict[str, object]:
    """The part of `welcome` about the sidecar, with times in seconds."""
    limits, separator = config.limits, config.presence.device_separator
    return {
        "protocol": PROTOCOL,
        "server": f"liveness/{version}",
        "features": sorted((*FEATURES, CLUSTER)) if host else FEATURES,
        "log": "",  # this and the next are of the moment of each hello
        "next": 0,
        "timeout": config.timeout_s,
        "flush": config.flush,
        "max_batch": limits.max_batch,
        "max_frame": limits.max_frame_bytes,
        "window": limits.window,
        "run_timeout": config.timers.run_timeout_s,
        **({"host": host} if host else {}),
        **({"device_separator": separator} if separator else {}),
    }


def _scheduler(config: Config, decided: Decisions, at: Instant) -> TimerScheduler:
    return TimerScheduler(
        lambda now: Wheel(timeout=RING_S, slots=RING_SLOTS, now=now),
        decided,
        at=at,
        retry_policy=config.timers.retry_policy,
        max_live=config.timers.max_live,
        max_loaded=config.timers.max_loaded,
    )


def make_attended_clock(config: Config, *, mono: float, cpu: float) -> AttendedClock:
    """The clock of deadlines, stopped; *cpu* is what this process has used so far."""
    return AttendedClock(
        mono=mono,
        cpu=cpu,
        reconnect_grace=_reconnect_grace(config),
        patience=config.limits.gateway_hold_s,
    )
