"""The terms of a run: the settings that say what each promise means in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayTerms:
    """What holds on the links of one gateway."""

    timeouts: tuple[float, ...]  # of its users without their own: any of them may hold
    ping: float | None = None  # as its hello promises
    pings_every: float = 1 / 3


@dataclass(frozen=True, slots=True)
class RunTerms:
    """What holds for all, and for each gateway by its name."""

    timeout_s: float
    hold_s: float  # of users of a gateway
    guard_hold_s: float  # of the storm guard; 0: it is off
    retention_s: float
    unread_s: float
    device_separator: str
    gateways: Mapping[str, GatewayTerms]
    run_timeout_s: float = 0.0  # in which a gateway answers a timer
    watch_settle_s: float = 0.0  # of a watch; 0: nobody has one

    def timeouts_of(self, gateway: str, own: float | None) -> list[float]:
        """The whole timeouts that a user may have."""
        return [own or timeout for timeout in self.gateways[gateway].timeouts]
