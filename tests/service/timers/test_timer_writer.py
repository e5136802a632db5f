"""Orders on their way to the table, beside records on their way to the log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.core.changes import Changes
from liveness.core.records import TIMER, TimerRecord
from liveness.core.timer_states import (
    CancelTimer,
    CompleteTimer,
    CreateTimer,
    Fire,
    TimerCommand,
)
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.service.storage.log_store import LogStore
from liveness.service.timers import timer_writer
from liveness.service.timers.state_writer import TRIM_EVERY_S, StateWriter
from liveness.service.timers.timer_store import TimerStore
from liveness.service.timers.timer_writer import FOLLOW_RECORDS, TimerWriter
from tests.helpers import disk
from tests.helpers.record_batches import batch_of
from tests.service.storage.journals import (
    append,
    counted,
    journal_of,
    online,
    pending,
    trimming,
    writing,
)

AT_MS: Final = 1_000


class Rig:
    """A journal over two files, and what it reported of each."""

    log_writer: StateWriter

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.settled: list[list[TimerCommand]] = []  # by transaction
        self.wrote_table = trio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        with journal_of(
            self.store, published=lambda _: None, on_applied=self._on_applied
        ) as self.log_writer:
            async with writing(self.log_writer):
                yield self

    @property
    def timers(self) -> TimerWriter:
        return self.log_writer.timers

    @property
    def table(self) -> TimerStore:
        return self.timers.table

    def _on_applied(self, orders: list[TimerCommand], _: TimerTransaction) -> None:
        self.settled.append(orders)
        self.log_writer.notify_flushed()
        self.wrote_table.set()
        self.wrote_table = trio.Event()

    def give(self, *orders: TimerCommand) -> None:
        append(self.log_writer, Changes(commands=[*orders]))

    async def write(self, *orders: TimerCommand) -> None:
        """Give these orders, and wait until they are on disk."""
        self.give(*orders)
        await self.log_writer.flushed()

    async def runs(self, count: int) -> None:
        """Unanswered attempts of this many timers; timers and log are durable."""
        self.give(*asked(1, count, ext="x"))
        for number in range(1, count + 1):
            append(self.log_writer, run(number, number))
        await self.log_writer.flushed()

    @property
    def sizes(self) -> list[int]:
        """Orders by transaction."""
        return [len(orders) for orders in self.settled]

    def states(self) -> dict[str, int]:
        return counted(self.table)


@pytest.fixture
async def rig(store: LogStore, jumping: MockClock) -> AsyncIterator[Rig]:
    async with Rig(store).running() as made:
        yield made


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three orders fill a transaction."""
    monkeypatch.setattr(timer_writer, "COMMIT_COMMANDS", 3)


def after(number: int, *, ext: str | None = None) -> CreateTimer:
    """A timer asked for, with a key of its own."""
    return CreateTimer(pending(number, ext=ext, since=0, at=AT_MS), None)


def asked(first: int, count: int = 1, *, ext: str | None = None) -> list[TimerCommand]:
    return [after(n, ext=ext) for n in range(first, first + count)]


def login(seq: int) -> Changes:
    return Changes(batch_of([online(seq)]))


def fire(number: int, seq: int) -> Fire:
    return Fire("g", f"k{number}", 1, seq, AT_MS)


def run(seq: int, number: int) -> Changes:
    """The first run of a timer: its record, and the order that notes it in the table."""
    record = TimerRecord(seq, TIMER, "g", f"k{number}", None, None, AT_MS, 1, AT_MS)
    return Changes(batch_of([record]), commands=[fire(number, seq)], ends=1)


def cancel(number: int, gateway: str = "g") -> TimerCommand:
    return CancelTimer(gateway, f"k{number}", None, 2**60, AT_MS)


def cancel_ext(below: int, gateway: str = "g") -> TimerCommand:
    return CancelTimer(gateway, None, "x", below, AT_MS)


