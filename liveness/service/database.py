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
from liveness.service import wal
from liveness.service.folders import Identity, check_own, identities, open_own

_T = TypeVar("_T")

# The WAL is cut back to this after a burst.
WAL_BYTES: Final = 64 * 2**20

_SUFFIXES: Final = ("-wal", "-shm", "-journal")

# The file is whole, but it cannot be used now.
DISK_TROUBLE: Final = frozenset(
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
    # What SQLite says may have damaged text in it, which Python cannot decode.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in DISK_TROUBLE:
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


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk has no room."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def make_private(path: Path) -> None:
    """Make the file, if it is missing; to be called before anyone has it open.

    SQLite gives its other files the mode that this one has. Never later: whoever closes
    a file lets go of all the process's locks on it. Another process that opened the
    database then took itself for the last one, and at its end deleted the WAL that
    commits were written to.

    Raises:
        StartError: It, or one of SQLite's beside it, is a link or another user's.
    """
    os.close(open_own(path, os.O_RDWR | os.O_CREAT))
    for its in beside(path):
        check_own(its)


def open_files(path: Path) -> dict[Path, Identity]:
    """Which files SQLite has open of a database that was read and written."""
    return identities([path, *beside(path)])


def beside(path: Path) -> list[Path]:
    """What SQLite may have beside a database: WAL, index and journal."""
    return [path.with_name(path.name + suffix) for suffix in _SUFFIXES]


def connect(path: Path) -> sqlite3.Connection:
    """Open a file that is there, for any thread.

    None is made: an empty one in the place of one that was removed while it is written
    to would look like a state in which nobody is online.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    db.execute("pragma busy_timeout = 1000")
    return db


def schema_of(path: Path) -> int | None:
    """Which schema a file says it has; None if there is nothing in it yet.

    It is only read, and closed as one who only reads does: what is not for us, or
    damaged, stays as it is, with its WAL.

    Raises:
        StateError: It says none.
        sqlite3.Error: It cannot be read.
    """
    log, index, journal = beside(path)
    if not path.stat().st_size and log.exists() and log.stat().st_size:
        # SQLite would take it for new, and what is in the WAL for rubbish.
        raise sqlite3.DatabaseError(f"it is empty, and {log.name} is not")
    # A start that was killed as it made the file has left a journal to roll back.
    with closing(opened(path, "mode=rw" if journal.exists() else "mode=ro")) as db:
        (tables,) = db.execute("select count(*) from sqlite_schema").fetchone()
        (page_bytes,) = db.execute("pragma page_size").fetchone()
        found = meta(db, "schema") if tables else None
        # Last: whoever closes the index takes this process's locks on it along.
        if log.exists() and log.stat().st_size:
            _check_wal(log, index, page_bytes)
    if not tables:
        return None
    if not isinstance(found, int) or found < 1:
        raise StateError(
            f"{path} says {found!r} for its schema, which is none of ours; it was left "
            "as it is: name another --state"
        )
    return found


def check_wal(path: Path) -> None:
    """See that the WAL of a file that nobody writes to hides no commits.

    To be called while this process does not have the file open.

    Raises:
        sqlite3.DatabaseError: It does.
    """
    log, index, _ = beside(path)
    if not log.exists() or not log.stat().st_size:
        return
    with closing(opened(path, "mode=ro")) as db:
        db.execute("select count(*) from sqlite_schema").fetchone()
        (page_bytes,) = db.execute("pragma page_size").fetchone()
        _check_wal(log, index, page_bytes)


def _check_wal(log: Path, index: Path, page_bytes: int) -> None:
    read = wal.frames_read(index.read_bytes())
    if wal.hides_commits(log, read=read, page_bytes=page_bytes):
        error = sqlite3.DatabaseError(f"commits lie behind damage in {log.name}")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def write_ahead(db: sqlite3.Connection) -> None:
    """Have every commit synced before it counts."""
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute(f"pragma journal_size_limit = {WAL_BYTES}")


def meta(db: sqlite3.Connection, key: str) -> object:
    """What a file says of itself."""
    row = db.execute("select value from meta where key = ?", [key]).fetchone()
    return row[0] if row else None


def opened(path: Path, how: str) -> sqlite3.Connection:
    """Open a file that is there; *how* is SQLite's, as `mode=ro` or `immutable=1`."""
    uri = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(uri, uri=True, isolation_level=None)


@contextmanager
def only_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file that may be another process's, and leave it and its WAL as they are."""
    with closing(opened(path, "mode=ro")) as db:
        db.execute("pragma busy_timeout = 1000")
        yield db


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
