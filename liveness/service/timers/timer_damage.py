"""Counts timers that are damaged on disk, and ends one.

A timer is damaged if one of its texts is not UTF-8, or if its values contradict each
other (`IS_VALID`). It does not fire, and stays until an operator ends it.
"""

import sqlite3
from collections import Counter
from typing import Final

from liveness.core.timer_states import CANCELLED
from liveness.service.timers.timer_sql import ENDED_STATES, IS_VALID, add_to_states

_TEXT_COLUMNS: Final = ("gateway", "key", "ext", "payload", "message", "state")
_ALL_TEXTS: Final = f"""
select cast({
    " || char(10) || ".join(f"ifnull({column}, '')" for column in _TEXT_COLUMNS)
} as blob), ({IS_VALID}) is true from timers
"""
_TEXTS_OF: Final = f"""
select {", ".join(f"cast({column} as blob)" for column in _TEXT_COLUMNS)},
    ({IS_VALID}) is true from timers where id = ?
"""
_END_DAMAGED: Final = f"""
update timers set {
    ", ".join(f"{column} = ?" for column in _TEXT_COLUMNS)
}, next = null, changed = ? where id = ?
"""


def count_damaged(db: sqlite3.Connection) -> int:
    """Count the damaged timers; it reads every row."""
    return sum(
        not (is_valid and _is_utf8(texts)) for texts, is_valid in db.execute(_ALL_TEXTS)
    )


def surplus_by_state(db: sqlite3.Connection) -> dict[str, int]:
    """For each state, its count in `states` minus the valid timers that are in it."""
    query = f"select state, count(*) from timers where {IS_VALID} group by state"
    valid = dict(db.execute(query))
    counted = db.execute("select state, timers from states")
    return {state: count - valid.get(state, 0) for state, count in counted}


def end_damaged(
    db: sqlite3.Connection, timer_id: int, *, at: int
) -> dict[str, int] | None:
    """End a damaged timer, within an open transaction.

    In its texts, bytes that are not UTF-8 are replaced. All timers are read: some seconds
    for a million. *at* is now, in milliseconds of the state's clock.

    Returns:
        By how many the count of each state falls; None if the timer is not damaged or
        does not exist.
    """
    row = db.execute(_TEXTS_OF, [timer_id]).fetchone()
    if row is None:
        return None
    *data, is_valid = row
    if is_valid and all(_is_utf8(text) for text in data if text):
        return None
    *texts, state = (
        None if text is None else text.decode(errors="replace") for text in data
    )
    if is_valid:
        before = str(state)
    else:  # its state may be wrong: take the one that is counted once too often
        surplus = surplus_by_state(db)
        before = max(surplus, key=surplus.__getitem__)
    after = before if is_valid and before in ENDED_STATES else CANCELLED
    # An index may have no entry for the damaged row, only for the row as it was. Without
    # this pragma, SQLite fails if it finds no entry to delete. The stale entry stays until
    # the indexes are built anew: as damage, to SQLite's check of 3.53 (not to that of 3.40).
    db.execute("pragma writable_schema = on")
    try:
        db.execute(_END_DAMAGED, [*texts, after, at, timer_id])
    finally:
        db.execute("pragma writable_schema = off")
    db.execute("reindex timers")
    fewer = Counter({before: 1})
    fewer.subtract({after: 1})
    add_to_states(db, {state: -count for state, count in fewer.items() if count})
    return fewer


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
