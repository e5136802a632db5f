"""The scenario `cluster`: what presence across hosts costs Redis, and each host.

Redis is measured with hosts that only make calls (`cluster_load`), by its CPU time: so the
figures do not depend on what else this machine does, as far as that is possible. A lost
host is reaped by a real sidecar.
"""

import importlib.util
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from liveness.cluster.format import HostState
from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.cluster_host import host_costs, publishing
from liveness.lab.bench.cluster_load import (
    PARTITIONS,
    ClusterRedis,
    LoadHost,
    cluster_redis,
    expect_ok,
    spread,
)
from liveness.lab.bench.program import Window
from liveness.lab.bench.sidecar_process import fresh_sidecar
from liveness.lab.bench.systems import LONG_S
from liveness.lab.bench.verdict import p99_ms, quantile
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadError
from liveness.lab.common.redis_link import RedisLink

# The floors, for this many users or more.
PROMISED_USERS: Final = 100_000
MEMORY_B: Final = 125.0
CALL_20_NS: Final = 6_000.0  # 60 % of a core at 100,000 transitions a second
REAPED_S: Final = 60.0
OTHERS_MS: Final = 50.0

CALLS: Final = (1, 10, 20, 100, 500)  # transitions in a call
# Each size of call is measured with so many transitions at most.
TRANSITIONS: Final = 100_000
# While a host is reaped, another one makes so many calls a second, of so many transitions.
OTHERS_PER_S: Final = 500
OTHERS_SIZE: Final = 20
BEFORE_S: Final = 2.0
LEASE_S: Final = 6.0
POLL_S: Final = 0.01
AWAITED_S: Final = 300.0  # far longer than anything takes
# Many hosts, each with a transition in each round: 20,000 a second.
HOSTS: Final = 1_000
FEW_HOSTS: Final = 20
ROUND_S: Final = 0.05
ROUNDS: Final = 100
LOOKS: Final = 10
LINKS: Final = 250  # open files: several hosts share one


def missing_for_cluster() -> str:
    """What is not installed, and what to do; "" if nothing is missing."""
    if not shutil.which("redis-server"):
        return "redis-server is not installed: apt install redis-server"
    if importlib.util.find_spec("coredis") is None:
        return (
            "coredis is not installed: pip install 'liveness-sidecar[sidecar,cluster]'"
        )
    return ""


def cluster(options: BenchOptions, stage: Stage) -> list[Figure]:
    """What presence across hosts costs, and how late it is."""
    with cluster_redis(options.folder) as server:
        figures = [*_redis_costs(options, server, stage)]
    figures += _many_hosts(options, stage)
    return figures + host_costs(options, stage, is_promised=_is_promised(options))


def _is_promised(options: BenchOptions) -> bool:
    return options.users >= PROMISED_USERS


