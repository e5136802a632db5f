"""Reads timers that come due from their table, and has the core fire them.

Reading may wait for the disk, so it runs in a thread, one reading at a time. The core
notices a row that changed meanwhile (`core.timer_scheduler`).
"""

import sqlite3
from contextlib import ExitStack
from functools import partial
from typing import Final, NoReturn

import structlog
import trio

from liveness.core.records import GATEWAY, TimerRecord
from liveness.metrics import Counts
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.threads import in_thread
from liveness.service.engine.engine import Engine
from liveness.service.storage import timer_reader
from liveness.service.storage.database import reading
from liveness.service.storage.log_writer import LogWriter
from liveness.service.storage.skipped_runs import SkippedRuns
from liveness.service.storage.timer_store import TimerStore

# Timers read and fired at a time: some milliseconds of reading, and a page of the log.
BATCH_TIMERS: Final = 1_000
RETRY_S: Final = 1.0

_log = structlog.get_logger("timers")


class TimerLoop:
    """Fires timers whenever the engine finds that some are due."""

    def __init__(
        self,
        engine: Engine,
        table: TimerStore,
        *,
        log_writer: LogWriter,
        skipped_runs: SkippedRuns,
        counts: Counts,
    ) -> None:
        self.failure: str | None = None  # why the table cannot be read
        self._engine = engine
        self._scheduler = engine.scheduler
        self._table = table
        self._log_writer = log_writer
        self._skipped_runs = skipped_runs
        self._counts = counts

    async def run(self) -> NoReturn:
        """Read and fire timers forever; after a failure try again each `RETRY_S`."""
        log_throttled = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
        while True:
            try:
                with ExitStack() as stack:
                    db = stack.enter_context(reading(self._table.path))
                    while True:
                        await self._engine.timers_wanted.wait()
                        while await self._fire_due(db) | await self._load(db):
                            self.failure = None
            except sqlite3.Error as error:
                self._scheduler.reading_failed()
                self.failure = f"the timers' table cannot be read: {error}"
                message = "timers cannot be read; it is tried again"
                log_throttled(_log.warning, message, key=message, error=str(error))
                await trio.sleep(RETRY_S)
                self._engine.timers_wanted.notify()

    async def _fire_due(self, db: sqlite3.Connection) -> bool:
        """Fire some of the timers that are due; return whether there were any."""
        numbers = self._take()
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
        lateness = self._scheduler.fire(
            rows, self._engine.instant(), self._delivered_seq, self._hurry
        )
        for seconds in lateness:
            self._counts.timer_lateness.observe(seconds)
        self._engine.commit()
        return True

    def _take(self) -> list[int]:
        """Take due timers, by their numbers, as far as the disk keeps up."""
        if self._engine.is_firing_throttled:
            return []
        # Twice the number at which a gateway is held back: otherwise a gateway that keeps
        # sending commands would keep its own timers from firing.
        most = 2 * self._engine.commands_per_gateway
        pending_by_gateway = self._log_writer.timers.pending_by_gateway
        return self._scheduler.take(
            BATCH_TIMERS, lambda gateway: pending_by_gateway.get(gateway, 0) <= most
        )

    async def _load(self, db: sqlite3.Connection) -> bool:
        """Load timers of the coming hour; return whether there were any left to load."""
        window = self._scheduler.window()
        if window is None:
            return False
        rows = await in_thread(partial(timer_reader.read_coming, db, window))
        self._scheduler.fill(window, rows)
        self._engine.timers_changed()
        return True

    # --- attempts -------------------------------------------------------------

    def fire_again(self, records: list[TimerRecord]) -> None:
        """Have timers fire again whose records their gateways will never receive."""
        at = self._engine.instant()
        for record in records:
            self._scheduler.fire_again(record.gateway, record.key, record.seq, at)
        self._engine.commit()

    def _delivered_seq(self, gateway: str) -> int:
        """The seq up to which a gateway was sent its records."""
        link = self._engine.registry.named.get((GATEWAY, gateway))
        cursor = self._log_writer.cursors.get((GATEWAY, gateway))
        if link is not None and link.outbox.position is not None:
            position = link.outbox.position
        elif cursor is not None:
            position = cursor.seq
        else:
            return 0  # a name that was forgotten; it may come back
        position = self._skipped_runs.delivered(gateway, position)
        # Records that were trimmed will never be sent.
        return max(position, self._log_writer.first - 1)

    def _hurry(self, gateway: str, key: str) -> None:
        """Write an attempt to the table now, as a later timer of its key waits for that."""
        self._log_writer.timers.write_fire_now(
            gateway, key, ticket=self._log_writer.ticket
        )
