"""Files of the state directory as older versions made them."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from liveness.core.cursors import CursorRow
from liveness.core.records import OnlineRow, Record

LOG_ID: Final = "0123456789abcdef"

# A row a record, and a user's session by the user.
_SCHEMA_1: Final = f"""
pragma auto_vacuum = incremental;
pragma journal_mode = wal;
create table meta (key text primary key, value any) strict, without rowid;
create table log (
    seq integer primary key, kind text not null, uid any not null,
    gateway text not null, session integer not null, conn integer,
    reason text not null, at integer not null, seen integer, last text, silence real,
    restored integer not null, from_gateway text, from_session integer,
    from_conn integer) strict;
create table online (
    uid any primary key, session integer not null, start integer not null,
    conn integer, gateway text not null, timeout real) strict, without rowid;
create table cursors (
    role text not null, name text not null, seq integer not null,
    used integer not null, timeout real, primary key (role, name)
    ) strict, without rowid;
insert into meta values ('schema', 1);
insert into meta values ('log', '{LOG_ID}');
"""


def schema_1(
    path: Path,
    records: Iterable[Record],
    online: Iterable[OnlineRow] = (),
    cursors: dict[tuple[str, str], CursorRow] | None = None,
) -> None:
    """Makes a log of schema 1."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(_SCHEMA_1)
        columns = Record._fields.index("user_size")  # which came with schema 4
        marks = ", ".join("?" * columns)
        rows = (record[:columns] for record in records)
        db.executemany(f"insert into log values ({marks})", rows)
        db.executemany(
            "insert into online values (?, ?, ?, ?, ?, ?)",
            ((row.uid, row.session, *row[2:]) for row in online),
        )
        db.executemany(
            "insert into cursors values (?, ?, ?, ?, ?)",
            ((*key, *row[:3]) for key, row in (cursors or {}).items()),
        )
