"""The log's writer: group commit, cursors, a failing disk, and the retention."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.core.changes import Changes
from liveness.core.cursors import CursorRow
from liveness.core.records import OnlineRow
from liveness.errors import StateError
from liveness.metrics.counts import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S
from liveness.service.storage.database import companions, size_of
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.log_writer import (
    COMMIT_EVERY_S,
    COMMIT_RECORDS,
    CURSOR_DELAY_S,
    FULL_COMMIT,
)
from liveness.service.storage.writer import CHECKPOINT_EVERY_S, MOST_GROWTH_BYTES
from liveness.service.timers.state_writer import TRIM_EVERY_S
from tests.helpers import disk
from tests.helpers.record_batches import batch_of
from tests.service.storage.journals import (
    VirtualClock,
    append,
    fill,
    forget,
    introduce,
    journal_of,
    move_cursor,
    online,
    trimming,
    writing,
)

KEY = ("gateway", "g")
LONG_AGO_MS = 1_000


RETENTION_S = 60  # of `trimming`


class Rig:
    """A running log writer, and each batch that it published, with the time."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.batches: list[Batch] = []
        self.marks: list[int] = []
        self.at: list[float] = []
        self.pending: list[int] = []
        self.counts = Counts()

    def published(self, batch: Batch) -> None:
        query = "select coalesce(max(last), 0) from log"
        ((last,),) = disk.rows(self.store.path, query)
        stored = disk.rows(self.store.path, "select role, name, seq from cursors")
        # A published batch is on disk.
        assert all(record.seq <= last for record in batch.records)
        kept = {(*key, row.seq) for key, row in batch.cursors.items() if row}
        assert kept <= set(stored)
        self.marks.append(self.log_writer.durable_ticket)
        self.batches.append(batch)
        self.at.append(trio.current_time())
        self.pending.append(self.log_writer.pending)

    @property
    def sizes(self) -> list[int]:
        """Records by commit."""
        return [len(batch.records) for batch in self.batches]

    @asynccontextmanager
    async def running(self, clock: Clock | None = None) -> AsyncIterator["Rig"]:
        with journal_of(
            self.store, counts=self.counts, published=self.published, clock=clock
        ) as self.log_writer:
            async with writing(self.log_writer):
                yield self

    async def write(self, first: int, count: int, *, has_online: bool = True) -> None:
        append(self.log_writer, changes(first, count, has_online=has_online))
        await self.log_writer.flushed()


@pytest.fixture
async def rig(store: LogStore, jumping: MockClock) -> AsyncIterator[Rig]:
    async with Rig(store).running() as made:
        yield made


def changes(
    first: int, count: int = 1, *, due: float = 0.0, has_online: bool = True
) -> Changes:
    records = [online(seq, at=LONG_AGO_MS) for seq in range(first, first + count)]
    rows = [
        OnlineRow(r.seq, r.uid, LONG_AGO_MS, None, "g", None)
        for r in records
        if has_online
    ]
    return Changes(batch_of(records, due=due, opened=rows))


# --- commits -----------------------------------------------------------------------


async def test_changes_queued_during_a_commit_go_into_the_next(rig: Rig) -> None:
    log_writer = rig.log_writer
    with disk.locked(rig.store.path):
        first = append(log_writer, changes(1, 2))
        await wait_all_tasks_blocked()
        for seq in (3, 4, 5):
            second = append(log_writer, changes(seq))
        assert (log_writer.durable_ticket, log_writer.durable_seq) == (0, 0)
        assert log_writer.pending == 5
    await log_writer.flushed()
    assert first < second == log_writer.durable_ticket
    assert (rig.sizes, rig.pending, rig.marks) == ([2, 3], [3, 0], [first, second])
    assert (log_writer.durable_seq, log_writer.pending) == (5, 0)
    assert rig.store.bounds() == (1, 6)


async def test_changes_that_keep_coming_are_gathered(rig: Rig) -> None:
    began, step = trio.current_time(), COMMIT_EVERY_S * 0.4
    for seq in range(1, 6):
        append(rig.log_writer, changes(seq))
        await trio.sleep(step)
    await trio.sleep(COMMIT_EVERY_S * 1.5)
    append(rig.log_writer, changes(6))
    await trio.sleep(step)
    assert rig.sizes == [1, 2, 2, 1]
    moments = [(at - began) / COMMIT_EVERY_S for at in rig.at]
    assert moments == pytest.approx([0, 1, 2, 3.5])


@pytest.mark.parametrize(
    ("count", "is_awaited"), [(1, True), (FULL_COMMIT, False)], ids=["awaited", "many"]
)
async def test_what_is_awaited_or_fills_a_page_is_not_gathered(
    rig: Rig, count: int, is_awaited: bool
) -> None:
    began, soon = trio.current_time(), COMMIT_EVERY_S / 10
    append(rig.log_writer, changes(1))
    await trio.sleep(soon)
    append(rig.log_writer, changes(2, count))
    if is_awaited:
        rig.log_writer.hurry()
    await trio.sleep(soon)
    append(rig.log_writer, changes(2 + count))
    await trio.sleep(2 * COMMIT_EVERY_S)
    assert rig.sizes == [1, count, 1]
    moments = [at - began for at in rig.at]
    assert moments == pytest.approx([0, soon, soon + COMMIT_EVERY_S])


