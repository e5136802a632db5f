"""Reads timers: those that come due, and pages of timers as JSON for HTTP.

Readers use connections of their own. SQLite makes the JSON of a page, so that megabytes
of it do not hold the interpreter lock.

A page examines a bounded number of rows, however many timers there are and whatever the
filter is. The newest timers come first, by descending id. Only the table itself is in
that order, so there are two ways to make a page:

    few     an index finds less than `FEW_ROWS` timers that may match: examine all of them
    many    no index finds so few: examine the next `SCAN_ROWS` timers of the table. If
            few timers match, a page may be empty though it is not the last
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from liveness.core.timer_states import FIRED, LIVE, PENDING, TimerState
from liveness.core.timers.timer_scheduler import Coming, Due, LoadedWindow
from liveness.service.timers.timer_sql import (
    TIMER_COLUMNS,
    RowsStatement,
    single_value,
)

# Rows of the table that a page examines: some 20 ms if they are in memory.
SCAN_ROWS: Final = 20_000
# Rows that a page looks up one by one.
FEW_ROWS: Final = 2_000

# --- timers that come due -----------------------------------------------------

_DUE: Final = RowsStatement(
    f"select json_group_array(json_array({TIMER_COLUMNS}, timers.payload)) from timers "
    "where next is not null and id in (",
    "?",
    ")",
)
_COMING: Final = """
select cast(json_group_array(json_array(id, gateway, next)) as blob) from (
    select id, gateway, next from timers
    where next >= :next and next <= :until and (next > :next or id > :id)
    order by next, id limit :limit)
"""


def read_due(db: sqlite3.Connection, ids: Sequence[int]) -> tuple[list[Due], list[int]]:
    """Read timers that came due: the ones that are still live, and the ids of damaged ones.

    A text of a damaged one is not UTF-8, or its values contradict each other.
    """
    rows, unreadable = _DUE.read(db, ids)
    damaged: list[Any] = [number for (number,) in unreadable]
    found = list[Due]()
    for row in rows:
        timer = TimerState._make(row[:-1])
        is_fired = timer.state == FIRED and None not in (timer.seq, timer.fired)
        if is_fired or timer.state == PENDING:
            found.append(Due(timer, row[-1]))
        else:
            damaged.append(timer.id)
    return found, damaged


def read_coming(db: sqlite3.Connection, window: LoadedWindow) -> list[Coming]:
    """Read the timers of a window, earliest first.

    They may have a damaged gateway; `read_due` reports it once the timer is due.
    """
    data: bytes = single_value(db, _COMING, window._asdict())
    return [Coming._make(row) for row in json.loads(data.decode(errors="replace"))]


def attempts(
    db: sqlite3.Connection,
    gateway: str,
    *,
    after: int,
    until: int,
    due_until: int,
    limit: int,
) -> list[tuple[str, int]]:
    """Keys and seqs of a gateway's attempts with a seq above *after*, up to *until*.

    They are looked up by the time at which they are over, up to *due_until*.
    """
    query = """
        select key, seq from timers indexed by timers_next
        where next is not null and next <= ? and state = 'fired' and gateway = ?
            and seq > ? and seq <= ? order by seq limit ?
    """
    # A damaged key must not keep the other timers from being read.
    db.text_factory = lambda text: text.decode(errors="replace")
    return db.execute(query, [due_until, gateway, after, until, limit]).fetchall()


# --- pages --------------------------------------------------------------------

# `json_patch` leaves out nulls.
_AS_JSON: Final = """json_patch('{}', json_object(
    'gateway', gateway, 'key', key, 'ext', ext, 'payload', payload, 'state', state,
    'message', message, 'due', due + :ahead_ms, 'created', created + :ahead_ms,
    'changed', changed + :ahead_ms, 'attempts', attempts, 'seq', seq,
    'fired', fired + :ahead_ms))"""

# Lists the gateways, with one index look-up for each, however many timers it has.
_GATEWAYS: Final = """
with recursive names (name) as (
    select min(gateway) from timers
    union all select (select min(gateway) from timers where gateway > name) from names
    where name is not null)
select name from names where name is not null
"""
_OF_ANY_GATEWAY: Final = f"gateway in ({_GATEWAYS})"
_OF_ONE_GATEWAY: Final = "gateway = :gateway"

# `next` of a fired timer is soon, so it is near the beginning of this index, however many
# timers are pending.
_ALL_FIRED: Final = f"""
select id from (
    select id, state from timers indexed by timers_next where next is not null
    order by next limit {SCAN_ROWS})
