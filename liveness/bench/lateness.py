"""When each system tells who fell silent, by how many others are online and are not.

Some users give their last sign of life evenly over one timeout, and fall silent; all
others have a long one. What counts is the moment at which a client was told, on its own
clock: from before the last sign was written, and the timeout.
"""

import time
from functools import partial
from typing import Final

from liveness.bench import BenchOptions
from liveness.bench.figures import OURS, Figure
from liveness.bench.floors import DECIDED_MS, NONE
from liveness.bench.load import Moment, now, uid
from liveness.bench.others import REFERENCE, opened, plan
from liveness.bench.systems import System
from liveness.bench.verdict import Verdict, judge, p99_ms, quantile
from liveness.console.progress import Stage

SILENT: Final = 10_000
# At least so many others are online for each who falls silent.
OTHERS_EACH: Final = 9
# Whoever is not told within this after its deadline counts as not told: but in a run that
# is shorter than the full one, for no more than two of its windows.
PATIENCE_S: Final = 60.0
WINDOWS: Final = 2
TOLD: Final = "told within {:g} s"


def lateness(options: BenchOptions, stage: Stage) -> list[Figure]:
    """When others tell who fell silent, and of how many."""
    figures: list[Figure] = []
    timeout_s = max(2, round(options.timeout_s))  # etcd's least; Redis counts so
    patience_s = min(PATIENCE_S, WINDOWS * options.seconds)
    for users, name in plan(options).runs:
        if name == REFERENCE:  # no slower in this than ours
            continue
        silent = min(SILENT, users // (1 + OTHERS_EACH))
        with opened(name, options.folder, users) as system:
            stage(f"{name}, {users:,} users", None)
            system.make_known(range(silent, users))
            stage(f"{name}, {users:,} users, {silent:,} of them fall silent", None)
            verdict = _silenced(system, silent, timeout_s, patience_s)
        figures += _figures(name, users, silent, verdict, patience_s)
    return figures


def _silenced(system: System, count: int, timeout_s: int, patience_s: float) -> Verdict:
    last: dict[str, Moment] = {}
    began = time.perf_counter()
    for number in range(count):
        ahead_s = began + number * timeout_s / count - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
        last[uid(number)] = now()
        system.silence(number, timeout_s)
    until = time.perf_counter() + timeout_s + patience_s
    return judge(system.told(count, until=until), last, timeout_s=timeout_s)


def _figures(
    name: str, users: int, silent: int, verdict: Verdict, patience_s: float
) -> list[Figure]:
    made = partial(Figure, "lateness", system=name, users=users)
    told_s = [late_s for late_s in verdict.delivered_s if late_s <= patience_s]
    figures = [
        made("fell silent", silent, ""),
        made(TOLD.format(patience_s), len(told_s), ""),
        made("told too early", verdict.early, "", NONE if name == OURS else None),
    ]
    if told_s:
        figures += [
            made("told p50", 1000 * quantile(told_s, 0.5), "ms"),
            made("told p99", p99_ms(told_s), "ms"),
            made("told last", 1000 * quantile(told_s, 1.0), "ms"),
        ]
    if name == OURS:
        decided = p99_ms(verdict.decided_s)
        figures.append(made("decided p99", decided, "ms", DECIDED_MS))
    return figures