async def test_a_commit_that_is_not_queued_yet_is_not_durable(rig: Rig) -> None:
    decided = rig.log_writer._decided
    decided.changes = changes(1)
    commit = decided.commit(with_cursors=False)
    assert commit is not None
    assert rig.log_writer.log_ticket < commit.ticket
    assert rig.log_writer.ticket_of("g") < commit.ticket
    rig.log_writer.append(commit)
    await rig.log_writer.flushed()
    assert rig.log_writer.log_ticket == commit.ticket


async def test_a_commit_takes_only_so_many_records_or_one_decision(rig: Rig) -> None:
    part = COMMIT_RECORDS * 2 // 5
    with disk.locked(rig.store.path):
        append(rig.log_writer, changes(1))
        await wait_all_tasks_blocked()
        for n in range(5):
            append(rig.log_writer, changes(2 + n * part, part))
        append(rig.log_writer, changes(2 + 5 * part, COMMIT_RECORDS + 1))
    await rig.log_writer.flushed()
    assert rig.sizes == [1, 2 * part, 2 * part, part, COMMIT_RECORDS + 1]


async def test_lateness_is_counted_once_a_record_is_on_disk(rig: Rig) -> None:
    await trio.sleep(5)
    append(rig.log_writer, changes(1, 3, due=trio.current_time() - 0.03))
    append(rig.log_writer, changes(4, 2))
    await rig.log_writer.flushed()
    durable = dict(rig.counts.lateness["durable"].cumulative())
    assert (durable["0.02"], durable["0.035"], durable["+Inf"]) == (0, 3, 3)
    assert dict(rig.counts.commits.cumulative())["+Inf"] == len(rig.batches)


# --- cursors -----------------------------------------------------------------------


async def test_cursors_alone_wait_a_second_and_go_together(rig: Rig) -> None:
    rig.log_writer.cursors[KEY] = CursorRow(0, 0, None)
    began = trio.current_time()
    await rig.log_writer.flushed()  # returns at once: nothing waits
    for seq in (1, 2, 3):
        move_cursor(rig.log_writer, KEY, seq)
        await trio.sleep(CURSOR_DELAY_S / 4)
    assert rig.batches == []
    await trio.sleep(CURSOR_DELAY_S)
    assert [at - began for at in rig.at] == [pytest.approx(CURSOR_DELAY_S)]
    assert rig.store.cursors()[KEY].seq == 3


async def test_a_new_name_is_stored_at_once_and_stays_forgotten(rig: Rig) -> None:
    log_writer, began = rig.log_writer, trio.current_time()
    mark = introduce(log_writer, KEY, seq=7, timeout=None)
    assert log_writer.durable_ticket < mark
    await log_writer.flushed()
    assert log_writer.durable_ticket >= mark
    assert rig.at == [began]
    assert rig.store.cursors()[KEY].seq == 7
    forget(log_writer, KEY)
    move_cursor(log_writer, KEY, 8)
    await log_writer.flushed()
    assert rig.store.cursors() == log_writer.cursors == {}


# --- a bad disk --------------------------------------------------------------------


async def test_a_full_disk_is_reported_and_drops_nothing(rig: Rig) -> None:
    log_writer = rig.log_writer
    with structlog.testing.capture_logs() as logs:
        with disk.full(rig.store):
            for first in (1, 2_001, 4_001):
                append(log_writer, changes(first, 2_000))
            await trio.sleep(65.5)
            assert "full" in (log_writer.failure or "")
            assert (log_writer.pending, log_writer.durable_seq) == (6_000, 0)
            assert rig.batches == []
            # One attempt a second; the timers' table did not fail.
            assert 64 <= log_writer.write_failures["log"] <= 66
            assert log_writer.write_failures["timers"] == 0
        began = trio.current_time()
        await log_writer.flushed()
    assert trio.current_time() - began <= 1.0
    assert log_writer.failure is None
    assert (log_writer.pending, log_writer.durable_seq) == (0, 6_000)
    assert [line["event"][:27] for line in logs] == [
        *["the log cannot be written; "] * 2,
        "the log is written again",
    ]
    assert (logs[0]["pending"], logs[0]["path"]) == (6_000, str(rig.store.path))
    assert rig.store.bounds() == (1, 6_001)
    assert len(list(rig.store.online())) == 6_000


@pytest.mark.usefixtures("jumping")
async def test_a_seq_given_twice_ends_the_writer(store: LogStore) -> None:
    store.write(Batch(records=changes(1).records))
    rig = Rig(store)
    with journal_of(store, published=rig.published) as log_writer:
        append(log_writer, changes(1))
        with trio.fail_after(60), pytest.raises(StateError, match="writes there too"):
            await log_writer.run()
    assert rig.batches == []


# --- retention ---------------------------------------------------------------------


