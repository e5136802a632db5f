"""Writes a WAL back to its database beside the writer, while commits go on.

By default SQLite does this within a commit, once the WAL has 1,000 pages. That commit, and
all that waits for it, then waits until those pages are written and synced, too. Here
another connection does it, in a thread of its own, as a *passive* checkpoint: neither it
nor a commit waits for the other. The next commit starts the WAL over, if all of it was
written back and no reader needs it.

While commits follow each other closely, there is always one that the checkpoint does not
have, and a slow reader keeps the WAL, too. So it grows, and its size is bounded: above
`most_bytes` the writer itself writes the rest back, and commits wait for that little.

Source: https://sqlite.org/wal.html#ckpt, https://sqlite.org/pragma.html#pragma_wal_checkpoint
"""

import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from liveness.service.storage.database import companions, connect, pragma
from liveness.service.storage.disk_reserve import RESERVE_BYTES, Reserve
from liveness.service.storage.private_folders import bytes_left

# With less free disk space than this, the WAL is written back before the database has to
# grow by more than `MOST_GROWTH_BYTES`: so the reserve has room for that, and for a
# transaction.
SHORT_BYTES: Final = 256 * 2**20
MOST_GROWTH_BYTES: Final = RESERVE_BYTES // 4


class Wal:
    """The WAL of a database, whose writer's connection is *db*.

    Above *most_bytes* the writer itself writes the rest back.
    """

    def __init__(
        self, db: sqlite3.Connection, path: Path, reserve: Reserve, *, most_bytes: int
    ) -> None:
        self.path = path
        self.overflows = 0  # how often it was found above its bound
        self._db = db
        self._reserve = reserve
        self._most_bytes = most_bytes
        # Open from the start, as the writer's: the path may lead to another file later, and
        # a connection to that one would, on closing, delete the WAL.
        self._own = connect(path)
        # This opens the WAL.
        self._own.execute("select count(*) from sqlite_schema").fetchone()
        self._page_bytes = pragma(db, "page_size")
        # If all else fails, SQLite checkpoints in a commit once the WAL has this many pages.
        db.execute(f"pragma wal_autocheckpoint = {4 * most_bytes // self._page_bytes}")

    def close(self) -> None:
        """Close its connection; the writer's has to be closed later."""
        self._own.close()

    @property
    def is_large(self) -> bool:
        """Whether it is above its bound."""
        wal, *_ = companions(self.path)
        return wal.stat().st_size > self._most_bytes

    def write_back(self) -> None:
        """Write it back on another connection, while the writer goes on."""
        self._reserve.lend(self._own, partial(_write_back, self._own))

    def write_back_the_rest(self) -> None:
        """Write back what is left; truncate the WAL if no connection reads from it.

        Call it as the writer.
        """
        self._reserve.lend(self._db, self._restart)

    def _restart(self) -> None:
        _write_back(self._db)
        self._db.execute("pragma busy_timeout = 0")
        try:
            self._db.execute("pragma wal_checkpoint(truncate)").fetchone()
        finally:
            self._db.execute("pragma busy_timeout = 1000")

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
