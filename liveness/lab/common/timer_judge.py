"""Checks that each timer fires once, not early, and never after it was cancelled.

This is the part of `HostJudge` for timers, and like that it has no clock. Its `calm_since`
is the moment since which there was no disruption; inf while there is one.

An order goes from the user to the gateway's memory, and from there to the sidecar and its
disk. In calm times that takes at most `grace_s`. After a disruption within that time the
order may be lost or late: the timer is *doubtful*, and is checked only if it fires.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from liveness.lab.common.judge import Ruling, ruling
from liveness.lab.common.promises import Breach, Record, is_late, is_next_attempt

# An attempt that a gateway has taken and not answered is made again after these two, by the
# settings of the sidecar. Both are short, so that it happens before a demo is over.
RUN_TIMEOUT_S: Final = 2
RETRY_S: Final = 1


@dataclass(slots=True)
class OrderedTimer:
    """What is known of one timer."""

    due: float
    ordered_at: float  # or cancelled
    is_doubtful: bool
    is_cancelled: bool = False
    attempt: int = 0  # the last one that fired
    fired_at: float = -inf  # by the last attempt
    is_heard: bool = False


class TimerJudge:
    """Checks timer records against what users asked for.

    It calls `fault` with each fault: kind, key, what was broken, and when.
    """

    def __init__(
        self, fault: Callable[[str, str, Breach, float], None], *, grace_s: float
    ) -> None:
        self.by_key: dict[str, OrderedTimer] = {}
        self.lateness_s: list[float] = []
        self._fault = fault
        self._grace_s = grace_s

    @property
    def fired(self) -> int:
        """How many have fired."""
        return sum(timer.attempt > 0 for timer in self.by_key.values())

    @property
    def cancelled(self) -> int:
        """How many were cancelled and have not fired."""
        timers = self.by_key.values()
        return sum(timer.is_cancelled and not timer.attempt for timer in timers)

    def asks(self, key: str, seconds: float, *, at: float, is_calm: bool) -> None:
        """A user is about to ask for a timer."""
        self.by_key[key] = OrderedTimer(at + seconds, at, is_doubtful=not is_calm)

    def cancels(self, key: str, *, at: float, is_calm: bool) -> None:
        """A user is about to cancel a timer."""
        timer = self.by_key[key]
        timer.is_cancelled, timer.ordered_at = True, at
        timer.is_doubtful |= not is_calm

    def heard(self, key: str) -> None:
        """A user in the room received what a timer is for."""
        if key in self.by_key:
            self.by_key[key].is_heard = True

    def disruption_begins(self, at: float) -> None:
        """A process is about to be killed, stopped or restarted."""
        for timer in self.by_key.values():
            timer.is_doubtful |= at - timer.ordered_at < self._grace_s

    def check(
        self, record: Record, *, decided: float, at: float, calm_since: float
    ) -> None:
        """Checks the record of a timer that fired; see `HostJudge.check`."""
        key, attempt = record["key"], record["attempt"]
        timer = self.by_key.get(key)
        if timer is None:
            return  # of a guest
        found = ruling(
            decided - timer.due,
            at - timer.due,
            is_expected=not timer.is_cancelled,
            is_excused=timer.is_doubtful
            or decided - timer.ordered_at < self._grace_s
            or timer.due < calm_since,
        )
        was_calm = timer.fired_at >= calm_since
        # A gateway that was killed has forgotten its attempts. The sidecar delivers
        # one that it had not received again, with the same number.
        is_again = not was_calm and attempt == timer.attempt
        if found is Ruling.EARLY:
            what = f"fired {timer.due - decided:.3f} s too early"
            self._fault("early", key, Breach(7, what), inf)
        elif found is Ruling.FALSE:
            self._broken("false", key, "fired although it was cancelled", at)
        elif not is_next_attempt(attempt, timer.attempt, is_again=is_again):
            what = f"fired as attempt {attempt} after attempt {timer.attempt}"
            self._broken("false", key, what, at)
        elif timer.attempt and was_calm:
            self._broken("false", key, f"fired again, as attempt {attempt}", at)
        elif found is Ruling.RIGHT and not timer.attempt:
            self.lateness_s.append(at - timer.due)
        timer.attempt, timer.fired_at = attempt, decided

    def check_overdue(self, at: float, *, calm_since: float) -> None:
        """Looks for timers that should have fired, or been heard, by *at*."""
        for key, timer in self.by_key.items():
            since, most_s = max(timer.due, calm_since), self._grace_s
            if timer.attempt:
                is_over, what = (
                    timer.is_heard,
                    "fired, and nobody in the room received it",
                )
                # A gateway that was killed, or cut off, may have taken the attempt along.
                if timer.fired_at < calm_since:
                    most_s += RUN_TIMEOUT_S + RETRY_S
                since = max(timer.fired_at, calm_since)
            else:
                is_over = timer.is_cancelled or timer.is_doubtful
                what = f"was due {at - timer.due:.3f} s ago and has not fired"
            if not is_over and is_late(at - since, most_s):
                self._broken("missed", key, what, at)

    def _broken(self, kind: str, key: str, what: str, at: float) -> None:
        self._fault(kind, key, Breach(7, what), at)
