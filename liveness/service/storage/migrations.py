"""Brings a file of an older schema to that of this version, when it is opened.

A table of steps, each from one schema to the next, all of them in one transaction: a
crash or a full disk in between leaves the file as it was. Rows are taken one at a time,
as there may be millions.

Steps are history. What they say of tables and of records is what was so then, and does
not change with what is so now.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import structlog

from liveness.core.framing import encode
from liveness.errors import StateError
from liveness.service.storage.database import schema_of, transaction

Steps = Mapping[int, Callable[[sqlite3.Connection], object]]

_log = structlog.get_logger("start")


def found(path: Path, schema: int, steps: Steps) -> int | None:
    """Which schema a file has, before anything is done to it; None: it is empty.

    Args:
        path: The file.
        schema: The one that this version reads.
        steps: What leads from each older one to the next.
    Raises:
        StateError: It cannot be brought to *schema*.
    """
    has = schema_of(path)
    if has is not None:
        check(path, has, schema, steps)
    return has


def check(path: Path, has: int, schema: int, steps: Steps) -> None:
    """See whether a file of schema *has* can be brought to *schema*.

    Raises:
        StateError: It cannot.
    """
    if has > schema or not {*range(has, schema)} <= steps.keys():
        raise StateError(
            f"{path} has schema {has}, this version reads {schema}; use the version "
            "that wrote it, or another --state"
        )


def migrate(
    db: sqlite3.Connection, path: Path, has: int, schema: int, steps: Steps
) -> None:
    """Bring a file to *schema* from what was `found`."""
    if has == schema:
        return
    _log.info("an older file is migrated", path=str(path), was=has, schema=schema)
    with transaction(db):
        for older in range(has, schema):
            steps[older](db)
        db.execute("update meta set value = ? where key = 'schema'", [schema])
    _log.info("an older file was migrated", path=str(path), was=has, schema=schema)


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
    """The log in pages, where a record had a row; sessions by their number."""
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
    """Pages with a checksum; what was trimmed by name; timeouts in force.

    Pages of before have none: to read gigabytes would keep the sidecar from starting.
    """
    for statement in (
        "alter table log add column crc integer",
        "alter table cursors add column in_force real",
        "create table trimmed (name text primary key, seq integer not null) strict, "
        "without rowid",
    ):
        db.execute(statement)


LOG: Final[Steps] = {1: _to_pages, 2: _to_checksums}

# --- timers -------------------------------------------------------------------

TIMERS: Final[Steps] = {}
