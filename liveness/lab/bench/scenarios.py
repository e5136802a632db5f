"""Scenarios that measure the sidecar alone, each on a fresh process."""

import time
from itertools import cycle, islice
from typing import Final

from liveness.lab.bench import BenchOptions, Stage, floors
from liveness.lab.bench.floors import of_load, of_users
from liveness.lab.bench.sidecars import Window, fresh_sidecar, linked_sidecar
from liveness.lab.bench.stragglers import FIRST_S, PER_S, Stragglers
from liveness.lab.bench.systems import LOGINS_AT_ONCE, LONG_S
from liveness.lab.common.figures import Figure, mistakes
from liveness.lab.common.judge import Judge, p99_ms, quantile
from liveness.lab.common.load import LoadGateway, LoadUsers, Moment, Pace, cut, now

IDLE_SETTLE_S: Final = 1.0  # until the work of a start is over
IDLE_S: Final = 5.0
LOGINS_S: Final = 60.0  # longer than the logins of ten million users take
# Users reported after twice the promised time, or after this one, count as missing.
LONGEST_SILENCE_S: Final = 300.0
STEADY_SETTLE_S: Final = 1.0  # after the logins


def idle(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Measure a sidecar with nothing to do, and how soon it is ready."""
    window_s, settle_s = min(options.seconds, IDLE_S), options.at_most_s(IDLE_SETTLE_S)
    with fresh_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar:
        ready_s = sidecar.start()
        stage("nothing happens")
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
    users = LoadUsers(options.users)
    frames = users.logins(range(len(users)))
    with (
        linked_sidecar(options.folder, timeout_s=LONG_S) as (sidecar, gateway),
        Stragglers(sidecar.socket, first_s=FIRST_S, seconds=LOGINS_S) as stragglers,
    ):
        stragglers.wait_for_first()
        stage("everyone logs in")
        began = time.perf_counter()
        with Window(sidecar) as window:
            gateway.send(frames)
            gateway.ping()
        memory_mb = sidecar.memory_mb()
        others = stragglers.figures("logins", began)
    login_ns, login_most_ns = window.server_ns(len(users)), of_load(options, 3_000.0)
    durable_s = of_users(options, 2.0, 8.0)
    return [
        Figure("logins", "all durable", window.took_s, "s", durable_s),
        Figure("logins", "server CPU a login", login_ns, "ns", login_most_ns),
        Figure("logins", "server memory with all online", memory_mb, "MB"),
        *others,
    ]


def steady(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Single keepalives of all users: at first alone, then while other users fall silent.

    CPU is measured in two windows, the second while another gateway's users come due.
    """
    users, seconds = LoadUsers(options.users), options.seconds
    singles = [users.single(number) for number in range(len(users))]
    # Between the windows the load goes on, until the first of the others is due.
    count, between = round(options.rate * seconds), round(options.rate * FIRST_S)
    frames = [*islice(cycle(singles), 2 * count + between)]
    # Long enough for all logins, and for a turn of all users.
    long_s = options.timeout_s + 3 * options.users / options.rate
    with linked_sidecar(options.folder, timeout_s=long_s) as (sidecar, gateway):
        stage("everyone logs in")
        gateway.send(users.logins(range(len(users))))
        gateway.ping()
        time.sleep(options.at_most_s(STEADY_SETTLE_S))
        first_s = seconds + FIRST_S
        with Stragglers(sidecar.socket, first_s=first_s, seconds=seconds) as stragglers:
            pace = Pace(gateway, rate=options.rate)
            stage("all send, then others fall silent")
            with Window(sidecar) as sending:
                pace.run(frames[:count])
            pace.run(frames[count : count + between])
            began = time.perf_counter()
            with Window(sidecar) as window:
                pace.run(frames[count + between :])
            verdict = stragglers.verdict(began)
        gateway.ping()
    verdict.false += gateway.count
    falling_name = f"server CPU with {PER_S} offlines a second"
    sending_name = "server CPU while all speak, nobody due"
    speaking, falling = of_load(options, 3.0), of_load(options, 10.0)
    delivered_ms = of_load(options, None, 100.0)
    rows: list[tuple[str, float, str, float | None]] = [
        ("decided p99", p99_ms(verdict.decided_s), "ms", floors.DECIDED_MS),
        ("delivered p99", p99_ms(verdict.delivered_s), "ms", delivered_ms),
        (sending_name, sending.server_percent, "%", speaking),
        (falling_name, window.server_percent, "%", falling),
        # Only here the load has a pace to keep, and could be the bottleneck.
        ("load behind its pace p99", p99_ms(pace.lags_s), "ms", None),
    ]
    return [Figure("steady", *row) for row in rows] + mistakes("steady", verdict)


def silence(options: BenchOptions, stage: Stage) -> list[Figure]:
    """All users fall silent at once, and another gateway's users one by one."""
    users, timeout_s = LoadUsers(options.users), options.timeout_s
    most_s = of_users(options, 8.0, 20.0)
    patience_s = 2 * (most_s or LONGEST_SILENCE_S)
    keepalives, last = users.keepalives(), dict[str, Moment]()
    judge = Judge(last, timeout_s=timeout_s)
    with fresh_sidecar(options.folder, timeout_s=timeout_s) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket, timeout=LONG_S) as first:
            stage("everyone logs in")
            for part in cut(range(len(users)), LOGINS_AT_ONCE):
                first.send(users.logins(part))
            first.ping()
        # Back to the default timeout, which begins with a user's next event.
        with LoadGateway(sidecar.socket, use=judge.take) as gateway:
            sent = _send_timed(gateway, keepalives)
            for part, moment in sent:
                last.update(dict.fromkeys(map(users.uid, part), moment))
            first_due = sent[0][1].mono + timeout_s
            until = sent[-1][1].mono + timeout_s + patience_s
            left_s = first_due - time.perf_counter()
            with Stragglers(
                sidecar.socket, first_s=max(1.0, left_s), seconds=patience_s
            ) as stragglers:
                left_s = first_due - time.perf_counter()
                stage("everyone is silent")
                time.sleep(max(0.0, left_s) / 2)
                sidecar.reset_peak()
                memory_mb = sidecar.memory_mb()
                with Window(sidecar) as window:
                    gateway.wait_for(1, until=until)
                    stage("everyone goes offline")
                    gateway.wait_for(len(users), until=until)
                    gateway.ping()
                acked_s = time.perf_counter() - first_due
                growth_mb = sidecar.peak_memory_mb() - memory_mb
                others = stragglers.figures(
                    "silence",
                    first_due,
                    floors.OTHERS_DECIDED_MS,
                    floors.OTHERS_DELIVERED_MS,
                )
    decided_s = quantile(judge.decided_s, 1.0)
    delivered_s = quantile(judge.delivered_s, 1.0)
    offline_ns = window.server_ns(len(users))
    offline_most_ns = of_load(options, 5_000.0)
    growth_most_mb = of_users(options, 100.0, 250.0)
    return [
        Figure("silence", "all decided", decided_s, "s", most_s),
        Figure("silence", "all delivered", delivered_s, "s", most_s),
        Figure("silence", "all acknowledged", acked_s, "s", most_s),
        *mistakes("silence", judge),
        *others,
        Figure("silence", "memory growth", growth_mb, "MB", growth_most_mb),
        Figure("silence", "server CPU an offline", offline_ns, "ns", offline_most_ns),
    ]


def _send_timed(
    gateway: LoadGateway, frames: list[tuple[range, bytes]]
) -> list[tuple[range, Moment]]:
    sent = list[tuple[range, Moment]]()
    for part, frame in frames:
        sent.append((part, now()))
        gateway.send(frame)
    gateway.ping()
    return sent
