"""Copies of the state's databases, as of one moment, while the sidecar writes them.

Each is read as of one transaction that began while the other was not written: so the two
are what a crash at that moment would have left. A run of a timer that the log has and the
table does not is found by the start, as ever; nothing that the table has is missing from
the log.

SQLite's backup begins again whenever somebody else writes, unless its connection is
reading already: so it is. What is written meanwhile stays in the WAL until the copy is
over, and that has a bound.

The copy is synced in steps. Written at one go, a gigabyte would lie in the kernel's
memory, and a commit of the sidecar's, on the same disk, would wait until all of it is
written.
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
from liveness.service.storage import (
    clocks_file,
    disk_reserve,
    log_schema,
    log_store,
    migrations,
    timer_store,
)
from liveness.service.storage.database import (
    beside,
    check_not_lost,
    check_regular_files,
    check_wal,
    connect,
    made_private,
    meta,
    only_reading,
)
from liveness.service.storage.integrity import parts, structure
from liveness.service.storage.private_folders import identities, identity
from liveness.service.storage.state_lock import LOCK, is_in_use

# What is written before it is synced.
STEP_BYTES: Final = 2**20
# A copy that is so slow that the WALs grow by this is given up, before they fill the
# sidecar's disk. At 10,000 offlines a second that takes minutes.
MOST_WAL_BYTES: Final = 2 * 2**30
# Between two commits of the timers' table there is room for two statements, nearly always.
TRIES: Final = 1_000

_FILES: Final[Mapping[str, tuple[int, migrations.Steps]]] = {
    log_store.DATABASE: (log_schema.SCHEMA, migrations.LOG),
    timer_store.DATABASE: (timer_store.SCHEMA, migrations.TIMERS),
}

# All that there may be in a state folder.
_NAMES: Final = frozenset(
    {*_FILES, LOCK, clocks_file.NAME, clocks_file.NEW, disk_reserve.NAME}
    | {its.name for name in _FILES for its in beside(Path(name))}
)

# Told how many bytes were written.
Wrote = Callable[[int], None]


class BackupError(LivenessError):
    """No backup was made. The person's to mend; the state is as it was."""


class Counted(NamedTuple):
    """What is in a backup."""

    records: int
    users: int
    timers: int  # that are live


