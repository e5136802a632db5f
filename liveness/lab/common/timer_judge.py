"""Checks that each timer fires once, not early, and never after it was cancelled.

This is the part of `HostJudge` for timers, and like that it has no clock. Its `calm_since`
is the moment since which there was no disruption; inf while there is one.

An order goes from the user to the gateway's memory, and from there to the sidecar and its
disk. In calm times that takes at most `grace_s`; after that a timer, or a cancel, is
*safe*. If the gateway is killed before, the order may be lost: the timer may fire or not,
and is checked only if it does.
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

    asked_at: float
    due_at: float  # at the earliest
    due_by: float  # the sidecar counts from when it reads the order
    may_be_lost: bool = False
    is_safe: bool = False
    cancelled_at: float | None = None
    is_cancel_safe: bool = False
    attempt: int = 0  # the last one that fired
    fired_at: float = -inf  # by the last attempt
    is_heard: bool = False
    is_missed: bool = False


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
        self._was_gateway_killed = False

    @property
    def fired(self) -> int:
        """How many have fired."""
        return sum(timer.attempt > 0 for timer in self.by_key.values())

    @property
    def cancelled(self) -> int:
        """How many were cancelled and have not fired."""
        return sum(
            timer.cancelled_at is not None and not timer.attempt
            for timer in self.by_key.values()
        )

    def asks(self, key: str, seconds: float, *, at: float, is_safe: bool) -> None:
        """A user is about to ask for a timer; *is_safe* if the gateway is up."""
        due = at + seconds
        self.by_key[key] = OrderedTimer(at, due, due, may_be_lost=not is_safe)

    def cancels(self, key: str, *, at: float, is_safe: bool) -> None:
        """A user is about to cancel a timer."""
        timer = self.by_key[key]
        timer.cancelled_at = at
        timer.may_be_lost |= not is_safe

    def heard(self, key: str) -> None:
        """A user in the room received what a timer is for."""
        if key in self.by_key:
            self.by_key[key].is_heard = True

    def gateway_killed(self) -> None:
        """The gateway is killed; what it has not passed on is lost."""
        self._was_gateway_killed = True
        for timer in self.by_key.values():
            is_cancelled = timer.cancelled_at is not None
            is_safe = timer.is_cancel_safe if is_cancelled else timer.is_safe
            timer.may_be_lost |= not is_safe

    def check(
        self, record: Record, *, decided: float, at: float, calm_since: float
    ) -> None:
        """Checks the record of a timer that fired; see `HostJudge.check`."""
        key, attempt = record["key"], record["attempt"]
        timer = self.by_key.get(key)
        if timer is None:
            return  # of a guest
        found = ruling(
            decided - timer.due_at,
            at - timer.due_at,
            is_expected=not timer.is_cancel_safe,
        )
        if found is Ruling.EARLY:
            what = f"fired {timer.due_at - decided:.3f} s too early"
            self._broken("early", key, what, inf)
        elif found is Ruling.FALSE:
            self._broken("false", key, "fired although it was cancelled", at)
        was_calm = timer.fired_at >= calm_since
        # A gateway that was killed has forgotten its attempts. The sidecar delivers
        # one that it had not received again, with the same number.
        may_be_again = self._was_gateway_killed and not was_calm
        is_again = may_be_again and attempt == timer.attempt
        if not is_next_attempt(attempt, timer.attempt, is_again=is_again):
            what = f"fired as attempt {attempt} after attempt {timer.attempt}"
            self._broken("false", key, what, at)
        elif timer.attempt:
            if was_calm:
                self._broken("false", key, f"fired again, as attempt {attempt}", at)
        elif timer.due_at >= calm_since:
            self.lateness_s.append(at - timer.due_at)
        timer.attempt, timer.fired_at = attempt, decided

    def check_overdue(self, at: float, *, calm_since: float) -> None:
        """Looks for timers that should have fired, or been heard, by *at*."""
        for key, timer in self.by_key.items():
            what = self._overdue(timer, at, calm_since)
            if what and not timer.is_missed:
                timer.is_missed = True
                self._broken("missed", key, what, at)

    def _overdue(self, timer: OrderedTimer, at: float, calm_since: float) -> str:
        """What should have happened to a timer by *at*; "" if nothing."""

        def is_past(moment: float, more_s: float = 0.0) -> bool:
            return is_late(at - max(moment, calm_since), self._grace_s + more_s)

        if timer.attempt:
            # A gateway that was killed, or cut off, may have taken the attempt with it.
            was_calm = timer.fired_at >= calm_since
            more_s = 0.0 if was_calm else RUN_TIMEOUT_S + RETRY_S
            is_lost = is_past(timer.fired_at, more_s) and not timer.is_heard
            return "fired, and nobody in the room received it" if is_lost else ""
        if timer.may_be_lost:
            return ""
        if not timer.is_safe:
            timer.due_by = timer.due_at + max(0.0, calm_since - timer.asked_at)
        timer.is_safe |= is_past(timer.asked_at)
        if timer.cancelled_at is not None:
            timer.is_cancel_safe |= is_past(timer.cancelled_at)
        elif is_past(timer.due_by):
            return f"was due {at - timer.due_by:.3f} s ago and has not fired"
        return ""

    def _broken(self, kind: str, key: str, what: str, at: float) -> None:
        self._fault(kind, key, Breach(7, what), at)
