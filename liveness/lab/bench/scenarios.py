"""Scenarios that measure the sidecar alone, each on a fresh process."""

# array.array cannot be subscripted when it runs, before Python 3.12.
from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import ne
from typing import Final

from liveness.console.admin_client import AdminConnection
from liveness.console.progress import Stage, time_share
from liveness.lab.bench import BenchOptions, floors
from liveness.lab.bench.floors import NONE, promised
from liveness.lab.bench.program import Window
from liveness.lab.bench.replacement import replacement
from liveness.lab.bench.sidecar_process import (
    SidecarProcess,
    fresh_sidecar,
    linked_sidecar,
)
from liveness.lab.bench.stragglers import Stragglers
from liveness.lab.bench.systems import LOGINS_AT_ONCE, LONG_S
from liveness.lab.bench.verdict import Judge, mistakes, quantile
from liveness.lab.bench.virtual_day import DAY_S, borders
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadGateway, LoadUsers, Moment, Notices, cut, now

IDLE_SETTLE_S: Final = 1.0  # until the work after a start is over
IDLE_S: Final = 5.0
# After a restart the sidecar ends no session until the gateways had time to reconnect. So
# if a user's timeout was not renewed, its offline may come this long after its deadline.
RENEWED_S: Final = 2.0
LIST_PIECE_BYTES: Final = 65_536
# The floors of the virtual day are promised for at most this number of users.
BORDERS_USERS: Final = 1_000_000


