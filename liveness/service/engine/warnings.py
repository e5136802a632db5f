"""Warnings to the operator: storms, short timeouts, and gateways that miss pings."""

from typing import Final

import structlog

from liveness.core.clearance import MISSES, GatewayState
from liveness.core.intervals import TIMES
from liveness.core.presence import Presence
from liveness.core.storm_guard import StormBegun
from liveness.service.common.clock import Clock
from liveness.service.common.logs import LogThrottle

# How often timeouts are compared with the intervals of activity, which change over minutes.
CHECK_EVERY_S: Final = 2.0
# Advice to change a setting is repeated no more often than this.
ADVICE_EVERY_S: Final = 3_600.0

_cadence_log = structlog.get_logger("cadence")
_gateway_log = structlog.get_logger("gateway")
_guard_log = structlog.get_logger("guard")


class Warnings:
    """Logs storms, timeouts that are too short, and broken promises to ping."""

    def __init__(self, presence: Presence, clock: Clock) -> None:
        self._presence = presence
        self._log_throttled = LogThrottle(ADVICE_EVERY_S, clock=clock.mono)
        self._check_at = 0.0  # monotonic

    def log_storms(self, now: float) -> None:
        """Log the storms that began or ended by an attended second."""
        if self._presence.guard is None:
            return
        for change in self._presence.guard.take(now):
            if isinstance(change, StormBegun):
                _guard_log.warning(
                    "storm: too many users came due at once, and are held",
                    gateway=change.gateway,
                    due=change.due,
                    users=change.users,
                    hold_s=round(change.left, 1),
                    likely=change.cause,
                    todo="wait, or `liveness guard release`",
                )
            else:
                _guard_log.warning(
                    "storm is over",
                    gateway=change.gateway,
                    why=change.why,
                    saved=change.saved,
                    others=change.others,
                )

    def count_missed_promise(self, gateway: GatewayState, now: float) -> None:
        """Count a broken promise to ping; warn if the gateway breaks it repeatedly.

        Called once each time that the gateway becomes mute.
        """
        within = gateway.missed(now)
        if within is not None:
            self._log_throttled(
                _gateway_log.warning,
                "the gateway keeps missing its promise to ping",
                key=("ping", gateway.name),
                gateway=gateway.name,
                ping_s=gateway.ping,
                times=MISSES,
                within_s=round(within, 1),
                todo="have it send a ping at least as often as its hello promises, or "
                "promise a longer interval; if it hangs, find out why",
            )

    def check_timeouts(self, mono: float, now: float) -> None:
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
            self._log_throttled(
                _cadence_log.warning,
                "the timeout is under twice the usual interval of its users",
                key=gateway.name,
                gateway=gateway.name,
                timeout_s=timeout,
                interval_s=round(interval, 3),
                todo=f"raise the timeout to {TIMES * interval:g} s or more, or have its "
                f"users send something every {timeout / TIMES:g} s",
            )
