"""What is measured of the sidecar alone, each on a fresh server."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from liveness.bench import BenchOptions
from liveness.bench.borders import DAY_S, borders
from liveness.bench.figures import Figure
from liveness.bench.floors import (
    DECIDED_MS,
    IDLE_CPU_PERCENT,
    IDLE_MB,
    IDLE_READY_S,
    LISTED_MS,
    NONE,
    OTHERS_DECIDED_MS,
    OTHERS_DELIVERED_MS,
    STOP_S,
    promised,
)
from liveness.bench.load import LoadGateway, LoadUsers, Moment, Pace, now
from liveness.bench.program import Window
from liveness.bench.replacement import replacement
from liveness.bench.sidecar_process import Server, server
from liveness.bench.stragglers import Stragglers
from liveness.bench.systems import LONG_S
from liveness.bench.verdict import Verdict, judge, p99_ms, quantile
from liveness.console.admin_client import Admin
from liveness.console.progress import Stage, passing

IDLE_SETTLE_S: Final = 1.0  # for what a start leaves behind
IDLE_S: Final = 5.0
# In `steady` so many users a second fall silent, of those with the short timeout.
FALLS_PER_S: Final = 50
# After a restart nobody is judged before the gateways had time to come back; a clock
# that was not renewed shows this long after its deadline.
RENEWED_S: Final = 2.0
LIST_PIECE_BYTES: Final = 65_536
# Of the day in the core: what is promised is of a million.
BORDERS_USERS: Final = 1_000_000


def why_not(options: BenchOptions) -> str:
    """Why these options do not go together, and what would; nothing if they do."""
    falling = _falling(options)
    least = round(falling / (options.timeout_s / 2)) + 1
    if options.rate < least:
        return (
            f"{options.rate} frames a second are too few for {falling} users who speak "
            f"every {options.timeout_s / 2:g} s; use --rate {least} or more"
        )
    return ""


def idle(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A sidecar with nothing to do, and how soon it is ready."""
    window_s = min(options.seconds, IDLE_S)
    with server(options.folder, timeout_s=options.timeout_s) as sidecar:
        ready_s = sidecar.start()
        stage("nothing happens", passing(IDLE_SETTLE_S + window_s))
        time.sleep(IDLE_SETTLE_S)
        with Window(sidecar) as window:
            time.sleep(window_s)
        memory_mb = sidecar.memory_mb()
    return [
        Figure("idle", "ready after exec", ready_s, "s", IDLE_READY_S),
        Figure("idle", "memory", memory_mb, "MB", IDLE_MB),
        Figure("idle", "server CPU", window.server_percent, "%", IDLE_CPU_PERCENT),
    ]