def idle(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A sidecar with nothing to do, and how soon it is ready."""
    window_s = min(options.seconds, IDLE_S)
    with fresh_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar:
        ready_s = sidecar.start()
        stage("nothing happens", time_share(IDLE_SETTLE_S + window_s))
        time.sleep(IDLE_SETTLE_S)
        with Window(sidecar) as window:
            time.sleep(window_s)
        memory_mb = sidecar.memory_mb()
    return [
        Figure("idle", "ready after exec", ready_s, "s", floors.IDLE_READY_S),
        Figure("idle", "memory", memory_mb, "MB", floors.IDLE_MB),
        Figure(
            "idle", "server CPU", window.server_percent, "%", floors.IDLE_CPU_PERCENT
        ),
    ]


def logins(options: BenchOptions, stage: Stage) -> list[Figure]:
    """All users log in at once."""
    users, floor = LoadUsers(options.users), promised(options)
    frames = users.logins(range(len(users)))
    with linked_sidecar(options.folder, timeout_s=LONG_S) as (sidecar, gateway):
        stage("everyone logs in", None)
        with Window(sidecar) as window:
            gateway.send(frames)
            gateway.ping()
        memory_mb = sidecar.memory_mb()
    login_ns = window.server_ns(len(users))
    return [
        Figure("logins", "all on disk", window.took_s, "s", floor.logins_s),
        Figure("logins", "logins a second", len(users) / window.took_s, ""),
        Figure("logins", "server CPU a login", login_ns, "ns", floor.login_ns),
        Figure("logins", "server memory with all online", memory_mb, "MB"),
        Figure("logins", "load CPU", window.load_percent, "%"),
    ]


def silence(options: BenchOptions, stage: Stage) -> list[Figure]:
    """All users fall silent at once, and another gateway's users one by one."""
    users, timeout_s = LoadUsers(options.users), options.timeout_s
    floor = promised(options)
    most_s = floor.silence_s
    keepalives, last = users.keepalives(), dict[str, Moment]()
    judge = Judge(last, timeout_s=timeout_s)
    with _all_online(options, users, stage, judge.take) as (sidecar, gateway):
        sent = _send_keepalives(gateway, keepalives)
        for part, moment in sent:
            last.update(dict.fromkeys(map(users.uid, part), moment))
        first_due = sent[0][1].mono + timeout_s
        until = sent[-1][1].mono + timeout_s + floor.patience_s
        first_s = max(1.0, first_due - time.perf_counter())
        with Stragglers(
            sidecar.socket, first_s=first_s, seconds=floor.patience_s
        ) as stragglers:
            stage("everyone is silent", time_share(first_due - time.perf_counter()))
            time.sleep(max(0.0, first_due - time.perf_counter()) / 2)
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


def day(options: BenchOptions, stage: Stage) -> list[Figure]:
    """All users log in for a day, while another gateway's users fall silent."""
    users = LoadUsers(options.users)
    frames = users.logins(range(len(users)), timeout=DAY_S)
    patience_s = promised(options).patience_s
    timeout_s = options.timeout_s
    with (
        linked_sidecar(options.folder, timeout_s=timeout_s) as (sidecar, gateway),
        Stragglers(sidecar.socket, first_s=3.0, seconds=patience_s) as stragglers,
    ):
        stragglers.wait_for_first()
        stage("everyone logs in for a day", None)
        began = time.perf_counter()
        gateway.send(frames)
        gateway.ping()
        took_s = time.perf_counter() - began
        others = stragglers.figures(
            "day", began, decided_ms=floors.DECIDED_MS, delivered_ms=None
        )
        stage("everyone is listed over HTTP", None)
        began = time.perf_counter()
        listed = _listed_over_http(sidecar)
        list_s = time.perf_counter() - began
        others += stragglers.figures(
            "day",
            began,
            decided_ms=floors.LISTED_MS,
            delivered_ms=floors.LISTED_MS,
            meanwhile=" while all are listed",
        )
    missing = max(0, len(users) - listed)
    return [
        *others,
        Figure("day", "all on disk", took_s, "s"),
        Figure("day", "all listed over HTTP", list_s, "s"),
        Figure("day", "missing in that list", missing, "", NONE),
        *borders(min(options.users, BORDERS_USERS), stage),
    ]


def restart(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A planned stop and start, then a crash, with all users online and sending.

    Then it watches for false offlines until all timeouts have passed that the restarts
    should have renewed. Finally both restarts again, under load, with the socket kept open.
    """
    users, watch_s = LoadUsers(options.users), options.timeout_s + RENEWED_S
    ready_s, keepalives = promised(options).ready_s, users.keepalives()
    with fresh_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket, timeout=LONG_S) as first:
            stage("everyone logs in", None)
            for part in cut(range(len(users)), LOGINS_AT_ONCE):
                first.send(users.logins(part))
            before = _sessions(first, users)
        stage("a planned stop, and a start", None)
        stopped_s = sidecar.stop()
        planned_s = sidecar.start()
        with LoadGateway(sidecar.socket) as second:
            _send_keepalives(second, keepalives)
            lost = _lost(before, second, users)
        stage("a crash, and a start", None)
        sidecar.kill()
        crash_s = sidecar.start()
        with LoadGateway(sidecar.socket) as third:
            _send_keepalives(third, keepalives)
            stage("everyone sends, nobody may go offline", time_share(watch_s))
            until = time.perf_counter() + watch_s
            while (left_s := until - time.perf_counter()) > 0:
                time.sleep(min(left_s, options.timeout_s / 3))
                _send_keepalives(third, keepalives)
            lost += _lost(before, third, users)
        sidecar.check()
    false = sum(gateway.count for gateway in (first, second, third))
    return [
        Figure("restart", "stopped after SIGTERM", stopped_s, "s", floors.STOP_S),
        Figure("restart", "ready after a planned stop", planned_s, "s", ready_s),
        Figure("restart", "ready after kill -9", crash_s, "s", ready_s),
        Figure("restart", "false offlines", false, "", NONE),
        Figure("restart", "missing", lost, "", NONE),
        *replacement(options, stage),
    ]


@contextmanager
def _all_online(
    options: BenchOptions,
    users: LoadUsers,
    stage: Stage,
    use: Callable[[Notices], None],
) -> Iterator[tuple[SidecarProcess, LoadGateway]]:
    """A sidecar with all users online; their next event begins the short timeout.

    What the gateway receives then goes to *use*.
    """
    with fresh_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket, timeout=LONG_S) as first:
            stage("everyone logs in", None)
            for part in cut(range(len(users)), LOGINS_AT_ONCE):
                first.send(users.logins(part))
            first.ping()
        with LoadGateway(sidecar.socket, use=use) as gateway:
            yield sidecar, gateway
        sidecar.check()


def _send_keepalives(
    gateway: LoadGateway, keepalives: Sequence[tuple[range, bytes]]
) -> list[tuple[range, Moment]]:
    """Send a keepalive for each user; returns users with the moment before theirs."""
    sent = list[tuple[range, Moment]]()
    for part, frame in keepalives:
        sent.append((part, now()))
        gateway.send(frame)
    gateway.ping()
    return sent


def _listed_over_http(sidecar: SidecarProcess) -> int:
    """How many users `/v1/users` lists; 0 if the list has no end."""
    with closing(AdminConnection(sidecar.socket, LONG_S)) as connection:
        connection.request("GET", "/v1/users")
        response = connection.getresponse()
        # In large pieces: work for each line would delay the threads that read links.
        lines, last = 0, b""
        while piece := response.read(LIST_PIECE_BYTES):
            lines += piece.count(b"\n")
            last = (last + piece)[-LIST_PIECE_BYTES:]
    last = last.splitlines()[-1]
    return lines - 1 if b'"seq"' in last and b'"uid"' not in last else 0


def _sessions(gateway: LoadGateway, users: LoadUsers) -> array[int]:
    """The session of each user, by its number; 0 if it is not online."""
    sessions = array("q", bytes(8 * len(users)))
    for uid, session in gateway.sessions():
        sessions[users.number(uid)] = session
    return sessions


def _lost(before: array[int], gateway: LoadGateway, users: LoadUsers) -> int:
    """How many users are not online any more in the session that they had."""
    return sum(map(ne, before, _sessions(gateway, users)))
