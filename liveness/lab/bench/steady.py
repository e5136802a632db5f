"""The scenario `steady`: keepalives at an even pace while some users fall silent."""

import time
from typing import Final

from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.floors import DECIDED_MS, promised
from liveness.lab.bench.sidecars import Window, linked_sidecar
from liveness.lab.common.figures import Figure, mistakes
from liveness.lab.common.judge import judge, p99_ms, quantile
from liveness.lab.common.load import LoadGateway, LoadUsers, Pace

SETTLE_S: Final = 1.0  # after the logins
# Users that fall silent each second. They have the short timeout.
FALLS_PER_S: Final = 50


def impossible_rate(options: BenchOptions) -> str:
    """Why the rate is too low for these users, and what to do; "" if it is not."""
    falling = _falling(options)
    least = round(falling / (options.timeout_s / 2)) + 1
    if options.rate < least:
        return (
            f"{options.rate} frames a second are too few for {falling} users who send "
            f"every {options.timeout_s / 2:g} s; use --rate {least} or more"
        )
    return ""


def steady(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Single keepalives: at first of all users, then some of the users fall silent.

    Users that fall silent have the short timeout, and send every half of it until then.
    All others take turns, which would be too slow for it, so they have a longer one. CPU
    is measured in two windows. Between them the first users are silent, but not yet due.
    """
    users, falling, order = LoadUsers(options.users), _falling(options), _order(options)
    singles = [users.single(number) for number in range(len(users))]
    frames = [singles[number] for number in order]
    silent = round(options.rate * options.seconds)
    due = silent + round(options.rate * options.timeout_s)
    floor = promised(options)
    # Long enough for all logins, and for a turn of all users.
    long_s = options.timeout_s + 3 * options.users / options.rate
    with linked_sidecar(options.folder, timeout_s=long_s) as (sidecar, gateway):
        stage("everyone logs in", None)
        _log_in(gateway, users, falling, options.timeout_s)
        pace = Pace(gateway, rate=options.rate)
        stage("users send, some fall silent", lambda: pace.count / len(order))
        with Window(sidecar) as sending:
            pace.run(frames[:silent])
        pace.run(frames[silent:due])
        with Window(sidecar) as window:
            pace.run(frames[due:])
        gateway.wait_for(falling, until=time.perf_counter() + floor.patience_s)
        gateway.ping()
    # Of several activities of a user the last one remains.
    last = {
        users.uid(number): moment
        for number, moment in zip(order, pace.moments(), strict=True)
        if number < falling
    }
    verdict = judge(gateway.notices, last, timeout_s=options.timeout_s)
    sending_cpu, cpu = sending.server_percent, window.server_percent
    falling_name = f"server CPU with {FALLS_PER_S} offlines a second"
    sending_name = "server CPU while all speak, nobody due"
    count = len(order) - due
    rows: list[tuple[str, float, str, float | None]] = [
        ("decided p99", p99_ms(verdict.decided_s), "ms", DECIDED_MS),
        ("delivered p99", p99_ms(verdict.delivered_s), "ms", floor.delivered_ms),
        ("delivered last", 1000 * quantile(verdict.delivered_s, 1.0), "ms", None),
        (sending_name, sending_cpu, "%", floor.speaking_cpu_percent),
        (falling_name, cpu, "%", floor.steady_cpu_percent),
        ("server CPU a frame", window.server_ns(count), "ns", None),
        ("frames a second", count / window.took_s, "", None),
        ("load CPU", window.load_percent, "%", None),
        ("load behind its pace p99", p99_ms(pace.lags_s), "ms", None),
    ]
    figures = [Figure("steady", *row) for row in rows]
    return [*figures, *mistakes("steady", verdict)]


def _log_in(
    gateway: LoadGateway, users: LoadUsers, falling: int, timeout_s: float
) -> None:
    """Log in all users; the first *falling* of them with the short timeout, and last."""
    gateway.send(users.logins(range(falling, len(users))))
    gateway.ping()  # so that the short timeouts do not pass while these go to disk
    gateway.send(users.logins(range(falling), timeout=timeout_s))
    gateway.ping()
    # Less than half a timeout, after which their first activity comes.
    time.sleep(min(SETTLE_S, timeout_s / 4))


def _falling(options: BenchOptions) -> int:
    """How many users fall silent."""
    return min(round(FALLS_PER_S * options.seconds), options.users // 2)


def _order(options: BenchOptions) -> list[int]:
    """The user that sends each frame.

    At first all users send, for as long as users fall silent afterwards. Then user `n` of
    those that fall silent stops after n / FALLS_PER_S seconds. All others take turns in
    the remaining frames, until the last silent user is due.
    """
    falling, half_s = _falling(options), options.timeout_s / 2
    activities: list[tuple[int, int]] = []
    for number in range(falling):
        at_s = options.seconds + number / FALLS_PER_S
        while at_s >= 0:
            activities.append((round(at_s * options.rate), number))
            at_s -= half_s
    activities.sort(reverse=True)
    order, other = list[int](), falling
    total_s = 2 * options.seconds + options.timeout_s
    for position in range(round(total_s * options.rate)):
        if activities and activities[-1][0] <= position:
            order.append(activities.pop()[1])
        else:
            order.append(other)
            other = other + 1 if other + 1 < options.users else falling
    return order
