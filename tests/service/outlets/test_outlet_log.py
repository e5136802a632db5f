"""An outlet's place in the log: where it begins, what it takes, and when it moves."""

import gc
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.config.outlet_settings import OutletSettings
from liveness.core.records import TimerRecord
from liveness.service.outlets.common.outlet import Outlet
from liveness.service.outlets.common.outlet_log import CURSOR_S, READ_BYTES, OutletLog
from liveness.service.outlets.common.outlet_store import position_in, put_cursor
from liveness.service.storage.log_tail import TailReader
from tests.helpers import disk
from tests.service.outlets.outlet_rig import (
    NAME,
    TEN_DAYS,
    OutletRig,
    outlet_rig,
    seqs,
)
from tests.service.storage.journals import VirtualClock, forget_tail, off, on

OLDEST = OutletSettings(begin="oldest")


async def test_a_new_outlets_place_outlives_a_power_failure(
    rig: OutletRig, tmp_path: Path
) -> None:
    rig.publish(on(1), on(2))
    async with rig.outlet_log():
        synced = tmp_path / "synced.db"  # without the WAL, which may be lost
        shutil.copy(rig.store.path, synced)
    with closing(sqlite3.connect(synced)) as db:
        assert db.execute("select outlet, seq from cursors").fetchall() == [(NAME, 2)]


async def test_a_sync_fails_while_another_connection_reads_an_older_state(
    rig: OutletRig,
) -> None:
    async with rig.outlet_log():
        with closing(sqlite3.connect(rig.store.path, isolation_level=None)) as reader:
            reader.execute("begin")
            reader.execute("select * from cursors").fetchall()
            await rig.store.run(lambda db: put_cursor(db, NAME, ("log", 1), 0))
            await rig.store.run(lambda db: db.execute("pragma busy_timeout = 0"))
            with pytest.raises(sqlite3.OperationalError, match="is busy"):
                await rig.store.sync()
        await rig.store.sync()


@pytest.mark.parametrize(("begin", "first"), [("newest", [3]), ("oldest", [1, 2, 3])])
async def test_a_new_outlet_begins_where_its_settings_say(
    rig: OutletRig, begin: str, first: list[int]
) -> None:
    rig.publish(on(1), on(2))
    settings = OutletSettings(begin=begin)  # type: ignore[arg-type]  # of the parameters
    async with rig.outlet_log(settings) as log:
        rig.publish(on(3))
        assert seqs((await log.take(10)).entries) == first


async def test_a_new_outlet_misses_nothing_if_it_opens_late(rig: OutletRig) -> None:
    rig.publish(on(1), on(2))
    await rig.store.open(keep=[NAME], unused_s=3_600)
    log = OutletLog(NAME, OutletSettings(begin="newest"), rig.access)
    rig.publish(on(3))  # links are served already
    await log.open()
    rig.publish(on(4))
    assert seqs((await log.take(10)).entries) == [3, 4]
    log.close()
    await rig.store.close()


async def test_what_was_not_delivered_comes_again_after_a_restart(
    rig: OutletRig,
) -> None:
    rig.publish(on(1), on(2), on(3))
    async with rig.outlet_log(OLDEST) as log:
        first, _second = await log.take(1), await log.take(1)
        log.delivered(first)
        await log.store_cursor()
    async with rig.outlet_log(OLDEST) as log:
        assert seqs((await log.take(10)).entries) == [2, 3]


