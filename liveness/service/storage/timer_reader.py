"""What is kept of timers, for a person: a page at a time, as JSON.

SQLite makes the JSON, so that a page of megabytes holds up nobody who wants the
interpreter. Each page looks at a bounded number of rows, however many timers there are
and whatever is asked for, and the newest come first, that is: by falling id. Only the
table itself lies in that order, so there are two ways:

    few     an index finds all timers that may be meant, and they are less than
            `FEW_ROWS`: these are looked at, each in its place, and nothing is left
    many    no index does: the table is looked at in its order, `SCAN_ROWS` timers a
            page. What holds of many is found soon; but a page may be empty and not be
            the last.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from liveness.core.timer_states import FIRED, LIVE, PENDING
from liveness.service.storage.timer_store import SOUND

# Timers that a page looks at in their order: some 20 ms where they are in memory.
SCAN_ROWS: Final = 20_000
# And one after the other, wherever they lie.
FEW_ROWS: Final = 2_000

# What the payloads of a page may have together, and one more: in JSON it may be six times
# as much, and several pages are made at once.
PAYLOAD_CHARACTERS: Final = 2**20

# A damaged value may be of any type, of which JSON does not have all. What is not there
# is left out: so a patch does with what is null.
_TEXTS: Final = ("gateway", "key", "ext", "payload", "state", "message")
_NUMBERS: Final = ("due", "attempts", "created", "changed")
_AS_JSON: Final = f"""json_patch('{{}}', json_object({
    ", ".join(
        [
            *(f"'{column}', cast({column} as text)" for column in _TEXTS),
            *(
                f"'{column}', ifnull(cast({column} as integer), 0)"
                for column in _NUMBERS
            ),
            *(f"'{column}', cast({column} as integer)" for column in ("seq", "fired")),
        ]
    )
}, 'damaged', iif({SOUND}, null, id)))"""

# All in one, and so that one of which a text is no UTF-8 can be told from the others.
_TOGETHER: Final = f"cast(json_group_array({_AS_JSON}) as blob)"
_APART: Final = f"json_group_array(json_array(id, hex({_AS_JSON})))"

# Each gateway by one step along the index, however many timers it has.
_GATEWAYS: Final = """
with recursive names (name) as (
    select min(gateway) from timers
    union all select (select min(gateway) from timers where gateway > name) from names
    where name is not null)
select name from names where name is not null
"""
_OF_ANY_GATEWAY: Final = f"gateway in ({_GATEWAYS})"
_OF_ONE_GATEWAY: Final = "gateway = :gateway"

# A run ends soon, so these are among the next to be looked at, however many wait.
_ALL_FIRED: Final = f"""
select id from (
    select id, state from timers indexed by timers_next where next is not null
    order by next limit {SCAN_ROWS})
where state = 'fired' limit {FEW_ROWS}
"""


# As far as the payloads of those before leave room.
_PAGE: Final = """
with found as (
    select *, sum(ifnull(length(payload), 0)) over (
        order by id desc rows between unbounded preceding and 1 preceding) as carried
    from (
        select * from timers not indexed where id < :before and {1}
        order by id desc limit :limit))
select {0}, count(*), min(id), (select count(*) from found)
from (select * from found where ifnull(carried, 0) < :most order by id desc)
"""

_AMONG: Final = "id in (select value from json_each(:few))"


class TimerPage(NamedTuple):
    """Part of a listing."""

    timers: str  # a JSON array; of a damaged timer it has the id, as `damaged`
    next: int | None  # the id to go on below; None: there are no more


def listed(
    db: sqlite3.Connection, wanted: Mapping[str, Any], *, before: int, limit: int
) -> TimerPage:
    """List timers, newest first.

    Args:
        db: A reader's connection.
        wanted: Of `gateway`, `state`, `ext`, `key` and `id` those that must be so.
        before: Only ids below this, as the page before gave it.
        limit: At most this many, or as many as have `PAYLOAD_CHARACTERS`.
    """
    db.execute("begin")  # one snapshot for all that follows
    few = _few(db, wanted)
    floor = _floor(db, before) if few is None else 0
    where = ["id >= :floor" if few is None else _AMONG]
    where += [f"{column} = :{column}" for column in wanted]
    values = {
        "before": before,
        "floor": floor,
        "few": few,
        "limit": limit,
        "most": PAYLOAD_CHARACTERS,
        **wanted,
    }
    timers, count, last, found = _made(
        db, lambda array: _PAGE.format(array, " and ".join(where)), values
    )
    db.execute("rollback")
    has_more = count < found or found == limit
    return TimerPage(timers, last if has_more else floor or None)


def newest(db: sqlite3.Connection, key: str, gateway: str | None, *, limit: int) -> str:
    """Give the newest timer with a key, of one gateway or of each, as a JSON array."""
    of = _OF_ANY_GATEWAY if gateway is None else _OF_ONE_GATEWAY
    (timers,) = _made(
        db,
        lambda array: (
            f"select {array} from timers where id in ("
            f"select max(id) from timers indexed by timers_key where {of} and key = :key "
            "group by gateway limit :limit)"
        ),
        {"gateway": gateway, "key": key, "limit": limit},
    )
    return str(timers)


def _made(
    db: sqlite3.Connection, query: Callable[[str], str], values: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The row that a query gives; its first column, told to it, is a JSON array."""
    data, *others = db.execute(query(_TOGETHER), values).fetchone()
    try:
        return data.decode(), *others
    except UnicodeDecodeError:
        found, *others = db.execute(query(_APART), values).fetchone()
    timers = [_shown(number, bytes.fromhex(text)) for number, text in json.loads(found)]
    return f"[{','.join(timers)}]", *others


def _shown(number: int, data: bytes) -> str:
    """A timer as JSON, as far as its texts can be read."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        timer = json.loads(data.decode(errors="replace"))
        return json.dumps({**timer, "damaged": number})


def _few(db: sqlite3.Connection, wanted: Mapping[str, Any]) -> str | None:
    """The ids of all timers that may be meant, as JSON; None: no index finds so few."""
    for query in _queries(wanted):
        ids, count = db.execute(
            f"select json_group_array(id), count(*) from ({query})", wanted
        ).fetchone()
        if count < FEW_ROWS and (query is not _ALL_FIRED or count == _fired(db)):
            return str(ids)
    return None


def _queries(wanted: Mapping[str, Any]) -> Iterator[str]:
    """Each way to find by an index what may be meant, the narrowest first."""
    of = _OF_ONE_GATEWAY if "gateway" in wanted else _OF_ANY_GATEWAY
    state = wanted.get("state")
    if "id" in wanted:
        yield "select id from timers where id = :id"
    if "key" in wanted:
        yield _ids("timers_key", f"{of} and key = :key")
    if "ext" in wanted and state in LIVE:
        yield _ids("timers_ext", f"{of} and ext = :ext and next is not null")
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


def _fired(db: sqlite3.Connection) -> int:
    query = "select timers from states where state = ?"
    (count,) = db.execute(query, [FIRED]).fetchone()
    return int(count)


def _floor(db: sqlite3.Connection, before: int) -> int:
    """The lowest id that a page below *before* looks at; 0 if it looks at all."""
    floor, count = db.execute(
        "select min(id), count(*) from ("
        "select id from timers where id < ? order by id desc limit ?)",
        [before, SCAN_ROWS],
    ).fetchone()
    return int(floor) if count == SCAN_ROWS else 0
