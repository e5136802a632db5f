"""The sidecar's outlets in a run: where they lead, and who looks after them."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import trio

from liveness.service.outlets.webhooks import batch_store
from tests.helpers.redis_connection import RedisConnection
from tests.promises.run_history import History, Letter, OutletReading
from tests.simulation.machine import Machine
from tests.simulation.plan import Plan
from tests.simulation.receivers import Receiver
from tests.simulation.redis_server import SimulatedRedis
from tests.simulation.servers import Network, Server
from tests.simulation.situations import reached

# How often the sidecar is asked for their state, as Prometheus would.
READ_EVERY_S: Final = 1.0
# So often somebody who has mended a receiver tries it, until nothing waits for it.
TRY_EVERY_S: Final = 5.0
MOST_TRIES: Final = 24
MOST_LETTERS: Final = 100_000


class OutletWorld:
    """All that the outlets lead to.

    Args:
        plan: The receivers, and the cluster.
        machine: The sidecar's host, whose clocks are everybody's.
        redis: A connection to the cluster's server; None: there is no cluster.
        history: Records what they get.
        nursery: Where they are served.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        redis: RedisConnection | None,
        history: History,
        nursery: trio.Nursery,
    ) -> None:
        self._machine, self._history = machine, history
        random, clock = Random(f"outlets {plan.seed}"), machine.clock
        self._receivers = [Receiver(it, random, history) for it in plan.receivers]
        self._redis = list[SimulatedRedis]()  # one, or none
        if redis is not None and plan.cluster is not None:
            # It does not sleep when the sidecar's host does.
            own = SimulatedRedis(plan.cluster, redis, random, clock.boot_s, history)
            self._redis.append(own)
        self._servers: list[Server[Any]] = [*self._receivers, *self._redis]
        trio.socket.set_custom_socket_factory(Network(self._servers, nursery))

    async def run(self) -> None:
        while True:
            self._read()
            await trio.sleep(READ_EVERY_S)

    def inject(
        self, kind: str, target: int, failure: str, seconds: float
    ) -> Callable[[], None]:
        """Begin a failure of Redis or of a receiver; return what ends it."""
        servers: Sequence[Server[Any]]
        servers = self._redis if kind == "redis" else self._receivers
        return servers[target % len(servers)].inject(failure, seconds)

    def mend(self) -> None:
        for server in self._servers:
            server.mend()

    async def come_to_rest(self) -> None:
        """Somebody tries the receivers until nothing waits, and retries dead letters."""
        outlets = self._machine.outlets()
        assert outlets is not None
        for _ in range(MOST_TRIES):
            for outlet in outlets.webhooks:
                # One that could not open its database stops, and does for a minute.
                if outlet.now().lag_records or outlet.now().state == "stopped":
                    await outlet.send_test()
                    await trio.sleep(TRY_EVERY_S)
        for outlet, receiver in zip(outlets.webhooks, self._receivers, strict=True):
            letters = partial(
                batch_store.letters,
                outlet=outlet.name,
                before=2**63 - 1,
                limit=MOST_LETTERS,
            )
            found = await outlets.store.run(letters)
            for _, it in reversed(found):
                letter = Letter(json.loads(it.record), it.attempts, it.status)
                receiver.outbound.letters.append(letter)
                result = await outlet.retry_next(it.number - 1)
                if result is not None and result[1].is_accepted:
                    reached("outlets: a dead letter is sent again by hand")
        self._read()
        for server in self._redis:
            server.note_rest()

    def _read(self) -> None:
        outlets = self._machine.outlets()
        if outlets is None:
            return
        at, process = trio.current_time(), len(self._history.processes) - 1
        known: list[Any] = [*outlets.webhooks, outlets.cluster]  # as the servers are
        for outlet, server in zip(known, self._servers, strict=False):
            it, own = outlet.now(), dict[str, Any]()
            if isinstance(server, SimulatedRedis):
                own["lease_age_s"] = it.lease_age_s
            else:
                own |= {"sent": it.sent, "latency_s": it.latency.sum}
            server.outbound.readings.append(
                OutletReading(at, process, it.state, it.lag_records, it.lag_s, **own)
            )
