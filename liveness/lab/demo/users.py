"""Simulated users, each on a TCP connection, like a person with `nc`.

They know the address of their gateway, and nothing of the sidecar. If a connection breaks,
its user reconnects soon, as real clients do; after a random pause, so that not all do at
once. They report what they do to the referee.

    python -m liveness.lab.demo.users --port 7000        against a gateway that runs already
"""

import json
import re
import sys
from argparse import ArgumentParser
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from random import choice, uniform
from typing import Final

import trio

from liveness.lab.demo.gateway import HOST, MOST_CONNECTIONS
from liveness.lab.demo.plans import (
    LEAST_PAUSE,
    MOST_PAUSE,
    Behaviour,
    Plan,
    joining_s,
    planned,
)
from liveness.lab.demo.referee import Referee

LEAST_BACK_S: Final = 0.05
# In `crowd`, the length of a plan. A user whose plan has no end leaves and comes back
# after one to two of these.
LIFE_S: Final = 60.0
MOST_TIMEOUT_S: Final = 86_400
REMINDER: Final = re.compile(rb'"uid": "([^"]*)", "reminder": "([^"]*)"')
SAYINGS: Final = ("hello", "who is there?", "nice weather", "what a day", "so long")
# The lines of the gateway that a user looks for, "joined", "bye" and reminders, are
# shorter than this.
MAX_LINE: Final = 200


