"""Kills, stops and restarts programs, and has users fall silent, on request."""

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import sample
from typing import Final, TypeAlias

import trio

from liveness.lab.demo.demo_host import DemoCluster, DemoHost, KeptProgram
from liveness.lab.demo.script import Step, actions_of
from liveness.lab.demo.users import User

Target: TypeAlias = KeptProgram | DemoHost  # Redis is a KeptProgram

# The signals that end a program for a restart, and their names in messages.
SIGNALS: Final = {
    "gateway": (signal.SIGKILL, "kill -9"),
    "restart": (signal.SIGTERM, "SIGTERM"),
    "kill": (signal.SIGKILL, "kill -9"),
}


@dataclass(eq=False)
class Director:
    hosts: Sequence[DemoHost]
    cluster: DemoCluster | None  # None if there is one host
    users: Sequence[User]
    log: Callable[[str], None]  # shows a line about an action

    def __post_init__(self) -> None:
        self.done = Counter[str]()
        self.actions = actions_of(len(self.hosts))
        one = self.hosts[0]
        self.targets: list[Target] = (
            [*self.hosts, self.cluster] if self.cluster else [one.gateway, one.sidecar]
        )
        self._locks = {target.name: trio.Lock() for target in self.targets}
        self.script_is_over = False
        self._nursery: trio.Nursery | None = None  # while it runs

    async def run(self, steps: Sequence[Step]) -> None:
        """Performs each step at its time, and what keys ask for, until cancelled.

        A step waits until the action before it on the same program is over.
        """
        began = trio.current_time()
        async with trio.open_nursery() as self._nursery:
            async with trio.open_nursery() as script:
                for step in steps:
                    await trio.sleep_until(began + step.at_s)
                    script.start_soon(self.perform, step.name, step.number)
            self.script_is_over = True
            await trio.sleep_forever()

    def press(self, key: str) -> None:
        """Starts the action of a key, unless another one is using its program."""
        name, number = "", 0.0
        for each, action in self.actions.items():
            if action.key == key:
                name, number = each, action.number
        if self.cluster and key in map(str, range(1, len(self.hosts) + 1)):
            name, number = "host", float(key)
        if not name or self._nursery is None:
            return
        target = self._target(name, number)
        if target is None or not self._locks[target.name].locked():
            self._nursery.start_soon(self.perform, name, number)
        else:
            self.log(f"{name}: not while the {target.name} is {target.state}")

    async def perform(self, name: str, number: float) -> None:
        target = self._target(name, number)
        if target is None:
            self.done[name] += 1
            self._silence(int(number))
            return
        async with self._locks[target.name]:
            self.done[name] += 1
            if isinstance(target, DemoHost | DemoCluster):
                await self._switch(name, target)
            else:
                is_gateway, judge = name == "gateway", self.hosts[0].judge
                judge.disruption_begins(trio.current_time(), of_gateway=is_gateway)
                if name == "stop":
                    self.log("stop: SIGSTOP to the sidecar")
                    await target.stop(number)
                    self.log(f"stop: SIGCONT, after {number:.1f} s")
                else:
                    await self._restart(name, target)
                judge.disruption_ends(trio.current_time(), of_gateway=is_gateway)

    def _target(self, name: str, number: float) -> Target | None:
        """What an action kills, stops or restarts; None: it concerns users."""
        match name:
            case "silence":
                return None
            case "host":
                return self.hosts[int(number) - 1]
            case "gateway":
                return self.hosts[0].gateway
            case _:  # Redis, or the sidecar
                return self.targets[-1]

    def _silence(self, count: int) -> None:
        active = [user for user in self.users if user.is_active]
        chosen = sample(active, min(count, len(active)))
        for user in chosen:
            user.fall_silent()
        self.log(f"silence: {len(chosen)} active users stop writing")

    async def _restart(self, name: str, program: KeptProgram) -> None:
        began, (number, how) = trio.current_time(), SIGNALS[name]
        self.log(f"{name}: {how} to the {program.name}")
        await program.end(number)
        await program.start()
        took_s = trio.current_time() - began
        self.log(f"{name}: the {program.name} is up again, after {took_s:.1f} s")

    async def _switch(self, name: str, target: DemoHost | DemoCluster) -> None:
        began = trio.current_time()
        if target.state == "up":
            self.log(f"{name}: kill -9 to {target.name}")
            await target.kill()
        else:
            await target.start()
            took_s = trio.current_time() - began
            self.log(f"{name}: {target.name} is up again, after {took_s:.1f} s")
