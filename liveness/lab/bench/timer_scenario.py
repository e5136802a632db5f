"""The scenario `timers`: millions are pending, others are created, cancelled and fire.

The pending timers, with random keys, are written into the table's file beforehand, as
the sidecar would write them: creating ten million by requests takes a quarter of an hour,
and is not measured. Keys of new timers grow with time. Random ones, which go to random
places of the table's index, are measured separately.
"""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions, floors
from liveness.lab.bench.floors import NONE, SUSTAINED_PER_S
from liveness.lab.bench.program import Window
from liveness.lab.bench.sidecar_process import SidecarProcess, fresh_sidecar
from liveness.lab.bench.stragglers import Stragglers
from liveness.lab.bench.systems import LONG_S
from liveness.lab.bench.verdict import Verdict, judge, p99_ms, quantile
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadGateway, LoadUsers, Notices, Pace, now, packed

# The table's file in the state directory; docs/timers.md names it.
DATABASE: Final = "timers.db"
# Pending timers for each user of the run.
PENDING_A_USER: Final = 100
# They come due evenly over the next three days, and belong to a gateway that is not
# connected. So some forty a second fire during the other measurements.
SPREAD_MS: Final = 3 * 86_400_000
# Typical delays: an unfinished login, an unacknowledged message, a reminder, a deadline,
# a request to rate an order.
AFTER_S: Final = (5.0, 10.0, 86_400.0, 172_800.0, 259_200.0)
PAYLOAD: Final = '{"room": 17}'
# Timers created a second, and as many cancelled: the promised rate, and some more for the
# time of the last pong.
CREATED_PER_S: Final = 10_500
# The time until each of them is cancelled.
CANCELLED_AFTER_S: Final = 2.0
PING_EVERY_S: Final = 0.2
FIRST_STRAGGLER_S: Final = 3.0
FIRING_PER_S: Final = 1_000
FIRING_AFTER_S: Final = 5.0
# Timers that come due at the same moment are created in `CREATING_S`, plus a second for
# each `CREATING_PER_S` of them.
CREATING_S: Final = 3.0
CREATING_PER_S: Final = 8_000
# A timer that is not delivered this long after its time counts as missing.
PATIENCE_S: Final = 60.0
# The longest wait after a start until the timers of the next hour are in memory.
LOADED_S: Final = 60.0
STABLE_S: Final = 1.0
# Memory counts as stable below this growth in `STABLE_S`: an idle sidecar grows by some
# 10 KB a second, until its garbage collector runs after a few minutes.
STABLE_MB: Final = 0.1


class TimerGateway(LoadGateway):
    """A gateway that reports each timer done as soon as it receives it."""

    def _take(self, notices: Notices) -> None:
        done = (
            packed("done", record["key"], None, {"seq": record["seq"]})
            for record in notices.records
        )
        self.send(b"".join(done))
        super()._take(notices)


