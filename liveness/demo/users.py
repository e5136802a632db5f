"""Simulated users, each on a TCP connection, as a person with `nc` would be.

They know their gateway's address and nothing of what is behind it. Should their
connection break, they come back by themselves, as real clients do: soon, at a random
moment, so that they do not all come at once. The referee hears from them what they do.

    python -m liveness.demo.users --port 7000        on a gateway that is there already
"""

import json
import re
import sys
from argparse import ArgumentParser
from collections import deque
from dataclasses import replace
from functools import partial
from math import inf
from random import choice, uniform
from typing import Final

import trio

from liveness.demo.gateway import HOST, MOST_CONNECTIONS
from liveness.demo.plans import (
    LEAST_PAUSE,
    MOST_PAUSE,
    Behaviour,
    Plan,
    joining_s,
    planned,
)
from liveness.demo.referee import Referee

LEAST_BACK_S: Final = 0.05
# Of a crowd's users, who begin anew: their moments are within one such time, and after
# one to two of them even who talks goes and comes back.
LIFE_S: Final = 60.0
MOST_TIMEOUT_S: Final = 86_400
REMINDER: Final = re.compile(rb'"uid": "([^"]*)", "reminder": "([^"]*)"')
SAYINGS: Final = ("hello", "who is there?", "nice weather", "what a day", "so long")
# A user looks for three lines in what the gateway sends: that it is in, why it ends, and
# reminders. None is longer than this.
MOST_OF_A_LINE: Final = 200