async def test_a_failing_trim_is_logged_once_a_minute(rig: Rig) -> None:
    await rig.write(1, 9_000)
    await rig.write(9_001, 2)
    rig.store.trimmer.marks = [(9_000, LONG_AGO_MS)]
    disk.change(
        rig.store.path,
        "create trigger log_stays before delete on log "
        "begin select raise(abort, 'it stays'); end",
    )
    with structlog.testing.capture_logs() as logs:
        async with trimming(rig.log_writer):
            await trio.sleep(3 * REPEAT_LOG_S - TRIM_EVERY_S / 2)
    assert [line["event"] for line in logs] == ["the log was not trimmed"] * 3
    assert rig.store.bounds() == (1, 9_003)


@pytest.mark.usefixtures("jumping")
async def test_only_an_idle_name_is_forgotten(store: LogStore) -> None:
    cursor = CursorRow(0, LONG_AGO_MS, 7.0)
    linked = ("gateway", "linked")
    store.write(Batch(cursors={linked: cursor, ("gateway", "idle"): cursor}))
    async with Rig(store).running() as rig:
        async with trimming(rig.log_writer, linked):
            await trio.sleep(3 * TRIM_EVERY_S)
        assert list(rig.log_writer.cursors) == list(store.cursors()) == [linked]
        assert store.cursors()[linked].timeout == 7.0


async def test_no_name_is_forgotten_before_it_could_come_back(store: LogStore) -> None:
    """Its last use may be long ago as the host slept, and it had a link until the stop."""
    store.write(Batch(cursors={KEY: CursorRow(0, LONG_AGO_MS, 7.0)}))
    async with Rig(store).running() as rig, trimming(rig.log_writer):
        await trio.sleep(TRIM_EVERY_S / 2)
        assert list(rig.log_writer.cursors) == list(store.cursors()) == [KEY]


@pytest.mark.usefixtures("jumping")
async def test_a_name_is_kept_as_long_as_its_last_record(store: LogStore) -> None:
    async with Rig(store).running(VirtualClock()) as rig:
        log_writer = rig.log_writer
        for name in ("idle", "g"):
            introduce(log_writer, ("gateway", name), seq=0, timeout=None)
        await log_writer.flushed()
        async with trimming(log_writer):
            # Their links are closed, and their users' sessions end one by one.
            for seq in (1, 2, 3):
                await trio.sleep(RETENTION_S * 0.9)
                append(log_writer, changes(seq, 1))
            await trio.sleep(RETENTION_S * 0.99)
            assert list(log_writer.cursors) == list(store.cursors()) == [KEY]
            await trio.sleep(RETENTION_S)
            assert log_writer.cursors == store.cursors() == {}


async def test_on_a_full_disk_a_log_above_its_bound_makes_room(rig: Rig) -> None:
    log_writer = rig.log_writer
    for first in range(1, 20_000, COMMIT_RECORDS):
        append(log_writer, changes(first, COMMIT_RECORDS, has_online=False))
    await log_writer.flushed()
    with disk.full(rig.store):
        append(log_writer, changes(20_001, COMMIT_RECORDS, has_online=False))
        await trio.sleep(3)
        assert log_writer.failure is not None
        assert rig.store.bounds() == (1, 20_001)  # no record is deleted early
        async with trimming(log_writer, most_bytes=1):
            with trio.fail_after(60):
                await log_writer.flushed()
        assert log_writer.failure is None
    assert rig.store.bounds()[1] == 20_001 + COMMIT_RECORDS


# --- when a WAL is written back -------------------------------------------------------


# More than SQLite by default leaves in a WAL.
MANY_BYTES = 8 * 2**20


def growth(store: LogStore) -> int:
    """Bytes that the database has to grow by when its WAL is written back."""
    ((pages,),) = disk.rows(store.path, "pragma page_count")
    ((size,),) = disk.rows(store.path, "pragma page_size")
    return int(pages * size) - store.path.stat().st_size


async def write_much(store: LogStore, size: int) -> None:
    """Write roughly this many bytes, in commits of 1,000 records."""
    for _ in range(size // 50_000):
        await store.writer.write(partial(fill, store, 1_000), pending=int)


async def test_the_next_commit_uses_a_wal_again_that_was_written_back(
    store: LogStore, jumping: MockClock
) -> None:
    wal, *_ = companions(store.path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.writer.run_checkpoints)
        await write_much(store, MANY_BYTES)
        before = size_of(wal) or 0
        assert before > growth(store) > MANY_BYTES / 2  # no commit has done it
        await trio.sleep(2 * CHECKPOINT_EVERY_S)
        assert growth(store) == 0
        await write_much(store, MANY_BYTES // 2)
        assert size_of(wal) == before
        nursery.cancel_scope.cancel()


async def test_on_a_small_disk_a_database_never_has_to_grow_by_much(
    tmp_path: Path, jumping: MockClock
) -> None:
    with (
        disk.mounted(tmp_path / "disk", 64) as folder,
        closing(LogStore(folder / "state")) as store,
    ):
        for _ in range(10):
            await write_much(store, MOST_GROWTH_BYTES // 2)
            assert growth(store) <= MOST_GROWTH_BYTES
