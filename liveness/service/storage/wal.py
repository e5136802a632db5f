"""Writes a WAL back to its database beside the writer, while commits go on.

By default SQLite does this within a commit, once the WAL has 1,000 pages. That commit, and
all that waits for it, then waits until those pages are written and synced, too. Here
another connection does it, in a thread of its own, as a *passive* checkpoint: neither it
nor a commit waits for the other. The next commit starts the WAL over, if all of it was
written back and no reader needs it.

While commits follow each other closely, there is always one that the checkpoint does not
have, and a slow reader keeps the WAL, too. So it grows: above `most_bytes` SQLite writes it
back in a commit.

Source: https://sqlite.org/wal.html#ckpt, https://sqlite.org/pragma.html#pragma_wal_checkpoint
"""

import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from liveness.service.storage.database import connect, pragma
from liveness.service.storage.disk_reserve import RESERVE_BYTES, Reserve
from liveness.service.storage.private_folders import bytes_left

# With less free disk space than this, the WAL is written back before the database has to
# grow by more than `MOST_GROWTH_BYTES`: so the reserve has room for that, and for a
# transaction.
SHORT_BYTES: Final = 256 * 2**20
MOST_GROWTH_BYTES: Final = RESERVE_BYTES // 4


class Wal:
    """The WAL of a database, whose writer's connection is *db*."""

    def __init__(
        self, db: sqlite3.Connection, path: Path, reserve: Reserve, *, most_bytes: int
    ) -> None:
        self.path = path
        self._db = db
        self._reserve = reserve
        # Open from the start, as the writer's: the path may lead to another file later, and
        # a connection to that one would, on closing, delete the WAL.
        self._own = connect(path)
        # This opens the WAL.
        self._own.execute("select count(*) from sqlite_schema").fetchone()
        self._page_bytes = pragma(db, "page_size")
        db.execute(f"pragma wal_autocheckpoint = {most_bytes // self._page_bytes}")

    def close(self) -> None:
        """Close its connection; the writer's has to be closed later."""
        self._own.close()

    def write_back(self) -> None:
        """Write it back on another connection, while the writer goes on."""
        self._reserve.lend(self._own, partial(_write_back, self._own))

    def keep_growth_small(self) -> None:
        """After a commit: on a nearly full disk, write back before the file has to grow."""
        # The commit is done, whatever fails here; the next one meets the same fault.
        with suppress(sqlite3.Error, OSError):
            growth = pragma(self._db, "page_count") * self._page_bytes
            growth -= self.path.stat().st_size
            if (
                growth > MOST_GROWTH_BYTES
                and bytes_left(self.path.parent) < SHORT_BYTES
            ):
                _write_back(self._db)


def _write_back(db: sqlite3.Connection) -> None:
    db.execute("pragma wal_checkpoint(passive)").fetchone()
