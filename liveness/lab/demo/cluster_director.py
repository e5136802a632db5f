"""Kills hosts and Redis and starts them again, and has users hop, on request."""

import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import sample
from typing import Final

import trio

from liveness.lab.demo.cluster_referee import ClusterReferee
from liveness.lab.demo.demo_host import DemoHost
from liveness.lab.demo.director import Performer
from liveness.lab.demo.hoppers import Hopper, active_in
from liveness.lab.demo.processes import Child
from liveness.lab.demo.script import actions_of

_REDIS: Final = "redis"


class ClusterDirector(Performer):
    """Performs the actions that a script or a key asks for, one at a time per host.

    Args:
        hosts: All hosts.
        redis: The process.
        hoppers: All users, by uid.
        referee: Is notified when a host or Redis is killed, and when it is up again.
        log: Shows a line about an action.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[DemoHost],
        redis: Child,
        hoppers: Mapping[str, Hopper],
        referee: ClusterReferee,
        log: Callable[[str], None],
    ) -> None:
        self.done = Counter[str]()
        self.log = log
        self._hosts = hosts
        self._redis = redis
        self._hoppers = hoppers
        self._referee = referee
        self._actions = actions_of(len(hosts))
        names = [_REDIS, *(host.name for host in hosts)]
        self._locks = {name: trio.Lock() for name in names}

    def press(self, key: str) -> None:
        """Starts the action of a key, unless another one is using its process."""
        name, number = self._of_key(key)
        if not name or self._nursery is None:
            return
        lock = self._locks.get(self._target(name, number))
        if lock is None or not lock.locked():
            self._nursery.start_soon(self.perform, name, number)
        else:
            self.log(f"{name}: not while {self._target(name, number)} is changing")

    async def perform(self, name: str, number: float) -> None:
        """Performs an action; returns when it is over."""
        if name in ("silence", "hop"):
            self.done[name] += 1
            self._choose(name, int(number))
            return
        async with self._locks[self._target(name, number)]:
            self.done[name] += 1
            if name == _REDIS:
                await self._switch_redis()
            else:
                await self._switch_host(self._hosts[int(number) - 1])

    def _of_key(self, key: str) -> tuple[str, float]:
        """The action of a key, and its number; "" if it has none."""
        if key in map(str, range(1, len(self._hosts) + 1)):
            return "host", int(key)
        for name, action in self._actions.items():
            if action.key == key:
                return name, action.number
        return "", 0

    def _target(self, name: str, number: float) -> str:
        return self._hosts[int(number) - 1].name if name == "host" else name

    def _choose(self, name: str, count: int) -> None:
        active = active_in(self._hoppers)
        chosen = sample(active, min(count, len(active)))
        for hopper in chosen:
            if name == "hop":
                hopper.hop()
            else:
                hopper.fall_silent()
        what = "go to another host" if name == "hop" else "stop writing"
        self.log(f"{name}: {len(chosen)} active users {what}")

    async def _switch_redis(self) -> None:
        if self._redis.state == "up":
            self.log("redis: kill -9 to Redis")
            self._referee.redis_killed(trio.current_time())
            await self._redis.end(signal.SIGKILL)
        else:
            await self._redis.start()
            self._referee.redis_up(trio.current_time())
            self.log("redis: Redis is up again, and empty")

    async def _switch_host(self, host: DemoHost) -> None:
        if host.state == "up":
            self.log(f"host: kill -9 to sidecar and gateway of {host.name}")
            self._referee.host_killed(host.name, trio.current_time())
            await host.kill()
        else:
            began = trio.current_time()
            await host.start()
            self._referee.host_up(host.name)
            took_s = trio.current_time() - began
            self.log(f"host: {host.name} is up again, after {took_s:.1f} s")
