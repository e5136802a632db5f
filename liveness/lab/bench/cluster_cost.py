"""The scenario `cluster`: what presence across hosts costs Redis, and each host.

The cost of Redis is its CPU time while simulated hosts make calls that were encoded
beforehand: so other load on this machine changes the figures little. A real sidecar reaps
the lost host. A host is measured under the same transitions with publishing off, on, and on
with a Redis that does not answer.
"""

import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from liveness.cluster.connection import functions
from liveness.cluster.format import (
    ClusterRecord,
    HostState,
    Place,
    configuration_of,
    ending_bytes,
    entry_of,
    field_of,
    host_of,
    keys_of,
    partition_of,
    place_bytes,
    session_bytes,
)
from liveness.core.records import ONLINE
from liveness.lab.bench import BenchOptions, Stage
from liveness.lab.bench.sidecars import Window, fresh_sidecar, running_redis
from liveness.lab.bench.systems import LONG_S
from liveness.lab.bench.transitions import (
    AHEAD,
    CPU,
    Costs,
    TransitionLoad,
    as_promised,
    compared,
)
from liveness.lab.common.figures import Figure
from liveness.lab.common.judge import p99_ms, quantile
from liveness.lab.common.load import LoadError, now
from liveness.lab.common.processes import HOST, Program, free_port
from liveness.lab.common.redis_link import RedisLink, command

# The floors.
MEMORY_B: Final = 125.0
CALL_20_NS: Final = 6_000.0  # 60 % of a core at 100,000 transitions a second
REAPED_S: Final = 60.0
OTHERS_MS: Final = 50.0
HOST_NS: Final = 40_000.0
STREAM_MS: Final = 100.0

CALLS: Final = (20, 100, 500)  # transitions in a call
# While a host is reaped, another one makes calls of this size with this pause.
OTHERS_PAUSE_S: Final = 0.002
OTHERS_SIZE: Final = 20
POLL_S: Final = 0.05
AWAITED_S: Final = 300.0  # far longer than anything takes

# All published users have 20 bytes of uid and gateway.
GATEWAY: Final = "gw-1"
EPOCH: Final = 1
NONCE: Final = 1_234_567_890  # of the usual length
LEASE_US: Final = 30_000_000
PARTITIONS: Final = 16
KEYS: Final = [keys_of("lv", number) for number in range(PARTITIONS)]

_figure = partial(Figure, "cluster")