where state = 'fired' limit {FEW_ROWS}
"""

_IS_ONE_OF_FEW: Final = "id in (select value from json_each(:few))"


class TimerPage(NamedTuple):
    """Part of a listing."""

    timers: str  # a JSON array
    next: int | None  # the next page has ids below this; None: this is the last page


def list_timers(
    db: sqlite3.Connection,
    wanted: Mapping[str, Any],
    *,
    before: int,
    limit: int,
    ahead_ms: int,
) -> TimerPage:
    """List at most *limit* timers, newest first.

    *wanted* filters by values of `gateway`, `state`, `ext` and `key`. Only ids below
    *before* are listed: the `next` of the previous page. Times are shown in wall time,
    which is *ahead_ms* ahead of the state's clock.
    """
    db.execute("begin")  # one snapshot for all queries
    few = _few_ids(db, wanted)
    floor = _floor(db, before) if few is None else 0
    where = ["id < :before", "id >= :floor" if few is None else _IS_ONE_OF_FEW]
    where += [f"{column} = :{column}" for column in wanted]
    values = {
        "before": before,
        "floor": floor,
        "few": few,
        "limit": limit,
        "ahead_ms": ahead_ms,
        **wanted,
    }
    timers, count, last = db.execute(
        f"select json_group_array({_AS_JSON}), count(*), min(id) from ("
        f"select * from timers not indexed where {' and '.join(where)} "
        "order by id desc limit :limit)",
        values,
    ).fetchone()
    db.execute("rollback")
    return TimerPage(timers, last if count == limit else floor or None)


def newest_of_key(
    db: sqlite3.Connection, key: str, gateway: str | None, *, limit: int, ahead_ms: int
) -> str:
    """The newest timer with a key, of *gateway* or of each one, as a JSON array.

    Times are as those of `list_timers`.
    """
    is_of = _OF_ANY_GATEWAY if gateway is None else _OF_ONE_GATEWAY
    query = (
        f"select json_group_array({_AS_JSON}) from timers where id in ("
        f"select max(id) from timers indexed by timers_key where {is_of} and key = :key "
        "group by gateway limit :limit)"
    )
    values = {"gateway": gateway, "key": key, "limit": limit, "ahead_ms": ahead_ms}
    return str(single_value(db, query, values))


def _few_ids(db: sqlite3.Connection, wanted: Mapping[str, Any]) -> str | None:
    """The ids of all timers that may match, as JSON; None if they are not few."""
    for query in _index_queries(wanted):
        ids, count = db.execute(
            f"select json_group_array(id), count(*) from ({query})", wanted
        ).fetchone()
        if count < FEW_ROWS and (query is not _ALL_FIRED or count == _fired_count(db)):
            return str(ids)
    return None


def _index_queries(wanted: Mapping[str, Any]) -> Iterator[str]:
    """Queries for all timers that may match, each by an index; the narrowest first."""
    is_of = _OF_ONE_GATEWAY if "gateway" in wanted else _OF_ANY_GATEWAY
    state = wanted.get("state")
    if "key" in wanted:
        yield _ids("timers_key", f"{is_of} and key = :key")
    if "ext" in wanted and state in LIVE:
        yield _ids("timers_ext", f"{is_of} and ext = :ext and next is not null")
    if state == FIRED:
        yield _ALL_FIRED
    elif state == PENDING:
        yield _ids("timers_next", "next is not null")
    elif state is not None:
        yield _ids("timers_ended", "next is null and state = :state")
    if "gateway" in wanted:
        yield _ids("timers_key", _OF_ONE_GATEWAY)


def _ids(index: str, where: str) -> str:
    return f"select id from timers indexed by {index} where {where} limit {FEW_ROWS}"


def _fired_count(db: sqlite3.Connection) -> int:
    query = "select timers from states where state = ?"
    return int(single_value(db, query, [FIRED]))


def _floor(db: sqlite3.Connection, before: int) -> int:
    """The lowest id that a page below *before* examines; 0: it examines all of them."""
    floor, count = db.execute(
        "select min(id), count(*) from ("
        "select id from timers where id < ? order by id desc limit ?)",
        [before, SCAN_ROWS],
    ).fetchone()
    return int(floor) if count == SCAN_ROWS else 0
