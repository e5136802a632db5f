"""Holds back firing and reading while the disk is behind.

Three bounds limit decisions that are not durable yet. While many offlines wait, few users
are fired, then none. While many records wait, links are read by one small piece a turn,
then not at all. And a gateway with too many waiting timer commands is not read.
"""

from collections import deque
from typing import Final

from liveness.core.disk import Disk
from liveness.core.effects import Effect, LogLine
from liveness.core.limits import Limits
from liveness.core.links.link_registry import LinkCounts, LinkRegistry
from liveness.core.records import GATEWAY
from liveness.core.sessions.clearance import GatewayState

# Offlines decided in one turn, over all gateways. Turns follow each other at once while
# there are more, so this bounds the length of a turn, not the rate.
FIRE_PER_TURN: Final = 1_000
# Offlines decided in one turn between limits.pause_firing and twice as many that wait for
# the disk. A mass offline of one gateway then does not hold up the few of another, which
# come first in an equal share.
FIRE_WHILE_THROTTLED: Final = 50


class BackPressure:
    """Compares the decisions that wait for the disk with their bounds, once a turn."""

    def __init__(
        self,
        effects: deque[Effect],
        disk: Disk,
        registry: LinkRegistry,
        *,
        counts: LinkCounts,
        limits: Limits,
    ) -> None:
        # As of the last `look`.
        self.firing_was_throttled = False
        self.reading_is_paused = False
        # Gateways that are not read, as too many of their timer commands wait for the disk.
        self.held_back: dict[str, GatewayState] = {}
        self._effects = effects
        self._disk = disk
        self._registry = registry
        self._counts = counts
        self._limits = limits

    def look(self, now: float) -> None:
        """Compare, count each bound that was reached, and choose gateways to hold back."""
        was_throttled, was_paused = self.firing_was_throttled, self.reading_is_paused
        self.firing_was_throttled = self.is_firing_throttled
        pending = self._disk.records_pending
        self.reading_is_paused = pending >= self._limits.pause_reading
        met = self._counts.limits_met
        met["limits.pause_firing"] += self.firing_was_throttled and not was_throttled
        met["limits.pause_reading"] += self.reading_is_paused and not was_paused
        self._hold_back(now)

    @property
    def is_firing_throttled(self) -> bool:
        """Whether too many decisions wait for the disk: few or no users may be fired."""
        return self._disk.pending_ends >= self._limits.pause_firing

    @property
    def reads_small_pieces(self) -> bool:
        """Whether many records wait: each link is read by one small piece a turn.

        From half of the bound on, a storm of logins then fills the queue no faster than
        the disk empties it, while links that send little are read as before.
        """
        return 2 * self._disk.records_pending >= self._limits.pause_reading

    @property
    def fire_limit(self) -> int:
        if not self.is_firing_throttled:
            return FIRE_PER_TURN
        is_half = self._disk.pending_ends < 2 * self._limits.pause_firing
        return FIRE_WHILE_THROTTLED if is_half else 0

    # --- gateways whose timer commands wait for the disk -----------------------

    @property
    def commands_per_gateway(self) -> int:
        """How many timer commands of one gateway may wait for the disk.

        As many as there is still room for: a single gateway gets half of the bound, two get
        a third each, and so on, and there is always room for one more. It is at least an
        equal share, so that gateways with few commands never wait for others.

        Source: Choudhury & Hahne 1998, dynamic queue lengths in a shared memory.
        """
        most = self._limits.max_pending
        room = most - self._disk.commands_pending
        return max(room, most // (self._registry.linked(GATEWAY) + 1))

    @property
    def gateways_without_timers(self) -> set[str]:
        """Gateways whose timers may not fire until more of their commands are durable."""
        # Twice the number at which a gateway is held back: otherwise a gateway that keeps
        # sending commands would keep its own timers from firing.
        most = 2 * self.commands_per_gateway
        by_gateway = self._disk.commands_by_gateway
        return {name for name, pending in by_gateway.items() if pending > most}

    def _hold_back(self, now: float) -> None:
        by_gateway = self._disk.commands_by_gateway
        held_back = dict[str, GatewayState]()
        if 2 * self._disk.commands_pending > self._limits.max_pending:
            share = self.commands_per_gateway
            for name, pending in by_gateway.items():
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
                fields: dict[str, object] = {
                    "name": gateway.name,
                    "pending": by_gateway[gateway.name],
                }
                self._effects.append(
                    LogLine(
                        "link",
                        "warning",
                        "a gateway is not read while its timer commands wait for the "
                        "disk: have it send fewer (timers.max_pending)",
                        fields,
                        key=gateway.name,
                    )
                )
        self.held_back = held_back
