"""What each simulated user does, and when.

There are four kinds: users that chat, users that only send keepalives, users that log out,
and users that fall silent with the connection open, as on a train in a tunnel. A gateway
can tell the last kind from the second only by the silence itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from math import inf
from typing import Final

MOST_JOINS_PER_S: Final = 250
# The last logout comes this long before the end, and the last silence a timeout earlier: a
# missed one is noticed after a second, and half a second is spare.
LAST_S: Final = 1.5
# A line goes to every user in the room, so in a large room only a few may chat.
MAX_ROOM_LINES_PER_S: Final = 2_500
# The pause between two lines, as a share of the timeout. The protocol advises to send at
# least every half timeout.
LEAST_PAUSE, MOST_PAUSE = 0.3, 0.5
# Users that chat and ask for a reminder; every third of them cancels it.
MOST_REMINDERS: Final = 30
REMINDER_S: Final = 5.0
SETTLED_S: Final = 0.5  # from joining to asking for a reminder, at least
REMINDERS: Final = ("tea", "lunch", "the bus", "a walk")


class Behaviour(StrEnum):
    """What a user does, until the end or until its moment."""

    CHAT = "chat"
    KEEPALIVE = "keepalive"
    LOGOUT = "log out"
    SILENT = "fall silent"
    SILENCED = "silenced"  # by an action, against its plan


# Of each ten users, in this order: the first user falls silent.
EACH_TEN: Final = (
    Behaviour.SILENT, Behaviour.CHAT, Behaviour.KEEPALIVE, Behaviour.LOGOUT,
    Behaviour.SILENT, Behaviour.KEEPALIVE, Behaviour.CHAT, Behaviour.SILENT,
    Behaviour.LOGOUT, Behaviour.KEEPALIVE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReminder:
    """A reminder that a user asks for."""

    what: str
    asks_s: float
    in_s: float
    forgets_s: float = inf  # when it is cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One user's plan; times are seconds after the gateway opened."""

    uid: str
    behaviour: Behaviour
    joins_s: float
    moment_s: float = inf  # of the logout, or of the last activity
    reminder: PlannedReminder | None = None


def joining_s(count: int) -> float:
    """How long *count* users take to join, one after the other."""
    return max(count / MOST_JOINS_PER_S, 1.0)


def last_silence_s(seconds: float, timeout_s: float, flush_s: float) -> float:
    """The latest moment to fall silent such that the demo still sees the offline."""
    return seconds - timeout_s - flush_s - LAST_S


def planned(
    count: int,
    *,
    seconds: float,
    timeout_s: float,
    flush_s: float,
    most_reminders: int = MOST_REMINDERS,
) -> Iterator[Plan]:
    """The plans of *count* users; their moments are spread evenly over the *seconds*."""
    silence_s = max(last_silence_s(seconds, timeout_s, flush_s), 0)
    latest_s = {Behaviour.SILENT: silence_s, Behaviour.LOGOUT: seconds - LAST_S}
    pause_s = (LEAST_PAUSE + MOST_PAUSE) / 2 * timeout_s
    chats_left = max(1, int(MAX_ROOM_LINES_PER_S * pause_s / count))
    reminders = 0
    for number, behaviour in zip(range(count), cycle(EACH_TEN)):
        joins_s, reminder = joining_s(count) * number / count, None
        if behaviour is Behaviour.CHAT and not chats_left:
            behaviour = Behaviour.KEEPALIVE
        elif behaviour is Behaviour.CHAT:
            chats_left -= 1
            if reminders < most_reminders:
                reminder = _reminder(reminders, number / count, joins_s, seconds)
                reminders += 1
        yield Plan(
            uid=f"user-{number + 1:0{len(str(count))}}",
            behaviour=behaviour,
            joins_s=joins_s,
            moment_s=latest_s.get(behaviour, inf) * number / count,
            reminder=reminder,
        )


def _reminder(
    number: int, share: float, joins_s: float, seconds: float
) -> PlannedReminder | None:
    """A reminder that fires before the end; None if there is no time for it."""
    in_s = min(REMINDER_S, seconds / 5)
    first_s, last_s = joins_s + SETTLED_S, seconds - LAST_S - in_s
    if last_s < first_s:
        return None
    asks_s = first_s + (last_s - first_s) * share
    return PlannedReminder(
        what=REMINDERS[number % len(REMINDERS)],
        asks_s=asks_s,
        in_s=in_s,
        forgets_s=asks_s + in_s / 2 if number % 3 == 2 else inf,
    )
