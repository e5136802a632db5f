"""Kills, stops and restarts gateway and sidecar, and silences users, on request."""

import signal
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import sample
from typing import Final

import trio

from liveness.lab.demo.processes import Child
from liveness.lab.demo.referee import Referee
from liveness.lab.demo.script import ACTIONS, Step
from liveness.lab.demo.users import User

SIGNALS: Final = {"restart": signal.SIGTERM, "kill": signal.SIGKILL}
SIGNAL_NAMES: Final = {signal.SIGTERM: "SIGTERM", signal.SIGKILL: "kill -9"}


class Performer(ABC):
    """Performs the steps of a script, each at its time."""

    _nursery: trio.Nursery | None = None  # while it runs

    async def run(self, steps: Sequence[Step]) -> None:
        """Performs each step at its time, and what keys ask for, until cancelled.

        A step waits until the action before it on the same process is over.
        """
        began = trio.current_time()
        async with trio.open_nursery() as self._nursery:
            for step in steps:
                await trio.sleep_until(began + step.at_s)
                self._nursery.start_soon(self.perform, step.name, step.number)
            await trio.sleep_forever()

    @abstractmethod
    async def perform(self, name: str, number: float) -> None:
        """Performs an action; returns when it is over."""


@dataclass(eq=False, kw_only=True)
class Director(Performer):
    """Performs the actions that a script or a key asks for, one at a time per process."""

    gateway: Child
    sidecar: Child
    users: Mapping[str, User]  # by uid
    referee: Referee  # is notified when an action begins and ends
    log: Callable[[str], None]  # shows a line about it

    def __post_init__(self) -> None:
        self.done = Counter[str]()
        self._locks = {
            child.name: trio.Lock() for child in (self.gateway, self.sidecar)
        }
        self._resume = trio.Event()

    def press(self, key: str) -> None:
        """Starts the action of a key, unless another one is using its process."""
        for name, action in ACTIONS.items():
            if action.key != key or self._nursery is None:
                continue
            child = self._child(name)
            if name == "silence" or not self._locks[child.name].locked():
                # A stop by key lasts until the key is pressed again.
                number = action.most if name == "stop" else action.number
                self._nursery.start_soon(self.perform, name, number)
            elif name == "stop" and child.state == "stopped":
                self._resume.set()
            else:
                hint = "; z lets it go on" if child.state == "stopped" else ""
                self.log(f"{name}: not while the {child.name} is {child.state}{hint}")

    async def perform(self, name: str, number: float) -> None:
        """Performs an action; returns when it is over."""
        if name == "silence":
            self._silence(int(number))
            return
        child = self._child(name)
        async with self._exclusive(child):
            self.done[name] += 1
            if name == "gateway":
                self.referee.gateway_killed(float("inf"))  # until it is over
                await self._restart(name, child, signal.SIGKILL)
                self.referee.gateway_killed(trio.current_time())
            elif name == "stop":
                await self._stop(number)
            else:
                await self._restart(name, child, SIGNALS[name])

    def _child(self, action: str) -> Child:
        return self.gateway if action == "gateway" else self.sidecar

    @asynccontextmanager
    async def _exclusive(self, child: Child) -> AsyncIterator[None]:
        async with self._locks[child.name]:
            self.referee.disruption_begins()
            yield
            self.referee.disruption_ends(trio.current_time())

    def _silence(self, count: int) -> None:
        self.done["silence"] += 1
        active = self.referee.active_users()
        chosen = sample(active, min(count, len(active)))
        for uid in chosen:
            self.users[uid].fall_silent()
        self.log(f"silence: {len(chosen)} active users stop writing")

    async def _restart(self, name: str, child: Child, number: signal.Signals) -> None:
        began = trio.current_time()
        self.log(f"{name}: {SIGNAL_NAMES[number]} to the {child.name}")
        await child.restart(number)
        took_s = trio.current_time() - began
        self.log(f"{name}: the {child.name} is up again, after {took_s:.1f} s")

    async def _stop(self, most_s: float) -> None:
        self._resume = trio.Event()
        began = trio.current_time()
        self.log("stop: SIGSTOP to the sidecar")
        self.sidecar.stop()
        with trio.move_on_after(most_s):
            await self._resume.wait()
        self.sidecar.resume()
        self.log(f"stop: SIGCONT, after {trio.current_time() - began:.1f} s")
