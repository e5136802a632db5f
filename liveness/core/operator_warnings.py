"""Reports to the operator: storms, short timeouts, and gateways that miss pings."""

from collections import deque
from typing import Final

from liveness.core.clearance import MISSES, GatewayState
from liveness.core.effects import Effect, LogLine
from liveness.core.intervals import TIMES
from liveness.core.presence import Presence
from liveness.core.storm_guard import StormBegun

# How often timeouts are compared with the intervals of activity, which change over minutes.
CHECK_EVERY_S: Final = 2.0
# Advice to change a setting is repeated no more often than this.
ADVICE_EVERY_S: Final = 3_600.0


class OperatorWarnings:
    """Reports storms, timeouts that are too short, and broken promises to ping."""

    def __init__(self, effects: deque[Effect], presence: Presence) -> None:
        self._effects = effects
        self._presence = presence
        self._check_at = 0.0  # monotonic

    def storms(self, now: float) -> None:
        """Warn of the storms that began or ended by an attended second."""
        if self._presence.guard is None:
            return
        for change in self._presence.guard.take(now):
            if isinstance(change, StormBegun):
                self._warn(
                    "guard",
                    "storm: too many users came due at once, and are held",
                    gateway=change.gateway,
                    due=change.due,
                    users=change.users,
                    hold_s=round(change.left, 1),
                    likely=change.cause,
                    todo="wait, or `liveness guard release`",
                )
            else:
                self._warn(
                    "guard",
                    "storm is over",
                    gateway=change.gateway,
                    why=change.why,
                    saved=change.saved,
                    others=change.others,
                )

    def missed_promise(self, gateway: GatewayState, now: float) -> None:
        """Count a broken promise to ping; warn if the gateway breaks it repeatedly.

        Called once each time that the gateway becomes mute.
        """
        within = gateway.missed(now)
        if within is not None:
            self._warn(
                "gateway",
                "the gateway keeps missing its promise to ping",
                key=("ping", gateway.name),
                gateway=gateway.name,
                ping_s=gateway.ping,
                times=MISSES,
                within_s=round(within, 1),
                todo="have it send a ping at least as often as its hello promises, or "
                "promise a longer interval; if it hangs, find out why",
            )

    def short_timeouts(self, mono: float, now: float) -> None:
        """Warn of timeouts that are too short for how often users are active.

        Does nothing within `CHECK_EVERY_S` of the last check.
        """
        if mono < self._check_at:
            return
        self._check_at = mono + CHECK_EVERY_S
        for gateway in self._presence.look_at_cadence(now):
            timeout = gateway.timeout or self._presence.timeout
            interval = self._presence.interval(gateway)
            assert interval is not None
            self._warn(
                "cadence",
                "the timeout is under twice the usual interval of its users",
                key=gateway.name,
                gateway=gateway.name,
                timeout_s=timeout,
                interval_s=round(interval, 3),
                todo=f"raise the timeout to {TIMES * interval:g} s or more, or have its "
                f"users send something every {timeout / TIMES:g} s",
            )

    def _warn(
        self, area: str, message: str, *, key: object = None, **fields: object
    ) -> None:
        every_s = 0.0 if key is None else ADVICE_EVERY_S
        report = LogLine(area, "warning", message, fields, key, every_s)
        self._effects.append(report)
