"""Reads a database without changing it, whether a sidecar has it open or not.

If there is a WAL, a sidecar has the file open, or was killed. SQLite then reads both,
also while the sidecar writes. (A user without write permission for the folder can do so
only if a user with it has read there since the start.)

If there is no WAL, all is in the file. To read it, SQLite would make a WAL that belongs
to this user; a sidecar of another user could not write to it. So the file is opened as
immutable. If it did change, the read is repeated (`read_unchanged`).
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from liveness.errors import StateError
from liveness.service.storage.database import check_regular_files, meta, opened
from liveness.service.storage.log_schema import SCHEMA

# If the file changes during this many reads in a row, give up.
TRIES: Final = 5

T = TypeVar("T")
Connect = Callable[[], AbstractContextManager[sqlite3.Connection]]


class FileChanged(Exception):
    """The file at this path changed during a read, so the result may be wrong."""


def read_unchanged(connect: Connect, read: Callable[[sqlite3.Connection], T]) -> T:
    """Read; if the file changed meanwhile, repeat, and at last raise StateError."""
    changed: Exception | None = None
    for _ in range(TRIES):
        try:
            with connect() as db:
                return read(db)
        except FileChanged as error:
            changed = error  # a sidecar was just started or stopped
    raise StateError(
        f"{changed} changes whenever it is read: a sidecar is started there again "
        "and again; see its log, and ask again"
    )


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Raise StateError if a database is not a log of this version."""
    (tables,) = db.execute("select count(*) from sqlite_schema").fetchone()
    stored = meta(db, "schema") if tables else None
    if stored == SCHEMA:
        return
    if not tables:
        raise StateError(
            f"{path} is empty, no sidecar has written there yet: start one, or name its "
            "state directory with --state"
        )
    if not isinstance(stored, int):
        raise StateError(
            f"{path} has the schema {stored!r:.40}, which no version has: name the "
            "sidecar's state directory with --state"
        )
    todo = "use the version that wrote it"
    if stored < SCHEMA:
        todo += ", or start this version's sidecar there, which brings it up to date"
    raise StateError(f"{path} has schema {stored}, this version reads {SCHEMA}; {todo}")


@contextmanager
def opened_unchanged(
    path: Path, *, is_log: bool = True
) -> Iterator[sqlite3.Connection]:
    """Open a database, by default a log, for one read; another process may have it open.

    Raises:
        StateError: There is no file, it may not be read, or is not a log of this version.
        FileChanged: The file changed meanwhile: use `read_unchanged`.
        sqlite3.Error: The file cannot be read.
    """
    before = file_state(path)
    how = "immutable=1" if before.wal is None else "mode=ro"
    try:
        with closing(opened(path, how)) as db:
            db.execute("pragma busy_timeout = 1000")
            if is_log:
                _check_schema(db, path)
            yield db
    finally:
        if before.wal is None and file_state(path) != before:
            raise FileChanged(path)


class FileState(NamedTuple):
    """Inode, size and time of change, of a file and its WAL. To detect changes."""

    file: tuple[int, int, int]
    wal: tuple[int, int, int] | None


def file_state(path: Path) -> FileState:
    """The present state of a database and its WAL.

    Raises:
        StateError: The file is missing, not regular, or may not be read.
    """
    check_regular_files(path)
    wal = path.with_name(path.name + "-wal")
    try:
        # `access` is false for a missing file too; `stat` raises the actual cause.
        if not os.access(path, os.R_OK, effective_ids=True) and path.stat():
            raise PermissionError
        return FileState(_stat(path), _stat(wal) if wal.exists() else None)
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"there is no log in {path.parent}: name the sidecar's state directory with "
            "--state"
        ) from None
    except PermissionError:
        raise StateError(
            f"not allowed to read {path}: run this as the user of the sidecar"
        ) from None
    except OSError as error:
        raise StateError(
            f"{path} cannot be read: {error.strerror}; correct that, or name the "
            "sidecar's state directory with --state"
        ) from None


def _stat(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_error(path: Path, error: sqlite3.Error) -> StateError:
    """The error for a user whose command could not read a database."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        todo = (
            "while a sidecar runs, or after it was killed, only a user that may write to "
            f"{path.parent} can always read it: run this as the user of the sidecar"
        )
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        todo = "ask again"
    elif code == sqlite3.SQLITE_IOERR:
        todo = "repair the disk"
    else:
        todo = "it is damaged: see `liveness check-state`, restore a backup"
    return StateError(f"{path} cannot be read: {error}; {todo}")