def _redis_costs(
    options: BenchOptions, server: ClusterRedis, stage: Stage
) -> Iterator[Figure]:
    is_promised = _is_promised(options)
    with RedisLink(server.socket) as link:
        host, parts = LoadHost("other", link), spread(range(options.users))
        before = server.memory()
        stage("everyone logs in", None)
        host.load(parts)
        logged_in = server.memory()
        for number in range(PARTITIONS):
            link("XTRIM", f"lv:{{{number}}}:s", "MAXLEN", 0)
        users_b = (server.memory() - before) / options.users
        stream_b = (logged_in - before) / options.users - users_b
        most_b = MEMORY_B if is_promised else None
        yield Figure("cluster", "Redis: memory a user", users_b, "B", most_b)
        yield Figure("cluster", "Redis: memory a record of the stream", stream_b, "B")
        # From now on half of the users of each call go online, half offline.
        host.load([part[::2] for part in parts])
        for size in CALLS:
            stage(f"calls of {size}", None)
            some = [part[: TRANSITIONS // PARTITIONS] for part in parts]
            runs = [_calls(server, host, some, size) for _ in range(options.rounds)]
            most = CALL_20_NS if is_promised and size >= 20 else None
            name = f"Redis: CPU a transition, calls of {size}"
            yield Figure("cluster", name, min(ns for ns, _ in runs), "ns", most)
            name = f"Redis: received for a transition, calls of {size}"
            yield Figure("cluster", name, runs[0][1], "B")
        lost = LoadHost("lost", link)
        stage("another host's users log in", None)
        lost.load(spread(range(options.users), kind="lost"))
        yield from _reaping(options, server, _Traffic(host, parts), stage)


def _calls(
    server: ClusterRedis, host: LoadHost, parts: Sequence[Sequence[bytes]], size: int
) -> tuple[float, float]:
    """Nanoseconds of Redis' CPU, and bytes that it receives, for each transition."""
    rounds, count = host.rounds(parts, size), sum(map(len, parts))
    with Window(server) as window:
        for calls in rounds:
            host.make(calls)
    received = sum(len(call) for calls in rounds for call in calls)
    return window.server_ns(count), received / count


# --- a lost host ------------------------------------------------------------------------


class _Traffic(threading.Thread):
    """A host that makes calls at an even pace, one after the other, and times them."""

    def __init__(self, host: LoadHost, parts: Sequence[Sequence[bytes]]) -> None:
        super().__init__(daemon=True)
        self.took: list[tuple[float, float]] = []  # when each began, and its seconds
        self.error: Exception | None = None
        self._host, self._parts = host, parts
        self._is_ended = False

    def run(self) -> None:
        """Make calls until `end`."""
        try:
            self._run()
        except Exception as error:  # raised by `check`
            self.error = error

    def check(self) -> None:
        """Raise if it could not go on."""
        if self.error is not None:
            raise LoadError(f"the other host's calls: {self.error!r}")

    def end(self) -> None:
        """Make no more calls."""
        self._is_ended = True
        self.join()
        self.check()

    def within(self, began: float, ended: float) -> list[float]:
        """The seconds that calls took."""
        return [took_s for at, took_s in self.took if began <= at < ended]

    def _run(self) -> None:
        began = time.perf_counter()
        while not self._is_ended:
            done = len(self.took)
            part = self._parts[done % PARTITIONS]
            at = done // PARTITIONS * OTHERS_SIZE % max(len(part) - OTHERS_SIZE, 1)
            call = self._host.call(done % PARTITIONS, part[at : at + OTHERS_SIZE])
            time.sleep(max(0.0, began + done / OTHERS_PER_S - time.perf_counter()))
            sent = time.perf_counter()
            self._host.make([call])
            self.took.append((sent, time.perf_counter() - sent))


def _reaping(
    options: BenchOptions, server: ClusterRedis, traffic: _Traffic, stage: Stage
) -> Iterator[Figure]:
    """A sidecar finds that the host `lost` is lost, and ends its sessions."""
    began = time.perf_counter()
    traffic.start()
    time.sleep(BEFORE_S)
    env = publishing(server, "watching", lease_s=LEASE_S)
    with fresh_sidecar(options.folder, timeout_s=LONG_S, env=env) as sidecar:
        sidecar.start()
        started = time.perf_counter()
        stage("the host is found lost", None)
        _await(lambda: _is_fenced(server), traffic)
        fenced = time.perf_counter()
        stage("its users go offline", None)
        with Window(server) as window:
            _await(lambda: not any(server.host("lost")), traffic)
        reaped = time.perf_counter()
    traffic.end()
    is_promised = _is_promised(options)
    calls = traffic.within(fenced - POLL_S, reaped + POLL_S)
    most_s, most_ms = (REAPED_S, OTHERS_MS) if is_promised else (None, None)
    before_ms = p99_ms(traffic.within(began, started))
    rows: list[tuple[str, float, str, float | None]] = [
        ("a lost host: all its users offline", reaped - fenced, "s", most_s),
        (
            "meanwhile: Redis' CPU, with the other's calls",
            window.server_percent,
            "%",
            None,
        ),
        ("meanwhile: the other's calls p99", p99_ms(calls), "ms", most_ms),
        ("meanwhile: the other's calls at most", 1000 * quantile(calls, 1), "ms", None),
        ("before: the other's calls p99", before_ms, "ms", None),
    ]
    yield from (Figure("cluster", *row) for row in rows)


def _is_fenced(server: ClusterRedis) -> bool:
    hosts = server.host("lost")
    return any(host is None or host.state is HostState.LOST for host in hosts)


# --- many hosts -------------------------------------------------------------------------


def _many_hosts(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Many hosts that each have little to say."""
    count = HOSTS if _is_promised(options) else FEW_HOSTS
    with cluster_redis(options.folder) as server, ExitStack() as stack:
        stage(f"{count:,} hosts begin", None)
        links = [
            stack.enter_context(RedisLink(server.socket))
            for _ in range(min(count, LINKS))
        ]
        hosts = [LoadHost(f"host-{n:04}", links[n % len(links)]) for n in range(count)]
        memory_b = hosts[0].memory_of_all() / count / PARTITIONS
        hosts[0].load(spread(range(options.users)))
        own = [
            [
                (n, field)
                for n, part in enumerate(spread([user], "mine"))
                for field in part
            ]
            for user in range(count)
        ]
        # Each host's user comes and goes.
        rounds = [
            [
                host.call(n, [field])
                for host, ((n, field),) in zip(hosts, own, strict=True)
            ]
            for _ in range(ROUNDS)
        ]
        stage(f"{count:,} hosts make small calls", None)
        began = time.perf_counter()
        with Window(server) as window:
            for number, calls in enumerate(rounds):
                time.sleep(max(0.0, began + number * ROUND_S - time.perf_counter()))
                _make(links, calls)
        beats = [host.beats() for host in hosts]
        with Window(server) as beating:
            for of_all in zip(*beats, strict=True):
                _make(links, of_all)
        with Window(server) as looking:
            for _ in range(LOOKS):
                hosts[0].look()
    call_ns = window.server_ns(count * ROUNDS)
    look_ns = looking.server_ns(LOOKS * PARTITIONS)
    core = call_ns * HOSTS / ROUND_S / 1e9 * 100
    beat_ns = beating.server_ns(count * PARTITIONS)
    return [
        Figure(
            "cluster", "1,000 hosts, 20,000 calls of 1 a second: Redis' CPU", core, "%"
        ),
        Figure("cluster", "many hosts: Redis' CPU a beat", beat_ns, "ns"),
        Figure(
            "cluster", "many hosts: Redis' CPU a look for lost hosts", look_ns, "ns"
        ),
        Figure("cluster", "Redis: memory a host and partition", memory_b, "B"),
    ]


def _make(links: Sequence[RedisLink], calls: Sequence[bytes]) -> None:
    for number, call in enumerate(calls):
        links[number % len(links)].send(call)
    for number in range(len(calls)):
        expect_ok(links[number % len(links)], 1)


def _await(is_so: Callable[[], bool], traffic: _Traffic) -> None:
    until = time.perf_counter() + AWAITED_S
    while not is_so():
        traffic.check()
        if time.perf_counter() > until:
            raise LoadError(f"nothing came of it within {AWAITED_S:g} s")
        time.sleep(POLL_S)
