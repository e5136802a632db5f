"""The five things that are measured, each on a fresh server."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from liveness.bench.figures import Figure
from liveness.bench.load import Gateway, LoadError, Moment, Pace, Users, now
from liveness.bench.server import Server, server
from liveness.bench.verdict import Verdict, judge, quantile

# What is promised, as the README has it.
READY_S: Final = 1.0
IDLE_MB: Final = 80.0
IDLE_CPU_PERCENT: Final = 1.0
LOGINS_S: Final = 4.0
DECIDED_MS: Final = 50.0
STEADY_CPU_PERCENT: Final = 10.0
SILENCE_S: Final = 8.0
SILENCE_MB: Final = 100.0
STOP_S: Final = 5.0
NONE: Final = 0.0

IDLE_SETTLE_S: Final = 1.0  # for what a start leaves behind
IDLE_S: Final = 5.0
# In `steady` so many users a second fall silent, of those with the short timeout.
FALLS_PER_S: Final = 50
# As long after their deadlines as the promise allows, and again: who is not reported
# by then is missing.
PATIENCE_S: Final = 2 * SILENCE_S
# After a restart nobody is judged before the gateways had time to come back; a clock
# that was not renewed shows this long after its deadline.
RENEWED_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much of everything."""

    users: int
    rate: int
    seconds: float
    timeout_s: float
    folder: Path | None

    def server(self, timeout_s: float | None = None) -> AbstractContextManager[Server]:
        """A server with the short timeout, or another."""
        return server(self.folder, timeout_s=timeout_s or self.timeout_s)

    @property
    def falling(self) -> int:
        """How many users fall silent in `steady`."""
        return min(round(FALLS_PER_S * self.seconds), self.users // 2)


def idle(options: Options) -> list[Figure]:
    """A sidecar with nothing to do, and how soon it is ready."""
    window_s = min(options.seconds, IDLE_S)
    with options.server() as sidecar:
        ready_s = sidecar.start()
        time.sleep(IDLE_SETTLE_S)
        cpu_s = sidecar.cpu_s()
        time.sleep(window_s)
        cpu_percent = 100 * (sidecar.cpu_s() - cpu_s) / window_s
        memory_mb = sidecar.memory_mb()
    return [
        Figure("idle", "ready after exec", ready_s, "s", READY_S),
        Figure("idle", "memory", memory_mb, "MB", IDLE_MB),
        Figure("idle", "server CPU", cpu_percent, "%", IDLE_CPU_PERCENT),
    ]


def logins(options: Options) -> list[Figure]:
    """Everyone logs in at once."""
    users = Users(options.users)
    frames = users.logins(range(len(users)))
    with options.server() as sidecar:
        sidecar.start()
        with Gateway(sidecar.socket) as gateway:
            load, cpu_s, began = _Load(), sidecar.cpu_s(), time.perf_counter()
            gateway.send(frames)
            gateway.ping()
            took_s = time.perf_counter() - began
            load_percent, cpu_s = load.cpu_percent(), sidecar.cpu_s() - cpu_s
            memory_mb = sidecar.memory_mb()
    return [
        Figure("logins", "all on disk", took_s, "s", LOGINS_S),
        Figure("logins", "logins a second", len(users) / took_s, ""),
        Figure("logins", "server CPU a login", cpu_s / len(users) * 1e9, "ns"),
        Figure("logins", "server memory with all online", memory_mb, "MB"),
        Figure("logins", "load CPU", load_percent, "%"),
    ]


def steady(options: Options) -> list[Figure]:
    """Single keepalives all along, while some users fall silent at a steady rate.

    Users whose turn comes too seldom for the short timeout have a longer one; those
    that are to fall silent have the short one, and speak every half of it until then.
    """
    users, falling = Users(options.users), options.falling
    singles = users.single_keepalives()
    order = _order(options)
    long_s = options.timeout_s + 1.5 * options.users / options.rate
    with options.server(long_s) as sidecar:
        sidecar.start()
        with Gateway(sidecar.socket) as gateway:
            gateway.send(users.logins(range(falling, len(users))))
            gateway.send(users.logins(range(falling), timeout=options.timeout_s))
            gateway.ping()
            pace = Pace(gateway, rate=options.rate)
            # Until the first of them is due it is only half of the load.
            before = round(options.rate * options.timeout_s)
            pace.run([singles[number] for number in order[:before]])
            load, cpu_s, began = _Load(), sidecar.cpu_s(), time.perf_counter()
            pace.run([singles[number] for number in order[before:]])
            window_s = time.perf_counter() - began
            load_percent, cpu_s = load.cpu_percent(), sidecar.cpu_s() - cpu_s
            gateway.wait_for(falling, until=time.perf_counter() + PATIENCE_S)
            gateway.ping()
        sidecar.check()
    # A later sign of the same user overwrites an earlier one.
    last = {
        users.uids[number]: Moment(mono, wall_ms)
        for number, mono, wall_ms in zip(order, pace.mono, pace.wall_ms, strict=True)
        if number < falling
    }
    verdict = judge(gateway.notices, last, timeout_s=options.timeout_s)
    frames = len(order) - before
    return [
        *_promptness("steady", verdict),
        *_mistakes("steady", verdict),
        Figure("steady", "server CPU", 100 * cpu_s / window_s, "%", STEADY_CPU_PERCENT),
        Figure("steady", "server CPU a frame", cpu_s / frames * 1e9, "ns"),
        Figure("steady", "frames a second", frames / window_s, ""),
        Figure("steady", "load CPU", load_percent, "%"),
        Figure("steady", "load behind its pace p99", _p99_ms(pace.lags_s), "ms"),
    ]


def silence(options: Options) -> list[Figure]:
    """Everyone falls silent at once."""
    users, timeout_s = Users(options.users), options.timeout_s
    last: dict[str, Moment] = {}
    with options.server() as sidecar:
        sidecar.start()
        with Gateway(sidecar.socket) as gateway:
            gateway.send(users.logins(range(len(users))))
            gateway.ping()
            for part, frame in users.keepalives():
                last |= dict.fromkeys(users.uids[part.start : part.stop], now())
                gateway.send(frame)
            gateway.ping()
            first_due = last[users.uids[0]].mono + timeout_s
            last_due = last[users.uids[-1]].mono + timeout_s
            time.sleep(max(0.0, first_due - time.perf_counter()) / 2)
            sidecar.forget_peak()
            load, memory_mb, cpu_s = _Load(), sidecar.memory_mb(), sidecar.cpu_s()
            gateway.wait_for(len(users), until=last_due + PATIENCE_S)
            gateway.ping()
            acked_s = time.perf_counter() - first_due
            load_s, cpu_s = load.cpu_s(), sidecar.cpu_s() - cpu_s
            growth_mb = sidecar.peak_memory_mb() - memory_mb
        sidecar.check()
    verdict = judge(gateway.notices, last, timeout_s=timeout_s)
    return [
        Figure("silence", "all decided", _worst(verdict.decided_s), "s", SILENCE_S),
        Figure("silence", "all delivered", _worst(verdict.delivered_s), "s", SILENCE_S),
        Figure("silence", "all acknowledged", acked_s, "s", SILENCE_S),
        *_mistakes("silence", verdict),
        Figure("silence", "memory growth", growth_mb, "MB", SILENCE_MB),
        Figure("silence", "server CPU an offline", cpu_s / len(users) * 1e9, "ns"),
        Figure("silence", "load CPU", 100 * load_s / acked_s, "%"),
    ]


def restart(options: Options) -> list[Figure]:
    """A planned stop and start, then a crash, with everyone online and speaking.

    Afterwards everyone is watched until each clock that should have been renewed
    would have run out.
    """
    users = Users(options.users)
    with options.server() as sidecar:
        sidecar.start()
        with Gateway(sidecar.socket) as gateway:
            gateway.send(users.logins(range(len(users))))
            before = gateway.listed()
        stopped_s = sidecar.stop()
        planned_s = sidecar.start()
        links, lost = [gateway], 0
        for is_last in (False, True):
            with Gateway(sidecar.socket) as gateway:
                links.append(gateway)
                for _, frame in users.keepalives():
                    gateway.send(frame)
                lost += _lost(before, gateway)
                if is_last:
                    _watch(gateway, users, options.timeout_s)
                    lost += _lost(before, gateway)
            if not is_last:
                sidecar.kill()
                crash_s = sidecar.start()
        sidecar.check()
    false = sum(len(records) for link in links for _, records in link.notices)
    return [
        Figure("restart", "stopped after SIGTERM", stopped_s, "s", STOP_S),
        Figure("restart", "ready after a planned stop", planned_s, "s", READY_S),
        Figure("restart", "ready after kill -9", crash_s, "s", READY_S),
        Figure("restart", "false offlines", false, "", NONE),
        Figure("restart", "missing", lost, "", NONE),
    ]


SCENARIOS: Final = {
    scenario.__name__: scenario for scenario in (idle, logins, steady, silence, restart)
}


# --- within -------------------------------------------------------------------


class _Load:
    """CPU that the load generator itself uses from now on."""

    def __init__(self) -> None:
        self._cpu_s, self._began = time.process_time(), time.perf_counter()

    def cpu_s(self) -> float:
        return time.process_time() - self._cpu_s

    def cpu_percent(self) -> float:
        return 100 * self.cpu_s() / (time.perf_counter() - self._began)


def _order(options: Options) -> list[int]:
    """Who speaks in `steady`, frame by frame.

    User `n` of those that fall silent does so after n / FALLS_PER_S seconds; all
    others take turns in what is left, until the last of the silent ones is due.
    """
    half_s = options.timeout_s / 2
    signs: list[tuple[int, int]] = []
    for number in range(options.falling):
        at_s = number / FALLS_PER_S
        while at_s >= 0:
            signs.append((round(at_s * options.rate), number))
            at_s -= half_s
    signs.sort(reverse=True)
    order, stayer = list[int](), options.falling
    for position in range(round((options.seconds + options.timeout_s) * options.rate)):
        if signs and signs[-1][0] <= position:
            planned, number = signs.pop()
            if position - planned > options.rate * half_s / 2:
                raise LoadError(
                    "--rate leaves too few frames for those who fall silent"
                )
            order.append(number)
        else:
            order.append(stayer)
            stayer = stayer + 1 if stayer + 1 < options.users else options.falling
    return order


def _lost(before: dict[str, int], gateway: Gateway) -> int:
    """How many are not listed any more, in the very session they had."""
    return len(before.items() - gateway.listed().items())


def _watch(gateway: Gateway, users: Users, timeout_s: float) -> None:
    """Keep everyone speaking until the clocks of before would have run out."""
    until = time.perf_counter() + timeout_s + RENEWED_S
    while (left_s := until - time.perf_counter()) > 0:
        time.sleep(min(left_s, timeout_s / 3))
        for _, frame in users.keepalives():
            gateway.send(frame)
    gateway.ping()


def _promptness(scenario: str, verdict: Verdict) -> list[Figure]:
    return [
        Figure(scenario, "decided p99", _p99_ms(verdict.decided_s), "ms", DECIDED_MS),
        Figure(scenario, "decided last", 1000 * _worst(verdict.decided_s), "ms"),
        Figure(scenario, "delivered p99", _p99_ms(verdict.delivered_s), "ms"),
        Figure(scenario, "delivered last", 1000 * _worst(verdict.delivered_s), "ms"),
    ]


def _mistakes(scenario: str, verdict: Verdict) -> list[Figure]:
    return [
        Figure(scenario, "early offlines", verdict.early, "", NONE),
        Figure(scenario, "false offlines", verdict.false, "", NONE),
        Figure(scenario, "missing", verdict.missing, "", NONE),
    ]


def _p99_ms(seconds: Iterable[float]) -> float:
    return 1000 * quantile([*seconds], 0.99)


def _worst(seconds: list[float]) -> float:
    return quantile(seconds, 1.0)