def timers(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Timers that are pending, that are created and cancelled, and that fire."""
    pending = PENDING_A_USER * options.users
    ready_most_s, most_mb = floors.PENDING_READY_S, floors.PENDING_MB
    with fresh_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar:
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
            Figure("timers", "ready with them", ready_s, "s", ready_most_s),
            Figure("timers", "memory growth with them", growth_mb, "MB", most_mb),
            *_fire_steadily(sidecar, options, stage),
            *_fire_at_once(sidecar, options, stage),
            *_create_and_cancel(sidecar, options, stage),
            # Again while the disk is still busy with the table's write-ahead log.
            *_fire_steadily(sidecar, options, stage, when=" right after"),
        ]
        sidecar.check()
        growth_mb = sidecar.peak_memory_mb() - empty_mb
        figures.append(Figure("timers", "memory growth at most", growth_mb, "MB"))
    return figures


def put_pending(path: Path, count: int) -> None:
    """Put pending timers into the table of a sidecar that is stopped."""
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma synchronous = off")
        db.execute("pragma cache_size = -262144")
        # Made at the end, by one sort, the indexes take a tenth of the time.
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
            {"spread": SPREAD_MS, "count": count, "payload": PAYLOAD, "now": now_ms},
        )
        for _, statement in indexes:
            db.execute(statement)
        db.execute("update states set timers = ? where state = 'pending'", [count])
        db.execute("commit")
        db.execute("pragma wal_checkpoint(truncate)")


# --- created and cancelled ----------------------------------------------------------


def _create_and_cancel(
    server: SidecarProcess, options: BenchOptions, stage: Stage
) -> list[Figure]:
    """As many timers are created as cancelled, while users send and fall silent."""
    users, seconds = LoadUsers(options.users), options.seconds
    with (
        LoadGateway(server.socket, timeout=LONG_S) as senders,
        LoadGateway(server.socket, name="timers") as gateway,
    ):
        stage("everyone logs in", None)
        senders.send(users.logins(range(len(users))))
        senders.ping()
        flow = _Flow(gateway, _keys(_Flow.count(seconds)))
        stage("timers are created and cancelled", flow.share)
        with (
            Stragglers(
                server.socket, first_s=FIRST_STRAGGLER_S, seconds=seconds
            ) as stragglers,
            _sending(senders, users, options),
        ):
            stragglers.wait_for_first()
            with Window(server) as window:
                began = time.perf_counter()
                per_s = flow.run()
            others = stragglers.figures(
                "timers", began, decided_ms=floors.DECIDED_MS, delivered_ms=None
            )
        flow.cancel_the_rest()
        random_flow = _Flow(gateway, _random_keys(_Flow.count(seconds / 3)))
        stage("timers with random keys are created and cancelled", random_flow.share)
        random_per_s = random_flow.run()
        random_flow.cancel_the_rest()
        # Until the last of the cancelled ones with a short delay would have fired.
        time.sleep(AFTER_S[1])
        fired = gateway.count
    on_disk_ms, random_on_disk_ms = p99_ms(flow.waits_s), p99_ms(random_flow.waits_s)
    return [
        Figure("timers", "asked for a second", per_s, "", least=SUSTAINED_PER_S),
        Figure("timers", "and cancelled a second", per_s, "", least=SUSTAINED_PER_S),
        Figure("timers", "on disk p99", on_disk_ms, "ms"),
        *others,
        Figure("timers", "server CPU meanwhile", window.server_percent, "%"),
        Figure(
            "timers", "server CPU an order", window.server_ns(len(flow.frames)), "ns"
        ),
        Figure("timers", "load CPU meanwhile", window.load_percent, "%"),
        Figure("timers", "load behind its pace p99", p99_ms(flow.pace.lags_s), "ms"),
        Figure("timers", "both a second, random keys", random_per_s, ""),
        Figure("timers", "on disk p99, random keys", random_on_disk_ms, "ms"),
        Figure("timers", "cancelled that fired", fired, "", NONE),
    ]


class _Flow:
    """Timers created at a steady pace, each cancelled a little later."""

    def __init__(self, gateway: LoadGateway, keys: Sequence[str]) -> None:
        self.waits_s: Sequence[float] = ()  # of the pings meanwhile, until the pong
        self._gateway = gateway
        creates = [
            packed("after", key, AFTER_S[number % len(AFTER_S)], {"payload": PAYLOAD})
            for number, key in enumerate(keys)
        ]
        cancels = [packed("cancel", {"key": key}) for key in keys]
        ahead = round(CANCELLED_AFTER_S * CREATED_PER_S)
        self._first = creates[:ahead]
        self._last = cancels[-ahead:]
        self.frames = [
            frame
            for pair in zip(creates[ahead:], cancels, strict=False)
            for frame in pair
        ]
        self.pace = Pace(gateway, rate=2 * CREATED_PER_S)

    @staticmethod
    def count(seconds: float) -> int:
        """How many keys a flow of *seconds* needs."""
        return round((seconds + CANCELLED_AFTER_S) * CREATED_PER_S)

    def share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self.pace.count / len(self.frames)

    def run(self) -> float:
        """Write all frames; return how many timers a second were created, on disk."""
        self._gateway.send(b"".join(self._first))
        self._gateway.ping()
        self.pace.began = began = now()
        with _pinging(self._gateway) as self.waits_s:
            self.pace.run(self.frames)
        self._gateway.ping()
        return len(self.frames) / 2 / (time.perf_counter() - began.mono)

    def cancel_the_rest(self) -> None:
        """Cancel the timers that are left."""
        self._gateway.send(b"".join(self._last))
        self._gateway.ping()


@contextmanager
def _sending(
    gateway: LoadGateway, users: LoadUsers, options: BenchOptions
) -> Iterator[None]:
    """All users send in turns during the block, at the rate of the run."""
    frames = [users.single(number) for number in range(len(users))]

    def send(is_over: Callable[[], bool]) -> None:
        pace, first = Pace(gateway, rate=options.rate), 0
        while not is_over():
            end = first + max(1, round(options.rate * PING_EVERY_S))
            pace.run([frames[at % len(frames)] for at in range(first, end)])
            first = end

    with _in_thread(send):
        yield


@contextmanager
def _pinging(gateway: LoadGateway) -> Iterator[Sequence[float]]:
    """Pings during the block; yields how long each waited until all was on disk."""
    waits_s: list[float] = []

    def ping(is_over: Callable[[], bool]) -> None:
        while not is_over():
            began = time.perf_counter()
            gateway.ping()
            waits_s.append(time.perf_counter() - began)
            time.sleep(PING_EVERY_S)  # a sample, which must not be load itself

    with _in_thread(ping):
        yield waits_s


@contextmanager
def _in_thread(work: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    """Runs *work* in a thread until the block ends; raises its exception there."""
    over, failures = threading.Event(), list[Exception]()

    def run() -> None:
        try:
            work(over.is_set)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


# --- firing -------------------------------------------------------------------------


def _fire_steadily(
    server: SidecarProcess, options: BenchOptions, stage: Stage, *, when: str = ""
) -> list[Figure]:
    """A thousand timers a second fire; the floor is for the run without *when*."""
    keys = _keys(round(FIRING_PER_S * options.seconds))
    frames = [packed("after", key, FIRING_AFTER_S) for key in keys]
    with TimerGateway(server.socket, name="timers") as gateway:
        pace = Pace(gateway, rate=FIRING_PER_S)
        stage("a thousand a second fire", lambda: gateway.count / len(keys))
        with Window(server) as window:
            pace.run(frames)
            until = time.perf_counter() + FIRING_AFTER_S + PATIENCE_S
            gateway.wait_for(len(keys), until=until)
        gateway.ping()
    due = {
        key: moment.after(FIRING_AFTER_S)
        for key, moment in zip(keys, pace.moments(), strict=True)
    }
    verdict = judge(gateway.notices, due, key="key")
    decided_ms, delivered_ms = p99_ms(verdict.decided_s), p99_ms(verdict.delivered_s)
    rate = f"1,000 a second{when}"
    most_ms = None if when else floors.DECIDED_MS
    return [
        Figure("timers", f"fired p99, {rate}", decided_ms, "ms", most_ms),
        Figure("timers", f"delivered p99, {rate}", delivered_ms, "ms"),
        *_errors(verdict, f"of a steady flow{when}"),
        Figure("timers", f"server CPU a run{when}", window.server_ns(len(keys)), "ns"),
    ]


def _fire_at_once(
    server: SidecarProcess, options: BenchOptions, stage: Stage
) -> list[Figure]:
    """A timer for each user of the run, all due at the same moment."""
    keys = _keys(options.users)
    with TimerGateway(server.socket, name="timers") as gateway:
        due = now().after(CREATING_S + len(keys) / CREATING_PER_S)
        stage("timers that come due together", lambda: gateway.count / len(keys))
        for at in range(0, len(keys), CREATED_PER_S):
            left_s = max(due.mono - time.perf_counter(), 0.1)
            part = keys[at : at + CREATED_PER_S]
            gateway.send(b"".join(packed("after", key, left_s) for key in part))
        gateway.ping()
        gateway.wait_for(len(keys), until=due.mono + PATIENCE_S)
        gateway.ping()
        done_s = time.perf_counter() - due.mono
    verdict = judge(gateway.notices, dict.fromkeys(keys, due), key="key")
    last_s, most_s = quantile(verdict.delivered_s, 1.0), floors.SAME_SECOND_S
    return [
        Figure("timers", f"{len(keys):,} due together", last_s, "s", most_s),
        Figure("timers", "until all are done, on disk", done_s, "s"),
        *_errors(verdict, "due together"),
    ]


def _errors(verdict: Verdict, which: str) -> list[Figure]:
    """The figures of what must never happen."""
    return [
        Figure("timers", f"early, {which}", verdict.early, "", NONE),
        Figure("timers", f"twice, {which}", verdict.false, "", NONE),
        Figure("timers", f"missing, {which}", verdict.missing, "", NONE),
    ]


def _keys(count: int) -> list[str]:
    """Keys that grow with time, as order numbers and message ids do."""
    first = time.time_ns()
    return [f"{first + number:016x}" for number in range(count)]


def _random_keys(count: int) -> list[str]:
    """The worst case for the table's index."""
    return [f"{random.getrandbits(64):016x}" for _ in range(count)]


def _settled_mb(server: SidecarProcess) -> float:
    """The server's memory once it hardly grows any more."""
    until, memory_mb, before_mb = time.perf_counter() + LOADED_S, 0.0, -1.0
    while memory_mb > before_mb + STABLE_MB and time.perf_counter() < until:
        before_mb = memory_mb
        time.sleep(STABLE_S)  # no metric says that all timers are loaded
        memory_mb = server.memory_mb()
    return memory_mb
