"""One file's only writer: a transaction is tried again, whole, until it succeeds."""

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from liveness.errors import StateError
from liveness.service.common.clock import Clock
from liveness.service.common.logs import SAY_AGAIN_S
from liveness.service.common.threads import in_thread

T = TypeVar("T")

RETRY_S: Final = 1.0

_log = structlog.get_logger("journal")


class Writer:
    """Writes in a thread, one transaction at a time.

    Args:
        what: Is written, in words.
        path: The file.
        clock: When to say a failure again.
    """

    def __init__(self, what: str, path: Path, *, clock: Clock) -> None:
        self.failure: str | None = None  # why it cannot be written, in words
        self.failures = 0  # how often it could not
        self._what = what
        self._path = path
        self._clock = clock
        self._said_at = -math.inf
        # One writer: the connection has one user at a time.
        self._limiter = trio.CapacityLimiter(1)

    async def once(self, call: Callable[[], T]) -> T:
        """Make one try.

        Raises:
            sqlite3.Error: It failed.
        """
        return await in_thread(call, limiter=self._limiter)

    async def write(
        self,
        call: Callable[[], T],
        *,
        pending: Callable[[], int],
        left: Callable[[T], sqlite3.Error | None] = lambda _: None,
    ) -> T:
        """Try again every second until it succeeds; say so, with what is *pending*.

        Args:
            call: Writes one transaction.
            pending: How much waits.
            left: Told what was written, gives the error for which something still waits.
        """
        while True:
            try:
                written = await self.once(call)
                break
            except sqlite3.IntegrityError as error:
                # No disk mends this. Ending is safe: nobody was told, and the next start
                # goes on from what is on disk.
                self.failure = f"{self._what} cannot be written: {error}"
                raise StateError(
                    f"{self._path}: it has what this sidecar has not written ({error}), "
                    "so another process writes there too: stop that one (fuser -v names "
                    "it), then start this one again"
                ) from error
            except sqlite3.Error as error:
                self._failed(error, pending())
                await trio.sleep(RETRY_S)
        if (why := left(written)) is not None:
            self._failed(why, pending())
        elif self.failure is not None:
            _log.warning(f"{self._what} is written again", pending=pending())
            self.failure = None
            self._said_at = -math.inf
        return written

    def _failed(self, error: sqlite3.Error, pending: int) -> None:
        self.failures += 1
        self.failure = f"{self._what} cannot be written: {error}"
        now = self._clock.mono()
        if now - self._said_at >= SAY_AGAIN_S:
            self._said_at = now
            _log.error(
                f"{self._what} cannot be written; nothing is dropped, it is "
                "tried again every second: make room or mend the disk",
                error=str(error),
                path=str(self._path),
                pending=pending,
            )
