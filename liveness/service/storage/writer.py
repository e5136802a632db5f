"""The only writer of a database: repeats a whole transaction until it succeeds.

It also writes the WAL back to the database while commits go on. By default SQLite does this
within a commit, once the WAL has 1,000 pages; all that waits for that commit waits for
these pages, too. Here another connection does it, in a thread of its own, as a *passive*
checkpoint: neither it nor a commit waits for the other. The next commit starts the WAL
over, if all of it was written back and no reader needs it.

While commits follow each other closely, there is always one that the checkpoint does not
have, and a slow reader keeps the WAL, too. So it grows: above `most_bytes` SQLite writes it
back in a commit.

Source: https://sqlite.org/wal.html#ckpt, https://sqlite.org/pragma.html#pragma_wal_checkpoint
"""

import math
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from liveness.errors import StateError
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.threads import in_thread
from liveness.service.storage.database import connect, pragma
from liveness.service.storage.disk_reserve import RESERVE_BYTES, Reserve
from liveness.service.storage.private_folders import bytes_left

T = TypeVar("T")

RETRY_S: Final = 1.0
# The pause between two checkpoints. A page that is written several times in between is
# written back once. But the more is written at once, the longer the commits beside it wait
# for the disk: after 5 s with many logins it is some 40 MB, and one commit took 20 ms
# instead of one.
CHECKPOINT_EVERY_S: Final = 1.0
# With less free disk space than this, the WAL is written back before the database has to
# grow by more than `MOST_GROWTH_BYTES`: so the reserve has room for that, and for a
# transaction.
SHORT_BYTES: Final = 256 * 2**20
MOST_GROWTH_BYTES: Final = RESERVE_BYTES // 4

_log = structlog.get_logger("journal")


class Writer:
    """Writes a database in a thread, one transaction at a time, and its WAL back.

    *db* is the writing connection. Messages name the file by *what*.
    """

    def __init__(
        self,
        what: str,
        db: sqlite3.Connection,
        path: Path,
        reserve: Reserve,
        *,
        most_bytes: int,
    ) -> None:
        self.failure: str | None = None  # why the file cannot be written at present
        self.failures = 0  # attempts that failed
        self._what = what
        self._db = db
        self._path = path
        self._reserve = reserve
        self._has_written = False  # since the WAL was last written back
        self._every = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
        # Only one thread at a time may use the connection.
        self._limiter = trio.CapacityLimiter(1)
        # Open from the start, as the writer's: the path may lead to another file later, and
        # a connection to that one would, on closing, delete the WAL.
        self._checkpoints = connect(path)
        with ExitStack() as stack:
            stack.callback(self._checkpoints.close)
            # This opens the WAL.
            self._checkpoints.execute("select count(*) from sqlite_schema").fetchone()
            self._page_bytes = pragma(db, "page_size")
            db.execute(f"pragma wal_autocheckpoint = {most_bytes // self._page_bytes}")
            stack.pop_all()

    def close(self) -> None:
        """Close the connection of checkpoints; the writing one has to be closed later."""
        self._checkpoints.close()

    async def once(self, call: Callable[[], T]) -> T:
        """Call in a thread, when no other call runs; raise a failure, do not repeat."""
        try:
            return await in_thread(call, limiter=self._limiter)
        finally:
            self._has_written = True

    async def write(self, call: Callable[[], T], *, pending: Callable[[], int]) -> T:
        """Repeat a call every second until it succeeds, and log that it fails.

        *call* writes one transaction. *pending* returns how many changes wait, for
        messages.

        Raises:
            StateError: Another process writes to the file.
        """
        logged_at = -math.inf
        while True:
            try:
                written = await self.once(call)
                break
            except sqlite3.IntegrityError as error:
                # Repeating cannot help. Ending is safe: nothing in this transaction was
                # delivered, and the next start continues from what is durable.
                self.failure = f"{self._what} cannot be written: {error}"
                raise StateError(
                    f"{self._path}: another process writes there too ({error}): stop that "
                    "one (fuser -v names it), then start this one again"
                ) from error
            except sqlite3.Error as error:
                self.failures += 1
                self.failure = f"{self._what} cannot be written: {error}"
                if trio.current_time() - logged_at >= REPEAT_LOG_S:
                    logged_at = trio.current_time()
                    _log.error(
                        f"{self._what} cannot be written; nothing is dropped, it is "
                        "tried again every second: make room or repair the disk",
                        error=str(error),
                        path=str(self._path),
                        pending=pending(),
                    )
                await trio.sleep(RETRY_S)
        if self.failure is not None:
            _log.warning(f"{self._what} is written again", pending=pending())
            self.failure = None
        return written

    async def run_checkpoints(self) -> None:
        """Write the WAL back for ever, as long as there is something new in it."""
        while True:
            await trio.sleep(CHECKPOINT_EVERY_S)
            # On a full disk no commit succeeds until the WAL starts over: so a commit that
            # failed counts, too.
            if not self._has_written:
                continue
            self._has_written = False
            try:
                await in_thread(self.write_back)
            except (OSError, sqlite3.Error) as error:
                # The writer meets the same fault and reports it.
                message = "the WAL was not written back"
                self._every(_log.warning, message, key=message, error=str(error))
                self._has_written = True

    def write_back(self) -> None:
        """Write the WAL back on another connection, while the writer goes on."""
        db = self._checkpoints
        self._reserve.lend(db, partial(_write_back, db))

    def keep_growth_small(self) -> None:
        """After a commit: on a nearly full disk, write back before the file has to grow."""
        # The commit is done, whatever fails here; the next one meets the same fault.
        with suppress(sqlite3.Error, OSError):
            growth = pragma(self._db, "page_count") * self._page_bytes
            growth -= self._path.stat().st_size
            if (
                growth > MOST_GROWTH_BYTES
                and bytes_left(self._path.parent) < SHORT_BYTES
            ):
                _write_back(self._db)


def _write_back(db: sqlite3.Connection) -> None:
    db.execute("pragma wal_checkpoint(passive)").fetchone()
