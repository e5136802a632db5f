"""Disk space held in reserve, so that rows can be deleted on a full disk.

SQLite needs space to delete: the pages that a deletion changes go to the WAL, and before
the WAL can be used again, it is written to the database, which may have to grow for it.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from liveness.errors import StartError
from liveness.service.storage.database import is_full, size_of
from liveness.service.storage.private_folders import bytes_left, open_own

T = TypeVar("T")

NAME: Final = "reserve"
# When its WAL is written back, a database may grow by the 4 MiB at which that begins on a
# disk with little room, plus one transaction. The rest is for the deletion itself.
RESERVE_BYTES: Final = 16 * 2**20
# Commits need this for a WAL, even if a database has free pages.
WAL_ROOM_BYTES: Final = 4 * 2**20


class Reserve:
    """A file without content, in the state directory, that takes space on the disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._released = 0  # bytes that `restore` takes again
        self._lock = threading.RLock()  # each database is written by its own thread

    def make(self, *, log_bytes: int = 0) -> None:
        """Reserve space, at most half of what is free: the other half is for commits.

        Args:
            log_bytes: Bytes to leave free for the growth of the log. They are ignored if
                the disk has fewer: the log will fill it anyway.
        """
        with self._lock, suppress(OSError, StartError):
            left = bytes_left(self.path.parent) + self._size()
            if log_bytes <= left:
                left -= log_bytes
            self._take(min(RESERVE_BYTES, left // 2))

    def release(self) -> None:
        """Free the reserved space, if there is any."""
        with suppress(OSError):
            self._released = self._size()
            self.path.unlink()

    def restore(self, room: int = 0) -> None:
        """Reserve as much as was released, if the disk still has it.

        *room* bytes are left free, but at most half of the free space.
        """
        with suppress(OSError, StartError):
            left = bytes_left(self.path.parent) + self._size()
            self._take(min(self._released, left - min(room, left // 2)))

    def lend(
        self, db: sqlite3.Connection, call: Callable[[], T], *, room: int = 0
    ) -> T:
        """Call a function that frees space. On a full disk, let it use the reserve.

        Args:
            db: The database. On a full disk its WAL is written back first.
            call: The function; called again, if there was no space for it.
            room: Bytes to leave free afterwards, for commits that fill freed pages.
        Raises:
            sqlite3.Error: It failed, even with the reserve.
        """
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
        with self._lock:
            self.release()
            try:
                db.execute("pragma wal_checkpoint(truncate)").fetchone()
                return call()
            finally:
                self.restore(room)

    def _size(self) -> int:
        return size_of(self.path) or 0

    def _take(self, size: int) -> None:
        if size > self._size():
            descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
