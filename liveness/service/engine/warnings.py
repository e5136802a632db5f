"""What an operator is told, in the log, of how users speak and come due."""

from typing import Final

import structlog

from liveness.core.clearance import MISSES, GatewayState
from liveness.core.intervals import TIMES
from liveness.core.presence import Presence
from liveness.core.storm_guard import Begun
from liveness.service.common.clock import Clock
from liveness.service.common.logs import Every

# How often users speak is looked at so often; it changes over minutes.
LOOK_EVERY_S: Final = 2.0
# Warnings on a timeout comes no more often: who is on call cannot follow it at night.
ADVICE_EVERY_S: Final = 3_600.0

_cadence_log = structlog.get_logger("cadence")
_gateway_log = structlog.get_logger("gateway")
_guard_log = structlog.get_logger("guard")


class Warnings:
    """Tells of storms, of timeouts that are too short, and of promises not kept.

    Args:
        presence: What is told of.
        clock: By which it is seldom told.
    """

    def __init__(self, presence: Presence, clock: Clock) -> None:
        self._presence = presence
        self._advise = Every(ADVICE_EVERY_S, clock=clock.mono)
        self._look_at = 0.0  # monotonic

    def of_storms(self, now: float) -> None:
        """Tell which began and ended, as of an attended second: two lines a storm."""
        if self._presence.guard is None:
            return
        for one in self._presence.guard.take(now):
            if isinstance(one, Begun):
                _guard_log.warning(
                    "storm: too many users came due at once, and are held",
                    gateway=one.gateway,
                    due=one.due,
                    users=one.users,
                    hold_s=round(one.left, 1),
                    likely=one.cause,
                    todo="wait, or `liveness guard release`",
                )
            else:
                _guard_log.warning(
                    "storm is over",
                    gateway=one.gateway,
                    why=one.why,
                    saved=one.saved,
                    others=one.others,
                )

    def of_promise(self, gateway: GatewayState, now: float) -> None:
        """Count that a gateway broke its promise to ping; warn if it keeps doing so.

        Args:
            gateway: It is mute, and was not so when this was last called for it.
            now: Attended seconds.
        """
        within = gateway.missed(now)
        if within is not None:
            self._advise(
                _gateway_log.warning,
                "the gateway keeps missing its promise to ping",
                key=("ping", gateway.name),
                gateway=gateway.name,
                ping_s=gateway.ping,
                times=MISSES,
                within_s=round(within, 1),
                todo="have it send a ping at least as often as its hello promises, or "
                "promise a longer one; where it hangs, find out on what",
            )

    def of_timeouts(self, mono: float, now: float) -> None:
        """Tell which timeouts are too short for how often users speak, if it is time.

        Args:
            mono: Monotonic seconds.
            now: Attended seconds.
        """
        if mono < self._look_at:
            return
        self._look_at = mono + LOOK_EVERY_S
        for gateway in self._presence.look_at_cadence(now):
            timeout = gateway.timeout or self._presence.timeout
            interval = self._presence.interval(gateway)
            assert interval is not None
            self._advise(
                _cadence_log.warning,
                "the timeout is under twice the usual interval of its users",
                key=gateway.name,
                gateway=gateway.name,
                timeout_s=timeout,
                interval_s=round(interval, 3),
                todo=f"raise the timeout to {TIMES * interval:g} s or more, or have its "
                f"users speak every {timeout / TIMES:g} s",
            )
