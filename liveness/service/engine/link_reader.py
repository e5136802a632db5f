"""Reads links without waiting, within a time budget per turn of the engine.

A link is read piece by piece, and each piece is applied (`dispatch`) before the next is
read. Two bounds keep what was read but is not yet on disk small: while many records wait,
a link is read by one small piece a turn; and a gateway with too many timer commands
waiting is not read at all.
"""

from typing import Final

import structlog

from liveness.core.attended_clock import AttendedClock
from liveness.core.clearance import GatewayState
from liveness.core.presence import Presence
from liveness.core.records import GATEWAY
from liveness.metrics import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.engine.dispatch import Dispatcher
from liveness.service.links.link import PIECE_BYTES, SocketLink
from liveness.service.links.registry import LinkRegistry
from liveness.service.storage.log_writer import LogWriter

# A turn reads gateways for no longer than this; links it did not reach come first in the
# next turn. So a flooding gateway delays the others by this and one receive at most.
READING_S: Final = 0.002
# The time for watchers and links before their hello: half as much.
OTHERS_S: Final = 0.001

_log = structlog.get_logger("link")


class LinkReader:
    """Reads links and has their requests applied.

    At most *max_pending_commands* timer commands of all gateways may wait for the disk.
    """

    def __init__(
        self,
        registry: LinkRegistry,
        presence: Presence,
        dispatcher: Dispatcher,
        *,
        attended: AttendedClock,
        clock: Clock,
        log_writer: LogWriter,
        counts: Counts,
        max_pending_commands: int,
    ) -> None:
        self._registry = registry
        self._presence = presence
        self._dispatcher = dispatcher
        self._attended = attended
        self._clock = clock
        self._log_writer = log_writer
        self._counts = counts
        self._max_pending_commands = max_pending_commands
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=clock.mono)
        self._ready: dict[int, SocketLink] = {}
        # Links that had data in the last turn: the next one reads them again,
        # without waiting for their sockets to become readable.
        self._recently_active: dict[int, SocketLink] = {}
        # Gateways that are not read, as too many of their timer commands wait for the disk.
        self.held_back: dict[str, GatewayState] = {}
        # Many records wait for the disk: read each link by one small piece a turn.
        self.disk_is_behind = False

    def add(self, link: SocketLink) -> None:
        """Have a link read in the next turn."""
        self._ready[link.number] = link

    def discard(self, link: SocketLink) -> None:
        """Read a closed link no more."""
        self._ready.pop(link.number, None)
        self._recently_active.pop(link.number, None)

    @property
    def has_ready(self) -> bool:
        """Whether links with something to read were left for the next turn."""
        return bool(self._ready)

    @property
    def expects_more(self) -> bool:
        """Whether the next turn should come soon, since links will have more to read."""
        return bool(self._recently_active) or (
            self.disk_is_behind and bool(self._ready)
        )

    # --- reading --------------------------------------------------------------

    def read_ready(self, now: float) -> bool:
        """Read the links that are ready, and gateways with due users.

        While attended time is paused, reads every link. Returns whether to read on in
        another turn at once.
        """
        if self._attended.is_paused:
            links = dict(self._registry.links)
        else:
            links = self._ready | self._recently_active
            for gateway in self._presence.due_gateways():
                link = self._registry.named.get((GATEWAY, gateway.name))
                if link is not None:
                    links[link.number] = link
        self._ready, self._recently_active = {}, {}
        # The link whose last data is oldest comes first, so that one that floods cannot
        # use up the time of a gateway whose users are due.
        in_order = sorted(links.values(), key=lambda link: link.read_at)
        # Other links have a budget of their own: no due user waits for them.
        for is_gateway, budget_s in ((True, READING_S), (False, OTHERS_S)):
            until = self._clock.mono() + budget_s
            for link in in_order:
                if (link.gateway is not None) is not is_gateway or not link.is_open:
                    continue
                if not self.read(link, now, until=until):
                    self._ready[link.number] = link
        can_continue = any(
            not link.outbox.is_full and not self._is_held_back(link)
            for link in self._ready.values()
        )
        return can_continue and not self.disk_is_behind

    def read_all(self, now: float) -> bool:
        """Read every link within one budget; return whether all were read empty."""
        until = self._clock.mono() + READING_S
        is_empty = [
            self.read(link, now, until=until)
            for link in [*self._registry.links.values()]
        ]
        return all(is_empty)

    def read_sent(self, link: SocketLink, now: float) -> None:
        """Read what a link has sent up to now, and not what it goes on to send."""
        self.read(link, now, must_read_bytes=link.unread())

    def read(
        self,
        link: SocketLink,
        now: float,
        *,
        until: float = 0.0,
        must_read_bytes: int = 0,
    ) -> bool:
        """Read one link; return whether it was read empty or ended.

        Args:
            link: The link.
            now: Attended seconds.
            until: When the budget ends, in monotonic seconds.
            must_read_bytes: Read so many bytes whatever the budget and the disk.
        """
        taken = 0
        mono = self._clock.mono()
        while taken < must_read_bytes or (
            mono < until and not (taken and self.disk_is_behind)
        ):
            if not link.is_open or self._dispatcher.is_resetting(link):
                return True
            if taken >= must_read_bytes and self._is_held_back(link):
                return False
            if link.outbox.is_full:
                # It is read again once its replies are written, if it reads them.
                if not link.outbox.is_unread:
                    return False
                self._registry.overload(link, link.outbox.excess)
                return True
            data = link.receive(
                PIECE_BYTES if self.disk_is_behind else link.piece_bytes
            )
            if data is None:
                link.must_read_bytes = 0
                if link.gateway is not None:
                    link.gateway.empty_at = now
                if taken:
                    self._recently_active[link.number] = link
                else:
                    link.drained.notify()
                return True
            taken += len(data)
            link.must_read_bytes = max(0, link.must_read_bytes - len(data))
            link.read_at = mono = self._clock.mono()
            at = self._clock.instant(self._attended.at(mono), mono)
            if not data:
                self._registry.end(link, why="closed by the other side")
                return True
            if link.gateway is not None:
                link.gateway.heard(at.now)
            self._dispatcher.receive(link, data, at)
            self._registry.count_partial_frame(link)
            self._registry.shed_unread()
            link.measure(self._clock.mono() - mono)
        return False

    # --- gateways whose timer commands wait for the disk -----------------------

    @property
    def commands_per_gateway(self) -> int:
        """How many timer commands of one gateway may wait for the disk.

        As many as there is still room for: a single gateway gets half of the bound, two
        a third each, and so on, and there is always room for one more. At least an equal
        share of the bound, so that gateways with few commands never wait for others.

        Source: Choudhury & Hahne 1998, dynamic queue lengths in a shared memory.
        """
        most = self._max_pending_commands
        room = most - self._log_writer.timers.pending
        return max(room, most // (self._registry.linked(GATEWAY) + 1))

    def hold_back(self, now: float) -> None:
        """Choose the gateways that are not read until more of their commands are on disk."""
        timers = self._log_writer.timers
        held_back = dict[str, GatewayState]()
        if 2 * timers.pending > self._max_pending_commands:
            share = self.commands_per_gateway
            for name, pending in timers.pending_by_gateway.items():
                link = self._registry.named.get((GATEWAY, name))
                if pending > share and link is not None and link.gateway is not None:
                    held_back[name] = link.gateway
        for name, gateway in self.held_back.items():
            if name not in held_back:
                gateway.reading_resumed(now)
        for gateway in held_back.values():
            if gateway.reading_paused_at is None:
                gateway.reading_paused(now)
                self._counts.limits_met["timers.max_pending"] += 1
                self._log_throttled(
                    _log.warning,
                    "a gateway is not read while its timer commands wait for the disk: "
                    "have it send fewer (timers.max_pending)",
                    key=gateway.name,
                    name=gateway.name,
                    pending=timers.pending_by_gateway[gateway.name],
                )
        self.held_back = held_back

    @staticmethod
    def _is_held_back(link: SocketLink) -> bool:
        return link.gateway is not None and link.gateway.reading_paused_at is not None
