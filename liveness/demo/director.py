"""Makes things happen to gateway, sidecar and users, one at a time to each process."""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import sample
from typing import Final

import trio

from liveness.demo.processes import Child
from liveness.demo.referee import Referee
from liveness.demo.script import ACTIONS, Step
from liveness.demo.users import User

SIGNALS: Final = {"restart": signal.SIGTERM, "kill": signal.SIGKILL}
MEANT: Final = {signal.SIGTERM: "SIGTERM", signal.SIGKILL: "kill -9"}


class Director:
    """Does what a script or a key asks for.

    Args:
        gateway: Can be killed.
        sidecar: Can be killed, stopped and restarted.
        users: Can be silenced; by uid.
        referee: Is told before, and when it is over.
        tell: Is told the same, for a person.
    """

    def __init__(
        self,
        *,
        gateway: Child,
        sidecar: Child,
        users: Mapping[str, User],
        referee: Referee,
        tell: Callable[[str], None],
    ) -> None:
        self.done = Counter[str]()
        self._gateway = gateway
        self._sidecar = sidecar
        self._users = users
        self._referee = referee
        self._tell = tell
        self._turns = {gateway.name: trio.Lock(), sidecar.name: trio.Lock()}
        self._go_on = trio.Event()
        self._nursery: trio.Nursery | None = None  # while it runs

    async def run(self, steps: Sequence[Step]) -> None:
        """Does what keys ask for, and each step at its time, until cancelled.

        What is asked for by a step waits until what came before is over.
        """
        began = trio.current_time()
        async with trio.open_nursery() as self._nursery:
            for step in steps:
                await trio.sleep_until(began + step.at_s)
                self._nursery.start_soon(self.perform, step.name, step.number)
            await trio.sleep_forever()

    def press(self, key: str) -> None:
        """Begins what *key* means, unless something else is going on there."""
        for name, action in ACTIONS.items():
            if action.key != key or self._nursery is None:
                continue
            child = self._gateway if name == "gateway" else self._sidecar
            if name == "silence" or not self._turns[child.name].locked():
                # By key, stopped is stopped until the next one.
                number = action.most if name == "stop" else action.number
                self._nursery.start_soon(self.perform, name, number)
            elif name == "stop" and child.state == "stopped":
                self._go_on.set()
            else:
                hint = "; z lets it go on" if child.state == "stopped" else ""
                self._tell(f"{name}: not while the {child.name} is {child.state}{hint}")

    async def perform(self, name: str, number: float) -> None:
        """Does one thing, and returns when it is over."""
        if name == "silence":
            self._silence(int(number))
            return
        child = self._gateway if name == "gateway" else self._sidecar
        async with self._turn(child):
            self.done[name] += 1
            if name == "gateway":
                self._referee.cut(float("inf"))  # whoever is cut off until it is over
                await self._restart(name, child, signal.SIGKILL)
                self._referee.cut(trio.current_time())
            elif name == "stop":
                await self._stop(number)
            else:
                await self._restart(name, child, SIGNALS[name])

    @asynccontextmanager
    async def _turn(self, child: Child) -> AsyncIterator[None]:
        async with self._turns[child.name]:
            self._referee.disturbed()
            yield
            self._referee.settles(trio.current_time())

    def _silence(self, count: int) -> None:
        self.done["silence"] += 1
        talkers = self._referee.talkers()
        chosen = sample(talkers, min(count, len(talkers)))
        for uid in chosen:
            self._users[uid].fall_silent()
        self._tell(f"silence: {len(chosen)} who talked write nothing any more")

    async def _restart(self, name: str, child: Child, number: signal.Signals) -> None:
        began = trio.current_time()
        self._tell(f"{name}: {MEANT[number]} to the {child.name}")
        await child.restart(number)
        took_s = trio.current_time() - began
        self._tell(f"{name}: the {child.name} is up again, after {took_s:.1f} s")

    async def _stop(self, most_s: float) -> None:
        self._go_on = trio.Event()
        began = trio.current_time()
        self._tell("stop: SIGSTOP to the sidecar")
        self._sidecar.stop()
        with trio.move_on_after(most_s):
            await self._go_on.wait()
        self._sidecar.go_on()
        self._tell(f"stop: SIGCONT, after {trio.current_time() - began:.1f} s")
