"""What an event and a user cost, of every system and by the number of users.

Each system gets the same: everyone is made known, then users in random order give a
sign of life, each at most once a round, and rounds are more than a second apart: a user
who speaks again sooner costs less than in life. CPU and memory are those of the process
table. Of the rounds the best counts: whatever else goes on on this machine only adds.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Final

from liveness.bench import BenchOptions, full
from liveness.bench.drain import Drain
from liveness.bench.figures import OURS, Figure
from liveness.bench.others import SETEX, opened, plan
from liveness.bench.process import folder_of_its_own
from liveness.bench.program import Window
from liveness.bench.sidecar_process import ended
from liveness.bench.systems import Stream, System
from liveness.console.progress import Stage

SINGLES_RATIO: Final = 4.0
BATCHES_RATIO: Final = 8.0
GROWTH: Final = 2.5
MEMORY_RATIO: Final = 1.0
# With how many users these are promised; the growth is from a number to another.
RATIOS_USERS: Final = 1_000_000
GROWTH_USERS: Final = (100_000, 4_000_000)

EVENTS: Final = 500_000  # of a round, where there are as many users
APART_S: Final = 1.1  # a slot and a little
SETTLE_S: Final = 2.0  # for what a start, and making known, leaves behind

CPU: Final = "server CPU an event"
MEMORY: Final = "memory a user"
SINGLES: Final = "one-uid frames"
BATCHES: Final = "batches"

Made = Callable[..., Figure]
Point = tuple[str, int, str]  # system, users, name


def cost(options: BenchOptions, stage: Stage) -> list[Figure]:
    """What an event and a user cost, beside other systems."""
    figures: list[Figure] = []
    with folder_of_its_own(options.folder) as folder:
        drain = Drain(folder)
        with ended(drain):
            drain.start()
            for users, name in plan(options).runs:
                made = partial(Figure, "cost", system=name, users=users)
                stage(f"{name}, {users:,} users", None)
                with opened(name, options.folder, users) as system:
                    figures += _measured(system, users, options.rounds, drain, made)
    return [*figures, *ratios(figures, options)]


def _measured(
    system: System, users: int, rounds: int, drain: Drain, made: Made
) -> Iterator[Figure]:
    time.sleep(SETTLE_S)
    empty_mb = system.program.memory_mb()
    began = time.perf_counter()
    system.make_known(range(users))
    yield made("made known in", time.perf_counter() - began, "s")
    orders = _orders(users, 2 * rounds)
    for how, encode in ((SINGLES, system.singles), (BATCHES, system.batches)):
        streams = [s for _ in range(rounds) if (s := encode(next(orders)))]
        if streams:
            yield from _costs(how, system, streams, min(users, EVENTS), drain, made)
    time.sleep(SETTLE_S)
    memory_mb = system.program.memory_mb()
    yield made(MEMORY, (memory_mb - empty_mb) * 1e6 / users, "B")
    yield made("memory", memory_mb, "MB")


def _orders(users: int, count: int) -> Iterator[Sequence[int]]:
    """Who speaks in each of *count* rounds: all in turn, shuffled once."""
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
    made: Made,
) -> Iterator[Figure]:
    """The best of some rounds, and how much faster the load could have been."""
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
    yield made(f"{CPU}, {how}", min(server_s) / events * 1e9, "ns")
    yield made(f"events a second, {how}", events / min(took_s), "")
    yield made(f"load's headroom, {how}", min(took_s) / min(load_s), "x")


def ratios(figures: Sequence[Figure], options: BenchOptions) -> Iterator[Figure]:
    """How others compare in the same run, and growth.

    What is promised is there also where it was not measured, unless the other system
    was left out on purpose.
    """
    found = {(one.system, one.users, one.name): one.value for one in figures}
    promised = {*full(options.users).sizes, *options.sizes}

    def ratio(name: str, over: Point, under: Point) -> Figure:
        value = found.get(over, math.nan) / (found.get(under) or math.nan)
        return Figure("cost", name, value, "x", users=over[1])

    singles, batches = f"{CPU}, {SINGLES}", f"{CPU}, {BATCHES}"
    measured = {one.users for one in figures if one.users}
    beside = measured | ({RATIOS_USERS} & promised)
    for users in sorted(beside) if SETEX not in options.without else ():
        theirs, told = (SETEX, users, singles), f"SETEX's {CPU} / ours"
        memory = ((OURS, users, MEMORY), (SETEX, users, MEMORY))
        for one, most, least in (
            (
                ratio(f"{told}, {SINGLES}", theirs, (OURS, users, singles)),
                None,
                SINGLES_RATIO,
            ),
            (
                ratio(f"{told}, {BATCHES}", theirs, (OURS, users, batches)),
                None,
                BATCHES_RATIO,
            ),
            (ratio(f"{MEMORY} / redis-server's", *memory), MEMORY_RATIO, None),
        ):
            if users == RATIOS_USERS:
                yield replace(one, most=most, least=least)
            elif math.isfinite(one.value):
                yield one
    if {*GROWTH_USERS} <= promised:
        few, many = ((OURS, users, batches) for users in GROWTH_USERS)
        told = f"{CPU} / that with {GROWTH_USERS[0]:,}, {BATCHES}"
        yield replace(ratio(told, many, few), most=GROWTH)