def cluster(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Measure the cost and the delay of presence across hosts."""
    with _redis(options.folder) as (program, link, settings):
        figures = [*_redis_costs(options, program, link, settings, stage)]
    return as_promised([*figures, *_host_costs(options, stage)], options)


@contextmanager
def _redis(folder: Path | None) -> Iterator[tuple[Program, RedisLink, str]]:
    port = free_port()
    words = ["--bind", HOST, "--port", str(port)]
    with running_redis(folder, *words) as (program, path), RedisLink(path) as link:
        yield program, link, f'[cluster]\nurl = "redis://{HOST}:{port}"\n'


# --- Redis ------------------------------------------------------------------------------


class LoadHost:
    """A simulated host: it publishes sessions that the bench makes up."""

    def __init__(self, name: str, incarnation: int, link: RedisLink) -> None:
        self._name, self._incarnation, self._link = name, incarnation, link
        self._sessions: dict[bytes, int] = {}
        self._seq = 0
        self._last = [0] * PARTITIONS
        log, terms = "0123456789abcdef", configuration_of(PARTITIONS, "")
        begin = (name, EPOCH, NONCE, log, 0, terms, LEASE_US, 1, 1, NONCE)
        self.make([_call("begin", n, *begin) for n in range(PARTITIONS)], b"reset")
        # It has no sessions to list.
        head = (name, EPOCH, NONCE, incarnation, 0, 0, 0, NONCE, "", 0)
        self.make([_call("assert", n, *head) for n in range(PARTITIONS)])

    def call(self, partition: int, fields: Sequence[bytes]) -> bytes:
        """The call that toggles these users: online ones go offline, the others online."""
        values, bodies, wall_ms = [], [], int(now().wall_ms)
        inc, before = self._incarnation, self._last[partition]
        for field in fields:
            self._seq += 1
            session, since, reason = self._sessions.pop(field, 0), 0, "logout"
            if session:
                values.append(ending_bytes(session))
            else:
                session = self._sessions[field] = self._seq
                since, reason = wall_ms, "login"
                values.append(session_bytes(inc, session, since, GATEWAY.encode(), b""))
            place = Place(field.decode(), self._name, GATEWAY, session, since, reason)
            bodies.append(place_bytes(place))
        self._last[partition] = self._seq
        head = (self._name, EPOCH, NONCE, inc, before, self._seq, 0, NONCE, "")
        changes = [*fields, *values, *bodies]
        return _call("apply", partition, *head, len(fields), *changes)

    def rounds(
        self, parts: Sequence[Sequence[bytes]], size: int
    ) -> Iterator[list[bytes]]:
        for at in range(0, max(map(len, parts)), size):
            cuts = [(n, part[at : at + size]) for n, part in enumerate(parts)]
            yield [self.call(number, fields) for number, fields in cuts if fields]

    def make(self, calls: Sequence[bytes], expected: bytes = b"ok") -> None:
        self._link.send(b"".join(calls))
        for _ in calls:
            if (answer := self._link.reply())[0] != expected:
                raise LoadError(f"the function answered {answer!r}")

    def toggle(self, parts: Sequence[Sequence[bytes]]) -> None:
        for calls in self.rounds(parts, max(CALLS)):
            self.make(calls)


def _call(function: str, partition: int, *words: str | int | bytes) -> bytes:
    name, keys = functions()[1] + function, KEYS[partition]
    return command("FCALL", name, len(keys), *keys, *words)


def _spread(kind: str, numbers: Iterable[int]) -> list[list[bytes]]:
    parts: list[list[bytes]] = [[] for _ in KEYS]
    for number in numbers:
        field = field_of(f"{kind}-{number:011}")
        parts[partition_of(field, PARTITIONS)].append(field)
    return parts


def _redis_costs(
    options: BenchOptions, redis: Program, link: RedisLink, settings: str, stage: Stage
) -> Iterator[Figure]:
    parts = _spread("user", range(options.users))
    link("FUNCTION", "LOAD", functions()[0])
    host, empty = LoadHost("other", 1, link), _memory(link)
    stage("everyone logs in")
    host.toggle(parts)
    for keys in KEYS:
        link("XTRIM", keys.stream, "MAXLEN", 0)
    user_b = (_memory(link) - empty) / options.users
    yield _figure("Redis: memory a user", user_b, "B", MEMORY_B)
    # From now on half of the users of each call go online, half offline.
    host.toggle([part[::2] for part in parts])
    some = [part[: 100_000 // PARTITIONS] for part in parts]
    for size in CALLS:
        stage(f"calls of {size}")
        costs_ns = list[float]()
        for _ in range(options.rounds):
            rounds = [*host.rounds(some, size)]
            with Window(redis) as window:
                for calls in rounds:
                    host.make(calls)
            costs_ns.append(window.server_ns(sum(map(len, some))))
        name = f"Redis: CPU a transition, calls of {size}"
        yield _figure(name, min(costs_ns), "ns", CALL_20_NS)
    stage("another host logs its users in, and is lost")
    LoadHost("lost", 2, link).toggle(_spread("lost", range(options.users)))
    settings += 'host = "watching"\nlease_s = 3\n'  # the shortest
    with fresh_sidecar(options.folder, timeout_s=LONG_S, settings=settings) as sidecar:
        sidecar.start()
        reaped_s, others_ms = _reaping(host, parts, link)
    yield _figure("a lost host: all its users offline", reaped_s, "s", REAPED_S)
    yield _figure("calls of another host then, p99", others_ms, "ms", OTHERS_MS)


def _memory(link: RedisLink) -> int:
    found = re.search(rb"used_memory:(\d+)", link("INFO", "memory"))
    assert found
    return int(found[1])


def _reaping(
    host: LoadHost, parts: Sequence[Sequence[bytes]], link: RedisLink
) -> tuple[float, float]:
    fenced, took_s, until = 0.0, list[float](), time.perf_counter() + AWAITED_S
    for calls in (calls for _ in count() for calls in host.rounds(parts, OTHERS_SIZE)):
        for call in calls:
            began = time.perf_counter()
            host.make([call])
            took_s.append(time.perf_counter() - began)
            time.sleep(OTHERS_PAUSE_S)
        found = [link("HGET", keys.meta, "hlost") for keys in KEYS]
        states = {host_of(value).state if value else None for value in found}
        if not fenced and states & {HostState.LOST, None}:
            fenced, took_s = time.perf_counter(), took_s[-PARTITIONS:]
        if states == {None}:
            break
        if time.perf_counter() > until:
            raise LoadError(f"the lost host was not gone within {AWAITED_S:g} s")
    return time.perf_counter() - fenced, p99_ms(took_s)


# --- a host -----------------------------------------------------------------------------


def _host_costs(options: BenchOptions, stage: Stage) -> Iterator[Figure]:
    late_ms = list[float]()  # of each run: p99, from a record to the stream

    def publish(load: TransitionLoad, *, is_away: bool) -> Costs:
        with _redis(options.folder) as (redis, link, settings):

            def begun() -> None:
                _records(link, AHEAD)
                if is_away:
                    redis.signal(signal.SIGSTOP)

            def finish() -> None:
                if not is_away:
                    found = _records(link, AHEAD + load.transitions)[AHEAD:]
                    new = [record for record in found if record.kind == ONLINE]
                    late_us = [row.version - 1000 * row.place.since for row in new]
                    late_ms.append(quantile(late_us, 0.99) / 1000)

            settings += 'host = "bench"\n'
            return load.run(options.folder, settings, begun, finish)

    off, on = "not published", "published"
    kinds: dict[str, Callable[[TransitionLoad], Costs]] = {
        off: lambda load: load.run(options.folder, ""),
        on: partial(publish, is_away=False),
        "Redis does not answer": partial(publish, is_away=True),
    }
    runs, figures = compared("cluster", kinds, options, stage)
    cost_ns = min(run[CPU] for run in runs[on]) - min(run[CPU] for run in runs[off])
    yield _figure("host: CPU a transition, for publishing", cost_ns, "ns", HOST_NS)
    name = "record to stream p99, 10,000 a second"
    yield _figure(name, min(late_ms), "ms", STREAM_MS)
    yield from figures


def _records(link: RedisLink, least: int) -> list[ClusterRecord]:
    """Wait for *least* records; return those of all partitions, in order of version."""
    until = time.perf_counter() + AWAITED_S
    while time.perf_counter() < until:
        found = [
            record
            for number, keys in enumerate(KEYS)
            for name, flat in link("XRANGE", keys.stream, "-", "+")
            for record in entry_of(
                number, name, dict(zip(flat[::2], flat[1::2], strict=True))
            ).records
        ]
        if len(found) >= least:
            return sorted(found, key=lambda record: record.version)
        time.sleep(POLL_S)
    raise LoadError(f"{least - len(found)} records did not reach the stream")
