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
from liveness.lab.common.judge import Judge, quantile
from liveness.lab.common.load import LoadGateway, LoadUsers, Moment, cut, now

IDLE_SETTLE_S: Final = 1.0  # until the work after a start is over
IDLE_S: Final = 5.0


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
        Stragglers(
            sidecar.socket, first_s=FIRST_S, seconds=floor.patience_s
        ) as stragglers,
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
