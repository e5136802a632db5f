"""Files of the state directory as older versions made them."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from liveness.core.cursors import CursorRow
from liveness.core.records import OnlineRow, Record
from liveness.core.wire.framing import encode

LOG_ID: Final = "0123456789abcdef"

# Pages without checksums; records without devices.
_SCHEMA_2: Final = f"""
pragma auto_vacuum = incremental;
pragma journal_mode = wal;
create table meta (key text primary key, value any) strict, without rowid;
create table log (
    last integer primary key, first integer not null, newest integer not null,
    records blob not null, check (first <= last)) strict;
create trigger log_goes_on before insert on log
    when new.first <= (select max(last) from log)
    begin select raise(abort, 'a seq is given twice'); end;
create table online (
    session integer primary key, uid any not null, start integer not null,
    conn integer, gateway text not null, timeout real) strict;
create table cursors (
    role text not null, name text not null, seq integer not null,
    used integer not null, timeout real, primary key (role, name)
    ) strict, without rowid;
insert into meta values ('schema', 2);
insert into meta values ('log', '{LOG_ID}');
"""


def schema_2(
    path: Path,
    records: Iterable[Record],
    online: Iterable[OnlineRow] = (),
    cursors: dict[tuple[str, str], CursorRow] | None = None,
) -> None:
    columns = Record._fields.index("user_size")  # which came with schema 4
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(_SCHEMA_2)
        for page in batched([record[:columns] for record in records]):
            newest = max(record[7] for record in page)
            row = (page[-1][0], page[0][0], newest, encode(page))
            db.execute("insert into log values (?, ?, ?, ?)", row)
        db.executemany("insert into online values (?, ?, ?, ?, ?, ?)", online)
        db.executemany(
            "insert into cursors values (?, ?, ?, ?, ?)",
            ((*key, *row[:3]) for key, row in (cursors or {}).items()),
        )


def batched(rows: list[Any]) -> Iterator[list[Any]]:
    return (rows[at : at + 1_000] for at in range(0, len(rows), 1_000))
