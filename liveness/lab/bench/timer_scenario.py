"""The scenario `timers`: millions are pending, others are created, cancelled and fire.

Pending timers, with random keys, are written into the table's file beforehand, in the
sidecar's format: creating ten million by requests takes a quarter of an hour, and is not
measured. Keys of new timers grow with time.
"""

import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Final

from liveness.lab.bench import BenchOptions, Stage, floors
from liveness.lab.bench.sidecars import Window, fresh_sidecar
from liveness.lab.bench.stragglers import FIRST_S, Stragglers
from liveness.lab.bench.systems import LONG_S
from liveness.lab.common.figures import Figure
from liveness.lab.common.judge import Judge, Notices, judge, p99_ms, quantile
from liveness.lab.common.load import LoadGateway, LoadUsers, Pace, packed
from liveness.lab.common.processes import SidecarProgram

# The table's file in the state directory; docs/timers.md names it.
DATABASE: Final = "timers.db"
# Pending timers for each user of the run.
PENDING_A_USER: Final = 100
# They come due evenly over the next three days, and belong to a gateway that is not
# connected. So some forty a second fire during the other measurements.
SPREAD_MS: Final = 3 * 86_400_000
# Time to load all timers of the next hour into memory: no metric shows the end of that.
LOADING_S: Final = 5.0
# Typical delays: an unfinished login, an unacknowledged message, a reminder, a deadline,
# a request to rate an order.
AFTER_S: Final = (3.0, 4.0, 86_400.0, 172_800.0, 259_200.0)
PAYLOAD: Final = '{"room": 17}'
# Timers created per second, and as many cancelled: the promised rate, and a little more to
# make up for the time of the last pong.
CREATED_PER_S: Final = 10_500
# Each is cancelled after this many more have been created, which takes a second.
AHEAD: Final = CREATED_PER_S
FIRING_PER_S: Final = 1_000
FIRING_AFTER_S: Final = 5.0
# Timers due at the same moment are created at this rate; the last one this long before it.
CREATING_PER_S: Final = 8_000
CREATING_S: Final = 3.0
# A timer that is not delivered this long after its time counts as missing.
PATIENCE_S: Final = 60.0

_figure = partial(Figure, "timers")


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
    """Measure pending timers, timers created and cancelled, and timers that fire."""
    pending = PENDING_A_USER * options.users
    with fresh_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar:
        stage("a start without timers")
        sidecar.start()
        empty_mb = sidecar.memory_mb()
        sidecar.stop()
        stage(f"{pending:,} timers are put into the table")
        put_pending(sidecar.state / DATABASE, pending)
        stage("a start with them")
        ready_s = sidecar.start()
        time.sleep(options.at_most_s(LOADING_S))
        growth_mb = sidecar.memory_mb() - empty_mb
        with TimerGateway(sidecar.socket, name="timers") as gateway:
            return [
                _figure("ready with them", ready_s, "s", floors.PENDING_READY_S),
                _figure("memory growth with them", growth_mb, "MB", floors.PENDING_MB),
                *_fire(gateway, options, stage),
                *_create_and_cancel(sidecar, gateway, options, stage),
            ]


def put_pending(path: Path, count: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma synchronous = off")
        db.execute("pragma cache_size = -262144")
        # One sort at the end makes the indexes in a tenth of the time.
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


def _fire(gateway: LoadGateway, options: BenchOptions, stage: Stage) -> list[Figure]:
    """A thousand timers a second fire; then one of each user, all at the same moment."""
    stage("a thousand a second fire")
    after_s = options.at_most_s(FIRING_AFTER_S)
    count = round(FIRING_PER_S * options.seconds)
    steady = _fired(gateway, [after_s] * count, FIRING_PER_S)
    stage("timers that come due together")
    left, after_s = range(options.users, 0, -1), options.at_most_s(CREATING_S)
    delays_s = [after_s + number / CREATING_PER_S for number in left]
    together = _fired(gateway, delays_s, CREATING_PER_S)
    decided_ms = p99_ms(steady.decided_s)
    last_s, most_s = quantile(together.delivered_s, 1.0), floors.SAME_SECOND_S
    return [
        _figure("fired p99, 1,000 a second", decided_ms, "ms", floors.DECIDED_MS),
        _figure(f"{options.users:,} due together", last_s, "s", most_s),
        *(
            _figure(f"{name}, {flow}", value, "", floors.NONE)
            for flow, it in (("of a steady flow", steady), ("due together", together))
            for name, value in (
                ("early", it.early),
                ("twice", it.false),
                ("missing", it.missing),
            )
        ),
    ]


def _fired(gateway: LoadGateway, delays_s: Sequence[float], rate: float) -> Judge:
    keys, before, first = _keys(len(delays_s)), gateway.count, len(gateway.notices)
    orders = zip(keys, delays_s, strict=True)
    frames = [packed("after", key, delay_s) for key, delay_s in orders]
    pace = Pace(gateway, rate=rate)
    pace.run(frames)
    due = {
        key: moment.after(delay_s)
        for key, moment, delay_s in zip(keys, pace.moments(), delays_s, strict=True)
    }
    until = time.perf_counter() + max(delays_s) + PATIENCE_S
    gateway.wait_for(before + len(keys), until=until)
    gateway.ping()
    return judge(gateway.notices[first:], due, key="key")


def _keys(count: int) -> list[str]:
    """Keys that grow with time, as order numbers and message ids do."""
    first = time.time_ns()
    return [f"{first + number:016x}" for number in range(count)]


def _create_and_cancel(
    sidecar: SidecarProgram, gateway: LoadGateway, options: BenchOptions, stage: Stage
) -> list[Figure]:
    keys = _keys(round(options.seconds * CREATED_PER_S) + AHEAD)
    creates = [
        packed("after", key, after_s, {"payload": PAYLOAD})
        for key, after_s in zip(keys, cycle(AFTER_S), strict=False)
    ]
    cancels = [packed("cancel", {"key": key}) for key in keys]
    frames = [*chain(*zip(creates[AHEAD:], cancels[:-AHEAD], strict=True))]
    users, seconds, before = LoadUsers(options.users), options.seconds, gateway.count
    singles = cycle([users.single(number) for number in range(len(users))])
    said = [*islice(singles, round(options.rate * seconds))]
    with (
        ThreadPoolExecutor(1) as pool,
        LoadGateway(sidecar.socket, timeout=LONG_S) as senders,
    ):
        stage("everyone logs in")
        senders.send(users.logins(range(len(users))))
        senders.ping()
        with Stragglers(sidecar.socket, first_s=FIRST_S, seconds=seconds) as stragglers:
            stragglers.wait_for_first()
            began = time.perf_counter()
            gateway.send(b"".join(creates[:AHEAD]))
            gateway.ping()
            speaking = pool.submit(Pace(senders, rate=options.rate).run, said)
            pace = Pace(gateway, rate=2 * CREATED_PER_S)
            stage("timers are created and cancelled")
            with Window(sidecar) as window:
                pace.run(frames)
                gateway.ping()
            others = stragglers.figures("timers", began)
        speaking.result()
    gateway.send(b"".join(cancels[-AHEAD:]))
    gateway.ping()
    time.sleep(AFTER_S[1])  # until the last one would have fired
    fired = gateway.count - before
    per_s, least = len(frames) / 2 / window.took_s, floors.SUSTAINED_PER_S
    return [
        _figure("asked for a second", per_s, "", least=least),
        _figure("and cancelled a second", per_s, "", least=least),
        *others,
        _figure("cancelled that fired", fired, "", floors.NONE),
    ]
