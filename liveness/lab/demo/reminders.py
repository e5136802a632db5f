"""Checks that each reminder fires once, not early, and never after it was cancelled.

This is the referee's part for reminders. Like the referee it has no clock. Its
`calm_since` is the moment since which there was no disruption; inf while there is one.

A reminder goes from the user to the gateway's memory, and from there to the sidecar and its
disk. In calm times that takes at most `grace_s`; after that a reminder, or a cancel, is
*safe*. If the gateway is killed before, the reminder may be lost: it may fire or not, and
is checked only if it does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from liveness.lab.common.promises import Breach, is_early, is_late, is_next_attempt

# The gateway's name for these timers.
PREFIX: Final = "remind:"
# An attempt that a gateway has taken and not answered is made again after these two. Both
# are short, so that this happens before the demo is over.
RUN_TIMEOUT_S: Final = 2
RETRY_S: Final = 1


def timer_key(uid: str, what: str) -> str:
    """The key of a reminder's timer."""
    return f"{PREFIX}{uid}:{what}"


@dataclass(slots=True)
class Reminder:
    """What is known of one reminder."""

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


class Reminders:
    """Checks timer records against what users asked for.

    It calls `fault` with each fault: kind, key, what was broken, and when.
    """

    def __init__(
        self, fault: Callable[[str, str, Breach, float], None], *, grace_s: float
    ) -> None:
        self.by_key: dict[str, Reminder] = {}
        self.guests = 0  # fired reminders of guests
        self.lateness_s: list[float] = []
        self._fault = fault
        self._grace_s = grace_s
        self._was_gateway_killed = False

    @property
    def fired(self) -> int:
        """How many have fired."""
        return sum(reminder.attempt > 0 for reminder in self.by_key.values())

    @property
    def cancelled(self) -> int:
        """How many were cancelled and have not fired."""
        return sum(
            reminder.cancelled_at is not None and not reminder.attempt
            for reminder in self.by_key.values()
        )

    def asks(self, key: str, seconds: float, *, at: float, is_safe: bool) -> None:
        """A user is about to ask for a reminder; *is_safe* if the gateway is up."""
        due = at + seconds
        self.by_key[key] = Reminder(at, due, due, may_be_lost=not is_safe)

    def cancels(self, key: str, *, at: float, is_safe: bool) -> None:
        """A user is about to cancel a reminder."""
        reminder = self.by_key[key]
        reminder.cancelled_at = at
        reminder.may_be_lost |= not is_safe

    def heard(self, key: str) -> None:
        """A user in the room received a reminder."""
        if key in self.by_key:
            self.by_key[key].is_heard = True

    def gateway_killed(self) -> None:
        """The gateway is killed; what it has not passed on is lost."""
        self._was_gateway_killed = True
        for reminder in self.by_key.values():
            is_cancelled = reminder.cancelled_at is not None
            is_safe = reminder.is_cancel_safe if is_cancelled else reminder.is_safe
            reminder.may_be_lost |= not is_safe

    def check(
        self, record: Mapping[str, Any], *, decided: float, at: float, calm_since: float
    ) -> None:
        """Checks the record of a timer that fired; see `Referee.check`."""
        key, attempt = record["key"], record["attempt"]
        reminder = self.by_key.get(key)
        if reminder is None:
            self.guests += 1
            return
        if is_early(decided, reminder.due_at):
            what = f"fired {reminder.due_at - decided:.3f} s too early"
            self._broken("early", key, what, inf)
        if reminder.is_cancel_safe:
            self._broken("false", key, "fired although it was cancelled", at)
        was_calm = reminder.fired_at >= calm_since
        # A gateway that was killed has forgotten its attempts. The sidecar delivers
        # one that it had not received again, with the same number.
        may_be_again = self._was_gateway_killed and not was_calm
        is_again = may_be_again and attempt == reminder.attempt
        if not is_next_attempt(attempt, reminder.attempt, is_again=is_again):
            what = f"fired as attempt {attempt} after attempt {reminder.attempt}"
            self._broken("false", key, what, at)
        elif reminder.attempt:
            if was_calm:
                self._broken("false", key, f"fired again, as attempt {attempt}", at)
        elif reminder.due_at >= calm_since:
            self.lateness_s.append(at - reminder.due_at)
        reminder.attempt = attempt
        reminder.fired_at = decided

    def check_overdue(self, at: float, *, calm_since: float) -> None:
        """Looks for reminders that should have fired, or been heard, by *at*."""

        def is_past(moment: float, more_s: float = 0.0) -> bool:
            return is_late(at - max(moment, calm_since), self._grace_s + more_s)

        for key, reminder in self.by_key.items():
            what = ""
            if reminder.attempt:
                # A gateway that was killed, or cut off, may have taken the attempt with it.
                was_calm = reminder.fired_at >= calm_since
                more_s = 0.0 if was_calm else RUN_TIMEOUT_S + RETRY_S
                if is_past(reminder.fired_at, more_s) and not reminder.is_heard:
                    what = "fired, and nobody in the room received it"
            elif not reminder.may_be_lost:
                if not reminder.is_safe:
                    waited_s = max(0.0, calm_since - reminder.asked_at)
                    reminder.due_by = reminder.due_at + waited_s
                reminder.is_safe |= is_past(reminder.asked_at)
                if reminder.cancelled_at is not None:
                    reminder.is_cancel_safe |= is_past(reminder.cancelled_at)
                elif is_past(reminder.due_by):
                    what = f"was due {at - reminder.due_by:.3f} s ago and has not fired"
            if what and not reminder.is_missed:
                reminder.is_missed = True
                self._broken("missed", key, what, at)

    def _broken(self, kind: str, key: str, what: str, at: float) -> None:
        self._fault(kind, key, Breach(7, what), at)
