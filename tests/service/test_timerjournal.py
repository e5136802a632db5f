"""Orders on their way to the table, beside records on their way to the log.

Two files, each with a writer of its own. In the property a transaction of either ends
only when the test lets it, so that every order in which they may end is one that can be
drawn; whatever is told is compared with what is on disk at that moment.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.core.records import TIMER, Changes, Logged, Record, TimerRecord
from liveness.core.timers import (
    Drop,
    Fire,
    LookLater,
    Order,
    Reply,
    Schedule,
    Settlement,
    Timer,
    gateway_of,
)
from liveness.errors import StateError
from liveness.metrics import Counts
from liveness.service import journal, timerjournal, timertable
from liveness.service.clock import Clock
from liveness.service.journal import TRIM_EVERY_S, Journal
from liveness.service.store import Batch, Store
from liveness.service.timerjournal import (
    COMMIT_ORDERS,
    FOLLOW_RECORDS,
    RUN_WAIT_S,
    TimerJournal,
)
from liveness.service.timertable import TimerTable
from tests import disk
from tests.strategies import BOUNDED

AT_MS: Final = 1_000


class Told:
    """A journal over two files, and what it told."""

    def __init__(self, store: Store, table: TimerTable) -> None:
        clock = Clock()
        self.store, self.table = store, table
        self.published: list[Logged] = []
        self.settled: list[list[Order]] = []  # by transaction
        self.wrote_log, self.wrote_table = trio.Event(), trio.Event()
        self.journal = Journal(
            store,
            TimerJournal(table, clock=clock, settled=self._settled),
            clock=clock,
            counts=Counts(),
            published=self._published,
        )

    def _published(self, batch: Batch) -> None:
        self.published += batch.records
        self.wrote_log.set()
        self.wrote_log = trio.Event()

    def _settled(self, orders: list[Order], settlement: Settlement) -> None:
        self.settled.append(orders)
        self.journal.is_settled()
        self.wrote_table.set()
        self.wrote_table = trio.Event()

    async def runs(self, count: int) -> None:
        """So many timers that have fired, with nobody's answer; their log is on disk."""
        self.journal.append(asked(1, count))
        for number in range(1, count + 1):
            self.journal.append(run(number, number))
        await self.journal.settled()

    @property
    def sizes(self) -> list[int]:
        """Orders by transaction."""
        return [len(orders) for orders in self.settled]

    def states(self) -> dict[str, int]:
        """How many timers there are in each state, as it is on disk."""
        query = "select state, count(*) from timers group by state"
        return dict(disk.rows(self.table.path, query))


@asynccontextmanager
async def writing(store: Store, table: TimerTable) -> AsyncIterator[Told]:
    told = Told(store, table)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.journal.run)
        nursery.start_soon(told.journal.timers.run)
        yield told
        nursery.cancel_scope.cancel()


@pytest.fixture
def table(store: Store) -> Iterator[TimerTable]:
    with closing(TimerTable(store.folder, log=store.log)) as opened:
        yield opened


def after(number: int, *, ext: str | None = None) -> Schedule:
    """A timer asked for, with a key of its own."""
    timer = Timer(
        number, "g", f"k{number}", ext, "pending", AT_MS, AT_MS, 0, None, 0, None,
        AT_MS, None, AT_MS,
    )  # fmt: skip
    return Schedule(timer, None)


def asked(first: int, count: int = 1) -> Changes:
    return Changes(orders=[after(n) for n in range(first, first + count)])


def login(seq: int) -> Changes:
    record = Record(seq, "online", f"u{seq}", "g", seq, None, "login", AT_MS)
    return Changes([record], [0.0])


def run(seq: int, number: int) -> Changes:
    """The first run of a timer: its record, and what the table is told of it."""
    key = f"k{number}"
    record = TimerRecord(seq, TIMER, "g", key, None, None, AT_MS, 1, AT_MS)
    return Changes([record], [0.0], orders=[Fire("g", key, 1, seq, AT_MS)], ends=1)


def done(number: int) -> Changes:
    """Its gateway did what a timer was for."""
    reply = Reply("g", f"k{number}", None, True, None, False, AT_MS)
    return Changes(orders=[reply])


