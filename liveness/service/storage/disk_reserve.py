"""Room on the disk that is kept for the day on which there is none.

SQLite needs room to delete: what a deletion changes goes to the WAL, and before the WAL can
be used again it is written to the database, which may have to grow for it. On a disk that
is full to the last byte nothing could ever be made smaller.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from liveness.errors import StartError
from liveness.service.storage.database import is_full, write_back
from liveness.service.storage.private_folders import bytes_left, open_own

T = TypeVar("T")

NAME: Final = "reserve"
# What a database may have to grow by when its WAL is written back: 4 MB, at which that is
# done, and a transaction; and then what a deletion writes.
RESERVE_BYTES: Final = 16 * 2**20
# What commits need for a WAL, whatever room there is in a database.
WAL_ROOM_BYTES: Final = 4 * 2**20


class Reserve:
    """A file without content, that takes room.

    Args:
        folder: The state directory.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._released = 0  # bytes that `restore` takes again
        self._taking = threading.RLock()  # each database has a thread

    def make(self, *, log_bytes: int = 0) -> None:
        """Take the room, or half of what there is: commits have as much.

        Args:
            log_bytes: What the log may still grow by, which is not taken; unless the disk
                has less anyway: then the log is what will fill it.
        """
        with self._taking, suppress(OSError, StartError):
            left = bytes_left(self.path.parent) + self._bytes
            if log_bytes <= left:
                left -= log_bytes
            self._take(min(RESERVE_BYTES, left // 2))

    def release(self) -> None:
        """Give the room up, if there is some."""
        with suppress(OSError):
            self._released = self._bytes
            self.path.unlink()

    def restore(self, room: int = 0) -> None:
        """Take again what was released, as far as it is left.

        Args:
            room: Bytes that stay for others; or half, if there is not as much.
        """
        with suppress(OSError, StartError):
            left = bytes_left(self.path.parent) + self._bytes
            self._take(min(self._released, left - min(room, left // 2)))

    def lend(
        self, db: sqlite3.Connection, call: Callable[[], T], *, room: int = 0
    ) -> T:
        """Do something that makes room; on a full disk, in that of the reserve.

        Args:
            db: The database, whose WAL is written back then, so that it begins anew.
            call: What is done; again, if there was no room.
            room: Bytes that stay for others, who use what was made free in the file.
        Raises:
            sqlite3.Error: It failed all the same.
        """
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
        with self._taking:
            self.release()
            try:
                write_back(db)
                return call()
            finally:
                self.restore(room)

    @property
    def _bytes(self) -> int:
        try:
            return self.path.lstat().st_size
        except FileNotFoundError:
            return 0

    def _take(self, size: int) -> None:
        if size > self._bytes:
            descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
