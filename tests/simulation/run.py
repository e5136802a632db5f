"""One run of a plan, from an empty disk to the end, in an order that its seed settles."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import trio
from structlog.testing import capture_logs
from trio._core import _run as scheduler
from trio.testing import MockClock

from liveness.promises.run_history import History
from liveness.service.common.threads import RUN_SYNC
from tests.simulation.hindsight import look_back
from tests.simulation.library_process import simulated_host
from tests.simulation.machine import Machine
from tests.simulation.plan import Plan
from tests.simulation.world import World

# Every commit is synced, to a disk that is memory if there is one: nobody pulls a plug
# but the simulation, which keeps books of what was synced.
MEMORY: Final = Path("/dev/shm")


def run(plan: Plan) -> History:
    """Play a plan; return what was sent, seen and done."""
    history = History()
    clock = MockClock(autojump_threshold=0)
    memory = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        _one_order(plan.seed),
        capture_logs() as logs,
        simulated_host(plan.seed) as faults,
    ):
        trio.run(_play, plan, Path(folder), clock, history, clock=clock)
    look_back(plan, history, {line["event"] for line in logs})
    told = "the sidecar tells of a fault of its own: "
    history.faults += faults
    history.faults += [
        f"{told}{line['event']}: {line.get('exc_info', '')}"
        for line in logs
        if "a fault of the sidecar" in line["event"]
    ]
    return history


async def _play(plan: Plan, folder: Path, time: MockClock, history: History) -> None:
    async with trio.open_nursery() as nursery:
        machine = Machine(
            folder,
            plan.config,
            random=Random(f"disk {plan.seed}"),
            jump=time.jump,
            history=history,
            nursery=nursery,
        )
        world = World(
            plan,
            machine,
            random=Random(f"world {plan.seed}"),
            jump=time.jump,
            history=history,
            nursery=nursery,
        )
        RUN_SYNC.set(machine.run_sync)
        await world.play()
        nursery.cancel_scope.cancel()


@contextmanager
def _one_order(seed: int) -> Iterator[None]:
    """Have trio run tasks in an order that is drawn, and drawn again the same.

    As pytest-trio does for hypothesis; trio has no public name for it.
    """
    name = "_ALLOW_DETERMINISTIC_SCHEDULING"
    was = getattr(scheduler, name)
    setattr(scheduler, name, True)
    state = scheduler._r.getstate()
    scheduler._r.seed(seed)
    try:
        yield
    finally:
        scheduler._r.setstate(state)
        setattr(scheduler, name, was)
