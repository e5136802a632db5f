"""Checks a state directory for damage. Reads all of it, and changes nothing.

The log is read in chunks, each in its own transaction: a long one would keep the WAL of a
running sidecar growing. SQLite's own check of a file cannot be divided.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from liveness.core.timer_states import LIVE
from liveness.service.storage import clocks_file, log_pages, log_store, outlet_schema
from liveness.service.storage.damaged_records import SeqRange, merged
from liveness.service.storage.database import (
    DISK_TROUBLE,
    LARGER_THAN_MEMORY,
    check_not_lost,
    check_regular_files,
    check_structure,
    check_wal,
    size_of,
)
from liveness.service.storage.log_schema import TABLES_BESIDE_LOG, unsound_rows
from liveness.service.storage.log_store import DATABASE
from liveness.service.storage.read_only_access import (
    file_state,
    opened_unchanged,
    read_unchanged,
)
from liveness.service.storage.state_lock import is_in_use
from liveness.service.timers import timer_damage, timer_store

# Records checked in one transaction.
CHUNK_RECORDS: Final = 50_000
# The most faults of SQLite's check, or ranges of the log, that a message names.
MOST_NAMED: Final = 5


class PartResult(NamedTuple):
    """The result for one part of the state. `told` is the text shown for it."""

    file: str
    part: str
    is_whole: bool
    told: str
    missing: str = ""  # what is damaged, if the rest of the part can be used


class Damaged(Exception):
    """A part is damaged; the message says how."""

    def __init__(self, message: str, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing


# Calls a function with a connection, and returns its result.
Read = Callable[[Callable[[sqlite3.Connection], Any]], Any]


def check(folder: Path) -> Iterator[PartResult]:
    """Check each part of a state directory.

    Raises:
        StateError: There is no log, it is of another version, or it may not be read.
        sqlite3.Error: A file cannot be read now.
    """
    for name in (timer_store.DATABASE, outlet_schema.DATABASE):
        check_regular_files(folder / name)
    path = folder / DATABASE
    file_state(path)
    try:
        log_store.check_not_emptied(folder, timer_store.DATABASE)
    except sqlite3.DatabaseError as error:
        yield PartResult(DATABASE, "structure", False, str(error))
        return
    in_use = is_in_use(folder)  # a running sidecar checked the WALs when it started
    if not in_use:
        yield from _wal(path)
    read = partial(read_unchanged, partial(opened_unchanged, path))
    yield from parts(DATABASE, read)
    path = folder / timer_store.DATABASE
    try:
        next_seq = read(log_pages.newest) + 1
    except sqlite3.DatabaseError:
        next_seq = 1  # unknown; `parts` reported the damage
    check_not_emptied = partial(timer_store.check_not_emptied, path, next_seq=next_seq)
    yield from _beside_log(path, check_not_emptied, in_use=in_use)
    path = folder / outlet_schema.DATABASE
    yield from _beside_log(path, lambda: None, in_use=in_use)
    yield _checked(clocks_file.NAME, "clocks", partial(_clocks, folder))


def _beside_log(
    path: Path, check_size: Callable[[], None], *, in_use: bool
) -> Iterator[PartResult]:
    """Check another database than the log's; it may be missing."""
    try:
        check_not_lost(path)
        check_size()
    except sqlite3.DatabaseError as error:
        yield PartResult(path.name, "structure", False, str(error))
    if size_of(path):
        if not in_use:
            yield from _wal(path)
        connect = partial(opened_unchanged, path, is_log=False)
        yield from parts(path.name, partial(read_unchanged, connect))


def parts(name: str, read: Read) -> Iterator[PartResult]:
    """Check each part of the database called *name*, its structure first.

    The structure of the table `log` is checked with the records: unlike other damage to
    the structure, it does not keep the sidecar from starting.
    """
    if name == DATABASE:
        beside = structure(name, read, TABLES_BESIDE_LOG)
        yield beside
        yield _checked(name, "log", partial(_log, read, with_structure=beside.is_whole))
        yield _checked(name, "users online", partial(read, _users))
        yield _checked(name, "names", partial(read, _names))
        return
    yield structure(name, read)
    part, examine = {
        timer_store.DATABASE: ("timers", _timers),
        outlet_schema.DATABASE: ("outlets", _outlets),
    }[name]
    yield _checked(name, part, partial(read, examine))


def structure(name: str, read: Read, tables: Sequence[str] = ("",)) -> PartResult:
    """Check the structure of a database, or of some of its tables."""
    examine = partial(check_structure, tables=tables, most=MOST_NAMED)
    return _checked(name, "structure", lambda: read(examine) or "")


def places(ranges: Sequence[SeqRange]) -> str:
    """Describe ranges of records, by the first few of them."""
    shown = [
        f"{first:,}" if first == last else f"{first:,} to {last:,}"
        for first, last in ranges[:MOST_NAMED]
    ]
    more = len(ranges) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more places" if more else "")


