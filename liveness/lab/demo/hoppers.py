"""Simulated users that hop from host to host, as people on the move do.

Some keep the old connection until the new one works, and log out of it then. Others only
lose it, as a phone that leaves a Wi-Fi network: the old host hears nothing more, while the
user is on another one. A user whose host is killed goes to another one too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from math import inf
from random import choice, uniform
from typing import Final

import trio

from liveness.lab.demo.demo_host import DemoHost
from liveness.lab.demo.plans import LAST_S, Behaviour, Plan, joining_s, last_silence_s
from liveness.lab.demo.users import LEAST_BACK_S, User

# How long a user stays on a host, as a share of the timeout.
LEAST_STAY, MOST_STAY = 0.5, 1.0
LEAST_STAY_S: Final = 2.0
# From being let in on the new host until the old connection is given up.
OVERLAP_S: Final = 2.0

# No new connection to a host this long after the old one: until then the referee may read
# the record of its end.
REST_S: Final = 1.0


class Move(StrEnum):
    """What a user does."""

    STAY = "stay"  # on one host
    HOP = "hop"  # and log out of the old host later
    ROAM = "roam"  # and leave the old connection behind
    LOGOUT = "log out"
    SILENT = "fall silent"


# Of each ten users, in this order.
EACH_TEN_MOVES: Final = (
    Move.HOP, Move.SILENT, Move.ROAM, Move.STAY, Move.HOP,
    Move.LOGOUT, Move.ROAM, Move.SILENT, Move.STAY, Move.ROAM,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One user's plan; times are seconds after the gateways opened."""

    uid: str
    move: Move
    first: int  # the number of its first host, from 0
    joins_s: float
    moment_s: float = inf  # of the logout, or of the last activity


def journeys(
    count: int, *, hosts: int, seconds: float, timeout_s: float, flush_s: float
) -> Iterator[Journey]:
    """The plans of *count* users; their moments are spread evenly over the *seconds*."""
    silence_s = max(last_silence_s(seconds, timeout_s, flush_s), 0)
    latest_s = {Move.SILENT: silence_s, Move.LOGOUT: seconds - LAST_S}
    for number, move in zip(range(count), cycle(EACH_TEN_MOVES)):
        yield Journey(
            uid=f"user-{number + 1:0{len(str(count))}}",
            move=move,
            first=number % hosts,
            joins_s=joining_s(count) * number / count,
            moment_s=latest_s.get(move, inf) * number / count,
        )


class _Stay:
    """A connection of a user to a host, until it has ended."""

    def __init__(self, host: DemoHost, user: User) -> None:
        self.host = host
        self.user = user
        self.has_ended = trio.Event()
        self.is_left = False  # the user does not write there any more


