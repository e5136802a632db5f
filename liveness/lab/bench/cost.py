"""The cost of each system, and how late it reports silent users, by the number of users.

All systems are treated alike. For `cost` all users log in; then, in each round, users in
random order send one activity each. Rounds are more than a second apart, because a user
that sends again sooner costs less than in practice. CPU and memory are from /proc. The best
round counts: other load on this machine can only add to it.

For `lateness` some users send their last activity, spread evenly over one timeout, and fall
silent; all others have a long timeout. Lateness is from the end of the timeout, counted
from before the last activity was written, until the client receives the report.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Final, TypeAlias

from liveness.lab.bench import BenchOptions, Stage, full_options
from liveness.lab.bench.floors import DECIDED_MS, NONE
from liveness.lab.bench.sidecars import Window
from liveness.lab.bench.systems import SETEX, System, opened, plan
from liveness.lab.common.figures import OURS, Figure
from liveness.lab.common.judge import Judge, judge, p99_ms, quantile
from liveness.lab.common.load import BATCH, Moment, now, uid

SINGLES: Final = "server CPU an event, one-uid frames"
BATCHES: Final = "server CPU an event, batches"
MEMORY: Final = "memory a user"
# The least ratio of a figure of Redis to one of ours: its figure, ours, and the floor.
RATIOS: Final = {
    "SETEX's server CPU an event / ours, one-uid frames": (SINGLES, SINGLES, 4.0),
    "SETEX's server CPU an event / ours, batches": (SINGLES, BATCHES, 8.0),
    "SETEX's memory a user / ours": (MEMORY, MEMORY, 1.0),
}
# The number of users for which they are promised.
RATIOS_USERS: Final = 1_000_000
# How much more an event may cost with many users than with few.
GROWTHS: Final = ((100_000, 4_000_000, 2.5), (1_000_000, 10_000_000, 1.5))
# The most bytes per user of ours, by the number of users.
MOST_MEMORY_B: Final = {10_000_000: 110.0}

EVENTS: Final = 500_000  # in a round, or one for each user if there are fewer
APART_S: Final = 1.1  # a slot and a little
SETTLE_S: Final = 2.0  # until the work after a start, or after logins, is over

SILENT: Final = 10_000
# For each user that falls silent, at least this number of others are online.
OTHERS_EACH: Final = 9
# A user reported later than this after its deadline counts as not reported. A run shorter
# than the full one waits for at most `WINDOWS` of its windows.
PATIENCE_S: Final = 60.0
WINDOWS: Final = 2

MakeFigure: TypeAlias = Callable[..., Figure]
Point: TypeAlias = tuple[str, int, str]  # system, users, name of the figure


def cost(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Measure the cost of an event and of a user, compared with other systems."""
    figures: list[Figure] = []
    for users, name in plan(options)[0]:
        figure = partial(Figure, "cost", system=name, users=users)
        stage(f"{name}, {users:,} users")
        with opened(name, options.folder, users) as system:
            figures += _measured(system, users, options, figure)
    return [*figures, *ratios(figures, options)]


def _measured(
    system: System, users: int, options: BenchOptions, figure: MakeFigure
) -> Iterator[Figure]:
    settle_s = options.at_most_s(SETTLE_S)
    time.sleep(settle_s)
    empty_mb = system.program.memory_mb()
    system.log_in(range(users))
    orders, events = _orders(users, 2 * options.rounds), min(users, EVENTS)
    for name, size in ((SINGLES, 1), (BATCHES, BATCH)):
        windows = [*_windows(system, orders, options, size)]
        if windows:
            how = name.partition(", ")[2]
            best = min(windows, key=lambda window: window.server_s)
            took_s = min(window.took_s for window in windows)
            yield figure(name, best.server_ns(events), "ns")
            yield figure(f"events a second, {how}", events / took_s, "")
    time.sleep(settle_s)
    memory_mb = system.program.memory_mb()
    of_a_user = figure(MEMORY, (memory_mb - empty_mb) * 1e6 / users, "B")
    most_b = MOST_MEMORY_B.get(users) if of_a_user.system == OURS else None
    yield replace(of_a_user, most=most_b)


