"""Reading a database without changing it, whether a sidecar has it open or not."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from liveness.errors import StateError
from liveness.service.storage.database import (
    check_regular_files,
    meta,
    opened,
)
from liveness.service.storage.log_schema import SCHEMA

# So often in a row a file is read that changed as it was read.
TRIES: Final = 5
T = TypeVar("T")
Opened = Callable[[], AbstractContextManager[sqlite3.Connection]]


# --- without a sidecar ----------------------------------------------------------------


class _Changed(Exception):
    """A file that nobody had open was written meanwhile: what was read may be torn.

    It is told by its path.
    """


def read_again(opened: Opened, look: Callable[[sqlite3.Connection], T]) -> T:
    """Read until nobody has changed what was read meanwhile.

    Raises:
        StateError: That never was so.
    """
    changed: Exception | None = None
    for _ in range(TRIES):
        try:
            with opened() as db:
                return look(db)
        except _Changed as error:
            changed = error  # a sidecar has just been started, or stopped
    raise StateError(
        f"{changed} changes whenever it is read: a sidecar is started there again "
        "and again; see its log, and ask again"
    )


def any_schema(_db: sqlite3.Connection, _path: Path) -> None:
    """For `looking_at`: whatever is there is read."""


def this_schema(db: sqlite3.Connection, path: Path) -> None:
    """For `looking_at`: raise what keeps this version from reading a log."""
    (tables,) = db.execute("select count(*) from sqlite_schema").fetchone()
    has = meta(db, "schema") if tables else None
    if has == SCHEMA:
        return
    if not tables:
        raise StateError(
            f"{path} is empty, no sidecar has written there yet: start one, or name its "
            "state directory with --state"
        )
    if not isinstance(has, int):
        raise StateError(
            f"{path} says {has!r:.40} for its schema, which is none of ours: name the "
            "sidecar's state directory with --state"
        )
    todo = "use the version that wrote it"
    if has < SCHEMA:
        todo += ", or start this version's sidecar there, which brings it up to date"
    raise StateError(f"{path} has schema {has}, this version reads {SCHEMA}; {todo}")


@contextmanager
def looking_at(
    path: Path, *, check: Callable[[sqlite3.Connection, Path], None] = this_schema
) -> Iterator[sqlite3.Connection]:
    """Open a log that may be another process's, for one read; nothing is written.

    Where there is a WAL, a sidecar has the file open or was killed. SQLite then reads
    both, beside whoever writes; for who may not write to the folder it does so only once
    somebody who may has read there since the start. Where there is none the file is all
    there is, and to read it SQLite would make a WAL: a file that the sidecar, if it is
    another user's, could not write to. So it is opened as one that does not change; and
    if it did, the read counts for nothing.

    Raises:
        StateError: There is no log, or none that this version reads.
        sqlite3.Error: It cannot be read.
    """
    before = file_state(path)
    how = "immutable=1" if before.wal is None else "mode=ro"
    try:
        with closing(opened(path, how)) as db:
            db.execute("pragma busy_timeout = 1000")
            check(db, path)
            yield db
    finally:
        if before.wal is None and file_state(path) != before:
            raise _Changed(path)


class FileState(NamedTuple):
    """What tells one state of a file from the next."""

    file: tuple[int, int, int]
    wal: tuple[int, int, int] | None


def file_state(path: Path) -> FileState:
    """What a file and its WAL are now.

    Raises:
        StateError: There is none, it is a link or no file, or it may not be read.
    """
    check_regular_files(path)
    wal = path.with_name(path.name + "-wal")
    try:
        # A folder that may not be looked into has a file as if it had none.
        if not os.access(path, os.R_OK, effective_ids=True) and path.stat():
            raise PermissionError
        return FileState(_facts(path), _facts(wal) if wal.exists() else None)
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"there is no log in {path.parent}: name the sidecar's state directory with "
            "--state"
        ) from None
    except PermissionError:
        raise StateError(
            f"not allowed to read {path}: be the user that the sidecar runs as"
        ) from None
    except OSError as error:
        raise StateError(
            f"{path} cannot be read: {error.strerror}; mend that, or name the sidecar's "
            "state directory with --state"
        ) from None


def _facts(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _remedy(path: Path, error: sqlite3.Error) -> str:
    """What SQLite says, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        told = "beside a sidecar that runs or was killed, only who may write to"
        todo = "be the user that the sidecar runs as"
        return f"{error}; {told} {path.parent} can always read it: {todo}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"{error}; ask again"
    if code == sqlite3.SQLITE_IOERR:
        return f"{error}; mend the disk"
    return f"{error}; it is damaged: see `liveness check-state`, restore a backup"
