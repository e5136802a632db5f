"""What an event and a user cost, of every system and by the number of users.

Each system gets the same: everyone is made known, then users in random order give a
sign of life, each at most once a round, and rounds are more than a second apart: a user
who speaks again sooner costs less than in life. CPU and memory are those of the process
table. Of the rounds the best counts: whatever else goes on on this machine only adds.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Final

from liveness.bench import Options
from liveness.bench.drain import Drain
from liveness.bench.figures import OURS, Figure
from liveness.bench.others import SETEX, opened, plan
from liveness.bench.process import folder_of_its_own
from liveness.bench.program import Window
from liveness.bench.progress import Stage
from liveness.bench.server import ended
from liveness.bench.systems import Stream, System

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


def cost(options: Options, stage: Stage) -> list[Figure]:
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
    return [*figures, *_ratios(figures)]


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


def _ratios(figures: Sequence[Figure]) -> Iterator[Figure]:
    """What is promised: how others compare in the same run, and growth."""
    found = {(one.system, one.users, one.name): one.value for one in figures}
    singles, batches = f"{CPU}, {SINGLES}", f"{CPU}, {BATCHES}"
    for users in dict.fromkeys(one.users for one in figures):
        made = partial(Figure, "cost", unit="x", system=OURS, users=users)
        is_promised = users == RATIOS_USERS
        setex_ns = found.get((SETEX, users, singles))
        for name, least in ((singles, SINGLES_RATIO), (batches, BATCHES_RATIO)):
            if setex_ns and (ours_ns := found.get((OURS, users, name))):
                told = f"SETEX's {CPU} / ours, {name.removeprefix(f'{CPU}, ')}"
                value = setex_ns / ours_ns
                yield made(told, value, least=least if is_promised else None)
        theirs = found.get((SETEX, users, MEMORY))
        if theirs and (our_memory := found.get((OURS, users, MEMORY))):
            most = MEMORY_RATIO if is_promised else None
            yield made(f"{MEMORY} / redis-server's", our_memory / theirs, most=most)
    few, many = (found.get((OURS, users, batches)) for users in GROWTH_USERS)
    if few and many:
        told = f"{CPU} / that with {GROWTH_USERS[0]:,}, {BATCHES}"
        users = GROWTH_USERS[1]
        yield Figure("cost", told, many / few, "x", GROWTH, system=OURS, users=users)