def cancel(gateway: str, number: int) -> Order:
    return Drop(gateway, f"k{number}", None, 2**60, AT_MS)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the file, as a backup does: a commit has to wait."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("begin immediate")
        yield
        db.execute("rollback")


@contextmanager
def disk_full(table: TimerTable) -> Iterator[None]:
    (pages,) = table._db.execute("pragma page_count").fetchone()
    table._db.execute(f"pragma max_page_count = {pages}")
    yield
    table._db.execute("pragma max_page_count = 1000000")


# --- commits ------------------------------------------------------------------------


async def test_orders_go_together_up_to_a_number(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    part = COMMIT_ORDERS * 2 // 5
    async with writing(store, table) as told:
        with locked(table.path):
            told.journal.append(asked(1))
            await wait_all_tasks_blocked()
            for n in range(4):
                told.journal.append(asked(2 + n * part, part))
            told.journal.append(asked(2 + 4 * part, COMMIT_ORDERS + 1))
            assert told.journal.pending == 4 * part + COMMIT_ORDERS + 2
        await told.journal.settled()
        rest = 4 * part + 1 - COMMIT_ORDERS
        assert told.sizes == [1, COMMIT_ORDERS, COMMIT_ORDERS, rest]
        assert told.journal.timers.pending_of == {}
        assert told.journal.pending == 0
        assert told.states() == {"pending": 4 * part + COMMIT_ORDERS + 2}


async def test_orders_that_carry_much_go_together_up_to_4_mb(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    with_4_kib = [after(n)._replace(payload="é" * 2_048) for n in range(2, 1_800)]
    answers = [
        Reply("h", f"k{n}", None, False, "x" * 1_024, False, AT_MS) for n in range(10)
    ]
    async with writing(store, table) as told:
        with locked(table.path):
            told.journal.append(asked(1))
            await wait_all_tasks_blocked()
            told.journal.append(Changes(orders=[*with_4_kib, *answers]))
            pending = {"g": 1 + 5 * len(with_4_kib), "h": 2 * len(answers)}
            assert told.journal.timers.pending_of == pending
        await told.journal.settled()
        # Of 4,000 the answers take two each, and the timers five each: one over.
        assert told.sizes == [1, 796 + 10, 800, 1_798 - 796 - 800]
        assert told.journal.timers.pending_of == {}


async def test_a_run_is_told_to_the_table_only_once_its_record_is_on_disk(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        journal.append(asked(1, 2))
        await journal.settled()
        with locked(store.path):
            journal.append(run(1, 1))
            journal.append(asked(3))
            await told.wrote_table.wait()
            # What was asked since does not wait for the log.
            assert told.states() == {"pending": 3}
            assert (journal.durable_mark, disk.runs(store.path)) == (1, [])
        await journal.settled()
        assert [one.seq for one in disk.runs(store.path)] == [1]
        await trio.sleep(RUN_WAIT_S + 1)
        assert told.states() == {"fired": 1, "pending": 2}
        assert table.seq == 1


async def test_no_order_takes_a_run_along_whose_record_is_not_on_disk(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        journal.append(asked(1))
        await journal.settled()
        with locked(store.path):
            journal.append(run(1, 1))
            await wait_all_tasks_blocked()
            journal.append(Changes(orders=[Drop("g", "k1", None, 2, AT_MS)]))
            while told.states() != {"cancelled": 1}:
                await told.wrote_table.wait()
            assert disk.rows(table.path, "select seq from timers") == [(None,)]
        await journal.settled()
        await trio.sleep(RUN_WAIT_S + 1)
        assert disk.rows(table.path, "select state, seq from timers") == [
            ("cancelled", 1)
        ]


async def test_a_run_waits_for_its_answer_and_holds_up_nobody_meanwhile(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        await told.runs(3)
        assert (journal.durable_mark, journal.timers.runs) == (journal.mark, 3)
        assert journal.pending == 0  # nothing is owed to the disk
        journal.append(done(2))
        await journal.settled()
        assert told.settled[1:] == [[*run(2, 2).orders, *done(2).orders]]
        assert told.states() == {"pending": 2, "done": 1}
        # The table has not followed the log beyond the first that it lacks.
        assert (table.seq, table.newest) == (0, 2)
        journal.append(done(1))
        await journal.settled()
        assert (table.seq, table.newest) == (2, 2)
        await trio.sleep(RUN_WAIT_S + 1)
        assert told.settled[3:] == [run(3, 3).orders]
        assert told.states() == {"fired": 1, "done": 2}
        assert (table.seq, journal.timers.runs) == (3, 0)


async def test_a_run_that_somebody_asks_about_is_written_at_once(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        await told.runs(2)
        began = trio.current_time()
        for key in ("k2", "k2", "unknown"):
            journal.timers.hurry("g", key, mark=journal.mark)
            await journal.settled()
            assert told.states() == {"pending": 1, "fired": 1}
        assert trio.current_time() == began
        assert told.settled[1:] == [run(2, 2).orders]
        assert journal.timers.runs == 1


async def test_runs_that_nobody_answers_are_written_though_the_orders_never_cease(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        journal.append(asked(1))
        await journal.settled()
        journal.append(run(1, 1))
        for number in range(2, 100):
            await trio.sleep(RUN_WAIT_S / 20)
            journal.append(asked(number))
        assert told.states()["fired"] == 1


async def test_runs_go_in_no_larger_pieces_than_other_orders(
    store: Store,
    table: TimerTable,
    jumping: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timerjournal, "COMMIT_ORDERS", 3)
    monkeypatch.setattr(timerjournal, "LATE_RUNS", 1)
    async with writing(store, table) as told:
        await told.runs(8)
        await trio.sleep(RUN_WAIT_S + 1)
        assert told.sizes == [3, 3, 2, 3, 3, 2]
        assert told.states() == {"fired": 8}


async def test_no_more_runs_wait_than_may(
    store: Store,
    table: TimerTable,
    jumping: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timerjournal, "MOST_RUNS", 5)
    async with writing(store, table) as told:
        await told.runs(8)
        began = trio.current_time()
        while len(told.settled) < 2:
            await told.wrote_table.wait()
        assert trio.current_time() == began
        first = [order for seq in (1, 2, 3) for order in run(seq, seq).orders]
        assert told.settled[1:] == [first]


async def test_late_runs_go_with_orders_that_leave_no_room(
    store: Store,
    table: TimerTable,
    jumping: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timerjournal, "COMMIT_ORDERS", 3)
    monkeypatch.setattr(timerjournal, "LATE_RUNS", 1)
    async with writing(store, table) as told:
        await told.runs(2)
        with locked(table.path):
            for lot in range(4):
                told.journal.append(asked(3 + 3 * lot, 3))
            await trio.sleep(RUN_WAIT_S + 1)
        await told.journal.settled()
        assert told.sizes == [2, 3, 4, 4, 3]


async def test_a_cancel_by_ext_with_many_runs_before_it_is_no_large_transaction(
    store: Store,
    table: TimerTable,
    jumping: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timerjournal, "COMMIT_ORDERS", 3)
    async with writing(store, table) as told:
        await told.runs(7)
        told.journal.append(Changes(orders=[Drop("g", None, "x", 8, AT_MS)]))
        await told.journal.settled()
        assert told.sizes == [3, 3, 1, 3, 3, 2]


async def test_gateways_have_equal_shares_of_a_transaction(
    store: Store,
    table: TimerTable,
    jumping: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timerjournal, "COMMIT_ORDERS", 4)
    async with writing(store, table) as told:
        timers = told.journal.timers
        with locked(table.path):
            told.journal.append(asked(1, 12))
            await wait_all_tasks_blocked()
            told.journal.append(Changes(orders=[cancel("h", n) for n in range(2)]))
            told.journal.append(Changes(orders=[cancel("i", 1)]))
            assert timers.pending_of == {"g": 12, "h": 2, "i": 1}
            assert (timers.oldest, timers.oldest_of("h"), timers.oldest_of("i")) == (
                *(1, 2, 3),
            )
        await told.journal.settled()
        assert ["".join(map(gateway_of, it)) for it in told.settled] == [
            *("gggg", "high", "gggg", "ggg")
        ]
        assert (timers.oldest, timers.oldest_of("g"), timers.pending_of) == (
            *(None, None, {}),
        )


async def test_a_cancel_by_ext_takes_no_run_of_another_gateway_along(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        await told.runs(3)
        told.journal.append(Changes(orders=[Drop("h", None, "x", 8, AT_MS)]))
        await told.journal.settled()
        assert (told.sizes, told.journal.timers.runs) == ([3, 1], 3)


async def test_a_cancel_by_ext_finds_every_run_before_it(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        journal.append(Changes(orders=[after(1, ext="x"), after(2, ext="x")]))
        await journal.settled()
        journal.append(run(1, 2))
        await journal.settled()
        cancel = Drop("g", None, "x", 3, AT_MS)
        journal.append(Changes(orders=[cancel]))
        await journal.settled()
        assert told.settled[1:] == [[*run(1, 2).orders, cancel]]
        assert told.states() == {"cancelled": 2}


async def test_who_is_told_of_a_run_finds_it_among_the_orders_before_its_answer(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        journal.append(asked(1))
        await journal.settled()
        journal.append(run(1, 1))
        await told.wrote_log.wait()
        cancel = Drop("g", "k1", None, 2, AT_MS)
        journal.append(Changes(orders=[cancel]))
        await journal.settled()
    orders = [order for orders in told.settled for order in orders]
    assert orders[1:] == [Fire("g", "k1", 1, 1, AT_MS), cancel]


async def test_an_id_given_twice_ends_the_journal_rather_than_be_retried(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    table.write([after(1)])
    told = Told(store, table)
    again = after(1)
    told.journal.append(Changes(orders=[Schedule(again.timer._replace(key="k"), None)]))
    with trio.fail_after(60), pytest.raises(StateError, match="writes there too"):
        await told.journal.timers.run()
    assert told.settled == []


# --- what waits to be written back ----------------------------------------------------


async def test_on_a_small_disk_the_wal_begins_anew_before_it_fills_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    """Each second two thousand pages are written anew, which are 2 MiB of the WAL."""
    numbers = range(1, 2_001)
    with (
        disk.mounted(tmp_path / "disk", 12) as folder,
        closing(Store(folder)) as store,
        closing(TimerTable(folder, log=store.log)) as table,
    ):
        table.write([Schedule(after(n).timer, "x" * 700) for n in numbers])
        table.write([Fire("g", f"k{n}", 1, n, AT_MS) for n in numbers])
        async with writing(store, table) as told, trio.open_nursery() as nursery:
            timers = told.journal.timers
            nursery.start_soon(timers.write_back)
            for until in range(20):
                later = [LookLater("g", f"k{n}", n, AT_MS + until) for n in numbers]
                told.journal.append(Changes(orders=[*later]))
                with trio.fail_after(10):
                    await told.journal.settled()
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert timers.writer.failures == 0


# --- in every order -----------------------------------------------------------------


class HeldStore(Store):
    """A log whose commits begin at once and end when they are let through."""

    def __init__(self, folder: Path) -> None:
        self.gate = threading.Semaphore(0)
        super().__init__(folder)

    def write(self, batch: Batch) -> None:
        self.gate.acquire()
        super().write(batch)


class HeldTable(TimerTable):
    """A table of which the same holds."""

    def __init__(self, folder: Path, *, log: str) -> None:
        self.gate = threading.Semaphore(0)
        super().__init__(folder, log=log)

    def write(
        self, orders: Sequence[Order], *, seq: int = 0
    ) -> tuple[Settlement, list[Drop]]:
        self.gate.acquire()
        return super().write(orders, seq=seq)


class Engine:
    """Says this and that to a journal, and knows what it may tell in return."""

    def __init__(
        self, store: HeldStore, table: HeldTable, told: Told, clock: MockClock
    ) -> None:
        self.store, self.table, self.told = store, table, told
        self.clock = clock  # that stands still
        self.journal = told.journal
        self.given: list[Order] = []
        self.timers, self.seq = 0, 0  # the newest of each
        self.cancelled_below = 0
        self.to_fire: deque[int] = deque()
        self.marks: list[tuple[int, int, int, int]] = []  # and how far each was then
        self.durable_mark = 0

    async def act(self, act: str) -> None:
        match act:
            case "write log":
                if self.journal.records_pending:
                    self.store.gate.release()
                    await self.told.wrote_log.wait()
            case "write table":
                timers = self.journal.timers
                if timers.pending or timers.runs:
                    if timers.oldest is None:  # all that is left are runs
                        self.clock.jump(RUN_WAIT_S)
                    self.table.gate.release()
                    await self.told.wrote_table.wait()
            case _:
                changes = self.decide(act)
                self.given += changes.orders
                self.journal.append(changes)
                reached = (self.timers, self.seq, self.cancelled_below)
                self.marks.append((self.journal.mark, *reached))
        await wait_all_tasks_blocked()  # a transaction that can begin has begun

    def decide(self, act: str) -> Changes:
        changes = Changes()
        if act == "login" or ("fire" in act and self.to_fire):
            self.seq += 1
            is_run = act != "login"
            changes = (
                run(self.seq, self.to_fire.popleft()) if is_run else login(self.seq)
            )
        if "after" in act:
            self.timers += 1
            self.to_fire.append(self.timers)
            changes.orders.append(after(self.timers, ext="x"))
        if act == "done" and self.seq:
            changes.orders += [*done(self.timers - len(self.to_fire)).orders]
        if act == "cancel":
            self.cancelled_below = self.timers + 1
            changes.orders.append(Drop("g", None, "x", self.cancelled_below, AT_MS))
        return changes

    def check(self) -> None:
        """What was told is on disk, and the table knows of nothing that is not."""
        query = "select count(*), coalesce(max(seq), 0) from timers"
        ((timers, seq),) = disk.rows(self.table.path, query)
        query = "select coalesce(min(id), 2e9) from timers where next is not null"
        ((oldest_live,),) = disk.rows(self.table.path, query)
        query = "select coalesce(max(last), 0) from log"
        ((last,),) = disk.rows(self.store.path, query)
        assert max(seq, self.table.seq) <= last
        assert self.durable_mark <= self.journal.durable_mark <= self.journal.mark
        self.durable_mark = self.journal.durable_mark
        for mark, newest_timer, newest_record, cancelled_below in self.marks:
            if mark <= self.durable_mark:
                assert newest_timer <= timers
                assert newest_record <= last
                assert cancelled_below <= oldest_live

    async def settle(self) -> None:
        """Let everything through."""
        while self.journal.pending or self.journal.timers.runs:
            await self.act("write log")
            await self.act("write table")
            self.check()
        assert self.durable_mark == self.journal.mark
        settled = [order for orders in self.told.settled for order in orders]
        assert sorted(map(id, settled)) == sorted(map(id, self.given)), "each once"


ACTS: Final = (
    "after", "cancel", "login", "fire", "done", "fire and after", "write log",
    "write table",
)  # fmt: skip


@BOUNDED
@given(st.lists(st.sampled_from(ACTS), max_size=30))
def test_no_mark_is_reached_too_soon_or_left_again_and_no_run_is_known_too_soon(
    tmp_path_factory: pytest.TempPathFactory, acts: list[str]
) -> None:
    clock = MockClock()

    async def live() -> None:
        with (
            closing(HeldStore(tmp_path_factory.mktemp("state"))) as store,
            closing(HeldTable(store.folder, log=store.log)) as table,
        ):
            async with writing(store, table) as told:
                engine = Engine(store, table, told, clock)
                try:
                    for act in acts:
                        await engine.act(act)
                        engine.check()
                    await engine.settle()
                finally:  # a thread that is held would be waited for
                    store.gate.release()
                    table.gate.release()

    with pytest.MonkeyPatch.context() as few:
        few.setattr(timertable, "EXT_STEP", 2)
        few.setattr(timerjournal, "COMMIT_ORDERS", 3)
        few.setattr(timerjournal, "LATE_RUNS", 1)
        few.setattr(timerjournal, "MOST_RUNS", 4)
        few.setattr(journal, "COMMIT_RECORDS", 2)
        trio.run(live, clock=clock)


# --- a bad disk ---------------------------------------------------------------------


async def test_a_table_that_cannot_be_written_is_told_and_loses_nothing(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        with structlog.testing.capture_logs() as said:
            with disk_full(table):
                journal.append(asked(1, 500))
                journal.append(asked(501, 500))
                await trio.sleep(65.5)
                assert journal.failure is not None
                assert "full" in journal.failure
                assert (journal.pending, journal.timers.oldest_of("g")) == (1_000, 1)
                assert (sum(told.sizes), told.states()) == (0, {})
            await trio.sleep(1.0)
        assert journal.failure is None
        assert (journal.pending, journal.timers.oldest_of("g")) == (0, None)
        assert told.states() == {"pending": 1_000}
    assert [line["event"].partition(";")[0] for line in said] == [
        *["the timers' table cannot be written"] * 2,
        "the timers' table is written again",
    ]
    assert {line.get("path", str(table.path)) for line in said} == {str(table.path)}


async def test_without_room_for_new_timers_everything_else_is_written(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        journal = told.journal
        journal.append(asked(1))
        await journal.settled()
        with disk_full(table):
            journal.append(asked(2, 500))
            journal.append(run(1, 1))
            journal.append(login(2))
            await trio.sleep(3.5)
            assert [one.seq for one in told.published] == [1, 2]
            assert (journal.durable_seq, journal.records_pending) == (2, 0)
            assert journal.timers.runs == 0
            assert told.states() == {"fired": 1}
            # What is asked of a key that waits comes after it.
            journal.append(Changes(orders=[cancel("g", 2), cancel("g", 1)]))
            await journal.settled()
            assert told.states() == {"cancelled": 1}
            assert journal.timers.pending_of == {"g": 501}
            assert journal.timers.oldest_of("g") == 2
            assert journal.failure is not None
        await trio.sleep(1)
        assert journal.failure is None
        assert journal.timers.pending_of == {}
        assert told.states() == {"cancelled": 2, "pending": 499}


# --- retention, and how far the table has followed -------------------------------------


async def test_the_table_follows_in_large_steps_and_never_past_what_waits(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told:
        timers = told.journal.timers
        await timers.follow(FOLLOW_RECORDS - 1)
        assert table.seq == 0
        with locked(table.path):
            timers.append([after(1)], mark=0)
            await timers.follow(FOLLOW_RECORDS)
            assert table.seq == 0
        await told.wrote_table.wait()
        await timers.follow(FOLLOW_RECORDS)
        assert table.seq == FOLLOW_RECORDS


async def test_the_log_stays_as_it_is_while_the_table_cannot_follow_it(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    async with writing(store, table) as told, trio.open_nursery() as nursery:
        journal, many = told.journal, range(1, 101)
        await told.runs(len(many))
        await trio.sleep(RUN_WAIT_S + 1)
        forgotten = partial(
            journal.trim,
            retention_s=60,
            most_bytes=0,
            most_ended=2**40,
            in_use=tuple,
            forgot=lambda _: None,
        )
        with disk_full(table):
            # It is no new timer that finds no room.
            long = [
                Reply("g", f"k{n}", None, False, "x" * 4_096, True, AT_MS) for n in many
            ]
            journal.append(Changes(orders=[*long]))
            await trio.sleep(3)
            nursery.start_soon(forgotten)
            for seq in range(101, 120):
                journal.append(login(seq))
                await trio.sleep(TRIM_EVERY_S)
            assert journal.first == 101
        await trio.sleep(3 * TRIM_EVERY_S)
        assert journal.first > 101
        nursery.cancel_scope.cancel()


async def test_ended_timers_go_also_where_the_log_cannot_be_trimmed_and_it_is_said_how_many(
    store: Store, table: TimerTable, jumping: MockClock
) -> None:
    gone: list[dict[str, int]] = []
    many = 5_000
    table.write([after(n, ext="x") for n in range(1, many + 1)])
    while table.write([Drop("g", None, "x", many, AT_MS)])[1]:
        pass
    store._db.execute(
        "create trigger log_stays before delete on log "
        "begin select raise(abort, 'it stays'); end"
    )
    async with writing(store, table) as told:
        for seq in (1, 2):
            told.journal.append(login(seq))
            await told.journal.settled()
        async with trio.open_nursery() as nursery:

            async def trim() -> None:
                await told.journal.trim(
                    retention_s=60,
                    most_bytes=0,
                    most_ended=2**40,
                    in_use=tuple,
                    forgot=gone.append,
                )

            nursery.start_soon(trim)
            await trio.sleep(TRIM_EVERY_S / 2)
            nursery.cancel_scope.cancel()
        assert told.states() == {"pending": 1}
        assert told.journal.first == 1
    assert sum(step.get("cancelled", 0) for step in gone) == many - 1
    assert gone[-1] == {}
