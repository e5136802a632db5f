"""The terms of a run: the settings that say what each promise means in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunTerms:
    """What holds for all; what a gateway promised is in its hellos."""

    timeout_s: float
    hold_s: float  # of users of a gateway
    guard_hold_s: float  # of the storm guard; 0: it is off
    retention_s: float
    unread_s: float
    device_separator: str
    run_timeout_s: float = 0.0  # in which a gateway answers a timer
    watch_settle_s: float = 0.0  # of a watch; 0: there is none
