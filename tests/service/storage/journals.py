"""Rows and records for a store and a timers' table, and a log writer over both."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from liveness.config.compiled import RecordBatch
from liveness.core.changes import Changes, Decisions
from liveness.core.cursors import Cursors, ReadPosition
from liveness.core.records import KINDS, Logged, OnlineRow, Record, Subscription, Uid
from liveness.core.timer_states import TimerCommand, TimerState
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.metrics.counts import Counts
from liveness.service.common.clock import Clock
from liveness.service.storage.log_pages import END
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.log_tail import LogTail, TailReader
from liveness.service.storage.outlet_schema import DATABASE as OUTLETS
from liveness.service.storage.outlet_schema import TABLES
from liveness.service.timers.state_writer import StateWriter
from liveness.service.timers.timer_store import TimerStore
from liveness.service.timers.timer_writer import TimerWriter
from tests.helpers import disk
from tests.helpers.record_batches import batch_of

ALL: Final = Subscription(None, frozenset(KINDS))


def online(
    seq: int, uid: Uid | None = None, *, gateway: str = "g", at: int = 1_000
) -> Record:
    """The record of a login, of a new user unless one is named."""
    user = f"u{seq}" if uid is None else uid
    return Record(seq, "online", user, gateway, seq, None, "login", at)


def on(seq: int, uid: str = "ada", gateway: str = "g", at_s: float = 0) -> Record:
    """The record of a login, of one user unless another is named."""
    at = round(at_s * 1000)
    return Record(seq, "online", uid, gateway, seq, None, "login", at)


def off(seq: int, uid: str = "ada", gateway: str = "g", at_s: float = 0) -> Record:
    return on(seq, uid, gateway, at_s)._replace(kind="offline")


def offline(seq: int, session: int) -> Record:
    """The record of the end of a session."""
    user = f"u{session}"
    return Record(
        seq, "offline", user, "g", session, None, "logout", 1_000, 1_000, "logout", 0.0
    )


def row(
    session: int, uid: Uid = "u", *, gateway: str = "g", conn: int | None = None
) -> OnlineRow:
    return OnlineRow(session, uid, 1_000, conn, gateway, None)


def keep(store: LogStore, *rows: OnlineRow) -> None:
    store.write(Batch(online={row.session: row for row in rows}))


def users(count: int, first: int = 1) -> list[OnlineRow]:
    return [row(n, f"u{n}") for n in range(first, first + count)]


def write(store: LogStore, *records: Logged) -> None:
    """Write a commit, and note in memory that this was at the stamp of the last record."""
    store.write(Batch(batch_of(records)))
    store.trimmer.marks.append((records[-1].seq, records[-1].at))


def add_outlets(folder: Path, log: str, seq: int) -> None:
    """Give a state an outlet with a cursor, a request that was begun, and a dead letter."""
    with closing(sqlite3.connect(folder / OUTLETS)) as db, db:
        db.execute("pragma journal_mode = wal")
        db.executescript(TABLES)
        name = "webhooks.mail"
        db.execute("insert into cursors values (?, ?, ?, 1)", [name, log, seq])
        db.execute(
            "insert into batches values (?, 0, ?, ?, 'w2', x'5b5d', 1, 1, 3, 3, 2, 1, 'e')",
            [name, log, seq + 1],
        )
        db.execute(
            "insert into dead values (4, ?, ?, ?, '{}', 'w1', 1, 1, 400, 'bad')",
            [name, log, seq],
        )


def fill(store: LogStore, *counts: int, at: int = 1_000, gateway: str = "g") -> None:
    """For each count, write one commit of that many records."""
    for count in counts:
        _, following = store.bounds()
        seqs = range(following, following + count)
        write(store, *(online(seq, gateway=gateway, at=at) for seq in seqs))


def page(
    store: LogStore, wanted: Subscription = ALL, *, after: int = 0, limit: int = 100_000
) -> list[Logged]:
    return store.read(after=after, until=10**9, wanted=wanted, limit=limit).records


def of(gateway: str | None) -> Subscription:
    return Subscription(gateway, frozenset(KINDS))


def lost(store: LogStore, name: str | None, *, after: int = 0) -> int:
    return store.read(after=after, until=10**9, wanted=of(name), limit=1).lost


def trim(
    store: LogStore,
    *,
    oldest_ms: int = 0,
    most_bytes: int = 2**40,
    idle_ms: int = 0,
    until: int = END,
) -> bool:
    return store.trimmer.trim(
        oldest_ms=oldest_ms, most_bytes=most_bytes, idle_ms=idle_ms, until=until
    )


def pending(
    number: int,
    key: str | None = None,
    *,
    gateway: str = "g",
    ext: str | None = None,
    due: int = 1_000,
    since: int = 1,
    at: int = 1,
) -> TimerState:
    """A timer that was just scheduled, with a key of its own unless one is named."""
    return TimerState(
        number, gateway, key or f"k{number}", ext, "pending", due, due, 0, None, since,
        None, at, None, at,
    )  # fmt: skip


def counted(table: TimerStore) -> dict[str, int]:
    """How many timers are in each state, counted from their rows on disk."""
    query = "select state, count(*) from timers group by state"
    return dict(disk.rows(table.path, query))


def _ignored(*_: object) -> None:
    """For tests that do not look at the results of timers."""


@contextmanager
def journal_of(
    store: LogStore,
    *,
    published: Callable[[Batch], None],
    counts: Counts | None = None,
    on_applied: Callable[[list[TimerCommand], TimerTransaction], None] = _ignored,
    clock: Clock | None = None,
) -> Iterator[StateWriter]:
    """A log writer over a store, and over timers in the same folder."""
    clock = clock or Clock()
    with closing(TimerStore(store.folder, log=store.log)) as table:
        yield StateWriter(
            store,
            TimerWriter(table, on_applied=on_applied),
            Decisions(
                store.bounds()[1], Cursors(store.cursors()), new_batch=RecordBatch
            ),
            clock=clock,
            counts=counts or Counts(),
            published=published,
        )


def append(log_writer: StateWriter, changes: Changes) -> int:
    """Commit these decisions; return the ticket that stands for them."""
    log_writer._decided.changes = changes
    return log_writer.flush()


def move_cursor(log_writer: StateWriter, key: tuple[str, str], seq: int) -> None:
    log_writer.cursors.move(key, seq, Clock().wall_ms())
    log_writer.cursors_moved()


def introduce(
    log_writer: StateWriter,
    key: tuple[str, str],
    *,
    timeout: float | None,
    seq: int = 0,
) -> int:
    """Store a new name; return the ticket that stands for it."""
    at_ms = log_writer._clock.state_ms()
    log_writer.cursors.introduce(
        key, seq=seq, timeout=timeout, in_force=None, at_ms=at_ms
    )
    return log_writer.flush()


def forget(log_writer: StateWriter, key: tuple[str, str]) -> None:
    log_writer.cursors.forget(key)
    log_writer.flush()


@asynccontextmanager
async def writing(log_writer: StateWriter) -> AsyncIterator[None]:
    """Runs the writers of the log and the timers meanwhile."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log_writer.run)
        nursery.start_soon(log_writer.timers.run)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def trimming(
    log_writer: StateWriter,
    *in_use: tuple[str, str],
    most_bytes: int = 2**40,
    forgot: Callable[[dict[str, int]], None] = _ignored,
) -> AsyncIterator[None]:
    """Trims the log and the timers meanwhile, with a retention of a minute."""

    async def trim() -> None:
        await log_writer.trim(
            retention_s=60,
            most_bytes=most_bytes,
            most_ended=2**40,
            in_use=lambda: in_use,
            forgot=forgot,
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trim)
        yield
        nursery.cancel_scope.cancel()


