"""SQLite as used here: private files, a WAL, every commit synced.

Every function here blocks: call it in a thread. One thread at a time uses a writing
connection; each reader opens its own.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from liveness.errors import StartError, StateError
from liveness.service.storage.private_folders import (
    Identity,
    check_own,
    check_regular,
    identity,
    open_own,
)

# Rows of one statement. With a few sizes, SQLite's compiled statements are used again. Of
# six columns, 256 rows are 1,536 values; SQLite allows 32,766 by default.
ROWS_AT_ONCE: Final = (256, 16, 1)
# The WAL is cut back to this after a burst.
WAL_BYTES: Final = 64 * 2**20
PUT_META: Final = "insert or replace into meta values (?, ?)"
_SUFFIXES: Final = ("-wal", "-shm", "-journal")
# Errors of a file that is whole, but cannot be used now.
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
    """At the start: turn a database's errors into ones that say what to do.

    *remedy* says what moving the file away achieves, as "start without timers".

    Raises:
        StateError: The file is damaged; it is left unchanged.
        StartError: The file is whole, but cannot be used now.
    """
    try:
        yield
    # SQLite's message may quote damaged text, which Python cannot decode.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in DISK_TROUBLE:
            raise StartError(
                f"{path}: {error}; make room or repair the disk, nothing is lost"
            ) from error
        raise StateError(
            f"{path} cannot be read ({error}); it was left as it is: restore a backup, "
            f"or move it away, with its -wal and -shm, to {remedy}"
        ) from error
    except OSError as error:
        raise StartError(
            f"{path}: {error.strerror}; make it writable or name another state "
            "directory with --state"
        ) from error


def is_full(error: sqlite3.Error) -> bool:
    """Whether SQLite found the disk full, for one of its files or for a WAL's index."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code == sqlite3.SQLITE_IOERR_SHMSIZE or code & 0xFF == sqlite3.SQLITE_FULL


@contextmanager
def created_private(path: Path) -> Iterator[None]:
    """Make a private database file, if it is missing. Open the database in the block.

    SQLite gives its other files the mode of this one. Do not enter this while the process
    has the database open: closing any descriptor of a file drops all locks of the process
    on it. Another process could then open the database, take itself for the only user,
    and on closing delete the WAL that commits are being written to.

    If the block fails before it writes, the new file is removed: an empty file in the
    place of one that was moved away would look like damage.

    Raises:
        StartError: This or another of SQLite's files is not regular, or another user's.
        sqlite3.DatabaseError: The file is missing or empty, and its WAL is not.
    """
    for companion in companions(path):
        check_own(companion)
    check_not_lost(path)
    is_new = size_of(path) is None
    os.close(open_own(path, os.O_RDWR | os.O_CREAT))
    try:
        yield
    except BaseException:
        if is_new and not size_of(path):
            path.unlink(missing_ok=True)
        raise


def check_not_lost(path: Path) -> None:
    """Raise DatabaseError if a database is missing or empty, and its WAL is not.

    SQLite takes an empty file for a new database, and deletes the WAL beside it.
    """
    wal, *_ = companions(path)
    if not size_of(path) and size_of(wal):
        what = "missing" if size_of(path) is None else "empty"
        raise damage_error(f"it is {what}, and {wal.name} is not")


def damage_error(message: str) -> sqlite3.DatabaseError:
    """An error for damage that SQLite itself does not notice."""
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def size_of(path: Path) -> int | None:
    """The size of a file in bytes; None if it is missing or cannot be reached."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def open_files(path: Path) -> dict[Path, Identity]:
    """The existing files of a database, and their identities."""
    files = [path, *companions(path)]
    return {file: known for file in files if (known := identity(file)) is not None}


def companions(path: Path) -> list[Path]:
    """The files that SQLite may make for a database: WAL, index, rollback journal."""
    return [path.with_name(path.name + suffix) for suffix in _SUFFIXES]


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing database to read and write, from any thread.

    A missing file is not made: if the file was deleted while the sidecar runs, an empty
    one in its place would look like a state in which nobody is online.
    """
    db = opened(path, "mode=rw")
    db.execute("pragma busy_timeout = 1000")
    return db


def schema_of(path: Path, *, oldest: int, newest: int) -> int | None:
    """The schema of a database; None if it is empty.

    The file is opened read-only, so that closing it does not checkpoint the WAL: a file
    of another program, or a damaged one, stays as it is, with its WAL.

    Raises:
        StateError: It is none from *oldest* to *newest*.
        sqlite3.Error: It cannot be read.
    """
    *_, journal = companions(path)
    # A sidecar that was killed while it made the file left a journal to roll back.
    with closing(opened(path, "mode=rw" if journal.exists() else "mode=ro")) as db:
        (tables,) = db.execute("select count(*) from sqlite_schema").fetchone()
        return check_schema(db, path, oldest=oldest, newest=newest) if tables else None


