"""Did each reminder come once, no sooner than it was asked for, and none that was cancelled?

What users ask for goes to the gateway's memory, from there to the sidecar's, and to its
disk. While all is calm that takes no time worth naming, and a reminder or a cancel that
is a moment old is *kept*. One that was not yet kept when the gateway was killed may be
lost with it: such a reminder may come or not, and is only judged if it does.

The part of the referee that is about reminders. Like it, it is told every moment, and
here also since when all has been calm: infinity means that it is not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

# As the gateway calls them.
PREFIX: Final = "remind:"


def key_of(uid: str, what: str) -> str:
    """What the timer of a reminder is called."""
    return f"{PREFIX}{uid}:{what}"


@dataclass(slots=True)
class Reminder:
    """What is known of one."""

    asked_at: float
    due_at: float
    may_be_lost: bool = False
    is_kept: bool = False
    cancelled_at: float | None = None
    is_cancel_kept: bool = False
    attempts: set[int] = field(default_factory=set)
    came_at: float = -inf  # the last of these
    is_heard: bool = False
    is_missed: bool = False


class Reminders:
    """Is told what is asked for and what comes, and keeps account of it.

    Args:
        fault: Called with each fault: its kind, the reminder, what it is and when.
        grace_s: How long something may take that takes no time worth naming.
    """

    def __init__(
        self, fault: Callable[[str, str, str, float], None], *, grace_s: float
    ) -> None:
        self.by_key: dict[str, Reminder] = {}
        self.guests = 0  # that came, and that no simulated user asked for
        self.lateness_s: list[float] = []
        self._fault = fault
        self._grace_s = grace_s
        self._was_cut = False

    @property
    def came(self) -> int:
        """How many of those asked for have come."""
        return sum(bool(one.attempts) for one in self.by_key.values())

    @property
    def cancelled(self) -> int:
        """How many were cancelled and have not come."""
        return sum(
            one.cancelled_at is not None and not one.attempts
            for one in self.by_key.values()
        )

    # --- what users do, and hear --------------------------------------------------

    def asks(self, key: str, seconds: float, *, at: float, is_safe: bool) -> None:
        """Notes that somebody is about to ask for one.

        Args:
            key: What it is called.
            seconds: When it is to come, from now.
            at: Now.
            is_safe: Whether there is a gateway to take it.
        """
        self.by_key[key] = Reminder(at, at + seconds, may_be_lost=not is_safe)

    def cancels(self, key: str, *, at: float, is_safe: bool) -> None:
        """Notes that somebody is about to cancel one."""
        reminder = self.by_key[key]
        reminder.cancelled_at = at
        reminder.may_be_lost |= not is_safe

    def heard(self, key: str) -> None:
        """Notes that somebody in the room has heard it."""
        if key in self.by_key:
            self.by_key[key].is_heard = True

    def cut(self) -> None:
        """Notes that the gateway is being killed, and what it has not passed on is lost."""
        self._was_cut = True
        for one in self.by_key.values():
            is_kept = one.is_kept if one.cancelled_at is None else one.is_cancel_kept
            one.may_be_lost |= not is_kept

    # --- judging ------------------------------------------------------------------

    def told(
        self,
        record: Mapping[str, Any],
        *,
        decided: float,
        at: float,
        calm_since: float,
    ) -> None:
        """Judges the record of one that has come; see `Referee.told`."""
        key, attempt = record["key"], record["attempt"]
        reminder = self.by_key.get(key)
        if reminder is None:
            self.guests += 1
            return
        early_s = reminder.due_at - decided
        if early_s > 0:
            self._fault("early", key, f"came {early_s:.3f} s too early", inf)
        if reminder.is_cancel_kept:
            self._fault("false", key, "came and was cancelled before", at)
        was_calm = reminder.came_at >= calm_since
        if attempt in reminder.attempts:
            # A gateway that was killed comes back fresh: a run that it was not told of
            # begins anew, and takes no attempt.
            if was_calm or not self._was_cut:
                self._fault("false", key, f"came twice as attempt {attempt}", at)
        elif reminder.attempts:
            if was_calm:
                self._fault("false", key, f"came again, as attempt {attempt}", at)
        elif reminder.due_at >= calm_since:
            self.lateness_s.append(at - reminder.due_at)
        reminder.attempts.add(attempt)
        reminder.came_at = decided

    def look(self, at: float, *, calm_since: float) -> None:
        """Looks for those that should have come by *at*."""
        for key, one in self.by_key.items():
            if one.attempts:
                is_late = at - max(one.came_at, calm_since) > self._grace_s
                if is_late and not one.is_heard:
                    self._miss(
                        key, one, "came, and nobody in the room has heard it", at
                    )
            elif not one.may_be_lost:
                self._look_for(key, one, at, calm_since)

    def _look_for(self, key: str, one: Reminder, at: float, calm_since: float) -> None:
        one.is_kept |= at - max(one.asked_at, calm_since) > self._grace_s
        if one.cancelled_at is not None:
            calm_s = at - max(one.cancelled_at, calm_since)
            one.is_cancel_kept |= calm_s > self._grace_s
        elif at - max(one.due_at, calm_since) > self._grace_s:
            self._miss(key, one, f"was due {at - one.due_at:.3f} s ago", at)

    def _miss(self, key: str, one: Reminder, what: str, at: float) -> None:
        if not one.is_missed:
            one.is_missed = True
            self._fault("missed", key, what, at)
