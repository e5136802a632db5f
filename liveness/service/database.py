"""SQLite as we use it: private files, WAL, every commit synced, damage told.

Everything here blocks, so it is called in threads; a writing connection has one user at
a time, readers open their own.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from liveness.errors import StartError, StateError

_T = TypeVar("_T")

# The WAL is cut back to this after a burst.
WAL_BYTES: Final = 64 * 2**20

# The file is whole, but it cannot be used now.
_DISK_TROUBLE: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
    }
)


@contextmanager
def expecting_damage(path: Path, remedy: str) -> Iterator[None]:
    """At the start: what cannot be read is told, and left as it is.

    Args:
        path: The file that is used within.
        remedy: What moving it away leads to.
    Raises:
        StateError: Something within met a damaged file.
        StartError: The file is whole, but cannot be used now.
    """
    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF in _DISK_TROUBLE:
            raise StartError(
                f"{path}: {error}; make room or mend the disk, nothing of it is lost"
            ) from error
        raise StateError(
            f"{path} cannot be read ({error}); it was left as it is: restore a backup, "
            f"or move it away to {remedy}"
        ) from error
    except OSError as error:
        raise StartError(
            f"{path}: {error.strerror}; make it writable or name another state "
            "directory with --state"
        ) from error


def make_private(path: Path) -> None:
    """Make the file, if it is missing; to be called before anyone has it open.

    SQLite gives its other files the mode that this one has. Never later: whoever closes
    a file lets go of all the process's locks on it. Another process that opened the
    database then took itself for the last one, and at its end deleted the WAL that
    commits were written to.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def connect(path: Path) -> sqlite3.Connection:
    """Open a file, for any thread."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("pragma busy_timeout = 1000")
    return db


def is_new(db: sqlite3.Connection) -> bool:
    """Whether a file has nothing in it yet."""
    (tables,) = db.execute("select count(*) from sqlite_schema").fetchone()
    return bool(tables == 0)


def write_ahead(db: sqlite3.Connection) -> None:
    """Have every commit synced before it counts."""
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute(f"pragma journal_size_limit = {WAL_BYTES}")


def meta(db: sqlite3.Connection, key: str) -> object:
    """What a file says of itself."""
    row = db.execute("select value from meta where key = ?", [key]).fetchone()
    return row[0] if row else None


def check_schema(db: sqlite3.Connection, path: Path, schema: int) -> None:
    """Refuse a file of another version than *schema*.

    Raises:
        StateError: It is.
    """
    found = meta(db, "schema")
    if found != schema:
        raise StateError(
            f"{path} has schema {found}, this version reads {schema}; use the version "
            "that wrote it, or another --state"
        )


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that only reads, until left."""
    with closing(connect(path)) as db:
        db.execute("pragma query_only = on")
        yield db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write all of what is done within, or on an error none."""
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    finally:
        if db.in_transaction:
            db.execute("rollback")


def cut(rows: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Rows in parts of at most *size*."""
    return (rows[at : at + size] for at in range(0, len(rows), size))
