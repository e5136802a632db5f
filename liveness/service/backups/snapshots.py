"""Copies the databases of a state as of one moment, while the sidecar writes to them.

Log and timers are read in transactions that began while nothing was written to the timers'
table, so the two copies equal the files after a crash at that moment. The log has
everything that the table has; as after any crash, the next start reads from the log the
attempts that the table lacks. The outlets' database is read as of a moment before: the log
has every record that one of its cursors passed.

SQLite's backup begins again whenever another connection writes, unless its connection is
in a read transaction, as here. What is written meanwhile stays in the WAL until the copy
is made, and the growth of the WALs is bounded.

The copy is synced in steps. Otherwise a gigabyte could collect in the kernel's memory,
and a commit of the sidecar on the same disk would wait until all of it is written.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from liveness.errors import LivenessError, StateError
from liveness.service.backups.integrity import parts, structure
from liveness.service.storage import (
    clocks_file,
    disk_reserve,
    log_pages,
    log_schema,
    log_store,
    migrations,
    outlet_schema,
)
from liveness.service.storage.database import (
    PUT_META,
    check_not_lost,
    check_regular_files,
    check_wal,
    companions,
    connect,
    created_private,
    meta,
    only_reading,
    pragma,
)
from liveness.service.storage.private_folders import identities, identity
from liveness.service.storage.state_lock import LOCK, is_in_use
from liveness.service.timers import timer_store

# Bytes between two syncs.
STEP_BYTES: Final = 2**20
# The copy ends with an error once the WALs have grown by this, before they fill the
# sidecar's disk. At 10,000 offlines a second that takes minutes.
MOST_WAL_BYTES: Final = 2 * 2**30
# How often to try to begin both transactions between two commits of the timers' table.
# The first try nearly always succeeds.
TRIES: Final = 1_000

_FILES: Final[Mapping[str, tuple[int, migrations.Steps]]] = {
    log_store.DATABASE: (log_schema.SCHEMA, migrations.LOG),
    timer_store.DATABASE: (timer_store.SCHEMA, migrations.TIMERS),
    outlet_schema.DATABASE: (outlet_schema.SCHEMA, migrations.OUTLETS),
}

# Names of files that a state folder may have.
_NAMES: Final = frozenset(
    {*_FILES, LOCK, clocks_file.NAME, clocks_file.NEW, disk_reserve.NAME}
    | {companion.name for name in _FILES for companion in companions(Path(name))}
)

# Called with the number of bytes written in each step.
OnWritten = Callable[[int], None]


class BackupError(LivenessError):
    """No backup was made, for a reason that the user can remedy."""


class Counted(NamedTuple):
    """How much a backup has."""

    records: int
    users: int
    timers: int  # the live ones


class StateCopy:
    """A state directory as of one moment.

    Args:
        databases: By path, the log's first; each in a read transaction.
    """

    def __init__(self, databases: Mapping[Path, sqlite3.Connection]) -> None:
        self._databases = databases
        self.bytes = sum(map(_bytes, databases.values()))  # size of the copies
        self._wal_bytes = self._wals()

    @property
    def paths(self) -> list[Path]:
        """The databases that exist, the log's first."""
        return [*self._databases]

    def counted(self) -> Counted:
        """Count its records, users and live timers."""
        databases = {path.name: db for path, db in self._databases.items()}
        log, table = (
            databases.get(name) for name in (log_store.DATABASE, timer_store.DATABASE)
        )
        assert log is not None
        (users,) = log.execute("select count(*) from online").fetchone()
        query = "select sum(timers) from states where state in ('pending', 'fired')"
        timers = 0 if table is None else table.execute(query).fetchone()[0]
        return Counted(log_pages.newest(log), users, timers)

    def copy(self, path: Path, target: Path, *, made_ms: int, wrote: OnWritten) -> str:
        """Copy a database to a new file, end its transaction, and check the copy.

        *made_ms* is stored in a copy of the log; the first start from it logs that time.

        Raises:
            BackupError: The copy is too slow.
            StateError: The database is damaged.
            sqlite3.Error: It cannot be read, or the copy cannot be written.
        Returns:
            The damaged part, if the rest of the copy can be used; "" without damage.
        """
        source = self._databases[path]
        page_bytes = pragma(source, "page_size")
        with (
            created_private(target),
            target.open("rb") as opened,
            closing(connect(target)) as copy,
        ):
            copied = 0

            def progress(_status: int, remaining: int, pages: int) -> None:
                nonlocal copied
                sync(opened.fileno())
                wrote((pages - remaining - copied) * page_bytes)
                copied = pages - remaining
                self._check_wals()

            # No journal: an incomplete copy is of no use.
            copy.execute("pragma journal_mode = off")
            step = max(1, STEP_BYTES // page_bytes)
            source.backup(copy, pages=step, progress=progress)
            source.execute("rollback")
            damaged = _damage_of(path, copy)
            if path.name == log_store.DATABASE:
                copy.execute(
                    PUT_META,
                    [log_store.COPIED, made_ms],
                )
            # Without a WAL the copy is one file.
            copy.execute("pragma journal_mode = delete")
            os.fsync(opened.fileno())
        return damaged

    def _check_wals(self) -> None:
        if self._wals() - self._wal_bytes > MOST_WAL_BYTES:
            raise BackupError(
                "the copy is too slow: the sidecar wrote "
                f"{MOST_WAL_BYTES >> 30} GiB to {self.paths[0].parent} meanwhile; name a "
                "FILE on a faster disk"
            )

    def _wals(self) -> int:
        wals = (path.with_name(path.name + "-wal") for path in self._databases)
        return sum(wal.stat().st_size for wal in wals if wal.exists())


@contextmanager
def opened(folder: Path) -> Iterator[StateCopy]:
    """Open a state directory as of one moment, whether a sidecar uses it or not.

    Raises:
        StateError: A file is of a newer version, of another program, or not regular.
        BackupError: There is no state, or the timers' table is written without a pause.
        OSError: This user may not read or write there.
        sqlite3.Error: A file cannot be read.
    """
    paths = [folder / name for name in _FILES]
    for path in paths:
        check_regular_files(path)
    if not _size(paths[0]):
        raise BackupError(
            f"{paths[0]}: there is no state to back up; name its folder with --state"
        )
    # SQLite makes files there.
    if not os.access(folder, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    for path in paths:
        check_not_lost(path)
    paths = [path for path in paths if _size(path)]
    if not is_in_use(folder):  # a running sidecar checked them when it started
        for path in paths:
            check_wal(path)
    with ExitStack() as stack:
        databases = {path: stack.enter_context(only_reading(path)) for path in paths}
        table = folder / timer_store.DATABASE
        watched = table if table in databases else paths[0]
        timers = stack.enter_context(only_reading(watched))
        for _ in range(TRIES):
            # It changes with each commit of another connection.
            before = pragma(timers, "data_version")
            for db in reversed(databases.values()):
                db.execute("begin")
                db.execute("select count(*) from sqlite_schema").fetchone()
            if pragma(timers, "data_version") == before:
                break
            for db in databases.values():
                db.execute("rollback")
        else:
            raise BackupError(f"{watched} is written without a pause; try again")
        for path, db in databases.items():
            _check(path, db)
        next_seq = log_pages.newest(databases[paths[0]]) + 1
        timer_store.check_not_emptied(folder / timer_store.DATABASE, next_seq=next_seq)
        yield StateCopy(databases)


def is_state_file(file: Path, folder: Path) -> bool:
    """Whether a path is that of a sidecar's state, even if there is no file yet.

    True for a file in the state folder *folder*, by any path, and for a path with the
    name of a state's file in a folder that has others.
    """
    real = Path(os.path.realpath(file))
    for path in (file, real):
        if path.name in _NAMES and any(
            os.path.lexists(path.with_name(name)) for name in (*_FILES, LOCK)
        ):
            return True
    own = identities(folder.iterdir() if folder.is_dir() else ())
    return identity(real) in own.values()


def sync(descriptor: int) -> None:
    """Sync a step, then leave the disk to other processes for as long as that took."""
    began = time.perf_counter()
    os.fsync(descriptor)
    time.sleep(time.perf_counter() - began)


def _damage_of(path: Path, copy: sqlite3.Connection) -> str:
    """Describe damaged records or timers; "" if there are none.

    Raises:
        StateError: Anything else is damaged.
    """

    def read(examine: Callable[[sqlite3.Connection], Any]) -> Any:
        return examine(copy)

    schema, _ = _FILES[path.name]
    if meta(copy, "schema") == schema:
        found = parts(path.name, read)
    else:  # an older schema: only the structure can be checked
        found = iter([structure(path.name, read)])
    missing = ""
    for part in found:
        missing = missing or part.missing
        if not part.is_whole and not part.missing:
            raise StateError(
                f"{path} is damaged ({part.part}: {part.told}); no backup was made: "
                "keep the previous one, and restore it if the sidecar cannot start"
            )
    return missing


def _check(path: Path, db: sqlite3.Connection) -> None:
    schema, steps = _FILES[path.name]
    stored = meta(db, "schema")
    migrations.check(path, stored if isinstance(stored, int) else 0, schema, steps)


def _size(path: Path) -> int:
    """The size of a readable file. Not if SQLite has it open: this drops its locks."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return 0


def _bytes(db: sqlite3.Connection) -> int:
    return pragma(db, "page_count") * pragma(db, "page_size")
