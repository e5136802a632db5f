"""What each simulated user does, and when.

With one host there are four kinds: users that chat, users that only send keepalives, users
that log out, and users that fall silent with the connection open, as on a train in a
tunnel. A gateway can tell the last kind from the second only by the silence itself.

With several hosts most users move. Those that hop keep the old connection until the new one
works, and then log out of it. Those that roam just stop using it, as a phone that leaves a
Wi-Fi network: the old host receives nothing more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

MOST_JOINS_PER_S: Final = 250
# The last logout is this long before the end, and the last silence a timeout earlier: a
# missed one is noticed after a second, and half a second is spare.
LAST_S: Final = 1.5
# A line goes to every user in the room, so in a large room only a few may chat.
MAX_ROOM_LINES_PER_S: Final = 2_500
# The pause between two lines, as a share of the timeout. The protocol advises to send at
# least every half timeout.
LEAST_PAUSE, MOST_PAUSE = 0.3, 0.5


class Behaviour(StrEnum):
    """What a user does until the end, or until its plan's `moment_s`."""

    CHAT = "chat"
    KEEPALIVE = "keepalive"
    LOGOUT = "log out"
    SILENT = "fall silent"
    HOP = "hop"
    ROAM = "roam"


# The behaviour of each ten users, in order: the first user falls silent.
WITH_ONE_HOST: Final = (
    Behaviour.SILENT, Behaviour.CHAT, Behaviour.KEEPALIVE, Behaviour.LOGOUT,
    Behaviour.SILENT, Behaviour.KEEPALIVE, Behaviour.CHAT, Behaviour.SILENT,
    Behaviour.LOGOUT, Behaviour.KEEPALIVE,
)  # fmt: skip
WITH_SEVERAL: Final = (
    Behaviour.HOP, Behaviour.SILENT, Behaviour.ROAM, Behaviour.KEEPALIVE,
    Behaviour.HOP, Behaviour.LOGOUT, Behaviour.ROAM, Behaviour.SILENT,
    Behaviour.KEEPALIVE, Behaviour.ROAM,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One user's plan; times are seconds after the gateways opened."""

    uid: str
    behaviour: Behaviour
    first: int  # the number of its first host, from 0
    joins_s: float
    moment_s: float = inf  # of the logout, or of the last activity


def joining_s(count: int) -> float:
    return max(count / MOST_JOINS_PER_S, 1.0)


def planned(
    count: int,
    *,
    hosts: int = 1,
    seconds: float,
    timeout_s: float,
    flush_s: float,
) -> Iterator[Plan]:
    """The plans of *count* users; their moments are spread evenly over the *seconds*."""
    silence_s = max(seconds - LAST_S - timeout_s - flush_s, 0)
    latest_s = {Behaviour.SILENT: silence_s, Behaviour.LOGOUT: seconds - LAST_S}
    pause_s = (LEAST_PAUSE + MOST_PAUSE) / 2 * timeout_s
    chats_left = max(1, int(MAX_ROOM_LINES_PER_S * pause_s / count))
    kinds = WITH_ONE_HOST if hosts == 1 else WITH_SEVERAL
    for number in range(count):
        behaviour, share = kinds[number % len(kinds)], number / count
        if behaviour is Behaviour.CHAT and not chats_left:
            behaviour = Behaviour.KEEPALIVE
        elif behaviour is Behaviour.CHAT:
            chats_left -= 1
        yield Plan(
            uid=f"user-{number + 1:0{len(str(count))}}",
            behaviour=behaviour,
            first=number % hosts,
            joins_s=joining_s(count) * share,
            moment_s=latest_s.get(behaviour, inf) * share,
        )
