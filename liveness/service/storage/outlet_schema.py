"""The tables of `outlets.db`, and the rules that every valid row meets.

    cursors   of each outlet, the seq up to which all records are delivered
    batches   webhooks: requests that were begun and not accepted yet, with their bodies;
              the one with the highest place is sent next
    dead      webhooks: records that a receiver refused for good; a number is never used
              again, as a person may have it from an earlier list
    meta      the schema

The database is opened and written by the outlets; only backups and checks read it here.
"""

import sqlite3
from typing import Final

DATABASE: Final = "outlets.db"
SCHEMA: Final = 1
TABLES: Final = f"""
create table meta (key text primary key, value) without rowid;
insert into meta values ('schema', {SCHEMA});
create table cursors (
    outlet text primary key, log text not null, seq integer not null,
    used_ms integer not null
) without rowid;
create table batches (
    outlet text not null, place integer not null, log text not null, until integer,
    id text not null, body blob not null, records integer not null,
    oldest_ms integer not null, attempts integer not null, rung integer not null,
    next_ms integer not null, wait_ms integer not null, error text not null,
    primary key (outlet, place)
);
create table dead (
    number integer primary key autoincrement, outlet text not null, log text not null,
    seq integer not null, record text not null, id text not null,
    attempts integer not null, at_ms integer not null, status integer,
    answer text not null
);
create index dead_by_outlet on dead (outlet, number);
"""

# By table. The files' types are not strict, so a damaged byte can make any type.
_SOUND: Final = {
    "cursors": (
        "typeof(outlet) = 'text' and typeof(log) = 'text' "
        "and typeof(seq) = 'integer' and seq >= 0 and typeof(used_ms) = 'integer'"
    ),
    "batches": (
        "typeof(outlet) = 'text' and typeof(log) = 'text' and typeof(id) = 'text' "
        "and typeof(body) = 'blob' and json_valid(cast(body as text)) "
        "and (until is null or typeof(until) = 'integer' and until >= 0) "
        "and typeof(place) = 'integer' and typeof(records) = 'integer' "
        "and typeof(oldest_ms) = 'integer' and typeof(attempts) = 'integer' "
        "and typeof(rung) = 'integer' and typeof(next_ms) = 'integer' "
        "and typeof(wait_ms) = 'integer' and typeof(error) = 'text'"
    ),
    "dead": (
        "typeof(outlet) = 'text' and typeof(log) = 'text' and typeof(seq) = 'integer' "
        "and typeof(record) = 'text' and json_valid(record) and typeof(id) = 'text' "
        "and typeof(attempts) = 'integer' and typeof(at_ms) = 'integer' "
        "and typeof(answer) = 'text'"
    ),
}


def unsound_outlet_rows(db: sqlite3.Connection) -> dict[str, int]:
    """Count the invalid rows, by table; this reads every row."""
    query = "select count(*) from {} where ({}) is not true"
    return {
        table: db.execute(query.format(table, rule)).fetchone()[0]
        for table, rule in _SOUND.items()
    }
