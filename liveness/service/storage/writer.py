"""The only writer of a database: repeats a whole transaction until it succeeds."""

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
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
# The pause between two checkpoints, and between two comparisons of a WAL with its bound. A
# page that is written several times in between is written back once. But the more is
# written at once, the longer the commits beside it wait for the disk: after 5 s with many
# logins it is some 40 MB, and one commit took 20 ms instead of one.
CHECKPOINT_EVERY_S: Final = 1.0

_log = structlog.get_logger("journal")


class Writer:
    """Writes in a thread, one transaction at a time; messages name the file by *what*."""

    def __init__(self, what: str, path: Path, *, clock: Clock) -> None:
        self.failure: str | None = None  # why the file cannot be written at present
        self.failures = 0  # attempts that failed
        self.has_written = False  # since `Checkpoints` last wrote the WAL back
        self._what = what
        self._path = path
        self._clock = clock
        self._logged_at = -math.inf
        # Only one thread at a time may use the connection.
        self._limiter = trio.CapacityLimiter(1)

    async def once(self, call: Callable[[], T]) -> T:
        """Call in a thread, when no other call runs; raise a failure, do not repeat."""
        try:
            return await in_thread(call, limiter=self._limiter)
        finally:
            self.has_written = True

    async def write(
        self,
        call: Callable[[], T],
        *,
        pending: Callable[[], int],
        left: Callable[[T], sqlite3.Error | None] = lambda _: None,
    ) -> T:
        """Repeat a call every second until it succeeds, and log that it fails.

        *call* writes one transaction. *pending* returns how many changes wait, for
        messages. *left* takes the result, and returns the error if part was not written.

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
                    f"{self._path}: another process writes there too ({error}): stop that "
                    "one (fuser -v names it), then start this one again"
                ) from error
            except sqlite3.Error as error:
                self._failed(error, pending())
                await trio.sleep(RETRY_S)
        if (unwritten := left(written)) is not None:
            self._failed(unwritten, pending())
        elif self.failure is not None:
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
                path=str(self._path),
                pending=pending,
            )


class Checkpoints:
    """Writes the WAL of a database back from time to time, beside its only writer."""

    def __init__(self, wal: Wal, writer: Writer, *, clock: Clock) -> None:
        self._wal = wal
        self._writer = writer
        self._every = LogThrottle(REPEAT_LOG_S, clock=clock.mono)

    async def run(self) -> None:
        """Write back for ever, as long as there is something new in the WAL."""
        wal, writer = self._wal, self._writer
        while True:
            await trio.sleep(CHECKPOINT_EVERY_S)
            # On a full disk no commit succeeds until the WAL starts over: so this continues
            # while the writer fails.
            if not writer.has_written and writer.failure is None:
                continue
            try:
                is_large = await in_thread(lambda: wal.is_large)
                wal.overflows += is_large
                writer.has_written = False
                await in_thread(wal.write_back)
                if is_large or writer.failure is not None:
                    await writer.once(wal.write_back_the_rest)
            except (OSError, sqlite3.Error) as error:
                # The writer meets the same fault and reports it.
                message = "the WAL was not written back"
                self._every(_log.warning, message, key=message, error=str(error))
                writer.has_written = True
