"""The tables of `outlets.db`.

    cursors   of each outlet, the seq up to which all records are delivered
    batches   webhooks: requests that were begun and not accepted yet, with their bodies;
              the one with the highest place is sent next
    dead      webhooks: records that a receiver refused for good; a number is never used
              again, as a person may have it from an earlier list
    meta      the schema

The database is opened and written by the outlets; backups and checks only read it.
"""

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
