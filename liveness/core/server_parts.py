"""The parts of a server."""

from typing import NamedTuple

from liveness.core.links.back_pressure import BackPressure
from liveness.core.links.known_names import KnownNames
from liveness.core.links.link_registry import LinkRegistry
from liveness.core.links.outbox import UnreadReplies
from liveness.core.links.skipped_ranges import SkippedRanges
from liveness.core.sessions.attended_clock import AttendedClock
from liveness.core.sessions.firing import Firing
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.sessions.presence import Presence
from liveness.core.timers.timer_scheduler import TimerScheduler


class ServerParts(NamedTuple):
    """What the server consists of, for others to read.

    Whatever has effects is changed by the server, which is called through a `Shell`.
    """

    gateways: GatewayTable
    presence: Presence
    firing: Firing
    scheduler: TimerScheduler
    registry: LinkRegistry
    names: KnownNames
    pressure: BackPressure
    skipped: SkippedRanges
    unread: UnreadReplies
    attended: AttendedClock
