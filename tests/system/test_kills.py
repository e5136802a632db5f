"""The sidecar is killed, or stopped and replaced, at random moments under load.

The gateways, users, watchers and the checker are those of `tests/simulation`; the sidecar,
its sockets, its disk and the time are real. The world notes what happens a little later
than it happens, and how prompt anything was is not checked here.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from statistics import median
from time import CLOCK_MONOTONIC, clock_gettime, time_ns
from typing import Final, cast

import pytest
import trio

from liveness.core.records import HostTime
from tests.promises.checker import broken_promises
from tests.promises.run_history import History, Process
from tests.simulation.machine import Machine
from tests.simulation.plan import Fault, GatewayPlan, Plan, Step, Visit
from tests.simulation.world import World
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

TIMEOUT_S: Final = 1.0
HOLD_S: Final = 2.0
USERS: Final = 300
VISITS_PER_S: Final = 40.0
# Between two ends of the process, in addition to its start: mostly so short that nobody
# is judged in between, now and then long enough to fall silent.
SHORT_S: Final = (0.0, 0.6)
LONG_S: Final = (2.0, 5.0)
START_S: Final = 1.0
# On a machine so busy that a start takes seconds there is no time for more of them.
LEAST_ENDS: Final = 2
# On a busy machine this process notices what happened so much later.
NOTED_S: Final = 1.0
# This process looks at the clock so often. A longer step is a standstill of the machine.
NOTED_DRIFT_MS: Final = 2
LOOKS_EVERY_S: Final = 0.05
MOST_STEP_S: Final = 0.5


class RunningClock(trio.abc.Clock):
    """Real time from 0 on, without standstills of the machine.

    The sidecar stands still at the same time as this process, and does not count that
    time as anybody's silence.

    Args:
        history: Learns how the wall clock has moved against this one.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._last = clock_gettime(CLOCK_MONOTONIC)
        # From which moment on which monotonic time is 0 of this clock.
        self._zeros = [(0.0, self._last)]
        self._note_wall()

    def start_clock(self) -> None:
        """It runs already."""

    def current_time(self) -> float:
        now = clock_gettime(CLOCK_MONOTONIC)
        step_s, self._last = now - self._last, now
        (_, zero) = self._zeros[-1]
        if step_s > MOST_STEP_S:
            zero += step_s
            self._zeros.append((now - zero, zero))
            # The sidecar may have been given the time that this process was not.
            after_ms = time_ns() // 1_000_000 + 1
            before_ms = after_ms - round(step_s * 1e3) - 2
            self._history.standstills.append((now - zero, before_ms, after_ms))
        # The machine's time service may adjust it at any moment, by steps or slowly.
        if abs(self._wall_ms() - self._history.wall[-1][1]) >= NOTED_DRIFT_MS:
            self._note_wall()
        return now - zero

    def monotonic(self, at: float) -> float:
        """The system's monotonic time at a moment of this clock."""
        return at + next(zero for since, zero in reversed(self._zeros) if since <= at)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return min(deadline - self.current_time(), LOOKS_EVERY_S)

    def _note_wall(self) -> None:
        at = self._last - self._zeros[-1][1]
        self._history.wall.append((at, self._wall_ms()))

    def _wall_ms(self) -> int:
        """Unix milliseconds at 0 of this clock, by the wall clock as it is now."""
        return round(
            time_ns() / 1e6
            - (clock_gettime(CLOCK_MONOTONIC) - self._zeros[-1][1]) * 1e3
        )


class RealMachine:
    """Runs the real sidecar, one process after the other, as `Machine` does a simulated one.

    Args:
        sidecar: Not started.
        history: Notes when it runs.
        clock: Of the world.
    """

    def __init__(self, sidecar: Sidecar, history: History, clock: RunningClock) -> None:
        self.socket = sidecar.socket
        self.is_up = False
        self.is_faulty = False
        self._sidecar = sidecar
        self._history = history
        self._clock = clock

    def host_time(self, now: float) -> HostTime:
        monotonic_s = self._clock.monotonic(now)
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

    def inject(self, fault: Fault) -> Callable[[], None]:
        raise AssertionError(f"{fault} is not known here")


def plan_of(ends: list[str]) -> Plan:
    """These ends of the process, as users come, talk, move, log out and fall silent."""
    seed = len(ends)
    random = Random(seed)
    steps: list[Step] = []
    at = 1.0
    for number, end in enumerate(ends):
        at += random.uniform(*(LONG_S if number % 6 == 5 else SHORT_S)) + START_S
        steps.append(Fault(at, end, 0, 0.0))
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
    for _ in range(len(ends) // 3):
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
        GatewayPlan("gw-0", None, None, None),
        GatewayPlan("gw-1", 1.5, None, 3.0),
        GatewayPlan("gw-2", None, 2.0, None),
    ]
    return Plan(
        seed=seed,
        timeout_s=TIMEOUT_S,
        hold_s=HOLD_S,
        run_timeout_s=inf,
        gateways=tuple(gateways),
        watchers=2,
        lasts_s=lasts_s,
        steps=tuple(sorted(steps, key=lambda step: step.at)),
    )


async def played(
    plan: Plan, sidecar: Sidecar, history: History, clock: RunningClock
) -> None:
    def no_jump(_seconds: float) -> None:
        raise AssertionError("real time does not jump")

    async with trio.open_nursery() as nursery:
        machine = RealMachine(sidecar, history, clock)
        world = World(
            plan,
            cast(Machine, machine),
            random=Random(plan.seed),
            jump=no_jump,
            history=history,
            nursery=nursery,
        )
        await world.play()
        nursery.cancel_scope.cancel()


def run(sidecar: Sidecar, ends: list[str]) -> History:
    """Runs the world; checks that no promise was broken."""
    plan, history = plan_of(ends), History()
    clock = RunningClock(history)
    trio.run(partial(played, plan, sidecar, history, clock), clock=clock)
    assert LEAST_ENDS < len(history.processes) <= len(ends) + 1
    breaches = broken_promises(plan, history, real_s=NOTED_S)
    assert not breaches, "\n".join(breaches)
    return history


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(20, marks=pytest.mark.timeout(1_800)),
        pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(2_400)]),
    ],
)
def test_every_promise_is_kept_over_kills_at_any_moment(
    make: Start, kills: int
) -> None:
    sidecar = make(TIMEOUT_S, limits_gateway_hold_s=HOLD_S)
    history = run(sidecar, ["sidecar crashes"] * kills)
    readers = [link for link in history.links if link.name == "reader"]
    records = [it.record for it in readers[-1].delivered]
    # Users who fell silent right after their login are among them, and end all the same;
    # but not on a machine that stands still, or starts so slowly that nobody is left then.
    lives = [process.ended_at - process.began_at for process in history.processes]
    is_busy = history.is_wall_stepped or median(lives) > START_S + LONG_S[0]
    assert is_busy or any("restored" in record for record in records)


def test_every_promise_is_kept_over_planned_stops_and_kills(make: Start) -> None:
    sidecar = make(TIMEOUT_S, limits_gateway_hold_s=HOLD_S)
    history = run(sidecar, ["sidecar restarts", "sidecar crashes"] * 5)
    planned = {process.is_planned for process in history.processes}
    assert planned == {True, False}
