"""Copies the databases of a state while the sidecar writes to them.

Each is read in a transaction: that of the outlets begins first, then that of the timers,
then that of the log. So the log has every record that a cursor of an outlet passed, and
every attempt that the timers' table has. As after a crash, the next start reads from the log
the attempts that the table lacks; those of timers that it lacks are ignored.

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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from liveness.errors import StateError
from liveness.service.backups.integrity import parts
from liveness.service.storage import log_pages, log_schema, log_store, outlet_schema
from liveness.service.storage.database import (
    PUT_META,
    check_not_lost,
    check_schema,
    companions,
    connect,
    created_private,
    pragma,
    reading,
    size_of,
)
from liveness.service.storage.private_folders import check_regular
from liveness.service.timers import timer_store

# Bytes between two syncs.
STEP_BYTES: Final = 2**20
# The copy ends with an error once the WALs have grown by this, before they fill the
# sidecar's disk. At 10,000 offlines a second that takes minutes.
MOST_WAL_BYTES: Final = 2 * 2**30
# The files, each with its oldest schema and that of this version.
_FILES: Final = {
    log_store.DATABASE: (log_schema.OLDEST_SCHEMA, log_schema.SCHEMA),
    timer_store.DATABASE: (timer_store.SCHEMA, timer_store.SCHEMA),
    outlet_schema.DATABASE: (outlet_schema.SCHEMA, outlet_schema.SCHEMA),
}


class StateCopy:
    """The databases of a state directory.

    Args:
        databases: By path, the log's first; each in a read transaction.
    """

    def __init__(self, databases: Mapping[Path, sqlite3.Connection]) -> None:
        self._databases = databases
        self.newest = log_pages.newest(next(iter(databases.values())))
        self.paths = [*databases]  # of the databases that exist, the log's first
        self.bytes = sum(  # of the copies
            pragma(db, "page_count") * pragma(db, "page_size")
            for db in databases.values()
        )
        self._wal_bytes = self._wals()

    def copy(self, path: Path, target: Path, *, made_ms: int) -> None:
        """Copy a database to a new file, end its transaction, and check the copy.

        *made_ms* is stored in a copy of the log; the first start from it logs that time.

        Raises:
            StateError: It is damaged, or the copy is too slow.
            sqlite3.Error: It cannot be read, or the copy cannot be written.
        """
        source = self._databases[path]
        with (
            created_private(target),
            target.open("rb") as opened,
            closing(connect(target)) as copy,
        ):

            def progress(*_: int) -> None:
                sync(opened.fileno())
                if self._wals() - self._wal_bytes > MOST_WAL_BYTES:
                    raise StateError(
                        "the copy is too slow: the sidecar wrote "
                        f"{MOST_WAL_BYTES >> 30} GiB to {path.parent} meanwhile; name a "
                        "FILE on a faster disk"
                    )

            # No journal: an incomplete copy is of no use.
            copy.execute("pragma journal_mode = off")
            step = STEP_BYTES // pragma(source, "page_size")
            source.backup(copy, pages=step, progress=progress)
            source.execute("rollback")
            found = parts(path.name, copy)
            if faults := [text for *_, is_whole, text in found if not is_whole]:
                raise StateError(
                    f"{path} is damaged ({'; '.join(faults)}); no backup was made: keep "
                    "the previous one, and see `liveness check-state`"
                )
            if path.name == log_store.DATABASE:
                copy.execute(PUT_META, [log_store.COPIED, made_ms])
            # Without a WAL the copy is one file.
            copy.execute("pragma journal_mode = delete")
            os.fsync(opened.fileno())

    def _wals(self) -> int:
        return sum(size_of(companions(path)[0]) or 0 for path in self.paths)


@contextmanager
def opened(folder: Path) -> Iterator[StateCopy]:
    """Open a state directory, whether a sidecar uses it or not.

    Raises:
        StateError: There is no state, or a file of it is of a newer version, of another
            program, or not regular.
        OSError: This user may not read or write there.
        sqlite3.Error: A file cannot be read.
    """
    paths = [folder / name for name in _FILES]
    for path in paths:
        for file in (path, *companions(path)):
            check_regular(file)
        check_not_lost(path)
    if not size_of(paths[0]):
        raise StateError(
            f"{paths[0]}: there is no state to back up; name its folder with --state"
        )
    # SQLite makes files there.
    if not os.access(folder, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    with ExitStack() as stack:
        databases = {
            path: stack.enter_context(reading(path)) for path in paths if size_of(path)
        }
        for db in reversed(databases.values()):
            db.execute("begin")
            db.execute("select count(*) from sqlite_schema").fetchone()
        for path, db in databases.items():
            oldest, newest = _FILES[path.name]
            check_schema(db, path, oldest=oldest, newest=newest)
        next_seq = log_pages.newest(databases[paths[0]]) + 1
        timer_store.check_not_emptied(folder / timer_store.DATABASE, next_seq=next_seq)
        yield StateCopy(databases)


def sync(descriptor: int) -> None:
    """Sync a step, then leave the disk to other processes for as long as that took."""
    began = time.perf_counter()
    os.fsync(descriptor)
    time.sleep(time.perf_counter() - began)
