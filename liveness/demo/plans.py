"""What each simulated user is going to do, and when.

A gateway must tell four kinds of them apart: who talks, who has nothing to say but is
there, who leaves, and who falls silent with the connection open, as somebody does who
drove into a tunnel. Nothing but the silence itself tells the last kind from the second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from math import inf
from typing import Final

MOST_JOINS_PER_S: Final = 250
# To be seen in time, a logout comes this long before the end, and silence its timeout
# and this long: a second until it would be missed, and half of one to spare.
LAST_S: Final = 1.5
# What the room says goes to everyone in it: with many users only a few may talk.
MAX_ROOM_LINES_PER_S: Final = 2_500
# Somebody there speaks at least every half timeout, as the protocol advises.
LEAST_PAUSE, MOST_PAUSE = 0.3, 0.5
# Of those who talk so many want the room reminded of something; every third cancels that.
MOST_REMINDERS: Final = 30
REMINDER_S: Final = 5.0
AT_HOME_S: Final = 0.5  # from coming to asking for one
REMINDERS: Final = ("tea", "lunch", "the bus", "a walk")


class Behaviour(StrEnum):
    """What a user does until the end, or at its moment."""

    CHAT = "chat"
    KEEPALIVE = "keepalive"
    LOGOUT = "log out"
    SILENT = "fall silent"
    SILENCED = "silenced"  # nobody's plan: it was made to happen


# So many of each ten, and in this order: the first one there is falls silent.
EACH_TEN: Final = (
    Behaviour.SILENT, Behaviour.CHAT, Behaviour.KEEPALIVE, Behaviour.LOGOUT,
    Behaviour.SILENT, Behaviour.KEEPALIVE, Behaviour.CHAT, Behaviour.SILENT,
    Behaviour.LOGOUT, Behaviour.KEEPALIVE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReminder:
    """What somebody who talks wants the room reminded of, and when."""

    what: str
    asks_s: float
    in_s: float
    forgets_s: float = inf  # when it is cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One user's; times are seconds after the gateway opened."""

    uid: str
    behaviour: Behaviour
    joins_s: float
    moment_s: float = inf  # of the logout, or of the last sign of life
    reminder: PlannedReminder | None = None


def joining_s(count: int) -> float:
    """How long *count* users take to join, one after the other."""
    return max(count / MOST_JOINS_PER_S, 1.0)


def last_silence_s(seconds: float, timeout_s: float, flush_s: float) -> float:
    """The last moment of falling silent at which it can still be seen."""
    return seconds - timeout_s - flush_s - LAST_S


def planned(
    count: int, *, seconds: float, timeout_s: float, flush_s: float
) -> Iterator[Plan]:
    """The plans of *count* users: moments are spread evenly over the *seconds*."""
    silence_s = max(last_silence_s(seconds, timeout_s, flush_s), 0)
    latest_s = {Behaviour.SILENT: silence_s, Behaviour.LOGOUT: seconds - LAST_S}
    pause_s = (LEAST_PAUSE + MOST_PAUSE) / 2 * timeout_s
    talkers_left = max(1, int(MAX_ROOM_LINES_PER_S * pause_s / count))
    reminders = 0
    for number, behaviour in zip(range(count), cycle(EACH_TEN)):
        if behaviour is Behaviour.CHAT:
            if not talkers_left:
                behaviour = Behaviour.KEEPALIVE
            else:
                talkers_left -= 1
        joins_s, reminder = joining_s(count) * number / count, None
        if behaviour is Behaviour.CHAT and reminders < MOST_REMINDERS:
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
    count: int, share: float, joins_s: float, seconds: float
) -> PlannedReminder | None:
    """One that comes in time to be seen; None if there is no time for it."""
    in_s = min(REMINDER_S, seconds / 5)
    first_s, last_s = joins_s + AT_HOME_S, seconds - LAST_S - in_s
    if last_s < first_s:
        return None
    asks_s = first_s + (last_s - first_s) * share
    return PlannedReminder(
        what=REMINDERS[count % len(REMINDERS)],
        asks_s=asks_s,
        in_s=in_s,
        forgets_s=asks_s + in_s / 2 if count % 3 == 2 else inf,
    )
