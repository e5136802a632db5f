"""SQLite as we use it: private files, WAL, every commit synced, damage told.

Everything here blocks, so it is called in threads; a writing connection has one user at
a time, readers open their own.

SQLite reads a WAL up to the first frame whose checksum is wrong, and takes that for the
end: after a crash it is where the last transaction was torn. A frame that was damaged
later looks the same, and all commits behind it would be dropped without a word, and soon
overwritten. The two can be told apart. A frame's checksum goes on from that of the frame
before it, and a transaction begins only once the one before it is synced. So where a frame
goes on from a commit, that commit was on disk, and whatever lies before it too
(`hides_commits`).

Source: https://sqlite.org/walformat.html
"""

import os
import sqlite3
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from liveness.errors import StartError, StateError
from liveness.service.storage.private_folders import (
    Identity,
    check_own,
    check_regular,
    identities,
    open_own,
)

_T = TypeVar("_T")
# The WAL is cut back to this after a burst.
WAL_BYTES: Final = 64 * 2**20
# What a file is read by, to have it in memory.
READ_BYTES: Final = 2**20
LARGER_THAN_MEMORY: Final = "a row seems to be larger than memory"
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
# Magic number, version, page size, checkpoint; then the salts, and a checksum.
_HEADER: Final = struct.Struct(">16x8s8s")
# Page number, pages after a commit (0: it is none); then the same.
_FRAME: Final = struct.Struct(">4xI8s8s")
_SUMS: Final = struct.Struct(">2I")
_SUMMED_BYTES: Final = 8  # of a frame's head
# Whether it was made, and how many frames it has.
_INDEX: Final = struct.Struct("=12x?3xI")
Sums = tuple[int, int]


def frames_read(index: bytes) -> int | None:
    """How many frames SQLite takes, by the file that it makes beside the WAL.

    None: that is not made yet, or was cut short. Who may not write to it reads without.
    """
    if len(index) < _INDEX.size:
        return None
    is_made, frames = _INDEX.unpack_from(index)
    return int(frames) if is_made else None


def hides_commits(path: Path, *, read: int, page_bytes: int) -> bool:
    """Whether there are commits in a WAL behind the frames that SQLite takes.

    Args:
        path: The WAL.
        read: How many frames it takes.
        page_bytes: The size of a page.
    """
    with path.open("rb", buffering=0) as wal:
        header = wal.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return False
        salts, sums = _HEADER.unpack(header)
        if _sums(header[: -_SUMS.size], (0, 0)) != _SUMS.unpack(sums):
            # Frames of an earlier use have other salts; without a header the first
            # frame says which are of the last.
            salts = wal.read(_FRAME.size)[8:16]
        commit: Sums | None = None
        frame_bytes = _FRAME.size + page_bytes
        at = _HEADER.size + read * frame_bytes
        wal.seek(at)
        while len(head := wal.read(_FRAME.size)) == _FRAME.size:
            pages, own_salts, packed = _FRAME.unpack(head)
            sums = _SUMS.unpack(packed)
            if own_salts != salts:
                commit = None
            elif commit is not None and sums == _sums(
                head[:_SUMMED_BYTES] + wal.read(page_bytes), commit
            ):
                return True
            else:
                commit = sums if pages else None
            at += frame_bytes
            wal.seek(at)
    return False