class Hopper:
    """One user that may be on several hosts.

    Args:
        journey: What it does.
        hosts: All hosts.
        timeout_s: The silence after which a user is offline.
        back_s: The longest pause before it tries another host.
    """

    def __init__(
        self,
        journey: Journey,
        hosts: Sequence[DemoHost],
        *,
        timeout_s: float,
        back_s: float,
    ) -> None:
        self.hops = 0
        self.uid = journey.uid
        self._journey = journey
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._back_s = back_s
        self._open: dict[str, _Stay] = {}  # by host: one connection to each at most
        self._current: _Stay | None = None
        self._wake = trio.Event()
        self._must_hop = False
        self._must_be_silent = False

    async def live(self) -> None:
        """Follows the plan; returns when it is over and the gateways have hung up."""
        moment = trio.current_time() + self._journey.moment_s
        await trio.sleep(self._journey.joins_s)
        async with trio.open_nursery() as nursery:
            self._current = await self._join(nursery, self._journey.first)
            while True:
                hop_at = self._next_hop()
                while not self._has_reason_to_go:
                    self._wake = trio.Event()
                    with trio.move_on_at(min(hop_at, moment)) as waiting:
                        await self._wake.wait()
                    if waiting.cancelled_caught:
                        break
                if self._must_be_silent or trio.current_time() >= moment:
                    self._end(self._current)
                    break
                self._must_hop = False
                await self._hop(nursery)

    @property
    def is_active(self) -> bool:
        """Whether it is on a host and goes on writing."""
        current = self._current
        return (
            current is not None
            and not current.is_left
            and not current.has_ended.is_set()
            and not self._must_be_silent
        )

    def fall_silent(self) -> None:
        """Writes nothing from now on, on any host."""
        self._must_be_silent = True
        self._wake.set()

    def hop(self) -> None:
        """Goes to another host now, whatever the plan."""
        self._must_hop = True
        self._wake.set()

    @property
    def _has_reason_to_go(self) -> bool:
        assert self._current is not None
        is_cut_off = self._current.has_ended.is_set()
        return is_cut_off or self._must_hop or self._must_be_silent

    def _next_hop(self) -> float:
        if self._journey.move not in (Move.HOP, Move.ROAM):
            return inf
        stay_s = uniform(LEAST_STAY, MOST_STAY) * self._timeout_s
        return trio.current_time() + max(stay_s, LEAST_STAY_S)

    async def _hop(self, nursery: trio.Nursery) -> None:
        """Goes to a host to which it has no connection, if there is one."""
        old = self._current
        assert old is not None
        if old.has_ended.is_set():
            self._current = await self._join(nursery)
            return
        if len(self._open) == len(self._hosts):
            return
        if self._journey.move is Move.ROAM:
            self._be_silent(old)
            self._current = await self._join(nursery)
        else:
            self._current = await self._join(nursery)
            nursery.start_soon(self._leave_later, old)
        self.hops += 1

    async def _join(self, nursery: trio.Nursery, number: int | None = None) -> _Stay:
        """Tries hosts until one lets it in."""
        while True:
            others = [host for host in self._hosts if host.name not in self._open]
            if others:
                host = choice(others) if number is None else self._hosts[number]
                stay = self._open[host.name] = _Stay(host, self._user_on(host))
                async with trio.open_nursery() as waiting:
                    nursery.start_soon(self._visit, stay)
                    waiting.start_soon(_cancel_after, stay.has_ended, waiting)
                    await stay.user.joined.wait()
                    waiting.cancel_scope.cancel()
                if stay.user.joined.is_set():
                    return stay
            number = None
            await trio.sleep(uniform(LEAST_BACK_S, self._back_s))

    def _user_on(self, host: DemoHost) -> User:
        """For one connection: it logs out at the end, unless it falls silent before."""
        return User(
            plan=Plan(uid=self.uid, behaviour=Behaviour.LOGOUT, joins_s=0),
            port=host.port,
            timeout_s=self._timeout_s,
            back_s=self._back_s,
            referee=host.referee,
        )

    async def _visit(self, stay: _Stay) -> None:
        stay.host.referee.returns(self.uid)
        await stay.user.visit()
        stay.has_ended.set()
        self._wake.set()
        await trio.sleep(REST_S)
        del self._open[stay.host.name]

    async def _leave_later(self, stay: _Stay) -> None:
        await trio.sleep(OVERLAP_S)
        if not stay.has_ended.is_set():
            stay.is_left = True
            stay.user.leave()

    def _end(self, stay: _Stay) -> None:
        """Does what the plan ends with."""
        if self._journey.move is Move.LOGOUT and not self._must_be_silent:
            stay.is_left = True
            stay.user.leave()
        else:
            self._be_silent(stay)

    def _be_silent(self, stay: _Stay) -> None:
        stay.is_left = True
        stay.user.fall_silent()


async def _cancel_after(event: trio.Event, nursery: trio.Nursery) -> None:
    await event.wait()
    nursery.cancel_scope.cancel()


def active_in(hoppers: Mapping[str, Hopper]) -> list[Hopper]:
    """Those that are on a host and go on writing."""
    return [hopper for hopper in hoppers.values() if hopper.is_active]
