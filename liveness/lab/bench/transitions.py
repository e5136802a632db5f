"""A load of transitions: users log in and out at an even pace, and some fall silent.

Scenarios run it alternately with something switched on and off, to measure the cost of
that, and to check that local promises are still kept.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from liveness.lab.bench import BenchOptions, Stage
from liveness.lab.bench.floors import DECIDED_MS
from liveness.lab.bench.sidecars import Window, linked_sidecar
from liveness.lab.bench.systems import LONG_S
from liveness.lab.common.figures import Figure
from liveness.lab.common.judge import Notices, judge, p99_ms
from liveness.lab.common.load import LoadError, LoadUsers, Pace

# Scenarios with this load have floors for at least this many users.
PROMISED_USERS: Final = 100_000
RATE: Final = 10_000  # transitions a second
BLOCK: Final = 10  # users in a frame
AHEAD: Final = 2_000  # users that are online when the clock starts
SILENT_EVERY: Final = 10  # a user falls silent with each tenth block
SILENT_S: Final = 1  # its timeout
KEEPALIVES: Final = 100  # by each user that is online at the end
LONGEST_S: Final = 10.0
AWAITED_S: Final = 60.0

# The costs of a run, by the names of their figures: CPU in ns, times in ms.
Costs: TypeAlias = dict[str, float]
CPU: Final = "CPU a transition"
KEEPING: Final = "CPU a keepalive"
DECIDED: Final = "decided p99"
DELIVERED: Final = "delivered p99"


class TransitionLoad:
    """The frames: blocks of users log in and out in turns, and users fall silent."""

    def __init__(self, seconds: float) -> None:
        blocks = round(RATE * seconds / BLOCK / 2)
        self._users = LoadUsers(blocks * BLOCK + AHEAD)
        self._silent = LoadUsers(len(range(0, blocks, SILENT_EVERY)), kind="mute")
        self._frames: list[bytes] = []
        self._last: dict[str, int] = {}  # the index of each silent user's frame
        for block in range(blocks):
            leaving = range(block * BLOCK, (block + 1) * BLOCK)
            coming = range(leaving.start + AHEAD, leaving.stop + AHEAD)
            self._frames += [self._users.logins(coming), self._users.logouts(leaving)]
            number, place = divmod(block, SILENT_EVERY)
            if place == 0:
                self._last[self._silent.uid(number)] = len(self._frames)
                frame = self._silent.single(number, "login", timeout=SILENT_S)
                self._frames.append(frame)
        self._rate = len(self._frames) / seconds
        self._offlines = BLOCK * blocks + len(self._silent)
        self.transitions = 2 * self._offlines

    def run(
        self,
        folder: Path | None,
        settings: str,
        begun: Callable[[], object] = lambda: None,
        finish: Callable[[], object] = lambda: None,
    ) -> Costs:
        """Make all transitions on a new sidecar.

        *begun* is called before the clock starts. *finish* is called before it stops, and
        waits for the rest of the work of the transitions, such as their delivery.
        """
        with linked_sidecar(folder, timeout_s=LONG_S, settings=settings) as running:
            sidecar, gateway = running
            gateway.send(self._users.logins(range(AHEAD)))
            gateway.ping()
            begun()
            pace = Pace(gateway, rate=self._rate)
            with Window(sidecar) as window:
                pace.run(self._frames)
                until = time.perf_counter() + AWAITED_S
                gateway.wait_for(self._offlines, until=until)
                gateway.ping()
                finish()
            online = range(len(self._users) - AHEAD, len(self._users))
            frame = self._users.batch(online)
            with Window(sidecar) as keeping:
                for _ in range(KEEPALIVES):
                    gateway.send(frame)
                gateway.ping()
        moments = [*pace.moments()]
        silences = [
            Notices(received, [each for each in records if each["reason"] == "silence"])
            for received, records in gateway.notices
        ]
        last = {uid: moments[at] for uid, at in self._last.items()}
        found = judge(silences, last, timeout_s=SILENT_S)
        if found.false or found.early or found.missing:
            raise LoadError(
                f"{found.false} false, {found.early} early, {found.missing} missing"
            )
        return {
            CPU: window.server_ns(self.transitions),
            KEEPING: keeping.server_ns(KEEPALIVES * AHEAD),
            DECIDED: p99_ms(found.decided_s),
            DELIVERED: p99_ms(found.delivered_s),
        }


def compared(
    scenario: str,
    kinds: Mapping[str, Callable[[TransitionLoad], Costs]],
    options: BenchOptions,
    stage: Stage,
) -> tuple[dict[str, list[Costs]], list[Figure]]:
    """Alternate these kinds of runs; return all costs, and the least ones as figures.

    The others are compared with the first kind, which has no floors.
    """
    load = TransitionLoad(min(options.seconds / 3, LONGEST_S))
    costs: dict[str, list[Costs]] = {kind: [] for kind in kinds}
    for number in range(1, options.rounds + 1):
        for kind, run in kinds.items():
            stage(f"{kind}, run {number}")
            costs[kind].append(run(load))
    figures = list[Figure]()
    for kind, runs in costs.items():
        decided_ms = DECIDED_MS if figures else None
        for name in (CPU, KEEPING, DECIDED, DELIVERED):
            least = min(run[name] for run in runs)
            unit = "ns" if name in (CPU, KEEPING) else "ms"
            most = decided_ms if name == DECIDED else None
            figures.append(Figure(scenario, f"{kind}: {name}", least, unit, most))
    return costs, figures


def as_promised(figures: list[Figure], options: BenchOptions) -> list[Figure]:
    """The figures, without floors if there are too few users for these."""
    if options.users >= PROMISED_USERS:
        return figures
    return [replace(figure, most=None, least=None) for figure in figures]