@dataclass(eq=False, kw_only=True)
class User:
    """One simulated user."""

    plan: Plan  # in seconds from the call of `live`
    host: str = HOST
    port: int
    timeout_s: float  # the silence after which a user is offline
    back_s: float  # the longest pause before it reconnects
    referee: Referee  # is notified of what the user does

    def __post_init__(self) -> None:
        self.lines_said = 0
        self.joined = trio.Event()  # the gateway let it in
        self._leaving = trio.Event()
        self._moment = 0.0
        self._errands = deque[tuple[float, dict[str, object]]]()  # moments, and lines
        self._is_done = False  # has left, or will never write again
        self._received = b""  # the end of what the gateway sent

    async def live(self) -> None:
        """Follows the plan; returns when it is over and the gateway has hung up."""
        began = trio.current_time()
        self._moment = began + self.plan.moment_s
        if reminder := self.plan.reminder:
            ask: dict[str, object] = {"remind": reminder.what, "in": reminder.in_s}
            self._errands.append((began + reminder.asks_s, ask))
            if reminder.forgets_s < inf:
                forget: dict[str, object] = {"forget": reminder.what}
                self._errands.append((began + reminder.forgets_s, forget))
        await trio.sleep(self.plan.joins_s)
        while True:
            await self._connect()
            if self._is_done:
                return
            await trio.sleep(uniform(LEAST_BACK_S, self.back_s))

    async def visit(self) -> None:
        """Uses one connection until `leave`, or until it breaks or the gateway hangs up."""
        self._moment = inf
        await self._connect()

    def leave(self) -> None:
        """Logs out now, if the plan is to log out."""
        self._leaving.set()

    def fall_silent(self) -> None:
        """Writes nothing from now on, whatever the plan."""
        self._is_done = True
        self.referee.silenced(self.plan.uid)

    async def _connect(self) -> None:
        """Uses one connection until it ends, or cannot be opened."""
        uid = self.plan.uid
        self._received = b""
        self.referee.connects(uid, trio.current_time())
        try:
            async with (
                await trio.open_tcp_stream(self.host, self.port) as stream,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._listen, stream, nursery.cancel_scope)
                await self._send(stream, login=uid)
                await self._write(stream)
        except* OSError:
            pass  # the gateway is not up
        except* trio.BrokenResourceError:
            pass  # the gateway hung up first
        self.referee.hung_up(uid, self._reason(), trio.current_time())

    async def _write(self, stream: trio.SocketStream) -> None:
        """Writes lines until the moment of the plan, and then logs out or falls silent."""
        while trio.current_time() < self._moment and not self._is_done:
            pause_s = uniform(LEAST_PAUSE, MOST_PAUSE) * self.timeout_s
            errand_at = self._errands[0][0] if self._errands else inf
            next_at = trio.current_time() + pause_s
            with trio.move_on_at(min(next_at, errand_at, self._moment)):
                await self._leaving.wait()
            if self._is_done:
                return
            if self._leaving.is_set():
                break
            await self._send(stream, **self._next_line())
        if self._is_done:
            return
        self._is_done = True
        if self.plan.behaviour is Behaviour.LOGOUT:
            self.referee.leaves(self.plan.uid, trio.current_time())
            await self._send(stream, logout=1)
        else:
            self.referee.falls_silent(self.plan.uid)

    def _next_line(self) -> dict[str, object]:
        """An errand that is due, or else chat or a ping."""
        now = trio.current_time()
        if self._errands and self._errands[0][0] <= now:
            _, line = self._errands.popleft()
            self.referee.asks(self.plan.uid, line, now)
            return line
        if self.plan.behaviour is Behaviour.CHAT:
            self.lines_said += 1
            return {"say": choice(SAYINGS)}
        return {"ping": 1}

    async def _listen(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Reads what the gateway sends; cancels *scope* when it hangs up."""
        has_joined = False
        async for data in stream:
            self._received = self._received[-MAX_LINE:] + data
            if not has_joined and b'{"joined"' in self._received:
                has_joined = True
                self.referee.joined(self.plan.uid, trio.current_time())
                self.joined.set()
            if b'"reminder"' in self._received:
                for uid, what in REMINDER.findall(self._received):
                    self.referee.heard(uid.decode(), what.decode())
        scope.cancel()

    def _reason(self) -> str:
        """Why the gateway hung up, if it said so."""
        *_, line = self._received.rstrip(b"\n").split(b"\n")
        try:
            return str(json.loads(line)["bye"])
        except (ValueError, KeyError, TypeError):
            return ""

    async def _send(self, stream: trio.SocketStream, **content: object) -> None:
        self.referee.wrote(self.plan.uid, trio.current_time())
        await stream.send_all(json.dumps(content).encode() + b"\n")


async def crowd(host: str, port: int, *, count: int, timeout_s: float) -> None:
    """Runs users at a gateway, each with one plan after the other, until cancelled.

    The gateway need not be up yet. The records are not checked.
    """
    plans = planned(count, seconds=LIFE_S, timeout_s=timeout_s, flush_s=0)
    back_s = joining_s(count)
    user = partial(User, host=host, port=port, timeout_s=timeout_s, back_s=back_s)

    async def live_again(plan: Plan) -> None:
        while True:
            behaviours = {plan.uid: plan.behaviour}
            referee = Referee(behaviours, timeout_s=timeout_s, flush_s=0)
            with trio.move_on_after(uniform(1, 2) * LIFE_S):
                await user(plan=plan, referee=referee).live()
            plan = replace(plan, joins_s=uniform(LEAST_BACK_S, back_s))

    async with trio.open_nursery() as nursery:
        for plan in plans:
            nursery.start_soon(live_again, plan)


def main() -> None:
    """Runs users as the command line asks, until they are ended by a signal."""
    parser = ArgumentParser(description="Simulated users of a chat gateway.")
    parser.add_argument("--host", default=HOST, help=f"of the gateway; default {HOST}")
    parser.add_argument("--port", type=int, required=True, help="of the gateway")
    parser.add_argument("--users", type=int, default=50, help="how many; default 50")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="of the sidecar; default 30 s"
    )
    options = parser.parse_args()
    if not 1 <= options.users <= MOST_CONNECTIONS:
        parser.error(f"--users: from 1 to {MOST_CONNECTIONS}")
    if not 1 <= options.timeout <= MOST_TIMEOUT_S:
        parser.error(f"--timeout: from 1 to {MOST_TIMEOUT_S}, in seconds")

    print(f"{options.users} users of {options.host}:{options.port}", flush=True)
    run = partial(crowd, count=options.users, timeout_s=options.timeout)
    try:
        trio.run(run, options.host, options.port)
    except* KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
