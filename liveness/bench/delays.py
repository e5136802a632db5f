"""Timers: very many that wait, thousands a second that come and go, and those that fire.

Those that wait are put into the table's file beforehand, as the sidecar would write them:
to ask for ten million takes a quarter of an hour, and is not what is measured. Their keys
are random. Keys that are asked for meanwhile grow with time; how much random ones cost,
each of which is put in at another place of the table's index, is measured beside that.
"""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from liveness.bench import BenchOptions
from liveness.bench.figures import Figure
from liveness.bench.floors import (
    DECIDED_MS,
    NONE,
    PENDING_MB,
    PENDING_READY_S,
    SAME_SECOND_S,
    SUSTAINED_PER_S,
)
from liveness.bench.load import LoadGateway, LoadUsers, Moment, Notices, Pace, now
from liveness.bench.program import Window
from liveness.bench.sidecar_process import Server, server
from liveness.bench.stragglers import Stragglers
from liveness.bench.systems import LONG_S
from liveness.bench.verdict import AT_MS, p99_ms, quantile
from liveness.console.progress import Stage
from liveness.service.storage.timer_store import DATABASE

# With every user of the run so many timers wait.
PENDING_A_USER: Final = 100
# They come due evenly within three days from now on, of a gateway that is not there: so
# some forty a second fire while other things are measured.
SPREAD_MS: Final = 3 * 86_400_000
# What timers are asked for: a login that is not finished, a message that is not
# acknowledged, a reminder, an end, an order that is not rated.
AFTER_S: Final = (5.0, 10.0, 86_400.0, 172_800.0, 259_200.0)
PAYLOAD: Final = '{"room": 17}'
# Asked for, and so many cancelled: what is promised, and what the last pong takes.
ASKED_PER_S: Final = 10_500
# Each of them is cancelled so much later.
CANCELLED_AFTER_S: Final = 2.0
PING_EVERY_S: Final = 0.2
SOON_S: Final = 3.0  # until the first of the others is due
FIRING_PER_S: Final = 1_000
FIRING_AFTER_S: Final = 5.0
# Those that come due at one moment are asked for within this, and a second for so many.
ASKING_S: Final = 3.0
ASKING_PER_S: Final = 8_000
# Whoever is late by so much more than any promise is missing.
PATIENCE_S: Final = 60.0
# After a start: until what comes due within the hour is in memory.
LOADED_S: Final = 60.0
STABLE_S: Final = 1.0


class Runner(LoadGateway):
    """A gateway whose timers are done as soon as they come."""

    def _take(self, notices: Notices) -> None:
        done = (
            _packed("done", one["key"], None, {"seq": one["seq"]})
            for one in notices.records
        )
        self.send(b"".join(done))
        super()._take(notices)