async def test_the_cursor_passes_what_does_not_concern_the_outlet(
    rig: OutletRig,
) -> None:
    settings = OutletSettings(begin="oldest", kinds="offline")
    rig.publish(off(1), on(2), on(3, "bob"))
    async with rig.outlet_log(settings) as log:
        batch = await log.take(10)
        assert (seqs(batch.entries), batch.position) == ([1], 3)
        log.delivered(batch)
        rig.publish(on(4, "eve"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.take, 1)
            nursery.start_soon(log.keep_cursor)
            await trio.sleep(CURSOR_S * 1.5)
            assert (log.cursor, log.lag_records) == (4, 0)
            assert await rig.store.cursor(NAME) == (log.log, 4)
            rig.publish(on(5, "eve"))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert await rig.store.cursor(NAME) == (log.log, 5)


async def test_a_batch_waits_for_more_no_longer_than_it_may(rig: OutletRig) -> None:
    rig.publish(on(1))
    async with rig.outlet_log(OLDEST) as log, trio.open_nursery() as nursery:

        async def publish_late() -> None:
            await trio.sleep(0.5)
            rig.publish(on(2), on(3))
            await trio.sleep(0.75)
            rig.publish(on(4))
            await trio.sleep(1)
            rig.publish(on(5))

        nursery.start_soon(publish_late)
        for limit, taken, at in ((2, [1, 2], 0.5), (10, [3, 4], 1.5), (1, [5], 2.25)):
            assert seqs((await log.take(limit, linger_s=1.0)).entries) == taken
            assert trio.current_time() == at


async def test_no_more_large_payloads_are_taken_than_fit(rig: OutletRig) -> None:
    timers = [
        TimerRecord(seq, "timer", "g", "k", "x" * (READ_BYTES // 3), None, 0, 1, 0)
        for seq in range(1, 7)
    ]
    rig.publish(*timers)
    async with rig.outlet_log(OutletSettings(begin="oldest", kinds="timer")) as log:
        taken = [seqs((await log.take(10)).entries) for _ in range(2)]
    assert taken == [[1, 2, 3], [4, 5, 6]]


async def test_the_cursor_stays_behind_a_batch_that_waits_for_more(
    rig: OutletRig,
) -> None:
    async with rig.outlet_log(OLDEST) as log, trio.open_nursery() as nursery:
        nursery.start_soon(log.keep_cursor)
        rig.publish(on(1))
        with trio.move_on_after(3 * CURSOR_S):
            await log.take(10, linger_s=10 * CURSOR_S)
        assert (log.cursor, log.lag_records) == (0, 1)
        nursery.cancel_scope.cancel()
    async with rig.outlet_log(OLDEST) as log:
        assert seqs((await log.take(10)).entries) == [1]


async def test_an_offline_comes_when_it_has_settled(rig: OutletRig) -> None:
    settings = OutletSettings(begin="oldest", settle_s=30)
    rig.publish(on(1), off(2), on(3, "bob"))
    async with rig.outlet_log(settings) as log:
        first = await log.take(10)
        assert (seqs(first.entries), first.position, log.damping.waiting) == (
            [1, 3],
            1,
            1,
        )
        log.delivered(first)
        assert log.lag_records == 0
        assert seqs((await log.take(10)).entries) == [2]
        assert trio.current_time() == 30


async def test_lag_counts_what_is_unread_and_what_is_on_its_way(rig: OutletRig) -> None:
    rig.publish(on(1), on(2))
    async with rig.outlet_log(OLDEST) as log:
        assert log.lag_records == 2
        batch = await log.take(1)
        assert log.lag_records == 2
        await trio.sleep(5)
        assert log.lag_s == 5
        log.delivered(batch)
        log.delivered(await log.take(1))
        assert (log.lag_records, log.lag_s) == (0, 0)


async def test_lag_of_a_stopped_outlet_is_what_waits_in_the_log(rig: OutletRig) -> None:
    rig.publish(on(1), on(2))
    assert OutletLog(NAME, OLDEST, rig.access).lag_records == 0  # not known yet
    async with rig.outlet_log(OLDEST) as log:
        log.delivered(await log.take(1))
        log.close()
        assert log.lag_records == 1


async def test_an_outlet_begins_anew_behind_what_was_delivered(rig: OutletRig) -> None:
    settings = OutletSettings(begin="oldest", settle_s=30)
    rig.publish(on(1), off(2), on(3, "bob"))
    async with rig.outlet_log(settings) as log:
        await log.take(1)
        with trio.move_on_after(1):
            await log.take(10, linger_s=5)
        log.restart_at(1, is_resumed=True)
        assert (log.lag_records, log.damping.waiting) == (2, 0)
        assert seqs((await log.take(1)).entries) == [3]


async def test_an_outlet_that_begins_anew_leaves_no_reader_of_the_log(
    rig: OutletRig,
) -> None:
    def readers() -> int:
        gc.collect()
        return sum(isinstance(it, TailReader) for it in gc.get_objects())

    async with rig.outlet_log(OLDEST) as log:
        before = readers()
        for _ in range(3):
            log.restart_at(0, is_resumed=True)
        assert readers() == before
        log.close()
        assert readers() == before - 1


@pytest.mark.parametrize("wrong_s", [-TEN_DAYS, TEN_DAYS], ids=["behind", "ahead"])
async def test_lag_counts_from_a_decision_before_a_restart_with_another_wall_clock(
    tmp_path: Path, jumping: MockClock, wrong_s: float
) -> None:
    clock = VirtualClock()
    clock.set_wall(ahead_s=TEN_DAYS)
    clock.resume_state(None)
    clock.set_wall(ahead_s=TEN_DAYS + wrong_s)
    with outlet_rig(tmp_path, clock=clock) as rig:
        rig.log.log_writer.store.begin(clock.state_time())
        rig.publish(on(1, at_s=TEN_DAYS + wrong_s))
    await trio.sleep(60)
    with outlet_rig(tmp_path, clock=clock) as rig:
        async with rig.outlet_log(OLDEST) as log:
            rig.clock.set_wall(ahead_s=TEN_DAYS / 2)
            batch = await log.take(1)
            assert log.lag_s == 60
            rig.clock.set_wall(ahead_s=0)
            await trio.sleep(5)
            rig.publish(on(2, at_s=65))
            outlet = Idle(NAME, OutletSettings(), rig.access)
            outlet.count_sent(len(batch.entries), batch.oldest_ms)
            log.delivered(batch)
            assert (outlet.latency.sum, log.lag_s) == (65, 65)


class Idle(Outlet):
    async def run(self) -> None:
        """Deliver nothing."""


async def test_a_gap_is_as_old_as_its_reading_and_a_record_behind_it_is_older(
    rig: OutletRig,
) -> None:
    rig.publish(on(1))
    rig.clock.set_wall(ahead_s=-TEN_DAYS)
    rig.publish(on(2, at_s=-TEN_DAYS), on(3, at_s=-TEN_DAYS))
    forget_tail(rig.log.feed, keep=1_000)
    disk.change(rig.log.log_writer.store.path, "delete from log where last = 1")
    await trio.sleep(60)
    async with rig.outlet_log(OLDEST) as log:
        for limit, lag_s in ((1, 5), (2, 70)):
            log.restart_at(0, is_resumed=False)
            batch = await log.take(limit)
            assert batch.entries[0].record.kind == "gap"
            await trio.sleep(5)
            assert log.lag_s == lag_s


LOG, OTHER = "a" * 16, "b" * 16


@pytest.mark.parametrize(
    ("found", "ancestors", "start"),
    [
        pytest.param((LOG, 7), {}, 7, id="same log"),
        pytest.param((LOG, 11), {}, 2, id="lost its end"),
        pytest.param((OTHER, 7), {}, 2, id="another log"),
        pytest.param((OTHER, 7), {OTHER: 5}, 5, id="a copy"),
        pytest.param((OTHER, 4), {OTHER: 5}, 4, id="before it parted"),
    ],
)
def test_a_cursor_continues_in_the_log_there_is(
    found: tuple[str, int], ancestors: dict[str, int], start: int
) -> None:
    at = position_in(found, log=LOG, ancestors=ancestors, newest=10, oldest=2)
    assert at == start


@pytest.mark.parametrize("ahead_s", [-TEN_DAYS, TEN_DAYS])
async def test_an_outlet_is_forgotten_in_time_if_the_wall_clock_was_wrong(
    rig: OutletRig, ahead_s: float
) -> None:
    rig.clock.set_wall(ahead_s=ahead_s)
    async with rig.outlet_log(name="gone"):
        pass
    rig.clock.set_wall(ahead_s=0)
    for is_kept in (True, False):
        await trio.sleep(10)
        await rig.store.open(keep=[], unused_s=15)
        assert (await rig.store.cursor("gone") is not None) is is_kept
        await rig.store.close()


async def test_a_cursor_that_finds_no_room_is_stored_later(rig: OutletRig) -> None:
    rig.publish(on(1))
    async with rig.outlet_log(OLDEST) as log:
        log.delivered(await log.take(1))
        with disk.locked(rig.store.path):
            await log.store_cursor()
        assert await rig.store.cursor(NAME) == (log.log, 0)
        await log.store_cursor()
        assert await rig.store.cursor(NAME) == (log.log, 1)


async def test_a_change_that_runs_at_the_stop_is_kept(rig: OutletRig) -> None:
    cursor, may_end = (LOG, 5), threading.Event()

    def change(db: sqlite3.Connection) -> None:
        put_cursor(db, NAME, cursor, 0)
        may_end.wait()

    await rig.store.open(keep=[NAME], unused_s=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.store.run, change)
        await wait_all_tasks_blocked()
        nursery.start_soon(rig.store.close)
        await wait_all_tasks_blocked()
        may_end.set()
    await rig.store.open(keep=[NAME], unused_s=1)
    assert await rig.store.cursor(NAME) == cursor


async def test_a_log_that_cannot_be_read_is_read_later(rig: OutletRig) -> None:
    rig.publish(on(1))
    forget_tail(rig.log.feed, keep=1)
    path = rig.log.log_writer.store.path
    away = path.with_name("away")
    async with rig.outlet_log(OLDEST) as log, trio.open_nursery() as nursery:
        path.rename(away)

        async def put_back() -> None:
            await trio.sleep(0.5)
            away.rename(path)

        nursery.start_soon(put_back)
        assert seqs((await log.take(1)).entries) == [1]
        assert trio.current_time() >= 1.0


async def test_records_that_were_deleted_before_they_were_read_are_counted(
    rig: OutletRig,
) -> None:
    for seq in (1, 2, 3, 4):
        rig.publish(on(seq))
    forget_tail(rig.log.feed, keep=1_000)
    path = rig.log.log_writer.store.path
    disk.change(path, "delete from log where last in (2, 3)")
    async with rig.outlet_log(OLDEST) as log:
        kinds = [entry.record.kind for entry in (await log.take(3)).entries]
        assert (kinds, log.missed) == (["online", "gap", "online"], 2)
