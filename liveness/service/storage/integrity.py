"""Is a state directory whole? All of it is read, and nothing is changed.

The log is read in chunks, each in a transaction of its own, as a long one would keep the
WAL of a sidecar that runs growing. SQLite's own check of a file cannot be cut.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from liveness.core.timer_states import LIVE
from liveness.service.storage import (
    clocks_file,
    log_pages,
    log_store,
    timer_damage,
    timer_store,
)
from liveness.service.storage.database import (
    DISK_TROUBLE,
    LARGER_THAN_MEMORY,
    check_not_lost,
    check_regular_files,
    check_structure,
    check_wal,
    size_of,
)
from liveness.service.storage.log_reader import (
    any_schema,
    file_state,
    looking_at,
    read_again,
)
from liveness.service.storage.log_store import BESIDE, DATABASE, unsound

# So many records are looked for in one transaction.
CHUNK_RECORDS: Final = 50_000
# So many lines of what SQLite says of a file, and places of the log, are told.
MOST_TOLD: Final = 5


class Found(NamedTuple):
    """What was found of one part of the state."""

    file: str
    part: str
    is_whole: bool
    told: str
    missing: str = ""  # what is damaged, where it harms nothing else


class Damaged(Exception):
    """What was read makes no sense; it is told in words."""

    def __init__(self, told: str, missing: str = "") -> None:
        super().__init__(told)
        self.missing = missing


# Runs a look at a database, in a connection of its own or in one that is open.
Read = Callable[[Callable[[sqlite3.Connection], Any]], Any]


def check(folder: Path) -> Iterator[Found]:
    """Look at each part of a state directory.

    Raises:
        StateError: There is none, it is of another version, or it may not be read.
        sqlite3.Error: It cannot be read now.
    """
    check_regular_files(folder / timer_store.DATABASE)
    path = folder / DATABASE
    file_state(path)
    try:
        log_store.check_not_emptied(folder)
    except sqlite3.DatabaseError as error:
        yield Found(DATABASE, "structure", False, str(error))
        return
    is_in_use = log_store.is_in_use(folder)  # then the WALs have been looked at
    if not is_in_use:
        yield from _wal(path)
    read = partial(read_again, partial(looking_at, path))
    yield from parts(DATABASE, read)
    path = folder / timer_store.DATABASE
    try:
        next_seq = read(_next_seq)
    except sqlite3.DatabaseError:
        next_seq = 1  # it was said above that the log cannot be read
    try:
        check_not_lost(path)
        timer_store.check_not_emptied(path, next_seq=next_seq)
    except sqlite3.DatabaseError as error:
        yield Found(path.name, "structure", False, str(error))
    if size_of(path):
        if not is_in_use:
            yield from _wal(path)
        table = partial(looking_at, path, check=any_schema)
        yield from parts(path.name, partial(read_again, table))
    yield _found(clocks_file.NAME, "clocks", partial(_clocks, folder))


def parts(name: str, read: Read) -> Iterator[Found]:
    """Look at each part of the database of that name, its structure first.

    That of the log is part of the log: a start passes over its damage.
    """
    if name == DATABASE:
        beside = structure(name, read, BESIDE)
        yield beside
        yield _found(name, "log", partial(_log, read, with_structure=beside.is_whole))
        yield _found(name, "users online", partial(read, _users))
        yield _found(name, "names", partial(read, _names))
    else:
        yield structure(name, read)
        yield _found(name, "timers", partial(read, _timers))


def structure(name: str, read: Read, tables: Sequence[str] = ("",)) -> Found:
    """Look at the structure of a database, or of some of its tables."""
    look = partial(check_structure, tables=tables, most=MOST_TOLD)
    return _found(name, "structure", lambda: read(look) or "")


def places(ranges: Sequence[tuple[int, int]]) -> str:
    """Names ranges of records, the first few of them."""
    shown = [
        f"{first:,}" if first == last else f"{first:,} to {last:,}"
        for first, last in ranges[:MOST_TOLD]
    ]
    more = len(ranges) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more places" if more else "")


def _damaged_ranges(read: Read) -> tuple[list[tuple[int, int]], int]:
    """The records of a log that are in no whole page, and how many it should have."""
    ranges, reached, records = list[tuple[int, int]](), 0, 0
    while True:
        chunk: Chunk = read(partial(_chunk, after=reached))
        records += chunk.records
        for first, last in chunk.damaged:
            if ranges and ranges[-1][1] + 1 == first:
                first = ranges.pop()[0]
            ranges.append((first, last))
        reached = chunk.reached
        if chunk.is_last:
            return ranges, records


def _wal(path: Path) -> Iterator[Found]:
    """Look for commits that SQLite passes over; nothing if there are none."""
    try:
        check_wal(path)
    except sqlite3.DatabaseError as error:
        if not log_pages.is_damage(error):
            raise
        yield Found(path.name, "WAL", False, str(error))


def _next_seq(db: sqlite3.Connection) -> int:
    """What the log gives next, as far as it can be read."""
    (newest,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
    return int(newest) + 1


class Chunk(NamedTuple):
    """What one transaction has found of the log."""

    damaged: list[tuple[int, int]]
    records: int
    reached: int
    is_last: bool


def _chunk(db: sqlite3.Connection, after: int) -> Chunk:
    db.execute("begin")
    (end,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
    after = reached = max(after, log_pages.oldest(db) - 1)
    until = min(after + CHUNK_RECORDS, end)
    damaged = list[tuple[int, int]]()
    for page in log_pages.pages(db, after=after, until=until):
        if page.first > reached + 1:
            damaged.append((reached + 1, page.first - 1))
        reached = page.last
    if reached < until:
        damaged.append((reached + 1, until))
        reached = until
    db.execute("rollback")
    return Chunk(damaged, reached - after, reached, reached >= end)


def _found(file: str, part: str, look: Callable[[], str]) -> Found:
    try:
        return Found(file, part, True, look())
    except Damaged as error:
        return Found(file, part, False, str(error), error.missing)
    except MemoryError:
        return Found(file, part, False, LARGER_THAN_MEMORY)
    # What SQLite says may have damaged text in it, which Python cannot decode.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in DISK_TROUBLE:
            raise
        return Found(file, part, False, str(error))


def _log(read: Read, *, with_structure: bool) -> str:
    """Look at the pages of the log; and at all of the file's structure, if asked to."""
    read(log_pages.following)  # without which there is no start
    ranges, records = _damaged_ranges(read)
    told, missing = list[str](), ""
    if with_structure and not (found := structure(DATABASE, read)).is_whole:
        told, missing = [f"structure: {found.told}"], "structure of the log"
    if ranges:
        count = sum(last - first + 1 for first, last in ranges)
        missing = f"records {places(ranges)}"
        told.insert(0, f"{missing} ({count:,} of {records:,})")
    if told:
        raise Damaged("; ".join(told), missing)
    return f"{records:,}"