def _sums(data: bytes, before: Sums) -> Sums:
    """The checksum of whole words, going on from another.

    In this machine's order; of a WAL that one of another order wrote nothing is found.
    """
    words = array("I", data[: len(data) // 8 * 8])
    first, second = before
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second


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
    """Whether the disk has no room, for a file or for the index of its WAL."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code == sqlite3.SQLITE_IOERR_SHMSIZE or code & 0xFF == sqlite3.SQLITE_FULL


@contextmanager
def made_private(path: Path) -> Iterator[None]:
    """Make the file, if it is missing; to be entered before anyone has it open.

    SQLite gives its other files the mode that this one has. Never later: whoever closes
    a file lets go of all the process's locks on it. Another process that opened the
    database then took itself for the last one, and at its end deleted the WAL that
    commits were written to.

    If what is done within fails before anything is written, the new file is removed: an
    empty one in the place of one that was moved away would look like damage.

    Raises:
        StartError: It, or one of SQLite's beside it, is a link or another user's.
        sqlite3.DatabaseError: It was lost, and its WAL was not.
    """
    for its in beside(path):
        check_own(its)
    check_not_lost(path)
    is_new = size_of(path) is None
    os.close(open_own(path, os.O_RDWR | os.O_CREAT))
    try:
        yield
    except BaseException:
        if is_new and not size_of(path):
            path.unlink(missing_ok=True)
        raise


def check_regular_files(path: Path) -> None:
    """See that a database, and what SQLite may have beside it, are files by themselves.

    SQLite follows a link, and looks for the WAL where that leads to; a pipe it would
    wait for.

    Raises:
        StateError: One is a link, or no regular file.
    """
    for its in (path, *beside(path)):
        check_regular(its)


def check_not_lost(path: Path) -> None:
    """See that a database is neither missing nor empty beside what its WAL has.

    SQLite takes an empty file for a new one, and deletes the WAL beside it.

    Raises:
        sqlite3.DatabaseError: It is.
    """
    log, *_ = beside(path)
    if not size_of(path) and size_of(log):
        what = "missing" if size_of(path) is None else "empty"
        raise damage(f"it is {what}, and {log.name} is not")


def damage(told: str) -> sqlite3.DatabaseError:
    """An error that says of a file what SQLite does not notice."""
    error = sqlite3.DatabaseError(told)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def size_of(path: Path) -> int | None:
    """How large a file is; None if there is none, or none can be reached."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def open_files(path: Path) -> dict[Path, Identity]:
    """Which files SQLite has open of a database that was read and written."""
    return identities([path, *beside(path)])


def beside(path: Path) -> list[Path]:
    """What SQLite may have beside a database: WAL, index and rollback journal."""
    return [path.with_name(path.name + suffix) for suffix in _SUFFIXES]


def connect(path: Path) -> sqlite3.Connection:
    """Open a file that is there, for any thread.

    None is made: an empty one in the place of one that was removed while it is written
    to would look like a state in which nobody is online.
    """
    db = opened(path, "mode=rw")
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
    # A start that was killed as it made the file has left a journal to roll back.
    with closing(opened(path, "mode=rw" if journal.exists() else "mode=ro")) as db:
        (tables,) = db.execute("select count(*) from sqlite_schema").fetchone()
        (page_bytes,) = db.execute("pragma page_size").fetchone()
        found = meta(db, "schema") if tables else None
        # Last: whoever closes the index takes this process's locks on it along.
        if size_of(log):
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
    if not size_of(log):
        return
    with closing(opened(path, "mode=ro")) as db:
        db.execute("select count(*) from sqlite_schema").fetchone()
        (page_bytes,) = db.execute("pragma page_size").fetchone()
        _check_wal(log, index, page_bytes)


def _check_wal(log: Path, index: Path, page_bytes: int) -> None:
    try:
        read = frames_read(index.read_bytes())
    except OSError as error:
        unread = sqlite3.OperationalError(f"{index.name}: {error.strerror}")
        unread.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise unread from error
    if read is None:
        unmade = sqlite3.OperationalError(f"{index.name} is not whole")
        unmade.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise unmade
    if hides_commits(log, read=read, page_bytes=page_bytes):
        raise damage(f"commits lie behind damage in {log.name}")


def check_structure(
    db: sqlite3.Connection, tables: Sequence[str] = ("",), *, most: int = 1
) -> None:
    """See that trees and rows are as SQLite leaves them; each page of them is read.

    Args:
        db: The file.
        tables: Those that are looked at, with their indexes; as a rule all of the file.
        most: Of so many faults it is told.
    Raises:
        sqlite3.DatabaseError: They are not.
    """
    for table in tables:
        found = f"pragma quick_check({table or most})"
        try:
            lines = [
                " ".join(line.removeprefix("*** in database main ***").split())
                for (line,) in db.execute(found)
            ]
        except MemoryError as error:
            raise damage(LARGER_THAN_MEMORY) from error
        if lines != ["ok"]:
            raise damage("; ".join(lines[:most]))


def read_through(path: Path) -> None:
    """Have the kernel read a file in its order; never once SQLite has it open.

    SQLite goes by its trees: from a disk that takes ten times as long.
    """
    with path.open("rb", buffering=0) as file:
        while file.read(READ_BYTES):
            pass


def write_ahead(db: sqlite3.Connection) -> None:
    """Have every commit synced before it counts."""
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute(f"pragma journal_size_limit = {WAL_BYTES}")


def write_back(db: sqlite3.Connection) -> None:
    """Write the WAL back to the file, and give its room back where nobody reads."""
    db.execute("pragma wal_checkpoint(truncate)").fetchone()


def meta(db: sqlite3.Connection, key: str) -> object:
    """What a file says of itself."""
    row = db.execute("select value from meta where key = ?", [key]).fetchone()
    return row[0] if row else None


def opened(path: Path, how: str) -> sqlite3.Connection:
    """Open a file that is there; *how* is SQLite's, as `mode=ro` or `immutable=1`.

    Raises:
        sqlite3.Error: It cannot be opened; or it is empty, and its WAL is not.
    """
    if size_of(path) is not None:  # of one that is missing SQLite makes none
        check_not_lost(path)
    uri = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


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
