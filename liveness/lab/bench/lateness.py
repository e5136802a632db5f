"""When each system reports silent users, by the number of users.

Some users send their last activity, spread evenly over one timeout or the seconds of the
run, and fall silent; all others have a long timeout. Lateness is from the end of the timeout, counted from before
the last activity was written, until the client receives the report.
"""

import time
from functools import partial
from typing import Final

from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.floors import DECIDED_MS, NONE
from liveness.lab.bench.systems import System, opened, plan
from liveness.lab.common.figures import OURS, Figure
from liveness.lab.common.judge import Verdict, judge, p99_ms, quantile
from liveness.lab.common.load import Moment, now, uid

SILENT: Final = 10_000
# For each user that falls silent, at least this number of others are online.
OTHERS_EACH: Final = 9
# A user that is reported later than this after its deadline counts as not reported. A run
# shorter than the full one waits for at most `WINDOWS` of its windows.
PATIENCE_S: Final = 60.0
WINDOWS: Final = 2


def lateness(options: BenchOptions, stage: Stage) -> list[Figure]:
    """When each system reports silent users, and how many of them."""
    figures: list[Figure] = []
    patience_s = min(PATIENCE_S, WINDOWS * options.seconds)
    for users, name in plan(options).runs:
        silent = min(SILENT, users // (1 + OTHERS_EACH))
        with opened(name, options.folder, users) as system:
            stage(f"{name}, {users:,} users", None)
            system.log_in(range(silent, users))
            stage(f"{name}, {users:,} users, {silent:,} of them fall silent", None)
            verdict = _silenced(system, silent, options, patience_s)
        figures += _figures(name, users, silent, verdict, patience_s)
    return figures


def _silenced(
    system: System, count: int, options: BenchOptions, patience_s: float
) -> Verdict:
    timeout_s = round(options.timeout_s)  # Redis takes whole seconds
    last: dict[str, Moment] = {}
    began, spread_s = time.perf_counter(), min(timeout_s, options.seconds)
    for number in range(count):
        ahead_s = began + number * spread_s / count - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
        last[uid(number)] = now()
        system.fall_silent(number, timeout_s)
    until = time.perf_counter() + timeout_s + patience_s
    notices = system.wait_for_offlines(count, until=until)
    return judge(notices, last, timeout_s=timeout_s)


def _figures(
    name: str, users: int, silent: int, verdict: Verdict, patience_s: float
) -> list[Figure]:
    figure = partial(Figure, "lateness", system=name, users=users)
    late_s = [late_s for late_s in verdict.delivered_s if late_s <= patience_s]
    figures = [
        figure("fell silent", silent, ""),
        figure(f"told within {patience_s:g} s", len(late_s), ""),
    ]
    if late_s:
        figures += [
            figure("told p50", 1000 * quantile(late_s, 0.5), "ms"),
            figure("told p99", p99_ms(late_s), "ms"),
            figure("told last", 1000 * quantile(late_s, 1.0), "ms"),
        ]
    if name == OURS:
        figures += [
            figure("told too early", verdict.early, "", NONE),
            figure("decided p99", p99_ms(verdict.decided_s), "ms", DECIDED_MS),
        ]
    return figures
