"""What an event and a user cost in each system, by the number of users.

All systems are treated alike. All users log in; then, round by round, users in random order
send one activity each. Rounds are more than a second apart, because a user that sends
again sooner costs less than in practice. CPU and memory are from the process table. The
best round counts: other load on this machine can only add to it.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Final, TypeAlias

from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions, full_options
from liveness.lab.bench.drain import Drain
from liveness.lab.bench.program import Window, temporary_folder
from liveness.lab.bench.system_kinds import SETEX, opened, plan
from liveness.lab.bench.systems import Stream, System
from liveness.lab.common.figures import OURS, Figure

SINGLES_RATIO: Final = 4.0
BATCHES_RATIO: Final = 8.0
MEMORY_RATIO: Final = 1.0
# The ratios are promised for this number of users.
RATIOS_USERS: Final = 1_000_000
# How much more an event may cost with many users than with few.
GROWTHS: Final = ((100_000, 4_000_000, 2.5), (1_000_000, 10_000_000, 1.5))
# The most bytes a user of ours, by the number of users.
MOST_MEMORY_B: Final = {10_000_000: 110.0}

EVENTS: Final = 500_000  # a round, or one for each user if there are fewer
APART_S: Final = 1.1  # a slot and a little
SETTLE_S: Final = 2.0  # until the work after a start, or after logins, is over

CPU: Final = "server CPU an event"
MEMORY: Final = "memory a user"
SINGLES: Final = "one-uid frames"
BATCHES: Final = "batches"
SINGLES_RATIO_NAME: Final = f"SETEX's {CPU} / ours, {SINGLES}"
BATCHES_RATIO_NAME: Final = f"SETEX's {CPU} / ours, {BATCHES}"
MEMORY_RATIO_NAME: Final = f"{MEMORY} / redis-server's"
# The comparison with Redis: its ratios by name, and whether a larger one is better.
MORE_IS_BETTER: Final = {
    SINGLES_RATIO_NAME: True,
    BATCHES_RATIO_NAME: True,
    MEMORY_RATIO_NAME: False,
}

MakeFigure: TypeAlias = Callable[..., Figure]
Point: TypeAlias = tuple[str, int, str]  # system, users, name of the figure


def cost(options: BenchOptions, stage: Stage) -> list[Figure]:
    """What an event and a user cost, compared with other systems."""
    figures: list[Figure] = []
    with temporary_folder(options.folder) as folder, Drain(folder) as drain:
        drain.start()
        for users, name in plan(options).runs:
            figure = partial(Figure, "cost", system=name, users=users)
            stage(f"{name}, {users:,} users", None)
            with opened(name, options.folder, users) as system:
                figures += _measured(system, users, options.rounds, drain, figure)
    return [*figures, *ratios(figures, options)]


def _measured(
    system: System, users: int, rounds: int, drain: Drain, figure: MakeFigure
) -> Iterator[Figure]:
    time.sleep(SETTLE_S)
    empty_mb = system.program.memory_mb()
    began = time.perf_counter()
    system.log_in(range(users))
    yield figure("made known in", time.perf_counter() - began, "s")
    orders = _orders(users, 2 * rounds)
    for how, encode in ((SINGLES, system.singles), (BATCHES, system.batches)):
        streams = [s for _ in range(rounds) if (s := encode(next(orders)))]
        if streams:
            yield from _costs(how, system, streams, min(users, EVENTS), drain, figure)
    time.sleep(SETTLE_S)
    memory_mb = system.program.memory_mb()
    of_a_user = figure(MEMORY, (memory_mb - empty_mb) * 1e6 / users, "B")
    most_b = MOST_MEMORY_B.get(users) if of_a_user.system == OURS else None
    yield replace(of_a_user, most=most_b)
    yield figure("memory", memory_mb, "MB")


def _orders(users: int, count: int) -> Iterator[Sequence[int]]:
    """The senders of each of *count* rounds: consecutive parts of one random order."""
    size = min(users, EVENTS)
    everyone = random.Random(0).sample(range(users), min(users, count * size))
    starts = range(0, len(everyone) - size + 1, size)
    return cycle([everyone[start : start + size] for start in starts])


def _costs(
    how: str,
    system: System,
    streams: Sequence[Stream],
    events: int,
    drain: Drain,
    figure: MakeFigure,
) -> Iterator[Figure]:
    """The best of the rounds, and how much faster the load could have been."""
    server_s, took_s, load_s = [], [], []
    for stream in streams:
        time.sleep(APART_S)
        with Window(system.program) as window:
            system.write(stream)
        server_s.append(window.server_s)
        took_s.append(window.took_s)
    for stream in streams:
        with Window(drain) as window:
            drain.write(stream)
        load_s.append(window.took_s)
    yield figure(f"{CPU}, {how}", min(server_s) / events * 1e9, "ns")
    yield figure(f"events a second, {how}", events / min(took_s), "")
    yield figure(f"load's headroom, {how}", min(took_s) / min(load_s), "x")


def ratios(figures: Sequence[Figure], options: BenchOptions) -> Iterator[Figure]:
    """Redis in proportion to the sidecar in the same run, and the sidecar's growth.

    A promised ratio that was not measured is NaN, unless Redis was left out on purpose.
    """
    values = {(f.system, f.users, f.name): f.value for f in figures}
    promised = {*full_options(options.users).sizes, *options.sizes}

    def ratio(name: str, over: Point, under: Point) -> Figure:
        value = values.get(over, math.nan) / (values.get(under) or math.nan)
        return Figure("cost", name, value, "x", users=over[1])

    singles, batches = f"{CPU}, {SINGLES}", f"{CPU}, {BATCHES}"
    measured = {figure.users for figure in figures if figure.users}
    counts = measured | ({RATIOS_USERS} & promised)
    for users in sorted(counts) if SETEX not in options.without else ():
        theirs = (SETEX, users, singles)
        of_singles = ratio(SINGLES_RATIO_NAME, theirs, (OURS, users, singles))
        of_batches = ratio(BATCHES_RATIO_NAME, theirs, (OURS, users, batches))
        memory = ((OURS, users, MEMORY), (SETEX, users, MEMORY))
        of_memory = ratio(MEMORY_RATIO_NAME, *memory)
        for figure, most, least in (
            (of_singles, None, SINGLES_RATIO),
            (of_batches, None, BATCHES_RATIO),
            (of_memory, MEMORY_RATIO, None),
        ):
            if users == RATIOS_USERS:
                yield replace(figure, most=most, least=least)
            elif math.isfinite(figure.value):
                yield figure
    for few, many, most in GROWTHS:
        if {few, many} <= promised:
            name = f"{CPU} / that with {few:,}, {BATCHES}"
            growth = ratio(name, (OURS, many, batches), (OURS, few, batches))
            yield replace(growth, most=most)
