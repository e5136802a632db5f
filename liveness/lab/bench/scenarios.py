"""Scenarios that measure the sidecar alone, each on a fresh process."""

import time
from typing import Final

from liveness.console.progress import Stage, time_share
from liveness.lab.bench import BenchOptions, floors
from liveness.lab.bench.floors import promised
from liveness.lab.bench.sidecars import Window, fresh_sidecar, linked_sidecar
from liveness.lab.bench.stragglers import FIRST_S, Stragglers
from liveness.lab.bench.systems import LOGINS_AT_ONCE, LONG_S
from liveness.lab.common.figures import Figure, mistakes
from liveness.lab.common.judge import Judge, judge, p99_ms, quantile
from liveness.lab.common.load import LoadGateway, LoadUsers, Moment, Pace, cut, now

IDLE_SETTLE_S: Final = 1.0  # until the work after a start is over
IDLE_S: Final = 5.0
LOGINS_S: Final = 60.0  # longer than the logins of ten million users take
STEADY_SETTLE_S: Final = 1.0  # after the logins
# Users that fall silent each second in `steady`. They have the short timeout.
FALLS_PER_S: Final = 50


def idle(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A sidecar with nothing to do, and how soon it is ready."""
    window_s, settle_s = min(options.seconds, IDLE_S), options.at_most_s(IDLE_SETTLE_S)
    with fresh_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar:
        ready_s = sidecar.start()
        stage("nothing happens", time_share(settle_s + window_s))
        time.sleep(settle_s)
        with Window(sidecar) as window:
            time.sleep(window_s)
        memory_mb = sidecar.memory_mb()
    cpu_percent = window.server_percent
    return [
        Figure("idle", "ready after exec", ready_s, "s", floors.IDLE_READY_S),
        Figure("idle", "memory", memory_mb, "MB", floors.IDLE_MB),
        Figure("idle", "server CPU", cpu_percent, "%", floors.IDLE_CPU_PERCENT),
    ]


def logins(options: BenchOptions, stage: Stage) -> list[Figure]:
    """All users log in at once, while another gateway's users fall silent one by one."""
    users, floor = LoadUsers(options.users), promised(options)
    frames = users.logins(range(len(users)))
    with (
        linked_sidecar(options.folder, timeout_s=LONG_S) as (sidecar, gateway),
        Stragglers(sidecar.socket, first_s=FIRST_S, seconds=LOGINS_S) as stragglers,
    ):
        stragglers.wait_for_first()
        stage("everyone logs in", None)
        began = time.perf_counter()
        with Window(sidecar) as window:
            gateway.send(frames)
            gateway.ping()
        memory_mb = sidecar.memory_mb()
        others = stragglers.figures(
            "logins", began, decided_ms=floors.DECIDED_MS, delivered_ms=None
        )
    login_ns = window.server_ns(len(users))
    return [
        Figure("logins", "all on disk", window.took_s, "s", floor.logins_s),
        Figure("logins", "logins a second", len(users) / window.took_s, ""),
        Figure("logins", "server CPU a login", login_ns, "ns", floor.login_ns),
        Figure("logins", "server memory with all online", memory_mb, "MB"),
        Figure("logins", "load CPU", window.load_percent, "%"),
        *others,
    ]


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
        gateway.send(users.logins(range(falling, len(users))))
        gateway.ping()  # so that the short timeouts do not pass while these go to disk
        gateway.send(users.logins(range(falling), timeout=options.timeout_s))
        gateway.ping()
        # Less than half a timeout, after which their first activity comes.
        time.sleep(min(STEADY_SETTLE_S, options.timeout_s / 4))
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
        ("decided p99", p99_ms(verdict.decided_s), "ms", floors.DECIDED_MS),
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


def silence(options: BenchOptions, stage: Stage) -> list[Figure]:
    """All users fall silent at once, and another gateway's users one by one."""
    users, timeout_s = LoadUsers(options.users), options.timeout_s
    floor = promised(options)
    most_s = floor.silence_s
    keepalives, last = users.keepalives(), dict[str, Moment]()
    judge = Judge(last, timeout_s=timeout_s)
    with fresh_sidecar(options.folder, timeout_s=timeout_s) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket, timeout=LONG_S) as first:
            stage("everyone logs in", None)
            for part in cut(range(len(users)), LOGINS_AT_ONCE):
                first.send(users.logins(part))
            first.ping()
        # With the default timeout again, which begins with a user's next event.
        with LoadGateway(sidecar.socket, use=judge.take) as gateway:
            sent = list[tuple[range, Moment]]()
            for part, frame in keepalives:
                sent.append((part, now()))
                gateway.send(frame)
            gateway.ping()
            for part, moment in sent:
                last.update(dict.fromkeys(map(users.uid, part), moment))
            first_due = sent[0][1].mono + timeout_s
            until = sent[-1][1].mono + timeout_s + floor.patience_s
            left_s = first_due - time.perf_counter()
            with Stragglers(
                sidecar.socket, first_s=max(1.0, left_s), seconds=floor.patience_s
            ) as stragglers:
                left_s = first_due - time.perf_counter()
                stage("everyone is silent", time_share(left_s))
                time.sleep(max(0.0, left_s) / 2)
                sidecar.reset_peak()
                memory_mb = sidecar.memory_mb()
                with Window(sidecar) as window:
                    gateway.wait_for(1, until=until)
                    stage("everyone goes offline", lambda: gateway.count / len(users))
                    gateway.wait_for(len(users), until=until)
                    gateway.ping()
                acked_s = time.perf_counter() - first_due
                growth_mb = sidecar.peak_memory_mb() - memory_mb
                others = stragglers.figures(
                    "silence",
                    first_due,
                    decided_ms=floors.OTHERS_DECIDED_MS,
                    delivered_ms=floors.OTHERS_DELIVERED_MS,
                )
    verdict = judge.verdict()
    decided_s = quantile(verdict.decided_s, 1.0)
    delivered_s = quantile(verdict.delivered_s, 1.0)
    offline_ns = window.server_ns(len(users))
    return [
        Figure("silence", "all decided", decided_s, "s", most_s),
        Figure("silence", "all delivered", delivered_s, "s", most_s),
        Figure("silence", "all acknowledged", acked_s, "s", most_s),
        *mistakes("silence", verdict),
        *others,
        Figure("silence", "memory growth", growth_mb, "MB", floor.silence_mb),
        Figure("silence", "server CPU an offline", offline_ns, "ns", floor.offline_ns),
        Figure("silence", "load CPU", 100 * window.load_s / acked_s, "%"),
    ]
