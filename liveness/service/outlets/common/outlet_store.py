"""The outlets' database, `outlets.db`: cursors, unfinished requests and dead letters.

`service.storage.outlet_schema` has its tables. It is separate from the log's database, so
that commits of the log do not wait for it. A commit here is not durable: it survives a
crash of the process, but a power failure may lose the newest ones. Then some records are
sent again.
"""

import sqlite3
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import trio

from liveness.service.common.clock import Clock
from liveness.service.common.threads import in_thread
from liveness.service.storage.database import (
    connect,
    created_private,
    expecting_damage,
    schema_of,
    transaction,
    write_ahead,
)
from liveness.service.storage.outlet_schema import DATABASE, SCHEMA, TABLES

T = TypeVar("T")
# The id of a log, and the seq up to which an outlet is done.
Cursor: TypeAlias = tuple[str, int]


class OutletStore:
    """The open database. Its calls run in a thread, one at a time."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.path = folder / DATABASE
        self._clock = clock
        self._db: sqlite3.Connection | None = None
        self._turn = trio.Lock()

    async def open(self, *, keep: Collection[str], unused_s: float) -> None:
        """Open the database, or make it.

        All but those to *keep* are forgotten after *unused_s* without use of their
        cursor.

        Raises:
            StateError: It is damaged, or of a newer version.
            StartError: It cannot be used now.
        """
        async with self._turn:
            if self._db is None:
                since_ms = self._clock.state_ms() - round(unused_s * 1000)
                self._db = await in_thread(partial(self._opened, keep, since_ms))

    async def close(self) -> None:
        async with self._turn:
            if self._db is not None:
                self._db.close()
                self._db = None

    async def run(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """Run *call* in a transaction of its own, to its end even if cancelled.

        Raises:
            sqlite3.Error: The disk refuses it, or the database is closed; nothing is
                changed.
        """

        def run(db: sqlite3.Connection) -> T:
            with transaction(db):
                return call(db)

        return await self._in_turn(run)

    async def sync(self) -> None:
        """Make everything stored so far durable.

        Raises:
            sqlite3.Error: The disk refuses it, or the database is busy or closed.
        """
        await self._in_turn(_write_back)

    async def _in_turn(self, call: Callable[[sqlite3.Connection], T]) -> T:
        async with self._turn:
            db = self._db
            if db is None:
                raise sqlite3.ProgrammingError(
                    f"{self.path} is not open; see the outlets in `liveness status`"
                )
            return await in_thread(partial(call, db))

    async def cursor(self, outlet: str) -> Cursor | None:
        query = "select log, seq from cursors where outlet = ?"
        found: Cursor | None = await self.run(
            lambda db: db.execute(query, [outlet]).fetchone()
        )
        return found

    def _opened(self, keep: Collection[str], since_ms: int) -> sqlite3.Connection:
        with expecting_damage(self.path, "have all outlets begin anew after a restart"):
            with created_private(self.path):
                stored = schema_of(self.path, oldest=SCHEMA, newest=SCHEMA)
                db = connect(self.path)
            try:
                write_ahead(db)
                db.execute("pragma synchronous = normal")
                if stored is None:
                    db.executescript(f"begin immediate; {TABLES} commit")
                with transaction(db):
                    _forget_unused(db, keep, since_ms)
            except BaseException:
                db.close()
                raise
            return db


def _write_back(db: sqlite3.Connection) -> None:
    # Another connection may be reading an older state from the WAL, which is no error.
    is_busy, *_ = db.execute("pragma wal_checkpoint(truncate)").fetchone()
    if is_busy:
        raise sqlite3.OperationalError(
            "the database is busy: its WAL is not written back"
        )


def _forget_unused(
    db: sqlite3.Connection, keep: Collection[str], since_ms: int
) -> None:
    """Forget outlets that are not in the settings and have an old cursor, or none."""
    has_cursor = "outlet in (select outlet from cursors)"
    for table, is_gone in (
        ("cursors", f"used_ms < {since_ms}"),
        ("batches", f"not {has_cursor}"),
        ("dead", f"not {has_cursor}"),
    ):
        found = db.execute(f"select distinct outlet from {table} where {is_gone}")
        gone = {name for (name,) in found}.difference(keep)
        db.executemany(
            f"delete from {table} where outlet = ?", [(name,) for name in gone]
        )


def put_cursor(db: sqlite3.Connection, outlet: str, cursor: Cursor, ms: int) -> None:
    """Store the cursor of an outlet, used at *ms* of the state's clock.

    Call it in a transaction.
    """
    db.execute(
        "insert or replace into cursors values (?, ?, ?, ?)",
        [outlet, *cursor, ms],
    )


def position_in(
    cursor: Cursor,
    *,
    log: str,
    ancestors: Mapping[str, int],
    newest: int,
    oldest: int,
) -> int:
    """The seq after which a stored cursor continues in the current log.

    *ancestors* has the last shared seq by the id of a log that this one is a copy of;
    *oldest* is the seq before the log's oldest record.
    """
    found, seq = cursor
    if found == log and seq <= newest:
        return seq
    # The cursor is of another log, or past the end of this one, which lost records: send
    # all records after the last common one.
    shared = ancestors.get(found)
    return oldest if shared is None else min(seq, shared, newest)