@dataclass
class Log:
    """A log on disk, and a feed that keeps some of its records in memory."""

    log_writer: StateWriter
    feed: LogTail
    clock: Clock

    def cursor(self, wanted: Subscription = ALL, *, position: int = 0) -> TailReader:
        return TailReader(self.log_writer, self.feed, ReadPosition(wanted, position))


@contextmanager
def log_of(
    written: Sequence[Batch], folder: Path, *, keep: int, clock: Clock | None = None
) -> Iterator[Log]:
    clock, feed = clock or Clock(), LogTail(keep=keep)
    with closing(LogStore(folder)) as store:
        disk.unsynced(store)
        for batch in written:
            store.write(batch)
            feed.publish(batch)
        with journal_of(store, published=feed.publish, clock=clock) as log_writer:
            yield Log(log_writer, feed, clock)


def publish(log: Log, *records: Logged) -> None:
    """Decide these records now, and commit them, though no writer runs for the log."""
    log.log_writer.note_offset(records[0].seq)
    batch = Batch(batch_of(records))
    log.log_writer.store.write(batch)
    log.log_writer.durable_seq = records[-1].seq
    log.feed.publish(batch)


def forget_tail(feed: LogTail, *, keep: int) -> None:
    """Empty the memory of live readers, who then read from the disk."""
    vars(LogTail)["__init__"](feed, keep=keep)


class VirtualClock(Clock):
    """Its clocks are the event loop's; its wall clock, from 1970 on, may be set."""

    _ahead_s = 0.0
    slept_s = 0.0  # for how long the host has slept

    def set_wall(self, *, ahead_s: float) -> None:
        """Set the wall clock, so far ahead of the event loop's; the state's has begun."""
        self.state_ms()
        self._ahead_s = ahead_s

    def wall_ms(self) -> int:
        return round((trio.current_time() + self._ahead_s) * 1000)

    def boot_s(self) -> float:
        return trio.current_time() + self.slept_s
