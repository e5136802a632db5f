"""The tables of `liveness.db`, and the rules that every valid row meets.

    log       every record, in order: one row is one page of records of one commit
    online    the open sessions; changed in the same transaction as the log
    cursors   how far each gateway and watcher has acknowledged; the gateways' timeouts
    trimmed   for each name, the newest of the trimmed records that concerned it
    meta      the log's id; the schema's version; the ids of the logs that this one goes
              on from, each with the last seq that both share; the state's clock; by when
              records were written; how their stamps differ from that clock

`uid` columns are ANY in STRICT tables: `7` and `"7"` name one user, but each is kept as its
login had it. Sessions are keyed by their number, not by their user: every insert goes to the
end of the tree, and a login costs 3 µs of writing, not 18.
"""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import structlog

from liveness.service.common.clock import StateTime
from liveness.service.storage.database import PUT_META, damage_error, meta, transaction

SCHEMA: Final = 4
TABLES: Final = f"""
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

# The oldest schema that a start brings forward: that of version 0.1.0.
OLDEST_SCHEMA: Final = 2
# By schema, what leads to the next one. Never change this: it describes tables as they
# were in that version. Pages of before get no checksum: reading gigabytes would delay the
# start. With schema 4 records may have one more field; those without it stay as they are.
_STEPS_FROM: Final[dict[int, Sequence[str]]] = {
    2: (
        "alter table log add column crc integer",
        "alter table cursors add column in_force real",
        "create table trimmed (name text primary key, seq integer not null) strict, "
        "without rowid",
    ),
    3: (),
}

_CLOCK: Final = "clock"
_STEPS: Final = "steps"

_log = structlog.get_logger("start")


def migrate(db: sqlite3.Connection, path: Path, stored: int) -> None:
    """Bring a log of an older schema to this version's, all or nothing."""
    if stored == SCHEMA:
        return
    with transaction(db):
        for older in range(stored, SCHEMA):
            for statement in _STEPS_FROM[older]:
                db.execute(statement)
        db.execute("update meta set value = ? where key = 'schema'", [SCHEMA])
    _log.info("an older file was migrated", path=str(path), was=stored, schema=SCHEMA)


def stored_clock(db: sqlite3.Connection) -> StateTime | None:
    """The moment from which the state's clock continues; None: it has not begun.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    value = meta(db, _CLOCK)
    if value is None:
        return None
    crc, _, text = str(value).partition(" ")
    if crc != _checksum(text):
        raise damage_error("the state's clock in its meta is not what was written")
    return StateTime._make(json.loads(text))


def store_clock(db: sqlite3.Connection, at: StateTime) -> None:
    """Store a moment from which the state's clock can continue."""
    text = json.dumps(at)
    value = f"{_checksum(text)} {text}"
    db.execute(PUT_META, [_CLOCK, value])


# From the record with this seq on, stamps are ahead of the state's clock by this many
# milliseconds.
WallStep = tuple[int, int]


def stored_steps(db: sqlite3.Connection) -> list[WallStep]:
    """How the wall clock was set, with the records of the log.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    value = meta(db, _STEPS)
    try:
        return [(int(seq), int(ms)) for seq, ms in json.loads(str(value or "[]"))]
    except (ValueError, TypeError):
        raise damage_error("the steps of the clock in its meta make no sense") from None


def store_steps(db: sqlite3.Connection, steps: Sequence[WallStep]) -> None:
    """Store them, in the transaction of the record from which the last one counts."""
    db.execute(PUT_META, [_STEPS, json.dumps(steps)])


def _checksum(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


# The tables other than the log. The sidecar cannot start if one of them is damaged.
TABLES_BESIDE_LOG: Final = ("meta", "online", "cursors", "trimmed")
