"""Checks a state directory for damage. Reads all of it, and changes nothing.

SQLite checks the structure of each file, and the pages of the log have checksums.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from liveness.service.storage import log_pages, log_store, outlet_schema
from liveness.service.storage.database import (
    DISK_TROUBLE,
    check_not_lost,
    check_schema,
    check_structure,
    meta,
    size_of,
    unchanged,
)
from liveness.service.storage.log_schema import SCHEMA
from liveness.service.storage.log_store import DATABASE
from liveness.service.storage.private_folders import check_regular
from liveness.service.timers import timer_store

# The most faults of SQLite's check, or ranges of the log, that a message names.
MOST_NAMED: Final = 5


# A file and a part of it, whether that is whole, and the text shown for it.
PartResult = tuple[str, str, bool, str]


def check(folder: Path) -> Iterator[PartResult]:
    """Check each database of a state directory.

    Raises:
        StateError: There is no log, it is of another version, or it may not be read.
        sqlite3.Error: A file cannot be read now.
    """
    next_seq, names = 1, (DATABASE, timer_store.DATABASE, outlet_schema.DATABASE)
    for name in names:
        check_regular(folder / name)
    for name in names:
        path = folder / name
        try:
            check_not_lost(path)
            if name == DATABASE:
                log_store.check_not_emptied(folder, timer_store.DATABASE)
            elif name == timer_store.DATABASE:
                timer_store.check_not_emptied(path, next_seq=next_seq)
            if name != DATABASE and not size_of(path):
                continue
            with unchanged(path) as db:
                if name == DATABASE:
                    check_schema(db, path, oldest=SCHEMA, newest=SCHEMA)
                    next_seq = log_pages.newest(db) + 1
                yield from parts(name, db)
        except sqlite3.DatabaseError as error:
            yield damaged(name, "structure", error)


def parts(name: str, db: sqlite3.Connection) -> Iterator[PartResult]:
    """Check an open database: its structure and, of the log, its records."""
    # SQLite's message may quote damaged text, which Python cannot decode.
    try:
        check_structure(db, most=MOST_NAMED)
        yield name, "structure", True, ""
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        yield damaged(name, "structure", error)
    if name != DATABASE or meta(db, "schema") != SCHEMA:
        return  # older pages have no checksums
    oldest, newest = log_pages.oldest(db), log_pages.newest(db)
    whole = log_pages.pages(db, after=oldest - 1, until=newest)
    found = log_pages.damaged_ranges(whole, after=oldest - 1, until=newest)
    count, oldest = newest - oldest + 1, log_pages.oldest(db)
    # A running sidecar may have trimmed records meanwhile.
    lost = [records for records in found if records[1] >= oldest]
    if not lost:
        yield name, "log", True, f"{count:,}"
        return
    missing = sum(last - first + 1 for first, last in lost)
    places = ", ".join(f"{first:,} to {last:,}" for first, last in lost[:MOST_NAMED])
    if len(lost) > MOST_NAMED:
        places += " and at other places"
    text = f"records {places} ({missing:,} of {count:,}); the others can be read"
    yield name, "log", False, text


def damaged(name: str, part: str, error: Exception) -> PartResult:
    """The result of an error, which is raised again if it is no damage."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code & 0xFF in DISK_TROUBLE:
        raise error
    return name, part, False, str(error)
