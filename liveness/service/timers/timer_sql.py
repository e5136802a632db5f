"""timers.db in SQL: its tables, and the statements that find and change its rows.

A statement takes many rows, and returns them as one JSON value. For every single row,
sqlite3 would release the interpreter lock; beside a busy main thread, getting the lock
back costs more than the row. What a statement takes is bound as values, one by one: from
JSON, SQLite would parse each row again for each of its columns.

Ids only grow. So the newest timer of a key is the last one in the index of keys, and new
rows lie together at the end of the table.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from liveness.core.timer_states import (
    CANCELLED,
    DONE,
    FAILED,
    REPLACED,
    STATES,
    TimerState,
)
from liveness.service.storage.database import ROWS_AT_ONCE

ENDED_STATES: Final = (DONE, FAILED, CANCELLED, REPLACED)

TABLES: Final = f"""
create table meta (key text primary key, value any) strict, without rowid;
create table timers (
    id integer primary key, gateway text not null, key text not null, ext text,
    payload text, state text not null, due integer not null, next integer,
    attempts integer not null, seq integer, since integer not null, message text,
    created integer not null, fired integer, changed integer not null) strict;
create index timers_key on timers (gateway, key);
create index timers_next on timers (next) where next is not null;
create index timers_ext on timers (gateway, ext)
    where ext is not null and next is not null;
create index timers_ended on timers (state, changed) where next is null;
create table states (state text primary key, timers integer not null)
    strict, without rowid;
insert into states values {", ".join(f"('{state}', 0)" for state in STATES)};
insert into meta values ('seq', 0), ('newest', 0);
"""

NEXT_ID: Final = "select coalesce(max(id), 0) + 1 from timers"

HIGHEST_SEQ: Final = "select max(value) from meta where key in ('seq', 'newest')"

LOWER_SEQS: Final = """
update meta set value = min(value, ?) where key in ('seq', 'newest')
"""

RAISE_META: Final = """
insert into meta select key, value from json_each(:values) where true
on conflict do update set value = max(meta.value, excluded.value)
"""

# The seqs of another log mean nothing in this one: 0 replaces them.
FORGET_SEQS: Final = """
update timers set since = 0, seq = iif(seq is null, null, 0)
where next is not null or state = 'failed'
"""

# A log restored from a backup lacks its end, and gives the seqs there to new records.
FORGET_LATER_SEQS: Final = """
update timers set seq = 0 where seq > :newest and (next is not null or state = 'failed')
"""

# A crash may leave the table ahead of the log, by the timers of one pass of the engine.
# A higher id has the same or a higher `since`.
LOWER_SINCE: Final = """
update timers set since = :next where id > coalesce(
    (select id from timers where since <= :next order by id desc limit 1), 0)
"""


def _column(field: str) -> str:
    """The column of a field of `TimerState`; one has another name on disk."""
    return "since" if field == "min_seq" else field


TIMER_COLUMNS: Final = ", ".join(
    f"timers.{_column(field)}" for field in TimerState._fields
)


class RowsStatement:
    """A statement for any number of rows, some of them at a time.

    *row* has a `?` for each value; the rest of the statement is *before* and *after* its
    rows.
    """

    def __init__(self, before: str, row: str, after: str = "") -> None:
        self._width = row.count("?")
        self._texts = {
            rows: f"{before} {', '.join([row] * rows)} {after}" for rows in ROWS_AT_ONCE
        }

    def execute(self, db: sqlite3.Connection, values: Sequence[object]) -> None:
        """Execute it for rows whose values are one behind the other."""
        for statement, given in self._parts(values):
            db.execute(statement, given)

    def read(
        self, db: sqlite3.Connection, values: Sequence[object]
    ) -> tuple[list[Any], list[Sequence[object]]]:
        """Execute a query that returns one JSON array of rows.

        Returns:
            The rows; and the given rows for which a text is not UTF-8.
        """
        found, damaged = list[Any](), list[Sequence[object]]()
        for statement, given in self._parts(values):
            try:
                found += json.loads(single_value(db, statement, given))
            except sqlite3.OperationalError as error:
                # SQLite does not check UTF-8; Python does, and gives no SQLite code.
                if hasattr(error, "sqlite_errorcode"):
                    raise
                if len(given) == self._width:
                    damaged.append(given)
                    continue
                half = (len(given) // self._width + 1) // 2 * self._width
                for part in (given[:half], given[half:]):
                    more_found, more_damaged = self.read(db, part)
                    found += more_found
                    damaged += more_damaged
        return found, damaged

    def _parts(
        self, values: Sequence[object]
    ) -> Iterator[tuple[str, Sequence[object]]]:
        at = 0
        for rows, statement in self._texts.items():
            size = rows * self._width
            while len(values) - at >= size:
                yield statement, values[at : at + size]
                at += size


NEWEST_OF_KEYS: Final = RowsStatement(
    "with named (gateway, key) as (values",
    "(?, ?)",
    f""")
    select json_group_array(json_array({TIMER_COLUMNS})) from named cross join timers
    where timers.id = (select max(id) from timers
        where gateway = named.gateway and key = named.key)
    """,
)

TIMERS_BY_ID: Final = RowsStatement(
    f"select json_group_array(json_array({TIMER_COLUMNS})) from timers where id in (",
    "?",
    ")",
)

# The live timers of some exts, in their order, and the index of the last ext reached.
LIVE_IDS_OF_EXTS: Final = """
select json_array(json_group_array(id), max(place)) from (
    select timers.id, asked.key as place from json_each(:exts) as asked cross join timers
        on timers.gateway = json_extract(value, '$[0]')
        and timers.ext = json_extract(value, '$[1]')
    where timers.next is not null and timers.id < json_extract(value, '$[2]')
    limit :most)
"""

INSERT_TIMERS: Final = RowsStatement(
    f"insert into timers ({', '.join(map(_column, TimerState._fields))}, payload) values",
    f"(?{', ?' * len(TimerState._fields)})",
)

# The columns written for a changed timer; the first is its id.
_CHANGED: Final = (
    "id", "state", "due", "next", "attempts", "seq", "message", "fired", "changed",
)  # fmt: skip
changed_values: Final = itemgetter(*map(TimerState._fields.index, _CHANGED))

UPDATE_TIMERS: Final = RowsStatement(
    f"with given ({', '.join(_CHANGED)}) as (values",
    f"({', '.join('?' * len(_CHANGED))})",
    f""") update timers set {
        ", ".join(f"{column} = given.{column}" for column in _CHANGED[1:])
    } from given where timers.id = given.id""",
)

ADD_TO_STATES: Final = """
update states set timers = timers + json_extract(:added, '$.' || state)
where json_extract(:added, '$.' || state) is not null
"""

# Finds the oldest of each state by the index, and of those the oldest of all: many timers
# in one state do not push out those of another.
OLDEST_ENDED: Final = f"""
select state, count(*), json_group_array(id) from (
    select * from ({
    " union all ".join(
        "select * from (select id, state, changed from timers where next is null "
        f"and state = '{state}' and changed < :before order by changed limit :limit)"
        for state in ENDED_STATES
    )
}) order by changed limit :limit) group by state
"""

DELETE_TIMERS: Final = "delete from timers where id in (select value from json_each(?))"


def single_value(db: sqlite3.Connection, query: str, values: Any = ()) -> Any:
    """The first column of a query's only row."""
    return db.execute(query, values).fetchone()[0]


def add_to_states(db: sqlite3.Connection, added: dict[str, int]) -> None:
    db.execute(ADD_TO_STATES, {"added": json.dumps(added)})