def _orders(users: int, count: int) -> Iterator[Sequence[int]]:
    """The senders of each of *count* rounds: consecutive parts of one random order."""
    size = min(users, EVENTS)
    everyone = random.Random(0).sample(range(users), min(users, count * size))
    starts = range(0, len(everyone) - size + 1, size)
    return cycle([everyone[start : start + size] for start in starts])


def _windows(
    system: System, orders: Iterator[Sequence[int]], options: BenchOptions, size: int
) -> Iterator[Window]:
    """The rounds, in requests for *size* users; none if the system has no such requests."""
    for _ in range(options.rounds):
        if data := system.requests(next(orders), size):
            time.sleep(options.at_most_s(APART_S))
            with Window(system.program) as window:
                system.write(data)
            yield window


def ratios(figures: Sequence[Figure], options: BenchOptions) -> Iterator[Figure]:
    """Redis in proportion to the sidecar in the same run, and the sidecar's growth.

    A promised ratio that was not measured is NaN, unless Redis was left out on purpose.
    """
    values = {(f.system, f.users, f.name): f.value for f in figures}
    promised = {*full_options(options.users).sizes, *options.sizes}

    def ratio(name: str, over: Point, under: Point) -> Figure:
        value = values.get(over, math.nan) / (values.get(under) or math.nan)
        return Figure("cost", name, value, "x", users=over[1])

    measured = {figure.users for figure in figures if figure.users}
    counts = measured | ({RATIOS_USERS} & promised)
    for users in sorted(counts) if SETEX not in options.without else ():
        for name, (theirs, ours, least) in RATIOS.items():
            figure = ratio(name, (SETEX, users, theirs), (OURS, users, ours))
            if users == RATIOS_USERS:
                yield replace(figure, least=least)
            elif math.isfinite(figure.value):
                yield figure
    for few, many, most in GROWTHS:
        if {few, many} <= promised:
            name = f"server CPU an event / that with {few:,}, batches"
            growth = ratio(name, (OURS, many, BATCHES), (OURS, few, BATCHES))
            yield replace(growth, most=most)


# --- lateness ---------------------------------------------------------------------------


def lateness(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Measure when each system reports silent users, and how many of them."""
    figures: list[Figure] = []
    # Redis takes whole seconds.
    timeout_s = round(min(options.timeout_s, options.seconds))
    patience_s = min(PATIENCE_S, WINDOWS * options.seconds)
    for users, name in plan(options)[0]:
        silent = min(SILENT, users // (1 + OTHERS_EACH))
        with opened(name, options.folder, users) as system:
            stage(f"{name}, {users:,} users")
            system.log_in(range(silent, users))
            stage(f"{name}, {users:,} users, {silent:,} of them fall silent")
            last, began = dict[str, Moment](), time.perf_counter()
            for number in range(silent):
                ahead_s = began + number * timeout_s / silent - time.perf_counter()
                time.sleep(max(0.0, ahead_s))
                last[uid(number)] = now()
                system.fall_silent(number, timeout_s)
            until = time.perf_counter() + timeout_s + patience_s
            notices = system.wait_for_offlines(silent, until=until)
        verdict = judge(notices, last, timeout_s=timeout_s)
        figures += _lateness(name, users, silent, verdict, patience_s)
    return figures


def _lateness(
    name: str, users: int, silent: int, verdict: Judge, patience_s: float
) -> list[Figure]:
    figure = partial(Figure, "lateness", system=name, users=users)
    late_s = [late_s for late_s in verdict.delivered_s if late_s <= patience_s]
    figures = [
        figure("fell silent", silent, ""),
        figure(f"reported within {patience_s:g} s", len(late_s), ""),
    ]
    if late_s:
        figures += [
            figure("reported p50", 1000 * quantile(late_s, 0.5), "ms"),
            figure("reported p99", p99_ms(late_s), "ms"),
        ]
    if name == OURS:
        figures += [
            figure("reported too early", verdict.early, "", NONE),
            figure("decided p99", p99_ms(verdict.decided_s), "ms", DECIDED_MS),
        ]
    return figures
