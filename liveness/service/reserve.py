"""Room on the disk that is kept for the day on which there is none.

SQLite needs room to delete: what a deletion changes goes to the WAL, and before the WAL can
be used again it is written to the database, which may have to grow for it. On a disk that
is full to the last byte a log could never be made smaller.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from liveness.errors import StartError
from liveness.service.folders import open_own

NAME: Final = "reserve"
# A WAL is written back at 4 MB and a transaction, by which the database may have to grow;
# as much again for what a deletion writes.
RESERVE_BYTES: Final = 8 * 2**20


class Reserve:
    """A file without content, that takes room.

    Args:
        folder: The state directory.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def make(self, *, log_bytes: int) -> None:
        """Take the room, where commits have as much, and the log so many bytes to grow.

        Or where the disk has less than these anyway: then the log is what will fill it.
        """
        with suppress(OSError, StartError):
            if self.path.exists() and self.path.stat().st_size == RESERVE_BYTES:
                return
            disk = os.statvfs(self.path.parent)
            free = disk.f_bavail * disk.f_frsize
            if free < 2 * RESERVE_BYTES or log_bytes <= free < (
                2 * RESERVE_BYTES + log_bytes
            ):
                return
            descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Give the room up, if there is some."""
        with suppress(OSError):
            self.path.unlink()