def _damaged_ranges(read: Read) -> tuple[list[SeqRange], int]:
    """The damaged records of a log, and how many records it should have."""
    ranges, reached, records = list[SeqRange](), 0, 0
    while True:
        chunk: CheckedChunk = read(partial(_check_chunk, after=reached))
        records += chunk.records
        for damaged in chunk.damaged:
            ranges = merged(ranges, damaged)
        reached = chunk.reached
        if chunk.is_last:
            return ranges, records


def _wal(path: Path) -> Iterator[PartResult]:
    """Report damage in a WAL that hides commits, if there is any."""
    try:
        check_wal(path)
    except sqlite3.DatabaseError as error:
        if not log_pages.is_damage(error):
            raise
        yield PartResult(path.name, "WAL", False, str(error))


class CheckedChunk(NamedTuple):
    """The part of the log that one transaction checked."""

    damaged: list[SeqRange]
    records: int
    reached: int
    is_last: bool


def _check_chunk(db: sqlite3.Connection, after: int) -> CheckedChunk:
    db.execute("begin")
    end = log_pages.newest(db)
    after = max(after, log_pages.oldest(db) - 1)
    until = min(after + CHUNK_RECORDS, end)
    whole = log_pages.pages(db, after=after, until=until)
    damaged = log_pages.damaged_ranges(whole, after=after, until=until)
    db.execute("rollback")
    return CheckedChunk(damaged, until - after, until, until >= end)


def _checked(file: str, part: str, examine: Callable[[], str]) -> PartResult:
    try:
        return PartResult(file, part, True, examine())
    except Damaged as error:
        return PartResult(file, part, False, str(error), error.missing)
    except MemoryError:
        return PartResult(file, part, False, LARGER_THAN_MEMORY)
    # SQLite's message may quote damaged text, which Python cannot decode.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in DISK_TROUBLE:
            raise
        return PartResult(file, part, False, str(error))


def _log(read: Read, *, with_structure: bool) -> str:
    """Check the pages of the log; *with_structure*, also the whole file's structure."""
    read(log_pages.next_seq)  # raises if it is unknown: the sidecar could not start
    ranges, records = _damaged_ranges(read)
    faults, missing = list[str](), ""
    if with_structure and not (found := structure(DATABASE, read)).is_whole:
        faults, missing = [f"structure: {found.told}"], "structure of the log"
    if ranges:
        count = sum(last - first + 1 for first, last in ranges)
        missing = f"records {places(ranges)}"
        faults.insert(0, f"{missing} ({count:,} of {records:,})")
    if faults:
        raise Damaged("; ".join(faults), missing)
    return f"{records:,}"


def _users(db: sqlite3.Connection) -> str:
    _check_rows(db, "online")
    count = sum(1 for _ in db.execute("select * from online"))  # reads each row
    (users,) = db.execute("select count(distinct uid) from online").fetchone()
    if users < count:
        raise Damaged(f"{count - users:,} users of {users:,} have several sessions")
    return f"{count:,}"


def _names(db: sqlite3.Connection) -> str:
    _check_rows(db, "cursors")
    _check_rows(db, "trimmed")
    return f"{sum(1 for _ in db.execute('select * from cursors')):,}"


def _check_rows(db: sqlite3.Connection, table: str) -> None:
    count = unsound_rows(db, table, log_pages.next_seq(db))
    if count:
        raise Damaged(f"{count:,} rows of {table} make no sense")


def _timers(db: sqlite3.Connection) -> str:
    db.execute("begin")  # one snapshot: a sidecar may be writing
    counted = dict(db.execute("select state, timers from states"))
    surplus = timer_damage.surplus_by_state(db)
    query = "select count(*) from timers not indexed"  # an index may have stray entries
    (count,) = db.execute(query).fetchone()
    db.execute("rollback")
    # A damaged timer was counted in some state, but it is not known in which.
    if min(surplus.values()) < 0 or sum(counted.values()) != count:
        actual = {state: number - surplus[state] for state, number in counted.items()}
        raise Damaged(f"it has {_some(actual)}, but counts {_some(counted)}")
    if damaged := timer_damage.count_damaged(db):
        message = f"{damaged:,} of {count:,} make no sense"
        raise Damaged(message, f"timers: {damaged:,}")
    return f"{sum(counted[state] for state in LIVE):,} live"


def _outlets(db: sqlite3.Connection) -> str:
    db.execute("begin")  # one snapshot: a sidecar may be writing
    unsound = outlet_schema.unsound_outlet_rows(db)
    query = "select (select count(*) from cursors), (select count(*) from dead)"
    cursors, dead = db.execute(query).fetchone()
    db.execute("rollback")
    for table, count in unsound.items():
        if count:
            raise Damaged(f"{count:,} rows of {table} make no sense")
    return f"{cursors:,}, {dead:,} dead letters"


def _some(states: Mapping[str, int]) -> dict[str, int]:
    """The states that have timers."""
    return {state: count for state, count in states.items() if count}


def _clocks(folder: Path) -> str:
    is_whole = clocks_file.is_whole(folder)
    if is_whole is False:
        raise Damaged("the next start gives everyone a fresh timeout")
    return "" if is_whole else "none"