def timers(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Timers that wait, that come and go, and that fire."""
    pending = PENDING_A_USER * options.users
    with server(options.folder, timeout_s=options.timeout_s) as sidecar:
        sidecar.start()
        empty_mb = _settled_mb(sidecar)
        sidecar.stop()
        stage(f"{pending:,} timers are put into the table", None)
        put_pending(sidecar.state / DATABASE, pending)
        stage("a start with them", None)
        ready_s = sidecar.start()
        growth_mb = _settled_mb(sidecar) - empty_mb
        figures = [
            Figure("timers", "pending", pending, ""),
            Figure("timers", "ready with them", ready_s, "s", PENDING_READY_S),
            Figure("timers", "memory growth with them", growth_mb, "MB", PENDING_MB),
            *_fire_steadily(sidecar, options, stage),
            *_fire_at_once(sidecar, options, stage),
            *_come_and_go(sidecar, options, stage),
            # Again while the disk still puts what came and went in its places.
            *_fire_steadily(sidecar, options, stage, when=" right after"),
        ]
        sidecar.check()
        growth_mb = sidecar.peak_memory_mb() - empty_mb
        figures.append(Figure("timers", "memory growth at most", growth_mb, "MB"))
    return figures


def put_pending(path: Path, count: int) -> None:
    """Put so many timers into the table of a sidecar that does not run."""
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma synchronous = off")
        db.execute("pragma cache_size = -262144")
        # Sorted all at once they are made in a tenth of the time.
        indexes = db.execute(
            "select name, sql from sqlite_schema where type = 'index' and sql not null"
        ).fetchall()
        db.execute("begin")
        for name, _ in indexes:
            db.execute(f"drop index {name}")
        db.execute(
            """
            with recursive one (id, due) as (
                select 1, :now
                union all select id + 1, :now + abs(random()) % :spread from one
                where id < :count)
            insert into timers
            select id, 'elsewhere', lower(hex(randomblob(8))), null, :payload, 'pending',
                due, due, 0, null, 0, null, :now, null, :now
            from one
            """,
            {
                "spread": SPREAD_MS,
                "count": count,
                "payload": PAYLOAD,
                "now": now_ms,
            },
        )
        for _, statement in indexes:
            db.execute(statement)
        db.execute("update states set timers = ? where state = 'pending'", [count])
        db.execute("commit")
        db.execute("pragma wal_checkpoint(truncate)")


# --- within -------------------------------------------------------------------


class _Asked(NamedTuple):
    """A timer, and when it is to fire."""

    key: str
    due: Moment


def _come_and_go(server: Server, options: BenchOptions, stage: Stage) -> list[Figure]:
    """As many are asked for as are cancelled, while users speak and fall silent."""
    users, seconds = LoadUsers(options.users), options.seconds
    with (
        LoadGateway(server.socket, timeout=LONG_S) as speakers,
        LoadGateway(server.socket, name="timers") as gateway,
    ):
        stage("everyone logs in", None)
        speakers.send(users.logins(range(len(users))))
        speakers.ping()
        flow = _Flow(gateway, _keys(_Flow.count(seconds)))
        stage("timers come and go", flow.share)
        first_due = time.perf_counter() + SOON_S
        with (
            Stragglers(server.socket, first_s=SOON_S, seconds=seconds) as others,
            _speaking(speakers, users, options),
        ):
            # What is measured begins with the first of those who fall silent.
            time.sleep(max(0.0, first_due - time.perf_counter()))
            with Window(server) as window:
                began = time.perf_counter()
                asked = flow.run()
            beside = others.figures(
                "timers", began, decided_ms=DECIDED_MS, delivered_ms=None
            )
        flow.cancel_the_rest()
        scattered = _Flow(gateway, _random_keys(_Flow.count(seconds / 3)))
        stage("timers with random keys come and go", scattered.share)
        scattered_asked = scattered.run()
        scattered.cancel_the_rest()
        # Until the last of those that were cancelled would have fired.
        time.sleep(AFTER_S[1])
        fired = gateway.count
    return [
        Figure("timers", "asked for a second", asked, "", least=SUSTAINED_PER_S),
        Figure("timers", "and cancelled a second", asked, "", least=SUSTAINED_PER_S),
        Figure("timers", "on disk p99", p99_ms(flow.waits_s), "ms"),
        *beside,
        Figure("timers", "server CPU meanwhile", window.server_percent, "%"),
        Figure("timers", "server CPU an order", window.server_ns(flow.orders), "ns"),
        Figure("timers", "load CPU meanwhile", window.load_percent, "%"),
        Figure("timers", "load behind its pace p99", p99_ms(flow.lags_s), "ms"),
        Figure("timers", "both a second, random keys", scattered_asked, ""),
        Figure("timers", "on disk p99, random keys", p99_ms(scattered.waits_s), "ms"),
        Figure("timers", "cancelled that fired", fired, "", NONE),
    ]


class _Flow:
    """Timers that are asked for, each cancelled a little later, at a steady pace.

    Args:
        gateway: Who asks.
        keys: Of all of them; `count` says how many.
    """

    def __init__(self, gateway: LoadGateway, keys: Sequence[str]) -> None:
        self.waits_s: Sequence[float] = ()  # for the pongs meanwhile
        self._gateway = gateway
        asking = [
            _packed("after", key, AFTER_S[number % len(AFTER_S)], {"payload": PAYLOAD})
            for number, key in enumerate(keys)
        ]
        cancelling = [_packed("cancel", {"key": key}) for key in keys]
        self._ahead = round(CANCELLED_AFTER_S * ASKED_PER_S)
        self._first = asking[: self._ahead]
        self._last = cancelling[-self._ahead :]
        self._both = [
            frame
            for pair in zip(asking[self._ahead :], cancelling, strict=False)
            for frame in pair
        ]
        self._pace = Pace(gateway, rate=2 * ASKED_PER_S)

    @staticmethod
    def count(seconds: float) -> int:
        """How many keys so many seconds take."""
        return round((seconds + CANCELLED_AFTER_S) * ASKED_PER_S)

    @property
    def orders(self) -> int:
        """How many frames are written at the pace."""
        return len(self._both)

    @property
    def lags_s(self) -> Sequence[float]:
        """How late each was written against the pace."""
        return self._pace.lags_s

    def share(self) -> float:
        """How much of it is done."""
        return self._pace.count / len(self._both)

    def run(self) -> float:
        """Write them; return how many a second were asked for, until all is on disk."""
        self._gateway.send(b"".join(self._first))
        self._gateway.ping()
        self._pace.began = began = now()
        with _pinging(self._gateway) as self.waits_s:
            self._pace.run(self._both)
        self._gateway.ping()
        return len(self._both) / 2 / (time.perf_counter() - began.mono)

    def cancel_the_rest(self) -> None:
        """Leave nothing behind."""
        self._gateway.send(b"".join(self._last))
        self._gateway.ping()


def _fire_steadily(
    server: Server, options: BenchOptions, stage: Stage, *, when: str = ""
) -> list[Figure]:
    """A thousand a second fire; what is promised of that holds of any but one *when*."""
    keys = _keys(round(FIRING_PER_S * options.seconds))
    frames = [_packed("after", key, FIRING_AFTER_S) for key in keys]
    with Runner(server.socket, name="timers") as gateway:
        pace = Pace(gateway, rate=FIRING_PER_S)
        stage("a thousand a second fire", lambda: gateway.count / len(keys))
        with Window(server) as window:
            pace.run(frames)
            until = time.perf_counter() + FIRING_AFTER_S + PATIENCE_S
            gateway.wait_for(len(keys), until=until)
        gateway.ping()
    asked = [
        _Asked(key, Moment(mono + FIRING_AFTER_S, wall_ms + 1000 * FIRING_AFTER_S))
        for key, (mono, wall_ms) in zip(keys, pace.moments(), strict=True)
    ]
    decided_s, delivered_s, mistakes = _judge(
        gateway.notices, asked, f"of a steady flow{when}"
    )
    which = f"1,000 a second{when}"
    most_ms = None if when else DECIDED_MS
    return [
        Figure("timers", f"fired p99, {which}", p99_ms(decided_s), "ms", most_ms),
        Figure("timers", f"delivered p99, {which}", p99_ms(delivered_s), "ms"),
        *mistakes,
        Figure("timers", f"server CPU a run{when}", window.server_ns(len(keys)), "ns"),
    ]


def _fire_at_once(server: Server, options: BenchOptions, stage: Stage) -> list[Figure]:
    """One for every user of the run comes due at the same moment."""
    keys = _keys(options.users)
    with Runner(server.socket, name="timers") as gateway:
        began = now()
        ahead_s = ASKING_S + len(keys) / ASKING_PER_S
        due = Moment(began.mono + ahead_s, began.wall_ms + 1000 * ahead_s)
        stage("timers that come due together", lambda: gateway.count / len(keys))
        for at in range(0, len(keys), ASKED_PER_S):
            left_s = max(due.mono - time.perf_counter(), 0.1)
            part = keys[at : at + ASKED_PER_S]
            gateway.send(b"".join(_packed("after", key, left_s) for key in part))
        gateway.ping()
        gateway.wait_for(len(keys), until=due.mono + PATIENCE_S)
        gateway.ping()
        done_s = time.perf_counter() - due.mono
    asked = [_Asked(key, due) for key in keys]
    _, delivered_s, mistakes = _judge(gateway.notices, asked, "due together")
    last_s = quantile(delivered_s, 1.0)
    return [
        Figure("timers", f"{len(keys):,} due together", last_s, "s", SAME_SECOND_S),
        Figure("timers", "until all are done, on disk", done_s, "s"),
        *mistakes,
    ]


def _judge(
    notices: Iterable[Notices], asked: Iterable[_Asked], which: str
) -> tuple[list[float], list[float], list[Figure]]:
    """Lateness in seconds, fired and delivered, and what went wrong."""
    awaited = {one.key: one.due for one in asked}
    decided_s, delivered_s = list[float](), list[float]()
    early = twice = 0
    for received, records in notices:
        for record in records:
            due = awaited.pop(record["key"], None)
            if due is None:
                twice += 1
                continue
            decided_s.append((record["at"] - due.wall_ms) / 1000)
            delivered_s.append(received - due.mono)
            if decided_s[-1] + AT_MS / 1000 < 0 or delivered_s[-1] < 0:
                early += 1
    mistakes = {"early": early, "twice": twice, "missing": len(awaited)}
    return (
        decided_s,
        delivered_s,
        [
            Figure("timers", f"{what}, {which}", count, "", NONE)
            for what, count in mistakes.items()
        ],
    )


def _keys(count: int) -> list[str]:
    """Growing with time, as order numbers are, and ids of messages."""
    first = time.time_ns()
    return [f"{first + number:016x}" for number in range(count)]


def _random_keys(count: int) -> list[str]:
    """The worst that the table's index can be given."""
    return [f"{random.getrandbits(64):016x}" for _ in range(count)]


def _packed(*frame: object) -> bytes:
    packed: bytes = msgpack.packb(frame)
    return packed


def _settled_mb(server: Server) -> float:
    """The server's memory once it does not grow any more."""
    until, memory_mb, before_mb = time.perf_counter() + LOADED_S, 0.0, -1.0
    while memory_mb > before_mb and time.perf_counter() < until:
        before_mb = memory_mb
        time.sleep(STABLE_S)  # nothing tells when a server has loaded all it will
        memory_mb = server.memory_mb()
    return memory_mb


@contextmanager
def _speaking(
    gateway: LoadGateway, users: LoadUsers, options: BenchOptions
) -> Iterator[None]:
    """Everyone speaks in turn, at the rate of the run, until left."""
    frames = [users.single(number) for number in range(len(users))]

    def speak(is_over: Callable[[], bool]) -> None:
        pace, first = Pace(gateway, rate=options.rate), 0
        while not is_over():
            following = first + max(1, round(options.rate * PING_EVERY_S))
            pace.run([frames[at % len(frames)] for at in range(first, following)])
            first = following

    with _meanwhile(speak):
        yield


@contextmanager
def _pinging(gateway: LoadGateway) -> Iterator[Sequence[float]]:
    """Ask every now and then whether all is on disk; give how long each answer took."""
    waits_s: list[float] = []

    def ping(is_over: Callable[[], bool]) -> None:
        while not is_over():
            began = time.perf_counter()
            gateway.ping()
            waits_s.append(time.perf_counter() - began)
            time.sleep(PING_EVERY_S)  # a sample, which must not be load itself

    with _meanwhile(ping):
        yield waits_s


@contextmanager
def _meanwhile(work: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    """Have a thread at work until left; what it fails of is raised there."""
    over, failures = threading.Event(), list[Exception]()

    def at_work() -> None:
        try:
            work(over.is_set)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=at_work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]
