"""kill -9 at random moments under load: the simulation's world, around the real process.

Its gateways, users, watchers and checker are those of `tests/simulation`; the sidecar, its
sockets, its disk and the time are real. What the world notes it notes a little later than
it happens, and how prompt anything was is not asked here.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from time import CLOCK_MONOTONIC, clock_gettime, perf_counter, time_ns
from typing import Final

import pytest
import trio

from liveness.core.records import HostTime
from tests.e2e.conftest import Start
from tests.e2e.sidecar import Sidecar
from tests.simulation.checker import broken_promises
from tests.simulation.history import History, Process
from tests.simulation.plan import WEEK_S, Fault, GatewayPlan, Plan, Step, Visit
from tests.simulation.world import World

TIMEOUT_S: Final = 1.0
HOLD_S: Final = 2.0
USERS: Final = 300
VISITS_PER_S: Final = 40.0
# From one kill to the next, with the start in between: mostly so short that nobody is
# judged in between, now and then as long as it takes to fall silent.
SHORT_S: Final = (0.0, 0.6)
LONG_S: Final = (2.0, 5.0)
START_S: Final = 1.0
# A busy machine has this process notice what happened so much later.
NOTED_S: Final = 1.0


class RealMachine:
    """Runs the real sidecar, one process after the other.

    Args:
        sidecar: Not started.
        history: Told when it runs.
    """

    def __init__(self, sidecar: Sidecar, history: History) -> None:
        self.socket = sidecar.socket
        self.is_up = False
        self.is_ailing = False
        self._sidecar = sidecar
        self._history = history
        self._booted_s = clock_gettime(CLOCK_MONOTONIC) - trio.current_time()

    def host_time(self, now: float) -> HostTime:
        monotonic_s = self._booted_s + now
        ago_s = clock_gettime(CLOCK_MONOTONIC) - monotonic_s
        return HostTime(monotonic_s, time_ns() / 1e9 - ago_s)

    async def start(self) -> None:
        self._history.processes.append(Process(trio.current_time()))
        await trio.to_thread.run_sync(self._sidecar.start)
        self.is_up = True

    async def stop(self) -> None:
        self.is_up = False
        self._history.processes[-1].asked_at = trio.current_time()
        await trio.to_thread.run_sync(self._sidecar.stop)
        self._history.processes[-1].ended_at = trio.current_time()
        self._history.processes[-1].is_planned = True

    async def crash(self, *, in_a_write: bool) -> None:
        assert not in_a_write, "the kernel decides what it was doing"
        self.is_up = False
        self._history.processes[-1].ended_at = trio.current_time()
        await trio.to_thread.run_sync(self._sidecar.kill)

    def suffer(self, what: str, seconds: float) -> Callable[[], None]:
        raise AssertionError(f"{what} for {seconds} s is not known here")


class FromZero(trio.abc.Clock):
    """Real time, from 0 on."""

    def __init__(self) -> None:
        self._began = perf_counter()

    def start_clock(self) -> None:
        """It runs already."""

    def current_time(self) -> float:
        return perf_counter() - self._began

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


def plan_of_kills(kills: int, seed: int) -> Plan:
    """So many kills, with users who come, talk, move, log out and fall silent."""
    random = Random(seed)
    steps: list[Step] = []
    at = 1.0
    for number in range(kills):
        at += random.uniform(*(LONG_S if number % 6 == 5 else SHORT_S)) + START_S
        steps.append(Fault(at, "sidecar crashes", 0, 0.0))
    lasts_s = at + 6.0
    for _ in range(round(lasts_s * VISITS_PER_S)):
        visit = Visit(
            at=random.uniform(0, lasts_s - 5),
            gateway=random.randrange(3),
            uid=f"u-{random.randrange(USERS)}",
            talks_for_s=random.choice([0.0, random.uniform(0, 6 * TIMEOUT_S)]),
            every_s=random.uniform(0.2, 0.4) * TIMEOUT_S,
            logs_out=random.random() < 0.3,
            timeout=random.choice([None, None, 2.0]),
        )
        steps.append(visit)
    for _ in range(kills // 3):
        what = random.choice(
            [
                "gateway crashes",
                "gateway crashes, back fresh",
                "gateway loses its link",
                "gateway connects anew",
                "gateway repeats itself",
                "watcher lost",
            ]
        )
        steps.append(Fault(random.uniform(1, at), what, random.randrange(3), 0.5))
    gateways = [
        GatewayPlan("gw-0", None, None, 0.0, None),
        GatewayPlan("gw-1", 1.5, None, 0.1, 3.0),
        GatewayPlan("gw-2", None, 2.0, 0.0, None),
    ]
    return Plan(
        seed=seed,
        timeout_s=TIMEOUT_S,
        hold_s=HOLD_S,
        run_timeout_s=inf,
        window=10_000,
        pause_firing=10_000,
        pause_reading=30_000,
        max_pending=30_000,
        tail=20_000,
        retention_s=WEEK_S,
        gateways=tuple(gateways),
        watchers=2,
        lasts_s=lasts_s,
        steps=tuple(sorted(steps, key=lambda step: step.at)),
    )


async def played(plan: Plan, sidecar: Sidecar, history: History) -> None:
    def no_jump(_seconds: float) -> None:
        raise AssertionError("real time does not jump")

    history.wall.append((0.0, round(time_ns() / 1e6 - trio.current_time() * 1e3)))
    async with trio.open_nursery() as nursery:
        machine = RealMachine(sidecar, history)
        world = World(
            plan,
            machine,
            random=Random(plan.seed),
            jump=no_jump,
            history=history,
            nursery=nursery,
        )
        await world.play()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(30, marks=pytest.mark.timeout(300)),
        pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(2_400)]),
    ],
)
def test_every_promise_is_kept_over_kills_at_any_moment(
    make: Start, kills: int
) -> None:
    plan, history = plan_of_kills(kills, kills), History()
    sidecar = make(TIMEOUT_S, limits_gateway_hold_s=HOLD_S)
    trio.run(partial(played, plan, sidecar, history), clock=FromZero())
    assert len(history.processes) == kills + 1
    breaches = broken_promises(plan, history, real_s=NOTED_S)
    assert not breaches, "\n".join(breaches)
    offlines = [
        told.record
        for told in history.links[-1].told
        if told.record["kind"] == "offline"
    ]
    # Those who fell silent right after their login are among them, and end all the same.
    assert sum("restored" in record for record in offlines) > kills