def check_schema(
    db: sqlite3.Connection, path: Path, *, oldest: int, newest: int
) -> int:
    """The schema of a database; raise StateError if it is none from *oldest* to *newest*."""
    stored = meta(db, "schema")
    if isinstance(stored, int) and oldest <= stored <= newest:
        return stored
    raise StateError(
        f"{path} has schema {stored!r:.40}, this version reads {newest}; use the version "
        "that wrote it, or another --state"
    )


def check_structure(
    db: sqlite3.Connection, tables: Sequence[str] = ("",), *, most: int = 1
) -> None:
    """Have SQLite check the trees and rows of *tables*, by default of the whole file.

    Raises:
        sqlite3.DatabaseError: There is damage; the message names at most *most* faults.
    """
    for table in tables:
        try:
            lines = [
                " ".join(line.removeprefix("*** in database main ***").split())
                for (line,) in db.execute(f"pragma quick_check({table or most})")
            ]
        except MemoryError as error:
            raise damage_error("a row seems to be larger than memory") from error
        if lines != ["ok"]:
            raise damage_error("; ".join(lines[:most]))


def write_ahead(db: sqlite3.Connection) -> None:
    """Use a WAL, and sync every commit before it returns."""
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute(f"pragma journal_size_limit = {WAL_BYTES}")


def meta(db: sqlite3.Connection, key: str) -> object:
    """A value of the table `meta`; None if it lacks the key."""
    row = db.execute("select value from meta where key = ?", [key]).fetchone()
    return row[0] if row else None


def pragma(db: sqlite3.Connection, name: str) -> int:
    """The value of a pragma that is a number."""
    return int(db.execute(f"pragma {name}").fetchone()[0])


def bytes_in_use(db: sqlite3.Connection) -> int:
    """Bytes of a file that are in use, by all tables."""
    pages = pragma(db, "page_count") - pragma(db, "freelist_count")
    return pages * pragma(db, "page_size")


def opened(path: Path, how: str) -> sqlite3.Connection:
    """Open an existing database; *how* is a parameter of SQLite's URI, as `mode=ro`.

    Raises:
        sqlite3.Error: It cannot be opened, or it is empty and its WAL is not.
    """
    if size_of(path) is not None:  # SQLite itself refuses a missing one
        check_not_lost(path)
    uri = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


@contextmanager
def unchanged(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for one read that changes no file, whether a sidecar has it open or not.

    If there is a WAL, a sidecar has the file open, or was killed; SQLite reads both, also
    while the sidecar writes. Otherwise all is in the file. To read it, SQLite would make a
    WAL that belongs to this user, and to which a sidecar of another user could not write:
    so the file is opened as immutable.

    Raises:
        StateError: There is no file, it may not be read, or a sidecar was started or
            stopped during the read.
        sqlite3.Error: The file cannot be read.
    """
    for file in (path, *companions(path)):
        check_regular(file)
    before, (wal, *_) = _state_of(path), companions(path)
    has_wal = wal.exists()
    try:
        with closing(opened(path, "mode=ro" if has_wal else "immutable=1")) as db:
            db.execute("pragma busy_timeout = 1000")
            yield db
    finally:
        if not has_wal and _state_of(path) != before:
            raise StateError(
                f"{path} changed as it was read: a sidecar was started or stopped there; "
                "ask again"
            )


def _state_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
        if not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"there is no log in {path.parent}: name the sidecar's state directory with "
            "--state"
        ) from None
    except OSError as error:
        raise StateError(
            f"{path} cannot be read: {error.strerror}; run this as the user of the "
            "sidecar, or name its state directory with --state"
        ) from None
    if not found.st_size:
        raise StateError(
            f"{path} is empty, no sidecar has written there yet: start one, or name its "
            "state directory with --state"
        )
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_error(path: Path, error: sqlite3.Error) -> StateError:
    """The error for a user whose command could not read a database."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    todo = "it is damaged: see `liveness check-state`, restore a backup"
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        todo = (
            "while a sidecar runs, or after it was killed, only a user that may write to "
            f"{path.parent} can always read it: run this as the user of the sidecar"
        )
    elif code in DISK_TROUBLE:
        todo = "ask again, or repair the disk"
    return StateError(f"{path} cannot be read: {error}; {todo}")


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that a sidecar may have open for reading."""
    with closing(opened(path, "mode=ro")) as db:
        db.execute("pragma busy_timeout = 1000")
        yield db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction: commit at its end, roll back on an error."""
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    finally:
        if db.in_transaction:
            db.execute("rollback")


def put_rows(
    db: sqlite3.Connection, table: str, columns: int, values: Sequence[object]
) -> None:
    """Insert or replace rows, many in a statement; *values* has one behind the other.

    This takes half the time of `json_each`, which reads each row as JSON for each column.
    """
    row = f"({', '.join('?' * columns)})"
    at = 0
    for rows in ROWS_AT_ONCE:
        statement = f"insert or replace into {table} values {', '.join([row] * rows)}"
        while len(values) - at >= rows * columns:
            db.execute(statement, values[at : at + rows * columns])
            at += rows * columns