def logins(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Everyone logs in at once."""
    users, logins_s = LoadUsers(options.users), promised(options).logins_s
    frames = users.logins(range(len(users)))
    with _linked(options, LONG_S) as (sidecar, gateway):
        stage("everyone logs in", None)
        with Window(sidecar) as window:
            gateway.send(frames)
            gateway.ping()
        memory_mb = sidecar.memory_mb()
    return [
        Figure("logins", "all on disk", window.took_s, "s", logins_s),
        Figure("logins", "logins a second", len(users) / window.took_s, ""),
        Figure("logins", "server CPU a login", window.server_ns(len(users)), "ns"),
        Figure("logins", "server memory with all online", memory_mb, "MB"),
        Figure("logins", "load CPU", window.load_percent, "%"),
    ]


def steady(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Single keepalives all along: at first of everyone, then some users fall silent.

    LoadUsers whose turn comes too seldom for the short timeout have a longer one; those
    that are to fall silent have the short one, and speak every half of it until then.
    Between the two windows the first are silent already, and not due yet.
    """
    users, falling, order = LoadUsers(options.users), _falling(options), _order(options)
    singles = [users.single(number) for number in range(len(users))]
    silent = round(options.rate * options.seconds)
    due = silent + round(options.rate * options.timeout_s)
    floor = promised(options)
    # Long enough for the logins, however long they take, and a turn of everyone.
    long_s = options.timeout_s + 3 * options.users / options.rate
    with _linked(options, long_s) as (sidecar, gateway):
        stage("everyone logs in", None)
        gateway.send(users.logins(range(falling, len(users))))
        gateway.ping()  # the short timeout is not spent on waiting for their disk
        gateway.send(users.logins(range(falling), timeout=options.timeout_s))
        gateway.ping()
        # Their first sign comes half a timeout later at most.
        time.sleep(min(IDLE_SETTLE_S, options.timeout_s / 4))
        pace = Pace(gateway, rate=options.rate)
        stage("users speak, some fall silent", lambda: pace.count / len(order))
        with Window(sidecar) as speaking:
            pace.run([singles[number] for number in order[:silent]])
        pace.run([singles[number] for number in order[silent:due]])
        with Window(sidecar) as window:
            pace.run([singles[number] for number in order[due:]])
        until = time.perf_counter() + floor.patience_s
        gateway.wait_for(falling, until=until)
        gateway.ping()
    # A later sign of the same user overwrites an earlier one.
    last = {
        users.uids[number]: moment
        for number, moment in zip(order, pace.moments(), strict=True)
        if number < falling
    }
    verdict = judge(gateway.notices, last, timeout_s=options.timeout_s)
    frames = len(order) - due
    return [
        *_promptness("steady", verdict, floor.delivered_ms),
        *_mistakes("steady", verdict),
        Figure(
            "steady",
            "server CPU while all speak, nobody due",
            speaking.server_percent,
            "%",
            floor.speaking_cpu_percent,
        ),
        Figure(
            "steady",
            f"server CPU with {FALLS_PER_S} offlines a second",
            window.server_percent,
            "%",
            floor.steady_cpu_percent,
        ),
        Figure("steady", "server CPU a frame", window.server_ns(frames), "ns"),
        Figure("steady", "frames a second", frames / window.took_s, ""),
        Figure("steady", "load CPU", window.load_percent, "%"),
        Figure("steady", "load behind its pace p99", p99_ms(pace.lags_s), "ms"),
    ]


def silence(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Everyone falls silent at once, and another gateway's users one by one."""
    users, timeout_s = LoadUsers(options.users), options.timeout_s
    floor = promised(options)
    most_s = floor.silence_s
    with _known(options, users, stage) as (sidecar, gateway):
        last = _speak(gateway, users)
        first_due = last[users.uids[0]].mono + timeout_s
        patience = last[users.uids[-1]].mono + timeout_s + floor.patience_s
        soon_s = max(1.0, first_due - time.perf_counter())
        with Stragglers(
            sidecar.socket, first_s=soon_s, seconds=floor.patience_s
        ) as others:
            stage("everyone is silent", passing(first_due - time.perf_counter()))
            time.sleep(max(0.0, first_due - time.perf_counter()) / 2)
            sidecar.forget_peak()
            memory_mb = sidecar.memory_mb()
            with Window(sidecar) as window:
                gateway.wait_for(1, until=patience)
                stage("everyone goes offline", lambda: gateway.count / len(users))
                gateway.wait_for(len(users), until=patience)
                gateway.ping()
            acked_s = time.perf_counter() - first_due
            growth_mb = sidecar.peak_memory_mb() - memory_mb
            beside = others.figures(
                "silence",
                first_due,
                decided_ms=OTHERS_DECIDED_MS,
                delivered_ms=OTHERS_DELIVERED_MS,
            )
    verdict = judge(gateway.notices, last, timeout_s=timeout_s)
    return [
        Figure("silence", "all decided", _worst(verdict.decided_s), "s", most_s),
        Figure("silence", "all delivered", _worst(verdict.delivered_s), "s", most_s),
        Figure("silence", "all acknowledged", acked_s, "s", most_s),
        *_mistakes("silence", verdict),
        *beside,
        Figure("silence", "memory growth", growth_mb, "MB", floor.silence_mb),
        Figure("silence", "server CPU an offline", window.server_ns(len(users)), "ns"),
        Figure("silence", "load CPU", 100 * window.load_s / acked_s, "%"),
    ]


def day(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Everyone logs in for a day, and another gateway's users fall silent meanwhile."""
    users = LoadUsers(options.users)
    frames = users.logins(range(len(users)), timeout=DAY_S)
    patience_s = promised(options).patience_s
    with (
        _linked(options, options.timeout_s) as (sidecar, gateway),
        Stragglers(sidecar.socket, first_s=3.0, seconds=patience_s) as others,
    ):
        stage("everyone logs in for a day", None)
        began = time.perf_counter()
        gateway.send(frames)
        gateway.ping()
        took_s = time.perf_counter() - began
        beside = others.figures("day", began, decided_ms=DECIDED_MS, delivered_ms=None)
        stage("everyone is listed over HTTP", None)
        began = time.perf_counter()
        listed = _listed_over_http(sidecar)
        list_s = time.perf_counter() - began
        beside += others.figures(
            "day",
            began,
            decided_ms=LISTED_MS,
            delivered_ms=LISTED_MS,
            meanwhile=" while all are listed",
        )
    missing = len(users) - listed
    return [
        *beside,
        Figure("day", "all on disk", took_s, "s"),
        Figure("day", "all listed over HTTP", list_s, "s"),
        Figure("day", "missing in that list", max(0, missing), "", NONE),
        *borders(min(options.users, BORDERS_USERS), stage),
    ]


def restart(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A planned stop and start, then a crash, with everyone online and speaking.

    Afterwards everyone is watched until each clock that should have been renewed
    would have run out. Then both again under load, with the socket kept.
    """
    users, watch_s = LoadUsers(options.users), options.timeout_s + RENEWED_S
    ready_s = promised(options).ready_s
    with server(options.folder, timeout_s=options.timeout_s) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket, timeout=LONG_S) as first:
            stage("everyone logs in", None)
            first.send(users.logins(range(len(users))))
            before = first.listed()
        stage("a planned stop, and a start", None)
        stopped_s = sidecar.stop()
        planned_s = sidecar.start()
        with LoadGateway(sidecar.socket) as second:
            _speak(second, users)
            lost = _lost(before, second)
        stage("a crash, and a start", None)
        sidecar.kill()
        crash_s = sidecar.start()
        with LoadGateway(sidecar.socket) as third:
            _speak(third, users)
            stage("everyone speaks and is watched", passing(watch_s))
            _keep_speaking(third, users, watch_s, every_s=options.timeout_s / 3)
            lost += _lost(before, third)
        sidecar.check()
    false = sum(gateway.count for gateway in (first, second, third))
    return [
        Figure("restart", "stopped after SIGTERM", stopped_s, "s", STOP_S),
        Figure("restart", "ready after a planned stop", planned_s, "s", ready_s),
        Figure("restart", "ready after kill -9", crash_s, "s", ready_s),
        Figure("restart", "false offlines", false, "", NONE),
        Figure("restart", "missing", lost, "", NONE),
        *replacement(options, stage),
    ]


# --- within -------------------------------------------------------------------


@contextmanager
def _linked(
    options: BenchOptions, timeout_s: float
) -> Iterator[tuple[Server, LoadGateway]]:
    """A server that has started and is there to the end, and a link to it."""
    with server(options.folder, timeout_s=timeout_s) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket) as gateway:
            yield sidecar, gateway
        sidecar.check()


@contextmanager
def _known(
    options: BenchOptions, users: LoadUsers, stage: Stage
) -> Iterator[tuple[Server, LoadGateway]]:
    """The same, with everyone online; their next event begins the short timeout."""
    with server(options.folder, timeout_s=options.timeout_s) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket, timeout=LONG_S) as first:
            stage("everyone logs in", None)
            first.send(users.logins(range(len(users))))
            first.ping()
        with LoadGateway(sidecar.socket) as gateway:
            yield sidecar, gateway
        sidecar.check()


def _speak(gateway: LoadGateway, users: LoadUsers) -> dict[str, Moment]:
    """Send a keepalive of everyone; from when on each of them is silent."""
    last: dict[str, Moment] = {}
    for part, frame in users.keepalives():
        last |= dict.fromkeys(users.uids[part.start : part.stop], now())
        gateway.send(frame)
    gateway.ping()
    return last


def _keep_speaking(
    gateway: LoadGateway, users: LoadUsers, seconds: float, *, every_s: float
) -> None:
    until = time.perf_counter() + seconds
    while (left_s := until - time.perf_counter()) > 0:
        time.sleep(min(left_s, every_s))
        _speak(gateway, users)


def _falling(options: BenchOptions) -> int:
    """How many users fall silent in `steady`."""
    return min(round(FALLS_PER_S * options.seconds), options.users // 2)


def _order(options: BenchOptions) -> list[int]:
    """Who speaks in `steady`, frame by frame.

    At first everyone does for as long as users fall silent afterwards. Then user `n` of
    those that do is silent after n / FALLS_PER_S seconds; all others take turns in what
    is left, until the last of the silent ones is due.
    """
    falling, half_s = _falling(options), options.timeout_s / 2
    signs: list[tuple[int, int]] = []
    for number in range(falling):
        at_s = options.seconds + number / FALLS_PER_S
        while at_s >= 0:
            signs.append((round(at_s * options.rate), number))
            at_s -= half_s
    signs.sort(reverse=True)
    order, stayer = list[int](), falling
    total_s = 2 * options.seconds + options.timeout_s
    for position in range(round(total_s * options.rate)):
        if signs and signs[-1][0] <= position:
            order.append(signs.pop()[1])
        else:
            order.append(stayer)
            stayer = stayer + 1 if stayer + 1 < options.users else falling
    return order


def _listed_over_http(sidecar: Server) -> int:
    """How many users `/v1/users` lists; 0 if it does not come to its end."""
    with closing(Admin(sidecar.socket, LONG_S)) as connection:
        connection.request("GET", "/v1/users")
        response = connection.getresponse()
        # In large pieces: to look at each line would keep who is told from reading.
        lines, last = 0, b""
        while piece := response.read(LIST_PIECE_BYTES):
            lines += piece.count(b"\n")
            last = (last + piece)[-LIST_PIECE_BYTES:]
    last = last.splitlines()[-1]
    return lines - 1 if b'"seq"' in last and b'"uid"' not in last else 0


def _lost(before: dict[str, int], gateway: LoadGateway) -> int:
    """How many are not listed any more, in the very session they had."""
    return len(before.items() - gateway.listed().items())


def _promptness(
    scenario: str, verdict: Verdict, delivered_ms: float | None
) -> list[Figure]:
    delivered = p99_ms(verdict.delivered_s)
    return [
        Figure(scenario, "decided p99", p99_ms(verdict.decided_s), "ms", DECIDED_MS),
        Figure(scenario, "decided last", 1000 * _worst(verdict.decided_s), "ms"),
        Figure(scenario, "delivered p99", delivered, "ms", delivered_ms),
        Figure(scenario, "delivered last", 1000 * _worst(verdict.delivered_s), "ms"),
    ]


def _mistakes(scenario: str, verdict: Verdict) -> list[Figure]:
    return [
        Figure(scenario, "early offlines", verdict.early, "", NONE),
        Figure(scenario, "false offlines", verdict.false, "", NONE),
        Figure(scenario, "missing", verdict.missing, "", NONE),
    ]


def _worst(seconds: list[float]) -> float:
    return quantile(seconds, 1.0)
