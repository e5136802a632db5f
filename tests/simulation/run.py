"""One run of a plan, from an empty disk to the end, in an order that its seed settles."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random, getstate, seed, setstate
from typing import Any, Final

import anyio.to_thread
import pytest
import trio
from structlog.testing import capture_logs
from trio._core import _run as scheduler
from trio.testing import MockClock

from liveness.cluster.connection import Redis
from liveness.service.common.threads import RUN_SYNC
from liveness.service.outlets.cluster import publisher
from tests.helpers.redis_connection import RedisConnection
from tests.helpers.virtual_functions import virtual_functions
from tests.promises.run_history import History
from tests.simulation.cluster.redis import server_of
from tests.simulation.damped_watch import watch_damped
from tests.simulation.hindsight import note_outlets, note_run
from tests.simulation.library_process import simulated_host
from tests.simulation.machine import Machine
from tests.simulation.outlets import OutletWorld
from tests.simulation.plan import Plan
from tests.simulation.world import World

# Every commit is synced, to a disk that is memory if there is one: nobody pulls a plug
# but the simulation, which keeps books of what was synced.
MEMORY: Final = Path("/dev/shm")


def run(plan: Plan) -> History:
    history = History()
    clock = MockClock(autojump_threshold=0)
    memory = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        _one_order(plan.seed),
        capture_logs() as logs,
        simulated_host(history),
    ):
        redis = server_of(os.getpid()) if plan.cluster else None
        trio.run(_play, plan, Path(folder), clock, history, redis, clock=clock)
    note_run(plan, history, {line["event"] for line in logs})
    note_outlets(history)
    prefix = "the sidecar reports a fault of its own: "
    history.faults += [
        f"{prefix}{line['event']}: {line.get('exc_info', '')}"
        for line in logs
        if "a fault of the sidecar" in line["event"]
    ]
    return history


async def _play(
    plan: Plan,
    folder: Path,
    time: MockClock,
    history: History,
    redis: RedisConnection | None,
) -> None:
    async with trio.open_nursery() as nursery:
        machine = Machine(
            folder,
            plan.config,
            random=Random(f"disk {plan.seed}"),
            jump=time.jump,
            history=history,
            nursery=nursery,
        )
        outlets = None
        if plan.receivers or plan.cluster:
            outlets = OutletWorld(plan, machine, redis, history, nursery)
            nursery.start_soon(outlets.run)
        world = World(
            plan,
            machine,
            outlets,
            random=Random(f"world {plan.seed}"),
            jump=time.jump,
            history=history,
            nursery=nursery,
        )
        if plan.watch_settle_s:
            nursery.start_soon(watch_damped, world, plan.watch_settle_s)
        RUN_SYNC.set(machine.run_sync)
        await world.play()
        nursery.cancel_scope.cancel()


async def _at_once(
    call: Callable[..., Any], *args: object, **_options: object
) -> object:
    await trio.lowlevel.checkpoint()
    return call(*args)


@contextmanager
def _one_order(number: int) -> Iterator[None]:
    """Have trio run tasks in an order that is drawn, and drawn again the same.

    As pytest-trio does for hypothesis; trio has no public name for it.
    """
    state = scheduler._r.getstate()
    scheduler._r.seed(number)
    drawn = getstate()  # by the product, where nothing else has it draw
    seed(number)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        # What runs in either event loop does not know of `RUN_SYNC`.
        patched.setattr(anyio.to_thread, "run_sync", _at_once)
        patched.setattr(publisher, "SystemRandom", lambda: Random(number))
        # The functions read the key `now` in place of their server's clock.
        redis = partial(Redis, functions=virtual_functions())
        patched.setattr(publisher, "Redis", redis)
        try:
            yield
        finally:
            setstate(drawn)
            scheduler._r.setstate(state)
