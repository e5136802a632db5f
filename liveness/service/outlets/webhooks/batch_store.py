"""Unfinished requests and dead letters, in the outlets' database.

A request is stored before its first attempt, so that an id has the same body after a crash.
Its end and the new cursor are stored together. All functions here are called in a
transaction.

The requests of an outlet are a stack: a refused one is replaced by its two halves, and the
one with the highest `place` is sent next. That keeps the order of the log.
"""

import sqlite3
from secrets import token_hex
from typing import Final, NamedTuple

from liveness.service.outlets.common.outlet_store import put_cursor
from liveness.service.outlets.webhooks.cloud_events import halves, records_in

_COLUMNS: Final = (
    "place, log, until, id, body, records, oldest_ms, attempts, next_ms, wait_ms, error"
)
_LETTER: Final = "number, log, seq, record, id, attempts, at_ms, status, answer"


class StoredBatch(NamedTuple):
    """An unfinished request."""

    place: int
    log: str
    until: int | None  # the cursor once it is done; None: it stays where it is
    id: str
    body: bytes
    records: int
    oldest_ms: int  # when its oldest record was decided, by the state's clock
    attempts: int = 0
    next_ms: int = 0  # when the next attempt is due, by the state's clock
    wait_ms: int = 0  # the wait before it
    error: str = ""  # of the last attempt


class DeadLetter(NamedTuple):
    """A record that was given up."""

    number: int  # unique; a newer one has a higher number
    log: str
    seq: int
    record: str  # as JSON
    id: str  # the `webhook-id` of the last request that had it
    attempts: int
    at_ms: int  # when it was given up, in Unix milliseconds
    status: int | None  # of the last answer; None: there was none
    answer: str


def new_id() -> str:
    return f"msg_{token_hex(16)}"


def top_batch(db: sqlite3.Connection, outlet: str) -> StoredBatch | None:
    """The request to send next; None: all are finished."""
    query = f"select {_COLUMNS} from batches where outlet = ? order by place desc"
    found = db.execute(f"{query} limit 1", [outlet]).fetchone()
    return None if found is None else StoredBatch(*found)


def put_batch(db: sqlite3.Connection, outlet: str, batch: StoredBatch) -> None:
    db.execute(
        f"insert or replace into batches (outlet, rung, {_COLUMNS}) "
        "values (?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # `rung` is of older versions
        [outlet, *batch],
    )


def finish_batch(
    db: sqlite3.Connection, outlet: str, batch: StoredBatch, now_ms: int
) -> StoredBatch | None:
    """Forget a finished request, and move the cursor; return the next one."""
    db.execute(
        "delete from batches where outlet = ? and place = ?", [outlet, batch.place]
    )
    if batch.until is not None:
        put_cursor(db, outlet, (batch.log, batch.until), now_ms)
    return top_batch(db, outlet)


def halve_batch(
    db: sqlite3.Connection, outlet: str, batch: StoredBatch
) -> StoredBatch | None:
    """Replace a request by its halves; return the first, which is sent next."""
    first, second = halves(batch.body)
    few = batch.records // 2
    fresh = batch._replace(attempts=0, next_ms=0, wait_ms=0, error="")
    for half in (
        fresh._replace(id=new_id(), body=second, records=batch.records - few),
        fresh._replace(
            place=batch.place + 1, until=None, id=new_id(), body=first, records=few
        ),
    ):
        put_batch(db, outlet, half)
    return top_batch(db, outlet)


def bury_batch(
    db: sqlite3.Connection,
    outlet: str,
    batch: StoredBatch,
    status: int | None,
    answer: str,
    *,
    most: int,
    wall_ms: int,
    now_ms: int,
) -> tuple[StoredBatch | None, int, int]:
    """Turn a request's records into dead letters, and forget it.

    *batch* counts its last attempt. *wall_ms* is the time to show, and *now_ms* the
    same moment by the state's clock. Above *most* letters, the oldest are deleted.

    Returns:
        The next request, how many letters are kept, and how many were deleted.
    """
    db.executemany(
        "insert into dead (outlet, log, seq, record, id, attempts, at_ms, status, answer) "
        "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (outlet, *record, batch.id, batch.attempts, wall_ms, status, answer)
            for record in records_in(batch.body)
        ],
    )
    count = count_letters(db, outlet)
    excess = max(0, count - most)
    db.execute(
        "delete from dead where number in (select number from dead "
        "where outlet = ? order by number limit ?)",
        [outlet, excess],
    )
    return finish_batch(db, outlet, batch, now_ms), count - excess, excess


def count_letters(db: sqlite3.Connection, outlet: str) -> int:
    query = "select count(*) from dead where outlet = ?"
    (count,) = db.execute(query, [outlet]).fetchone()
    return int(count)


def letters(
    db: sqlite3.Connection, outlet: str | None, *, before: int, limit: int
) -> list[tuple[str, DeadLetter]]:
    """The dead letters below a number, the newest first, each with its outlet.

    Those of one outlet, or of all, including those no longer in the settings.
    """
    whose = "" if outlet is None else "and outlet = :outlet"
    found = db.execute(
        f"select outlet, {_LETTER} from dead where number < :before {whose} "
        "order by number desc limit :limit",
        {"before": before, "outlet": outlet, "limit": limit},
    )
    return [(owner, DeadLetter(*row)) for owner, *row in found]


def next_letter(db: sqlite3.Connection, outlet: str, after: int) -> DeadLetter | None:
    """The oldest of an outlet's dead letters above a number; None: there is none."""
    query = f"select {_LETTER} from dead where outlet = ? and number > ?"
    found = db.execute(f"{query} order by number limit 1", [outlet, after]).fetchone()
    return None if found is None else DeadLetter(*found)


def delete_letters(
    db: sqlite3.Connection, outlet: str, number: int | None = None
) -> int:
    """Delete one dead letter of an outlet, or all; return how many that were."""
    which = "" if number is None else f" and number = {number}"
    return db.execute(f"delete from dead where outlet = ?{which}", [outlet]).rowcount