class StateCopy:
    """A state directory as of one moment.

    Args:
        databases: By path, each in a transaction that reads.
    """

    def __init__(self, databases: Mapping[Path, sqlite3.Connection]) -> None:
        self._databases = databases
        self.bytes = sum(map(_bytes, databases.values()))  # that the copies will have
        self._wal_bytes = self._wals()

    @property
    def paths(self) -> list[Path]:
        """The databases there are, the log's first."""
        return [*self._databases]

    def counted(self) -> Counted:
        """What is in it."""
        log, *rest = self._databases.values()
        (records,) = log.execute("select coalesce(max(last), 0) from log").fetchone()
        (users,) = log.execute("select count(*) from online").fetchone()
        query = "select sum(timers) from states where state in ('pending', 'fired')"
        timers = sum(timers.execute(query).fetchone()[0] for timers in rest)
        return Counted(records, users, timers)

    def copy(self, path: Path, target: Path, *, made_ms: int, wrote: Wrote) -> str:
        """Copy a database, let go of it, and see that the copy can be read.

        Args:
            path: Which one.
            target: A file that is not there yet.
            made_ms: For the log: what its first start will say of its age.
            wrote: Is told of every step.
        Raises:
            BackupError: It takes too long.
            StateError: What lies there is damaged.
            sqlite3.Error: It cannot be read, or not be written.
        Returns:
            What is damaged, in words; the rest of the copy is whole.
        """
        source = self._databases[path]
        step = max(1, STEP_BYTES // _page_bytes(source))
        with (
            made_private(target),
            target.open("rb") as opened,
            closing(connect(target)) as copy,
        ):
            copied = 0

            def progress(_status: int, remaining: int, pages: int) -> None:
                nonlocal copied
                sync(opened.fileno())
                wrote((pages - remaining - copied) * _page_bytes(source))
                copied = pages - remaining
                self._check_wals()

            # Nobody needs half of it.
            copy.execute("pragma journal_mode = off")
            source.backup(copy, pages=step, progress=progress)
            source.execute("rollback")
            damaged = _damage_of(path, copy)
            if path.name == log_store.DATABASE:
                copy.execute(
                    "insert or replace into meta values (?, ?)",
                    [log_store.COPIED, made_ms],
                )
            # One file, until somebody writes to it.
            copy.execute("pragma journal_mode = delete")
            os.fsync(opened.fileno())
        return damaged

    def _check_wals(self) -> None:
        if self._wals() - self._wal_bytes > MOST_WAL_BYTES:
            raise BackupError(
                "the copy is too slow: what is written meanwhile has come to "
                f"{MOST_WAL_BYTES >> 30} GiB in {self.paths[0].parent}; name a FILE on "
                "a faster disk"
            )

    def _wals(self) -> int:
        wals = (path.with_name(path.name + "-wal") for path in self._databases)
        return sum(wal.stat().st_size for wal in wals if wal.exists())


@contextmanager
def opened(folder: Path) -> Iterator[StateCopy]:
    """Open a state directory, whether a sidecar uses it or not, as of one moment.

    Raises:
        StateError: What lies there is of a newer version, none of ours, or no file.
        BackupError: There is nothing; or it was written whenever it was looked at.
        OSError: This user may not use it.
        sqlite3.Error: It cannot be read.
    """
    paths = [folder / name for name in _FILES]
    for path in paths:
        check_regular_files(path)
    if not _size(paths[0]):
        raise BackupError(
            f"{paths[0]}: there is no state to back up; name its folder with --state"
        )
    if not os.access(folder, os.W_OK, effective_ids=True):  # SQLite has files beside it
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    for path in paths:
        check_not_lost(path)
    paths = [path for path in paths if _size(path)]
    if not is_in_use(folder):  # whose start has looked at them
        for path in paths:
            check_wal(path)
    with ExitStack() as stack:
        databases = {path: stack.enter_context(only_reading(path)) for path in paths}
        timers = stack.enter_context(only_reading(paths[-1]))
        for _ in range(TRIES):
            before = _version(timers)
            for db in reversed(databases.values()):
                db.execute("begin")
                db.execute("select count(*) from sqlite_schema").fetchone()
            if _version(timers) == before:
                break
            for db in databases.values():
                db.execute("rollback")
        else:
            raise BackupError(f"{paths[-1]} is written without a pause; try again")
        for path, db in databases.items():
            _check(path, db)
        query = "select coalesce(max(last), 0) + 1 from log"
        (next_seq,) = databases[paths[0]].execute(query).fetchone()
        timer_store.check_not_emptied(folder / timer_store.DATABASE, next_seq=next_seq)
        yield StateCopy(databases)


def is_of_a_state(file: Path, folder: Path) -> bool:
    """Whether a file is one of a sidecar's state, or would be taken for one.

    A folder is known by what is in it, wherever it was mounted and whoever uses it now.

    Args:
        file: Any path.
        folder: A state folder, in which it may be under any name.
    """
    real = Path(os.path.realpath(file))
    for path in (file, real):
        if path.name in _NAMES and any(
            os.path.lexists(path.with_name(name)) for name in (*_FILES, LOCK)
        ):
            return True
    there = identities(folder.iterdir() if folder.is_dir() else ())
    return identity(real) in there.values()


def sync(descriptor: int) -> None:
    """Have a step on disk, and then leave the disk to others for as long as that took."""
    began = time.perf_counter()
    os.fsync(descriptor)
    time.sleep(time.perf_counter() - began)


def _damage_of(path: Path, copy: sqlite3.Connection) -> str:
    """Refuse a copy that is damaged otherwise than in its log or in single timers."""

    def read(look: Callable[[sqlite3.Connection], Any]) -> Any:
        return look(copy)

    schema, _ = _FILES[path.name]
    if meta(copy, "schema") == schema:
        found = parts(path.name, read)
    else:  # an older one: the structure is all that is known
        found = iter([structure(path.name, read)])
    missing = ""
    for part in found:
        missing = missing or part.missing
        if not part.is_whole and not part.missing:
            raise StateError(
                f"{path} is damaged ({part.part}: {part.told}); no backup was made: "
                "keep the one before, and restore it if the sidecar cannot start"
            )
    return missing


def _check(path: Path, db: sqlite3.Connection) -> None:
    schema, steps = _FILES[path.name]
    has = meta(db, "schema")
    migrations.check(path, has if isinstance(has, int) else 0, schema, steps)


def _size(path: Path) -> int:
    """How large a file is that can be read; never once SQLite has it open."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return 0


def _version(db: sqlite3.Connection) -> int:
    """Another one after each commit of others."""
    return int(db.execute("pragma data_version").fetchone()[0])


def _page_bytes(db: sqlite3.Connection) -> int:
    return int(db.execute("pragma page_size").fetchone()[0])


def _bytes(db: sqlite3.Connection) -> int:
    (pages,) = db.execute("pragma page_count").fetchone()
    return int(pages) * _page_bytes(db)