async def test_an_order_takes_no_run_along_before_its_record_is_on_disk(
    rig: Rig,
) -> None:
    await rig.write(after(1))
    with disk.locked(rig.store.path):
        append(rig.log_writer, run(1, 1))
        await wait_all_tasks_blocked()
        rig.give(cancel(1))
        while rig.states() != {"cancelled": 1}:
            await rig.wrote_table.wait()
        assert disk.rows(rig.table.path, "select seq from timers") == [(None,)]
    await rig.log_writer.flushed_for("g")
    found = disk.rows(rig.table.path, "select state, seq from timers")
    assert found == [("cancelled", 1)]


@pytest.mark.usefixtures("few")
async def test_runs_are_committed_in_pieces_as_other_orders_are(rig: Rig) -> None:
    await rig.runs(8)
    await rig.log_writer.flushed_for("g")
    assert (max(rig.sizes), sum(rig.sizes)) == (3, 16)
    assert rig.states() == {"fired": 8}
    assert (rig.table.seq, rig.table.newest, rig.timers.fires) == (8, 8, 0)
    assert rig.log_writer.pending == 0


@pytest.mark.usefixtures("few")
async def test_gateways_have_equal_shares_of_a_transaction(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_writer, "COMMIT_COMMANDS", 4)
    timers = rig.timers
    with disk.locked(rig.table.path):
        rig.give(*asked(1, 12))
        await wait_all_tasks_blocked()
        rig.give(*(cancel(n, "h") for n in range(2)))
        rig.give(cancel(1, "i"))
        assert timers.pending_by_gateway == {"g": 12, "h": 2, "i": 1}
        oldest = (
            timers.oldest_ticket,
            timers.oldest_ticket_of("h"),
            timers.oldest_ticket_of("i"),
        )
        assert oldest == (1, 2, 3)
    await rig.log_writer.flushed()
    shares = ["".join(it.gateway for it in orders) for orders in rig.settled]
    assert shares == ["gggg", "high", "gggg", "ggg"]
    left = timers.oldest_ticket, timers.oldest_ticket_of("g"), timers.pending_by_gateway
    assert left == (None, None, {})


async def test_the_table_follows_the_log_in_large_steps(rig: Rig) -> None:
    timers, table = rig.timers, rig.table
    await timers.follow(FOLLOW_RECORDS - 1)
    assert table.seq == 0
    with disk.locked(table.path):
        timers.append([after(1)], ticket=0)
        await timers.follow(FOLLOW_RECORDS)
        assert table.seq == 0
    await rig.wrote_table.wait()
    await timers.follow(FOLLOW_RECORDS)
    assert table.seq == FOLLOW_RECORDS


async def test_the_log_is_not_trimmed_past_the_timers_table(rig: Rig) -> None:
    log_writer = rig.log_writer
    await rig.runs(100)
    await rig.log_writer.flushed_for("g")
    long = [
        CompleteTimer("g", f"k{n}", None, False, "x" * 4_096, True, AT_MS)
        for n in range(1, 101)
    ]
    async with trimming(log_writer, most_bytes=0):
        with disk.full(rig.table):
            rig.give(*long)
            for seq in range(101, 120):
                append(log_writer, login(seq))
                await trio.sleep(TRIM_EVERY_S)
            assert log_writer.first == 101
        await trio.sleep(3 * TRIM_EVERY_S)
        assert log_writer.first > 101


async def test_ended_timers_are_trimmed_though_the_log_cannot_be(rig: Rig) -> None:
    gone: list[dict[str, int]] = []
    many = 5_000
    rig.table.write(asked(1, many, ext="x"))
    while rig.table.write([cancel_ext(many)])[1]:
        pass
    disk.change(
        rig.store.path,
        "create trigger log_stays before delete on log "
        "begin select raise(abort, 'it stays'); end",
    )
    for seq in (1, 2):
        append(rig.log_writer, login(seq))
        await rig.log_writer.flushed()
    async with trimming(rig.log_writer, most_bytes=0, forgot=gone.append):
        await trio.sleep(TRIM_EVERY_S / 2)
    assert rig.states() == {"pending": 1}
    assert rig.log_writer.first == 1
    assert sum(step.get("cancelled", 0) for step in gone) == many - 1
    assert gone[-1] == {}
