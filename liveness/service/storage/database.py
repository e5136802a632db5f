"""SQLite as used here: private files, a WAL, every commit synced, damage detected.

Every function here blocks: call it in a thread. One thread at a time uses a writing
connection; each reader opens its own.

SQLite reads a WAL up to the first frame with a wrong checksum and takes that for the end,
since a crash leaves a torn transaction there. A frame that was damaged later looks the
same: SQLite would silently drop all commits after it, and soon overwrite them.
`hides_commits` tells the two apart. The checksum of a frame continues that of the frame
before it, and a transaction begins only after the one before it was synced. So if a frame
continues from a commit, that commit was durable, with all frames before it.

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

# Rows of one statement. With a few sizes, SQLite's compiled statements are used again. Of
# six columns, 256 rows are 1,536 values; SQLite allows 32,766 by default.
ROWS_AT_ONCE: Final = (256, 16, 1)
# The WAL is cut back to this after a burst.
WAL_BYTES: Final = 64 * 2**20
# Bytes of one read in `read_through`.
READ_BYTES: Final = 2**20
PUT_META: Final = "insert or replace into meta values (?, ?)"
LARGER_THAN_MEMORY: Final = "a row seems to be larger than memory"
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
# A WAL's header: magic number, version, page size, checkpoint; salts; checksum.
_HEADER: Final = struct.Struct(">16x8s8s")
# A frame's header: page number; pages after the commit, 0 if it is none; salts; checksum.
_FRAME: Final = struct.Struct(">4xI8s8s")
_SUMS: Final = struct.Struct(">2I")
_SUMMED_BYTES: Final = 8  # of a frame's header, the part that the checksum covers
# In the index (the `-shm` file): whether it is initialised, and its number of frames.
_INDEX: Final = struct.Struct("=12x?3xI")
Sums = tuple[int, int]


def frames_read(index: bytes) -> int | None:
    """How many frames of a WAL SQLite reads, given the content of its index (`-shm`).

    None: the index is not initialised yet, or is too short. SQLite then reads the WAL
    without it, if it may not write to it.
    """
    if len(index) < _INDEX.size:
        return None
    is_made, frames = _INDEX.unpack_from(index)
    return int(frames) if is_made else None


def hides_commits(path: Path, *, read: int, page_bytes: int) -> bool:
    """Whether a WAL has commits after the *read* frames that SQLite reads."""
    with path.open("rb", buffering=0) as wal:
        header = wal.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return False
        salts, sums = _HEADER.unpack(header)
        if _sums(header[: -_SUMS.size], (0, 0)) != _SUMS.unpack(sums):
            # The header is damaged, so take the salts of the first frame. Frames that
            # remain from an earlier use of the WAL have other salts.
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
    """The checksum of whole words, continued from *before*.

    It uses this machine's byte order: no commits are found in a WAL of the other one.
    """
    words = array("I", data[: len(data) // 8 * 8])
    first, second = before
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second


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


def check_regular_files(path: Path) -> None:
    """Raise StateError if a database, or one of SQLite's files for it, is not regular.

    SQLite would follow a symlink, and look for the WAL beside its target; it would block
    on a pipe.
    """
    for file in (path, *companions(path)):
        check_regular(file)


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
    return identities([path, *companions(path)])


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


def schema_of(path: Path) -> int | None:
    """The schema version in a database's `meta`; None if the database is empty.

    The file is opened read-only, so that closing it does not checkpoint the WAL: a file
    of another program, or a damaged one, stays as it is, with its WAL.

    Raises:
        StateError: Its `meta` has no valid version.
        sqlite3.Error: It cannot be read.
    """
    wal, index, journal = companions(path)
    # A sidecar that was killed while it made the file left a journal to roll back.
    with closing(opened(path, "mode=rw" if journal.exists() else "mode=ro")) as db:
        (tables,) = db.execute("select count(*) from sqlite_schema").fetchone()
        page_bytes = pragma(db, "page_size")
        found = meta(db, "schema") if tables else None
        # Last, as it closes the index: that drops this process's locks on the index.
        if size_of(wal):
            _check_wal(wal, index, page_bytes)
    if not tables:
        return None
    if not isinstance(found, int) or found < 1:
        raise StateError(
            f"{path} has the schema {found!r}, which no version has; it was left "
            "as it is: name another --state"
        )
    return found


def check_wal(path: Path) -> None:
    """Raise DatabaseError if a database's WAL `hides_commits`.

    Call it while no process writes to the database, and this one does not have it open.
    """
    wal, index, _ = companions(path)
    if not size_of(wal):
        return
    with closing(opened(path, "mode=ro")) as db:
        db.execute("select count(*) from sqlite_schema").fetchone()
        _check_wal(wal, index, pragma(db, "page_size"))


def _check_wal(wal: Path, index: Path, page_bytes: int) -> None:
    try:
        read = frames_read(index.read_bytes())
    except OSError as error:
        unreadable = sqlite3.OperationalError(f"{index.name}: {error.strerror}")
        unreadable.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise unreadable from error
    if read is None:
        incomplete = sqlite3.OperationalError(f"{index.name} is not whole")
        incomplete.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise incomplete
    if hides_commits(wal, read=read, page_bytes=page_bytes):
        raise damage_error(f"commits lie behind damage in {wal.name}")


def check_structure(
    db: sqlite3.Connection, tables: Sequence[str] = ("",), *, most: int = 1
) -> None:
    """Have SQLite check the trees and rows of *tables*, by default of the whole file.

    Raises:
        sqlite3.DatabaseError: There is damage; the message names at most *most* faults.
    """
    for table in tables:
        check = f"pragma quick_check({table or most})"
        try:
            lines = [
                " ".join(line.removeprefix("*** in database main ***").split())
                for (line,) in db.execute(check)
            ]
        except MemoryError as error:
            raise damage_error(LARGER_THAN_MEMORY) from error
        if lines != ["ok"]:
            raise damage_error("; ".join(lines[:most]))


def read_through(path: Path) -> None:
    """Read a file from begin to end, so that the kernel has it in memory.

    SQLite would read it in the order of its trees, which takes ten times as long from a
    disk. Do not call this while the process has the database open: it drops its locks.
    """
    with path.open("rb", buffering=0) as file:
        while file.read(READ_BYTES):
            pass


def write_ahead(db: sqlite3.Connection) -> None:
    """Use a WAL, and sync every commit before it returns."""
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.execute(f"pragma journal_size_limit = {WAL_BYTES}")


def write_back(db: sqlite3.Connection) -> None:
    """Checkpoint the WAL into the file; truncate it if no connection reads from it."""
    db.execute("pragma wal_checkpoint(truncate)").fetchone()


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
def only_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database read-only, and do not change it; it may be another process's."""
    with closing(opened(path, "mode=ro")) as db:
        db.execute("pragma busy_timeout = 1000")
        yield db


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open one of the sidecar's own databases for reading."""
    with closing(connect(path)) as db:
        db.execute("pragma query_only = on")
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


def batches(rows: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Split rows into parts of at most *size*."""
    return (rows[at : at + size] for at in range(0, len(rows), size))


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
