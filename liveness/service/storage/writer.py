"""The only writer of a database: repeats a whole transaction until it succeeds."""

import math
import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

import structlog
import trio

from liveness.errors import StateError
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.threads import in_thread
from liveness.service.storage.wal import Wal

T = TypeVar("T")

RETRY_S: Final = 1.0
# The pause between two checkpoints. A page that is written several times in between is written back once. But the more is
# written at once, the longer the commits beside it wait for the disk: after 5 s with many
# logins it is some 40 MB, and one commit took 20 ms instead of one.
CHECKPOINT_EVERY_S: Final = 1.0

_log = structlog.get_logger("journal")


class Writer:
    """Writes a database in a thread, one transaction at a time, and its WAL back.

    Messages name the file by *what*.
    """

    def __init__(self, what: str, wal: Wal, *, clock: Clock) -> None:
        self.failure: str | None = None  # why the file cannot be written at present
        self.failures = 0  # attempts that failed
        self._what = what
        self._wal = wal
        self._clock = clock
        self._has_written = False  # since the WAL was last written back
        self._logged_at = -math.inf
        self._every = LogThrottle(REPEAT_LOG_S, clock=clock.mono)
        # Only one thread at a time may use the connection.
        self._limiter = trio.CapacityLimiter(1)

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
        while True:
            try:
                written = await self.once(call)
                break
            except sqlite3.IntegrityError as error:
                # Repeating cannot help. Ending is safe: nothing in this transaction was
                # delivered, and the next start continues from what is durable.
                self.failure = f"{self._what} cannot be written: {error}"
                raise StateError(
                    f"{self._wal.path}: another process writes there too ({error}): stop that "
                    "one (fuser -v names it), then start this one again"
                ) from error
            except sqlite3.Error as error:
                self._failed(error, pending())
                await trio.sleep(RETRY_S)
        if self.failure is not None:
            _log.warning(f"{self._what} is written again", pending=pending())
            self.failure = None
            self._logged_at = -math.inf
        return written

    def _failed(self, error: sqlite3.Error, pending: int) -> None:
        self.failures += 1
        self.failure = f"{self._what} cannot be written: {error}"
        now = self._clock.mono()
        if now - self._logged_at >= REPEAT_LOG_S:
            self._logged_at = now
            _log.error(
                f"{self._what} cannot be written; nothing is dropped, it is "
                "tried again every second: make room or repair the disk",
                error=str(error),
                path=str(self._wal.path),
                pending=pending,
            )

    async def run_checkpoints(self) -> None:
        """Write the WAL back for ever, as long as there is something new in it."""
        while True:
            await trio.sleep(CHECKPOINT_EVERY_S)
            # On a full disk no commit succeeds until the WAL starts over: so this continues
            # while the writer fails.
            if not self._has_written and self.failure is None:
                continue
            self._has_written = False
            try:
                await in_thread(self._wal.write_back)
            except (OSError, sqlite3.Error) as error:
                # The writer meets the same fault and reports it.
                message = "the WAL was not written back"
                self._every(_log.warning, message, key=message, error=str(error))
                self._has_written = True