def _users(db: sqlite3.Connection) -> str:
    _sound(db, "online")
    count = sum(1 for _ in db.execute("select * from online"))  # each can be read
    (users,) = db.execute("select count(distinct uid) from online").fetchone()
    if users < count:
        raise Damaged(f"{count - users:,} users of {users:,} have several sessions")
    return f"{count:,}"


def _names(db: sqlite3.Connection) -> str:
    _sound(db, "cursors")
    _sound(db, "trimmed")
    return f"{sum(1 for _ in db.execute('select * from cursors')):,}"


def _sound(db: sqlite3.Connection, table: str) -> None:
    count = unsound(db, log_pages.following(db))[table]
    if count:
        raise Damaged(f"{count:,} rows of {table} make no sense")


def _timers(db: sqlite3.Connection) -> str:
    db.execute("begin")  # a sidecar may write in between
    counted = dict(db.execute("select state, timers from states"))
    surplus = timer_damage.miscounted(db)
    query = "select count(*) from timers not indexed"  # may have an entry too many
    (count,) = db.execute(query).fetchone()
    db.execute("rollback")
    # One that makes no sense is counted in some state, nobody knows in which.
    if min(surplus.values()) < 0 or sum(counted.values()) != count:
        there = {state: number - surplus[state] for state, number in counted.items()}
        raise Damaged(f"it has {_some(there)} and says that it has {_some(counted)}")
    if damaged := timer_damage.damaged(db):
        told = f"{damaged:,} of {count:,} make no sense"
        raise Damaged(told, f"timers: {damaged:,}")
    return f"{sum(counted[state] for state in LIVE):,} live"


def _some(states: Mapping[str, int]) -> dict[str, int]:
    """Those states in which there are timers."""
    return {state: count for state, count in states.items() if count}


def _clocks(folder: Path) -> str:
    is_whole = clocks_file.is_whole(folder)
    if is_whole is False:
        raise Damaged("the next start gives everyone a fresh timeout")
    return "" if is_whole else "none"
