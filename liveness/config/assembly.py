"""Makes the server from the settings, for each of its shells.

The parts do not know `Config`: each gets plain numbers.
"""

from collections.abc import Callable
from typing import Final

from liveness.config.compiled import CommandsUnderWay, Wheel
from liveness.config.settings import Config
from liveness.core.access import Access
from liveness.core.changes import Decisions, Disk
from liveness.core.links.back_pressure import DiskLimits
from liveness.core.links.cluster_questions import QuestionLimits
from liveness.core.links.conversation import Conversation, ConversationLimits
from liveness.core.links.handshake import Terms
from liveness.core.links.link_registry import LinkCounts, LinkRegistryLimits
from liveness.core.links.outbox import OutboxLimits, UnreadReplies
from liveness.core.records import Instant
from liveness.core.server import Server, ServerLimits
from liveness.core.sessions.attended_clock import AttendedClock
from liveness.core.sessions.firing import Firing
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.sessions.presence import Presence
from liveness.core.sessions.storm_guard import GuardRules
from liveness.core.timers.timer_scheduler import RING_S, RING_SLOTS, TimerScheduler

# After a restart, a long absence or a lost link, a gateway gets time to send its collected
# events: a second to reconnect, and one flush interval, of a second at most.
RECONNECT_S: Final = 1.0
MOST_FLUSH_S: Final = 1.0


def _reconnect_grace(config: Config) -> float:
    return RECONNECT_S + min(config.flush, MOST_FLUSH_S)


def _users(config: Config, decided: Decisions) -> tuple[Presence, Firing]:
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
    return presence, Firing(
        wheel,
        gateways,
        decided,
        gateway_hold=limits.gateway_hold_s,
        guard=_guard_rules(config),
    )


def _guard_rules(config: Config) -> GuardRules | None:
    """The rules of the storm guard; None if it is off."""
    guard = config.guard
    if not guard.enabled:
        return None
    return GuardRules(
        guard.share,
        guard.least_users,
        guard.hold_s or config.timeout_s,
        config.timeout_s,
        _reconnect_grace(config),
    )


def _registry_limits(config: Config) -> LinkRegistryLimits:
    limits = config.limits
    return LinkRegistryLimits(
        hello_s=limits.hello_s,
        max_links=limits.max_links,
        max_handshakes=limits.max_handshakes,
        max_gateways=limits.max_gateways,
        max_names=limits.max_names,
        max_unfinished_bytes=limits.max_unfinished_bytes,
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
    next_timer: int,
    timer_states: dict[str, int],
    new_conversation: Callable[[ConversationLimits], Conversation],
    host: str = "",
) -> Server:
    """The server, with its users, timers and links.

    Args:
        config: The settings.
        version: This sidecar's version.
        disk: Which commits are durable.
        decided: Without changes, with the stored cursors.
        attended: The clock of deadlines.
        counts: Counters of links.
        access: The rights of each user of the host.
        at: Now.
        next_timer: The number of the next timer.
        timer_states: How many stored timers have each state.
        new_conversation: Makes the state machine of a new link.
        host: The name of this host, if the shell can ask the cluster.
    """
    limits, terms = config.limits, _terms(config, version, host)
    scheduler = TimerScheduler(
        lambda now: Wheel(timeout=RING_S, slots=RING_SLOTS, now=now),
        CommandsUnderWay(),
        decided,
        at=at,
        next_id=next_timer,
        states=timer_states,
        retry_policy=config.timers.retry_policy,
        max_live=config.timers.max_live,
        max_loaded=config.timers.max_loaded,
    )
    return Server(
        *_users(config, decided),
        scheduler,
        decided=decided,
        attended=attended,
        disk=disk,
        unread=UnreadReplies(limits.max_unread_bytes),
        counts=counts,
        access=access,
        terms=terms,
        limits=ServerLimits(
            registry=_registry_limits(config),
            outbox=_outbox_limits(config),
            disk=DiskLimits(
                pause_firing=limits.pause_firing,
                pause_reading=limits.pause_reading,
                max_pending_commands=config.timers.max_pending,
            ),
            max_where_rows=limits.max_where_rows,
            questions=QuestionLimits(
                of_link=config.cluster.max_link_questions,
                in_all=config.cluster.max_questions,
            ),
        ),
        new_conversation=lambda: new_conversation(terms.limits),
    )


def make_attended_clock(config: Config, *, mono: float, cpu: float) -> AttendedClock:
    """The clock of deadlines, stopped.

    Args:
        config: The settings.
        mono: Monotonic seconds now.
        cpu: CPU seconds that this process has used so far.
    """
    return AttendedClock(
        mono=mono,
        cpu=cpu,
        reconnect_grace=_reconnect_grace(config),
        patience=config.limits.gateway_hold_s,
    )


def _terms(config: Config, version: str, host: str) -> Terms:
    limits = config.limits
    return Terms(
        version=version,
        timeout=config.timeout_s,
        flush=config.flush,
        window=limits.window,
        run_timeout=config.timers.run_timeout_s,
        device_separator=config.presence.device_separator,
        limits=ConversationLimits(
            max_frame_bytes=limits.max_frame_bytes,
            max_batch=limits.max_batch,
            max_refused=limits.max_refused,
        ),
        host=host,
    )


def _outbox_limits(config: Config) -> OutboxLimits:
    limits = config.limits
    return OutboxLimits(
        window=limits.window,
        max_replies=limits.max_replies,
        max_reply_bytes=limits.max_reply_bytes,
        unread_s=limits.unread_s,
        gateway_unread_s=max(limits.unread_s, limits.gateway_hold_s),
    )
