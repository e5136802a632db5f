"""Simulated users on TCP connections, like people with `nc`.

They know gateways, but no sidecars. If a connection breaks, its user reconnects to any host
after a short random pause, as real clients do, so that not all come at once. Users report
their actions to the judge of each host.

    python -m liveness.lab.demo.users --port 7000        against a gateway that runs already
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from random import choice, uniform
from typing import Final

import trio

from liveness.lab.common.host_judge import HostJudge
from liveness.lab.common.line_connection import LineConnection, open_connection
from liveness.lab.demo.gateway import HOST
from liveness.lab.demo.plans import (
    LEAST_PAUSE,
    MOST_PAUSE,
    Behaviour,
    Plan,
    joining_s,
    planned,
)

LEAST_BACK_S: Final = 0.05
# A user does not come back to a host sooner than this: the judge may not have read the
# record of its last end there.
REST_S: Final = 1.0
# How long a user stays on a host, as a share of the timeout.
LEAST_STAY, MOST_STAY = 0.5, 1.0
LEAST_STAY_S: Final = 2.0
# From joining the new host until the old connection is given up.
OVERLAP_S: Final = 2.0
# The length of a plan in `crowd`. A user whose plan has no end leaves and comes back after
# one to two of these.
LIFE_S: Final = 60.0
SAYINGS: Final = ("hello", "who is there?", "nice weather", "what a day", "so long")


@dataclass(eq=False)
class GatewayAddress:
    host: str
    port: int
    judge: HostJudge  # gets the actions of users there


@dataclass(eq=False)
class Visit:
    user: "User"
    gateway: GatewayAddress
    has_joined: bool = False  # the gateway let it in
    has_ended: bool = False
    is_over: bool = False  # its user writes nothing there any more

    def __post_init__(self) -> None:
        self.answered = trio.Event()  # it has joined, or has ended
        self._over = trio.Event()
        self._logs_out = False

    @property
    def is_active(self) -> bool:
        return self.has_joined and not self.is_over and not self.has_ended

    def end(self, *, logout: bool, is_planned: bool = True) -> None:
        """Logs out, or writes nothing from now on."""
        if not self.is_over:
            self.is_over, self._logs_out = True, logout
            if not logout:
                self.gateway.judge.falls_silent(self.user.uid, is_planned=is_planned)
            self._over.set()

    async def run(self) -> None:
        """Uses the connection until it ends, or cannot be opened."""
        uid, judge, reason = self.user.uid, self.gateway.judge, ""
        judge.connects(uid, trio.current_time())
        try:
            async with (
                open_connection(self.gateway.host, self.gateway.port) as connection,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._write, connection)
                reason = await self._listen(connection)
                nursery.cancel_scope.cancel()
        except OSError:
            pass  # the gateway is not up
        judge.hung_up(uid, reason, trio.current_time())
        self.has_ended = True
        self.answered.set()

    async def _write(self, connection: LineConnection) -> None:
        await self._send(connection, login=self.user.uid)
        while not self.is_over:
            with trio.move_on_after(self.user.pause_s()):
                await self._over.wait()
            if not self.is_over:
                await self._send(connection, **self.user.next_line())
        if self._logs_out:
            self.gateway.judge.leaves(self.user.uid, trio.current_time())
            await self._send(connection, logout=1)

    async def _send(self, connection: LineConnection, **line: object) -> None:
        self.gateway.judge.wrote(self.user.uid, trio.current_time())
        await connection.send(line)

    async def _listen(self, connection: LineConnection) -> str:
        """Reads what the gateway sends; returns why it hung up, if it said so."""
        reason = ""
        while (lines := await connection.receive()) is not None:
            for line in lines:
                if "joined" in line and not self.has_joined:
                    self.gateway.judge.joined(self.user.uid, trio.current_time())
                    self.has_joined = True
                    self.answered.set()
                reason = str(line.get("bye", ""))
        return reason


@dataclass(eq=False)
class User:
    plan: Plan  # in seconds from the call of `live`
    gateways: Sequence[GatewayAddress]  # of all hosts; to each one connection at most
    timeout_s: float  # the silence after which a user is offline
    back_s: float  # the longest pause before it reconnects

    def __post_init__(self) -> None:
        self.uid = self.plan.uid
        self.lines_said = 0
        self.hops = 0
        self._open = set[GatewayAddress]()
        self._visit: Visit | None = None  # the newest
        self._wake = trio.Event()

    async def live(self) -> None:
        """Follows the plan; returns when it is over and the gateways have hung up."""
        moment = trio.current_time() + self.plan.moment_s
        await trio.sleep(self.plan.joins_s)
        async with trio.open_nursery() as nursery:
            visit = await self._join(nursery, self.gateways[self.plan.first])
            while True:
                with trio.move_on_at(min(self._next_hop(), moment)):
                    while not (visit.is_over or visit.has_ended):
                        self._wake = trio.Event()
                        await self._wake.wait()
                if visit.is_over:
                    break  # `fall_silent` was called
                if trio.current_time() >= moment:
                    visit.end(logout=self.plan.behaviour is Behaviour.LOGOUT)
                    break
                visit = await self._hop(nursery, visit)

    @property
    def is_active(self) -> bool:
        return self._visit is not None and self._visit.is_active

    def fall_silent(self) -> None:
        assert self._visit is not None
        self._visit.end(logout=False, is_planned=False)
        self._wake.set()

    def pause_s(self) -> float:
        return uniform(LEAST_PAUSE, MOST_PAUSE) * self.timeout_s

    def next_line(self) -> dict[str, object]:
        if self.plan.behaviour is Behaviour.CHAT:
            self.lines_said += 1
            return {"say": choice(SAYINGS)}
        return {"ping": 1}

    def _next_hop(self) -> float:
        if self.plan.behaviour not in (Behaviour.HOP, Behaviour.ROAM):
            return inf
        stay_s = uniform(LEAST_STAY, MOST_STAY) * self.timeout_s
        return trio.current_time() + max(stay_s, LEAST_STAY_S)

    async def _hop(self, nursery: trio.Nursery, old: Visit) -> Visit:
        if old.has_ended:
            return await self._join(nursery)
        if len(self._open) == len(self.gateways):
            return old
        self.hops += 1
        if self.plan.behaviour is Behaviour.ROAM:
            old.end(logout=False)
            return await self._join(nursery)
        visit = await self._join(nursery)
        nursery.start_soon(self._leave_later, old)
        return visit

    async def _join(
        self, nursery: trio.Nursery, gateway: GatewayAddress | None = None
    ) -> Visit:
        """Tries hosts until one lets it in; *gateway* first."""
        while True:
            if free := [each for each in self.gateways if each not in self._open]:
                self._visit = visit = Visit(self, gateway or choice(free))
                self._open.add(visit.gateway)
                nursery.start_soon(self._run, visit)
                await visit.answered.wait()
                if visit.has_joined:
                    return visit
            gateway = None
            await trio.sleep(uniform(LEAST_BACK_S, self.back_s))

    async def _run(self, visit: Visit) -> None:
        await visit.run()
        self._wake.set()
        await trio.sleep(REST_S)
        self._open.remove(visit.gateway)

    async def _leave_later(self, visit: Visit) -> None:
        await trio.sleep(OVERLAP_S)
        visit.end(logout=True)


async def crowd(host: str, port: int, *, count: int, timeout_s: float) -> None:
    """Runs users at a gateway, each with one plan after the other, until cancelled.

    The gateway need not be up yet. The records are not checked.
    """
    plans = list(planned(count, seconds=LIFE_S, timeout_s=timeout_s, flush_s=0))
    behaviours = {plan.uid: plan.behaviour for plan in plans}
    judge = HostJudge(behaviours, timeout_s=timeout_s, flush_s=0)
    gateways, back_s = [GatewayAddress(host, port, judge)], joining_s(count)

    async def live_again(plan: Plan) -> None:
        while True:
            user = User(plan, gateways, timeout_s, back_s)
            with trio.move_on_after(uniform(1, 2) * LIFE_S):
                await user.live()
            plan = replace(plan, joins_s=uniform(LEAST_BACK_S, back_s))

    async with trio.open_nursery() as nursery:
        for plan in plans:
            nursery.start_soon(live_again, plan)


def main() -> None:
    parser = ArgumentParser(description="Simulated users of a chat gateway.")
    parser.add_argument("--host", default=HOST, help=f"of the gateway; default {HOST}")
    parser.add_argument("--port", type=int, required=True, help="of the gateway")
    parser.add_argument("--users", type=int, default=50, help="how many; default 50")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="of the sidecar; default 30 s"
    )
    options = parser.parse_args()
    print(f"{options.users} users of {options.host}:{options.port}", flush=True)
    run = partial(crowd, count=options.users, timeout_s=options.timeout)
    try:
        trio.run(run, options.host, options.port)
    except* KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
