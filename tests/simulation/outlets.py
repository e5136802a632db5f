"""The sidecar's outlets in a run: where they lead, and who looks after them."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import trio

from liveness.config.cluster import REDIS_PORT
from liveness.promises.delivery_history import ClusterReading, Letter, OutletReading
from liveness.promises.run_history import History
from tests.simulation.cluster.redis import Connection
from tests.simulation.doors import Network
from tests.simulation.machine import Machine
from tests.simulation.plan import Plan
from tests.simulation.receivers import FIRST_PORT, Receiver
from tests.simulation.redis_door import RedisDoor
from tests.simulation.situations import reached

# How often the sidecar is asked for their state, as Prometheus would.
READ_EVERY_S: Final = 1.0
# So often somebody who has mended a receiver tries it, until nothing waits for it.
TRY_EVERY_S: Final = 5.0
MOST_TRIES_S: Final = 120.0
MOST_LETTERS: Final = 100_000


class OutletWorld:
    """All that the outlets lead to.

    Args:
        plan: The receivers, and the cluster.
        machine: The sidecar's host, whose clocks are everybody's.
        folder: Where their sockets are.
        redis: A connection to the cluster's server; None: there is no cluster.
        history: Told what they get.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        folder: Path,
        redis: Connection | None,
        history: History,
    ) -> None:
        self._machine, self._history = machine, history
        random, clock = Random(f"outlets {plan.seed}"), machine.clock
        self._receivers = [
            Receiver(it, folder, random, clock.wall_ms, history)
            for it in plan.receivers
        ]
        self._redis: RedisDoor | None = None
        if redis is not None and plan.cluster is not None:
            linger_s = plan.cluster.linger_s
            # It does not sleep when the sidecar's host does.
            self._redis = RedisDoor(redis, folder, random, clock.boot_s, linger_s)
            history.cluster = self._redis.outbound
        doors = dict(enumerate(self._receivers, FIRST_PORT))
        self._doors = doors | ({REDIS_PORT: self._redis} if self._redis else {})

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve, and ask the sidecar for the state of its outlets."""
        trio.socket.set_custom_socket_factory(Network(self._doors))
        async with trio.open_nursery() as nursery:
            for door in self._doors.values():
                await nursery.start(door.run)
            task_status.started()
            while True:
                self._read()
                await trio.sleep(READ_EVERY_S)

    def suffer(
        self, kind: str, whom: int, mood: str, seconds: float
    ) -> Callable[[], None]:
        """Begin a mood of Redis or of a receiver; return what ends it."""
        if kind == "redis":
            assert self._redis is not None
            return self._redis.suffer(mood, seconds)
        return self._receivers[whom % len(self._receivers)].suffer(mood, seconds)

    def mend(self) -> None:
        """End all moods, for good."""
        for door in self._doors.values():
            door.mend()

    async def come_to_rest(self) -> None:
        """Somebody tries the receivers until nothing waits, and retries dead letters."""
        outlets = self._machine.outlets()
        if outlets is None:
            return
        until = trio.current_time() + MOST_TRIES_S
        # Those that could not open their database have stopped, and do for a minute.
        while trio.current_time() < until and (
            waiting := [
                it
                for it in outlets.webhooks
                if it.now().lag_records or it.now().state == "stopped"
            ]
        ):
            for outlet in waiting:
                await outlet.send_test()
            await trio.sleep(TRY_EVERY_S)
        for outlet, receiver in zip(outlets.webhooks, self._receivers, strict=True):
            letters = await outlet.dead_letters(None, MOST_LETTERS)
            for it in reversed(letters):
                receiver.outbound.letters.append(
                    Letter(it.seq, json.loads(it.record), it.attempts, it.status)
                )
                result = await outlet.retry(it.number)
                if result is not None and result.is_accepted:
                    reached("outlets: a dead letter is sent again by hand")
        self._read()
        if self._redis is not None:
            self._redis.note_rest()

    def _read(self) -> None:
        """Note what the sidecar says of its outlets."""
        outlets = self._machine.outlets()
        if outlets is None:
            return
        at, process = trio.current_time(), len(self._history.processes) - 1
        for outlet, receiver in zip(outlets.webhooks, self._receivers, strict=True):
            it = outlet.now()
            lag, dead = (it.lag_records, it.lag_s), (it.dead, it.dead_deleted)
            receiver.outbound.readings.append(
                OutletReading(
                    at, process, it.state, *lag, it.sent, *dead, it.latency.sum
                )
            )
        if self._redis is not None and outlets.cluster is not None:
            of = outlets.cluster.now()
            lag = of.lag_records, of.lag_s
            self._redis.outbound.readings.append(
                ClusterReading(at, process, of.state, *lag, of.lease_age_s)
            )
