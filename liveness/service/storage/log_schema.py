"""The tables of `liveness.db`, and what is true of each row that makes sense."""

import sqlite3
from typing import Final

from liveness.core.frames import MAX_NAME_BYTES, MAX_TIMEOUT_S
from liveness.core.uids import MAX_UID_BYTES

SCHEMA: Final = 3
_TABLES: Final = f"""
create table meta (key text primary key, value any) strict, without rowid;
create table log (
    last integer primary key, first integer not null, newest integer not null,
    records blob not null, crc integer, check (first <= last)) strict;
create trigger log_goes_on before insert on log
    when new.first <= (select max(last) from log)
    begin select raise(abort, 'a seq is given twice'); end;
create table online (
    session integer primary key, uid any not null, start integer not null,
    conn integer, gateway text not null, timeout real) strict;
create table cursors (
    role text not null, name text not null, seq integer not null,
    used integer not null, timeout real, in_force real, primary key (role, name)
    ) strict, without rowid;
create table trimmed (name text primary key, seq integer not null) strict,
    without rowid;
insert into meta values ('schema', {SCHEMA});
"""


def _text(column: str, longest: int) -> str:
    """In SQL: what `uids.is_text` says, but of what is no UTF-8, which cannot be read."""
    return (
        f"typeof({column}) = 'text' "
        f"and length(cast({column} as blob)) between 1 and {longest} "
        # Of the zero by itself: for SQLite's patterns a text ends there.
        f"and {column} not glob '*[\x01-\x1f\x7f]*' and not instr({column}, char(0))"
    )


def _natural(column: str) -> str:
    return f"typeof({column}) = 'integer' and {column} >= 0"


def _timeout(column: str) -> str:
    return f"({column} is null or {column} > 0 and {column} <= {MAX_TIMEOUT_S})"


# What is true of each row that is whole; a table at a time, a million rows take a second.
_SOUND: Final = {
    "online": (
        "session between 1 and :next - 1 "
        f"and ({_text('uid', MAX_UID_BYTES)} or {_natural('uid')}) "
        f"and typeof(start) = 'integer' and (conn is null or {_natural('conn')}) "
        f"and {_text('gateway', MAX_NAME_BYTES)} and {_timeout('timeout')}"
    ),
    "cursors": (
        f"role in ('gateway', 'watcher') and {_text('name', MAX_NAME_BYTES)} "
        "and seq between 0 and :next - 1 and typeof(used) = 'integer' "
        f"and {_timeout('timeout')} and {_timeout('in_force')}"
    ),
    "trimmed": f"{_text('name', MAX_NAME_BYTES)} and seq between 0 and :next - 1",
}
# The tables beside the log: without them there is no start.
BESIDE: Final = ("meta", *_SOUND)


def unsound(db: sqlite3.Connection, following: int) -> dict[str, int]:
    """By table beside the log, how many rows make no sense where that seq comes next."""
    query = "select count(*) from {} where ({}) is not true"
    return {
        table: db.execute(query.format(table, rule), {"next": following}).fetchone()[0]
        for table, rule in _SOUND.items()
    }
