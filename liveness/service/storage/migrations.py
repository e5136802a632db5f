"""Migrates a database of an older schema to this version's when it is opened.

Each step migrates from one schema to the next. All steps run in one transaction, so a
crash or a full disk leaves the file as it was. Rows are read one at a time: there may be
millions.

Never change a step. It describes tables and records as they were in its version, and so
uses no constant or type that a later version may change.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import structlog

from liveness.core.wire.framing import encode
from liveness.errors import StateError
from liveness.service.storage.database import schema_of, transaction

# By schema: the migration to the next one.
Steps = Mapping[int, Callable[[sqlite3.Connection], object]]

_log = structlog.get_logger("start")


def stored_schema(path: Path, schema: int, steps: Steps) -> int | None:
    """Read which schema a file has, without changing it; None if the file is empty.

    Raises:
        StateError: No steps lead from there to *schema*.
    """
    stored = schema_of(path)
    if stored is not None:
        check(path, stored, schema, steps)
    return stored


def check(path: Path, stored: int, schema: int, steps: Steps) -> None:
    """Raise StateError if no steps lead from the schema *stored* to *schema*."""
    if stored > schema or not {*range(stored, schema)} <= steps.keys():
        raise StateError(
            f"{path} has schema {stored}, this version reads {schema}; use the version "
            "that wrote it, or another --state"
        )


def migrate(
    db: sqlite3.Connection, path: Path, stored: int, schema: int, steps: Steps
) -> None:
    """Migrate a file from the schema *stored* to *schema*."""
    if stored == schema:
        return
    _log.info("an older file is migrated", path=str(path), was=stored, schema=schema)
    with transaction(db):
        for older in range(stored, schema):
            steps[older](db)
        db.execute("update meta set value = ? where key = 'schema'", [schema])
    _log.info("an older file was migrated", path=str(path), was=stored, schema=schema)


# --- the log ------------------------------------------------------------------

_PAGE_RECORDS: Final = 1_000

_PAGES: Final = (
    "alter table log rename to log_1",
    "alter table online rename to online_1",
    """
create table log (
    last integer primary key, first integer not null, newest integer not null,
    records blob not null, check (first <= last)) strict""",
    """
create trigger log_goes_on before insert on log
    when new.first <= (select max(last) from log)
    begin select raise(abort, 'a seq is given twice'); end""",
    """
create table online (
    session integer primary key, uid any not null, start integer not null,
    conn integer, gateway text not null, timeout real) strict""",
)
_SESSIONS: Final = (
    "insert into online select session, uid, start, conn, gateway, timeout "
    "from online_1 order by session",
    "drop table log_1",
    "drop table online_1",
)


def _to_pages(db: sqlite3.Connection) -> None:
    """Log: pages of records, not one row a record. Sessions: keyed by their number."""
    for statement in _PAGES:
        db.execute(statement)
    rows = db.execute(
        "select seq, kind, uid, gateway, session, conn, reason, at, seen, last, silence, "
        "restored, from_gateway, from_session, from_conn from log_1 order by seq"
    )
    db.executemany("insert into log values (?, ?, ?, ?)", _pages(rows))
    for statement in _SESSIONS:
        db.execute(statement)


def _pages(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[int, int, int, bytes]]:
    while rows_of_page := list(islice(rows, _PAGE_RECORDS)):
        records = [(*row[:11], bool(row[11]), *row[12:]) for row in rows_of_page]
        newest = max(record[7] for record in records)
        yield records[-1][0], records[0][0], newest, encode(records)


def _to_checksums(db: sqlite3.Connection) -> None:
    """Add checksums of pages, the table of trimmed records, and timeouts in force.

    Existing pages get no checksum: reading gigabytes would delay the start.
    """
    for statement in (
        "alter table log add column crc integer",
        "alter table cursors add column in_force real",
        "create table trimmed (name text primary key, seq integer not null) strict, "
        "without rowid",
    ):
        db.execute(statement)


def _to_devices(_db: sqlite3.Connection) -> None:
    """Records may have one more field; those without it stay as they are."""


LOG: Final[Steps] = {1: _to_pages, 2: _to_checksums, 3: _to_devices}

# --- timers -------------------------------------------------------------------

TIMERS: Final[Steps] = {}

# --- outlets ------------------------------------------------------------------

OUTLETS: Final[Steps] = {}