class User:
    """One of them.

    Args:
        plan: What it does, from the moment `live` is called.
        host: Where the gateway is.
        port: Its port there.
        timeout_s: The silence after which somebody is offline.
        back_s: How long it takes at most to come back.
        referee: Is told what it does.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        host: str = HOST,
        port: int,
        timeout_s: float,
        back_s: float,
        referee: Referee,
    ) -> None:
        self.plan = plan
        self.lines_said = 0
        self._host = host
        self._port = port
        self._timeout_s = timeout_s
        self._back_s = back_s
        self._referee = referee
        self._moment = 0.0
        self._errands = deque[tuple[float, dict[str, object]]]()  # moments, and lines
        self._is_done = False  # has left, or will never write again
        self._heard = b""  # the end of what the gateway sent

    async def live(self) -> None:
        """Lives through the plan; ends only when it is over and the gateway hung up."""
        began = trio.current_time()
        self._moment = began + self.plan.moment_s
        if reminder := self.plan.reminder:
            asks: dict[str, object] = {"remind": reminder.what, "in": reminder.in_s}
            self._errands.append((began + reminder.asks_s, asks))
            if reminder.forgets_s < inf:
                forgets: dict[str, object] = {"forget": reminder.what}
                self._errands.append((began + reminder.forgets_s, forgets))
        await trio.sleep(self.plan.joins_s)
        while True:
            await self._visit()
            if self._is_done:
                return
            await trio.sleep(uniform(LEAST_BACK_S, self._back_s))

    def fall_silent(self) -> None:
        """Writes nothing any more, whatever was planned."""
        self._is_done = True
        self._referee.silenced(self.plan.uid)

    async def _visit(self) -> None:
        """One connection, until the gateway hangs up or is not there."""
        uid = self.plan.uid
        self._heard = b""
        self._referee.calls(uid, trio.current_time())
        try:
            async with (
                await trio.open_tcp_stream(self._host, self._port) as stream,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._listen, stream, nursery.cancel_scope)
                await self._send(stream, login=uid)
                await self._speak(stream)
        except* OSError:
            pass  # it is not there just now
        except* trio.BrokenResourceError:
            pass  # it hung up first
        self._referee.hung_up(uid, self._last_word(), trio.current_time())

    async def _speak(self, stream: trio.SocketStream) -> None:
        """Writes until the moment, and does what is planned for then."""
        while trio.current_time() < self._moment and not self._is_done:
            pause_s = uniform(LEAST_PAUSE, MOST_PAUSE) * self._timeout_s
            errand_at = self._errands[0][0] if self._errands else inf
            speaks_at = trio.current_time() + pause_s
            await trio.sleep_until(min(speaks_at, errand_at, self._moment))
            if self._is_done:
                return
            await self._send(stream, **self._next_line())
        if self._is_done:
            return
        self._is_done = True
        if self.plan.behaviour is Behaviour.LOGOUT:
            self._referee.leaves(self.plan.uid, trio.current_time())
            await self._send(stream, logout=1)
        else:
            self._referee.falls_silent(self.plan.uid)

    def _next_line(self) -> dict[str, object]:
        """What it writes now: what it has to, or else anything."""
        now = trio.current_time()
        if self._errands and self._errands[0][0] <= now:
            _, line = self._errands.popleft()
            self._referee.asks(self.plan.uid, line, now)
            return line
        if self.plan.behaviour is Behaviour.CHAT:
            self.lines_said += 1
            return {"say": choice(SAYINGS)}
        return {"ping": 1}

    async def _listen(self, stream: trio.SocketStream, life: trio.CancelScope) -> None:
        """Reads what the gateway sends, and ends the *life* when it hangs up."""
        has_joined = False
        async for data in stream:
            self._heard = self._heard[-MOST_OF_A_LINE:] + data
            if not has_joined and b'{"joined"' in self._heard:
                has_joined = True
                self._referee.joined(self.plan.uid, trio.current_time())
            if b'"reminder"' in self._heard:
                for uid, what in REMINDER.findall(self._heard):
                    self._referee.heard(uid.decode(), what.decode())
        life.cancel()

    def _last_word(self) -> str:
        """Why the gateway hung up, if it said so."""
        *_, line = self._heard.rstrip(b"\n").split(b"\n")
        try:
            return str(json.loads(line)["bye"])
        except (ValueError, KeyError, TypeError):
            return ""

    async def _send(self, stream: trio.SocketStream, **content: object) -> None:
        self._referee.wrote(self.plan.uid, trio.current_time())
        await stream.send_all(json.dumps(content).encode() + b"\n")


async def crowd(host: str, port: int, *, count: int, timeout_s: float) -> None:
    """Lets *count* users live at a gateway, and begin anew when they are through.

    Each of them at a moment of its own, until cancelled. Nobody judges what is reported.

    Args:
        host: Where the gateway is, which need not be there yet.
        port: Its port there.
        count: How many they are.
        timeout_s: The silence after which somebody is offline.
    """
    plans = planned(count, seconds=LIFE_S, timeout_s=timeout_s, flush_s=0)
    back_s = joining_s(count)

    async def live_on(plan: Plan) -> None:
        while True:
            referee = Referee(
                {plan.uid: plan.behaviour}, timeout_s=timeout_s, flush_s=0
            )
            user = User(
                plan,
                host=host,
                port=port,
                timeout_s=timeout_s,
                back_s=back_s,
                referee=referee,
            )
            with trio.move_on_after(uniform(1, 2) * LIFE_S):
                await user.live()
            plan = replace(plan, joins_s=uniform(LEAST_BACK_S, back_s))

    async with trio.open_nursery() as nursery:
        for plan in plans:
            nursery.start_soon(live_on, plan)


def main() -> None:
    """Runs users as the command line says, until they are ended by a signal."""
    parser = ArgumentParser(description="Simulated users of a chat gateway.")
    parser.add_argument("--host", default=HOST, help=f"of the gateway; default {HOST}")
    parser.add_argument("--port", type=int, required=True, help="of the gateway")
    parser.add_argument("--users", type=int, default=50, help="how many; default 50")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="of the sidecar; default 30 s"
    )
    asked = parser.parse_args()
    if not 1 <= asked.users <= MOST_CONNECTIONS:
        parser.error(f"--users: from 1 to {MOST_CONNECTIONS}")
    if not 1 <= asked.timeout <= MOST_TIMEOUT_S:
        parser.error(f"--timeout: from 1 to {MOST_TIMEOUT_S}, in seconds")

    print(f"{asked.users} users of {asked.host}:{asked.port}", flush=True)
    live = partial(crowd, count=asked.users, timeout_s=asked.timeout)
    try:
        trio.run(live, asked.host, asked.port)
    except* KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
