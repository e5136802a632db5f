"""Reads timers that come due from their table, and has the server fire them.

Reading may wait for the disk, so it runs in a thread, one reading at a time. The core
notices a row that changed meanwhile (`core.timers.timer_scheduler`).
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NoReturn

import structlog
import trio

from liveness.core.server import Server
from liveness.core.timers.timer_scheduler import Due
from liveness.metrics.counts import Counts
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage.database import reading
from liveness.service.timers import timer_reader
from liveness.service.timers.timer_store import TimerStore

RETRY_S: Final = 1.0

_log = structlog.get_logger("timers")


class TimerLoop:
    """Fires timers whenever some are due.

    Args:
        server: Has the scheduler.
        table: The timers.
        counts: Counts how late timers fire.
        wanted: Notified when timers are due, or must be loaded.
        fire: Fires timers that were read; returns how late each one is, in seconds.
        loaded: Called when timers were loaded: one may be due soon.
    """

    def __init__(
        self,
        server: Server,
        table: TimerStore,
        counts: Counts,
        *,
        wanted: Notifier,
        fire: Callable[[Sequence[Due]], list[float]],
        loaded: Callable[[], None],
    ) -> None:
        self.failure: str | None = None  # why the table cannot be read
        self._server = server
        self._table = table
        self._counts = counts
        self._wanted = wanted
        self._fire = fire
        self._loaded = loaded

    async def run(self) -> NoReturn:
        """Read and fire timers forever; after a failure try again each `RETRY_S`."""
        log_throttled = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
        while True:
            try:
                with ExitStack() as stack:
                    db = stack.enter_context(reading(self._table.path))
                    while True:
                        await self._wanted.wait()
                        while await self._fire_due(db) | await self._load(db):
                            self.failure = None
            except sqlite3.Error as error:
                self._server.scheduler.reading_failed()
                self.failure = f"the timers' table cannot be read: {error}"
                message = "timers cannot be read; it is tried again"
                log_throttled(_log.warning, message, key=message, error=str(error))
                await trio.sleep(RETRY_S)
                self._wanted.notify()

    async def _fire_due(self, db: sqlite3.Connection) -> bool:
        """Fire some of the timers that are due; return whether there were any."""
        numbers = self._server.take_timers()
        if not numbers:
            return False
        rows, unreadable = await in_thread(partial(timer_reader.read_due, db, numbers))
        for timer in unreadable:
            _log.error(
                "a timer is damaged on disk: it does not fire, and stays there until it "
                "is ended (`liveness timers cancel --damaged`)",
                timer=timer.id,
                gateway=timer.gateway,
                key=timer.key,
            )
        for seconds in self._fire(rows):
            self._counts.timer_lateness.observe(seconds)
        return True

    async def _load(self, db: sqlite3.Connection) -> bool:
        """Load timers of the coming hour; return whether there were any left to load."""
        scheduler = self._server.scheduler
        window = scheduler.window()
        if window is None:
            return False
        rows = await in_thread(partial(timer_reader.read_coming, db, window))
        scheduler.fill(window, rows)
        self._loaded()
        return True
