"""Simulated users, each on a TCP connection, as a person with `nc` would be.

A gateway must tell four kinds of them apart: who talks, who has nothing to say but is
there, who leaves, and who falls silent with the connection open, as somebody does who
drove into a tunnel. Nothing but the silence itself tells the last kind from the second.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from math import inf
from random import choice, uniform
from typing import Final

import trio

from liveness.demo.gateway import HOST

MOST_JOINS_PER_S: Final = 250
# To be seen in time, a logout comes this long before the end, and silence its timeout
# and this long: a second until it would be missed, and half of one to spare.
LAST_S: Final = 1.5
# What the room says goes to everyone in it: with many users only a few may talk.
MAX_ROOM_LINES_PER_S: Final = 2_500
# Somebody there speaks at least every half timeout, as the protocol advises.
LEAST_PAUSE, MOST_PAUSE = 0.3, 0.5
SAYINGS: Final = ("hello", "who is there?", "nice weather", "what a day", "so long")


class Behaviour(StrEnum):
    """What a user does until the end, or at its moment."""

    CHAT = "chat"
    KEEPALIVE = "keepalive"
    LOGOUT = "log out"
    SILENT = "fall silent"


# So many of each ten, and in this order: the first one there is falls silent.
EACH_TEN: Final = (
    Behaviour.SILENT, Behaviour.CHAT, Behaviour.KEEPALIVE, Behaviour.LOGOUT,
    Behaviour.SILENT, Behaviour.KEEPALIVE, Behaviour.CHAT, Behaviour.SILENT,
    Behaviour.LOGOUT, Behaviour.KEEPALIVE,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user's plan; times are seconds after the gateway opened."""

    uid: str
    behaviour: Behaviour
    joins_s: float
    moment_s: float = inf  # of the logout, or of the last sign of life


def joining_s(count: int) -> float:
    """How long *count* users take to join, one after the other."""
    return max(count / MOST_JOINS_PER_S, 1.0)


def last_silence_s(seconds: float, timeout_s: float, flush_s: float) -> float:
    """The last moment of falling silent at which it can still be seen."""
    return seconds - timeout_s - flush_s - LAST_S


def planned(
    count: int, *, seconds: float, timeout_s: float, flush_s: float
) -> Iterator[User]:
    """The plans of *count* users: moments are spread evenly over the *seconds*."""
    silence_s = max(last_silence_s(seconds, timeout_s, flush_s), 0)
    latest_s = {Behaviour.SILENT: silence_s, Behaviour.LOGOUT: seconds - LAST_S}
    pause_s = (LEAST_PAUSE + MOST_PAUSE) / 2 * timeout_s
    talkers_left = max(1, int(MAX_ROOM_LINES_PER_S * pause_s / count))
    for number, behaviour in zip(range(count), cycle(EACH_TEN)):
        if behaviour is Behaviour.CHAT:
            if not talkers_left:
                behaviour = Behaviour.KEEPALIVE
            else:
                talkers_left -= 1
        yield User(
            uid=f"user-{number + 1:0{len(str(count))}}",
            behaviour=behaviour,
            joins_s=joining_s(count) * number / count,
            moment_s=latest_s.get(behaviour, inf) * number / count,
        )


async def live(
    user: User, port: int, *, timeout_s: float, left: Callable[[str], None]
) -> None:
    """Lives through the plan of *user*, from now until the gateway closes.

    Args:
        user: The plan.
        port: The gateway's.
        timeout_s: The silence after which somebody is offline.
        left: Is told of a uid that is just about to log out.
    """
    moment = trio.current_time() + user.moment_s
    await trio.sleep(user.joins_s)
    try:
        async with (
            await trio.open_tcp_stream(HOST, port) as stream,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_listen, stream, nursery.cancel_scope)
            await _send(stream, login=user.uid)
            await _speak(user, stream, moment=moment, timeout_s=timeout_s)
            if user.behaviour is Behaviour.LOGOUT:
                left(user.uid)
                await _send(stream, logout=1)
    except* trio.BrokenResourceError:
        pass  # the gateway closed first


async def _speak(
    user: User, stream: trio.SocketStream, *, moment: float, timeout_s: float
) -> None:
    while trio.current_time() < moment:
        pause_s = uniform(LEAST_PAUSE, MOST_PAUSE) * timeout_s
        await trio.sleep_until(min(trio.current_time() + pause_s, moment))
        if user.behaviour is Behaviour.CHAT:
            await _send(stream, say=choice(SAYINGS))
        else:
            await _send(stream, ping=1)


async def _listen(stream: trio.SocketStream, life: trio.CancelScope) -> None:
    """Reads what the room says, and ends the *life* when the gateway closes."""
    async for _ in stream:
        pass
    life.cancel()


async def _send(stream: trio.SocketStream, **content: object) -> None:
    await stream.send_all(json.dumps(content).encode() + b"\n")
