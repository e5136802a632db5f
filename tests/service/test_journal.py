"""The log on its way to disk: what gathers, what waits, and what a bad disk does."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.core.records import Changes, OnlineRow, Record
from liveness.errors import StateError
from liveness.metrics import Counts
from liveness.service.clock import Clock
from liveness.service.journal import (
    COMMIT_RECORDS,
    CURSOR_DELAY_S,
    TRIM_EVERY_S,
    Journal,
)
from liveness.service.logs import SAY_AGAIN_S
from liveness.service.store import Batch, CursorRow, Store
from tests.service.journals import journal_of

KEY = ("gateway", "g")
LONG_AGO_MS = 1_000
RETENTION_S = 60


class VirtualClock(Clock):
    """The wall clock goes with the loop's."""

    def wall_ms(self) -> int:
        return LONG_AGO_MS + int(trio.current_time() * 1000)


class Told:
    """A running journal, and each batch it published, with when."""

    def __init__(self, store: Store, stack: ExitStack, clock: Clock | None) -> None:
        self.batches: list[Batch] = []
        self.marks: list[int] = []
        self.at: list[float] = []
        self.pending: list[int] = []
        self.counts = Counts()
        self.journal = stack.enter_context(
            journal_of(
                store, counts=self.counts, published=self._published, clock=clock
            )
        )

    def _published(self, batch: Batch) -> None:
        with closing(sqlite3.connect(self.journal.store.path)) as db:
            (last,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
            stored = db.execute("select role, name, seq from cursors").fetchall()
        # Whoever is told finds it on disk.
        assert all(record.seq <= last for record in batch.records)
        kept = {
            (*key, row.seq) for key, row in batch.cursors.items() if row is not None
        }
        assert kept <= set(stored)
        self.marks.append(self.journal.durable_mark)
        self.batches.append(batch)
        self.at.append(trio.current_time())
        self.pending.append(self.journal.pending)

    @property
    def sizes(self) -> list[int]:
        """Records by commit."""
        return [len(batch.records) for batch in self.batches]


@asynccontextmanager
async def writing(store: Store, clock: Clock | None = None) -> AsyncIterator[Told]:
    with ExitStack() as stack:
        told = Told(store, stack, clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.journal.run)
            nursery.start_soon(told.journal.timers.run)
            yield told
            nursery.cancel_scope.cancel()


def changes(
    first: int, count: int = 1, *, due: float = 0.0, online: bool = True
) -> Changes:
    records = [
        Record(seq, "online", f"u{seq}", "g", seq, None, "login", LONG_AGO_MS)
        for seq in range(first, first + count)
    ]
    rows = (OnlineRow(r.seq, r.uid, LONG_AGO_MS, None, "g", None) for r in records)
    kept = {row.session: row for row in rows if online}
    return Changes([*records], [due] * count, {**kept})


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """Another process holds the file, as a backup does: a commit has to wait."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        db.execute("begin immediate")
        yield
        db.execute("rollback")


@contextmanager
def disk_full(store: Store) -> Iterator[None]:
    (pages,) = store._db.execute("pragma page_count").fetchone()
    store._db.execute(f"pragma max_page_count = {pages}")
    yield
    store._db.execute("pragma max_page_count = 1000000")


# --- commits -----------------------------------------------------------------------


async def test_what_gathers_while_a_commit_runs_goes_into_the_next(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        with locked(store):
            told.journal.append(changes(1))
            await wait_all_tasks_blocked()
            for seq in (2, 3, 4):
                told.journal.append(changes(seq))
            assert told.journal.pending == 4
        await told.journal.settled()
    assert told.sizes == [1, 3]
    assert told.pending == [3, 0]


async def test_a_mark_is_durable_once_its_records_are_and_not_before(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        journal = told.journal
        with locked(store):
            journal.append(changes(1, 2))
            first = journal.mark
            await wait_all_tasks_blocked()
            journal.append(changes(3))
            second = journal.flush()
            assert (journal.durable_mark, journal.durable_seq) == (0, 0)
        await journal.settled()
        assert first < second == journal.durable_mark == journal.mark
        assert told.marks == [first, second]
        assert (journal.durable_seq, journal.pending) == (3, 0)
    assert store.bounds() == (1, 4)


async def test_a_commit_takes_only_so_many_records(
    store: Store, jumping: MockClock
) -> None:
    part = COMMIT_RECORDS * 2 // 5
    async with writing(store) as told:
        with locked(store):
            told.journal.append(changes(1))
            await wait_all_tasks_blocked()
            for n in range(5):
                told.journal.append(changes(2 + n * part, part))
        await told.journal.settled()
    assert told.sizes == [1, 2 * part, 2 * part, part]


async def test_more_than_a_commit_takes_is_still_written_if_it_is_one_decision(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        told.journal.append(changes(1, COMMIT_RECORDS + 1))
        await told.journal.settled()
    assert told.sizes == [COMMIT_RECORDS + 1]


async def test_of_a_session_decided_twice_in_one_commit_the_last_decision_is_kept(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        with locked(store):
            told.journal.append(changes(1))
            await wait_all_tasks_blocked()
            told.journal.append(changes(2))
            told.journal.append(Changes(online={2: None, 1: None}))
            told.journal.append(changes(3))
        await told.journal.settled()
    assert [uid for _, uid, *_ in store.online()] == ["u3"]


async def test_lateness_is_counted_for_what_was_due_when_it_is_on_disk(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        await trio.sleep(5)
        told.journal.append(changes(1, 3, due=trio.current_time() - 0.03))
        told.journal.append(changes(4, 2))
        await told.journal.settled()
    durable = dict(told.counts.lateness["durable"].cumulative())
    assert (durable["0.02"], durable["0.035"], durable["+Inf"]) == (0, 3, 3)
    assert dict(told.counts.commits.cumulative())["+Inf"] == len(told.batches)


# --- cursors -----------------------------------------------------------------------


async def test_cursors_alone_wait_a_second_and_go_together(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        told.journal.cursors[KEY] = CursorRow(0, 0, None)
        began = trio.current_time()
        for seq in (1, 2, 3):
            told.journal.move_cursor(*KEY, seq)
            await trio.sleep(CURSOR_DELAY_S / 4)
        assert told.batches == []
        await trio.sleep(CURSOR_DELAY_S)
        assert [at - began for at in told.at] == [pytest.approx(CURSOR_DELAY_S)]
    assert store.cursors()[KEY].seq == 3


async def test_a_record_takes_waiting_cursors_along_at_once(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        told.journal.cursors[KEY] = CursorRow(0, 0, None)
        told.journal.move_cursor(*KEY, 1)
        await trio.sleep(CURSOR_DELAY_S / 2)
        began = trio.current_time()
        told.journal.append(changes(1))
        await told.journal.settled()
        assert told.at == [began]
        await trio.sleep(3 * CURSOR_DELAY_S)
    assert len(told.batches) == 1
    assert store.cursors()[KEY].seq == 1


async def test_a_cursor_never_goes_back(store: Store, jumping: MockClock) -> None:
    async with writing(store) as told:
        journal = told.journal
        journal.cursors[KEY] = CursorRow(0, 0, None)
        journal.move_cursor(*KEY, 5)
        journal.move_cursor(*KEY, 4)
        assert journal.cursors[KEY].seq == 5
        journal.introduce(*KEY, seq=3, timeout=2.5)
        assert (journal.cursors[KEY].seq, journal.cursors[KEY].timeout) == (5, 2.5)
        journal.move_cursor(*KEY, 6)
        await journal.settled()
    assert store.cursors()[KEY]._replace(used_ms=0) == CursorRow(6, 0, 2.5)


async def test_a_name_that_was_forgotten_does_not_come_back_by_a_late_ack(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        journal = told.journal
        journal.introduce(*KEY, seq=3, timeout=None)
        await journal.settled()
        journal.forget(*KEY)
        journal.move_cursor(*KEY, 4)
        await journal.settled()
    assert store.cursors() == journal.cursors == {}


async def test_a_new_name_is_stored_at_once_and_its_mark_tells_when(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        began = trio.current_time()
        mark = told.journal.introduce(*KEY, seq=7, timeout=None)
        assert told.journal.durable_mark < mark
        await told.journal.settled()
        assert told.journal.durable_mark >= mark
        assert told.at[0] == began
    assert store.cursors()[KEY].seq == 7


async def test_settled_returns_at_once_when_nothing_waits(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        await told.journal.settled()
    assert told.batches == []


# --- a bad disk --------------------------------------------------------------------


async def test_a_full_disk_drops_nothing_says_so_once_a_minute_and_recovers(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        journal = told.journal
        with structlog.testing.capture_logs() as said:
            with disk_full(store):
                for first in (1, 2_001, 4_001):
                    journal.append(changes(first, 2_000))
                await trio.sleep(65.5)
                assert journal.failure is not None
                assert "full" in journal.failure
                assert (journal.pending, journal.durable_seq) == (6_000, 0)
                assert told.batches == []
                # One try a second; the timers' table was not troubled.
                assert 64 <= journal.write_failures["log"] <= 66
                assert journal.write_failures["timers"] == 0
            began = trio.current_time()
            await journal.settled()
        assert trio.current_time() - began <= 1.0
        assert journal.failure is None
        assert (journal.pending, journal.durable_seq) == (0, 6_000)
    assert [line["event"][:27] for line in said] == [
        *["the log cannot be written; "] * 2,
        "the log is written again",
    ]
    assert said[0]["pending"] == 6_000
    assert said[0]["path"] == str(store.path)
    assert store.bounds() == (1, 6_001)
    assert len(list(store.online())) == 6_000


async def test_a_cursor_is_not_lost_to_a_full_disk_and_not_moved_back_by_the_retry(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        with disk_full(store):
            told.journal.introduce(*KEY, seq=1, timeout=None)
            told.journal.append(changes(1, 5_000))
            await trio.sleep(3)
            told.journal.move_cursor(*KEY, 2)
        await told.journal.settled()
        await trio.sleep(2 * CURSOR_DELAY_S)
    assert store.cursors()[KEY].seq == 2


async def test_a_seq_given_twice_ends_the_journal_rather_than_be_retried(
    store: Store, jumping: MockClock
) -> None:
    store.write(Batch(records=changes(1).records))
    with ExitStack() as stack:
        told = Told(store, stack, None)
        told.journal.append(changes(1))
        with trio.fail_after(60), pytest.raises(StateError):
            await told.journal.run()
        assert told.batches == []


# --- retention ---------------------------------------------------------------------


async def test_what_is_past_the_retention_goes_step_by_step_until_it_is_gone(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        journal = told.journal
        for first, count in ((1, 9_000), (9_001, 2)):
            journal.append(changes(first, count))
            await journal.settled()
        journal.cursors[KEY] = CursorRow(0, LONG_AGO_MS, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_trim, journal)
            await trio.sleep(TRIM_EVERY_S / 2)
            assert journal.first == 9_001
            assert store.bounds() == (9_001, 9_003)
            assert journal.log_bytes == store.log_bytes()
            nursery.cancel_scope.cancel()


async def test_that_nothing_can_be_trimmed_is_said_once_a_minute(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        for first, count in ((1, 9_000), (9_001, 2)):
            told.journal.append(changes(first, count))
            await told.journal.settled()
        store._db.execute(
            "create trigger log_stays before delete on log "
            "begin select raise(abort, 'it stays'); end"
        )
        with structlog.testing.capture_logs() as said:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_trim, told.journal)
                await trio.sleep(3 * SAY_AGAIN_S - TRIM_EVERY_S / 2)
                nursery.cancel_scope.cancel()
    assert [line["event"] for line in said] == ["the log was not trimmed"] * 3
    assert store.bounds() == (1, 9_003)


async def test_a_name_in_use_is_never_forgotten_and_an_idle_one_is(
    store: Store, jumping: MockClock
) -> None:
    for name in ("linked", "idle"):
        cursor = CursorRow(0, LONG_AGO_MS, 7.0)
        store.write(Batch(cursors={("gateway", name): cursor}))
    async with writing(store) as told:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_trim, told.journal, ("gateway", "linked"))
            await trio.sleep(3 * TRIM_EVERY_S)
            nursery.cancel_scope.cancel()
        assert list(told.journal.cursors) == [("gateway", "linked")]
        assert list(store.cursors()) == [("gateway", "linked")]
        assert store.cursors()["gateway", "linked"].timeout == 7.0


async def test_a_name_is_kept_for_as_long_as_the_last_record_that_concerns_it(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store, VirtualClock()) as told:
        journal = told.journal
        for name in ("idle", "g"):
            journal.introduce("gateway", name, seq=0, timeout=None)
        await journal.settled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_trim, journal)
            # They have gone, and their users' sessions end one by one.
            for seq in (1, 2, 3):
                await trio.sleep(RETENTION_S * 0.9)
                journal.append(changes(seq, 1))
            await trio.sleep(RETENTION_S * 0.99)
            assert list(journal.cursors) == list(store.cursors()) == [KEY]
            await trio.sleep(RETENTION_S)
            assert journal.cursors == store.cursors() == {}
            nursery.cancel_scope.cancel()


async def test_a_full_log_does_not_grow_whatever_is_written_between_two_trims(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        journal = told.journal
        journal.append(changes(1, COMMIT_RECORDS, online=False))
        await journal.settled()
        most = store.log_bytes() + 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_trim, journal, most_bytes=most))
            await trio.sleep(TRIM_EVERY_S / 2)
            for first in range(COMMIT_RECORDS + 1, 40_000, COMMIT_RECORDS):
                journal.append(changes(first, COMMIT_RECORDS, online=False))
            await journal.settled()
            await trio.sleep(1)
            assert trio.current_time() < TRIM_EVERY_S
            assert journal.log_bytes == store.log_bytes() <= most
            nursery.cancel_scope.cancel()


async def test_on_a_full_disk_a_log_above_its_bound_makes_room_by_itself(
    store: Store, jumping: MockClock
) -> None:
    async with writing(store) as told:
        journal = told.journal
        for first in range(1, 20_000, COMMIT_RECORDS):
            journal.append(changes(first, COMMIT_RECORDS, online=False))
        await journal.settled()
        with disk_full(store):
            journal.append(changes(20_001, COMMIT_RECORDS, online=False))
            await trio.sleep(3)
            assert journal.failure is not None
            assert store.bounds() == (1, 20_001)  # nothing goes before its time
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(_trim, journal, most_bytes=1))
                with trio.fail_after(60):
                    await journal.settled()
                nursery.cancel_scope.cancel()
            assert journal.failure is None
    assert store.bounds()[1] == 20_001 + COMMIT_RECORDS


async def _trim(
    journal: Journal, *in_use: tuple[str, str], most_bytes: int = 2**40
) -> None:
    await journal.trim(
        retention_s=RETENTION_S,
        most_bytes=most_bytes,
        most_ended=0,
        in_use=lambda: in_use,
        forgot=lambda _: None,
    )
