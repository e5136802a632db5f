"""Reads timers that come due, or have to fire again, and has the server fire them.

Reading may wait for the disk, so it runs in a thread, one reading at a time. The core
notices a row that changed during the read (`core.timers.timer_scheduler`).
"""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final, NoReturn

import structlog
import trio

from liveness.core.links.handshake import SkippedRanges
from liveness.core.records import Instant
from liveness.core.server import Shell
from liveness.core.timer_states import TimerCommand
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.core.timers.timer_scheduler import TimerScheduler
from liveness.metrics.counts import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage.database import reading
from liveness.service.storage.log_tail import LogTail
from liveness.service.timers import timer_reader
from liveness.service.timers.state_writer import StateWriter

RETRY_S: Final = 1.0
# Skipped attempts that fire again at once. Each takes one command to the timers' table.
ATTEMPTS_AT_ONCE: Final = 10_000

# Called with a gateway, and the keys and seqs of some of its attempts.
FireAgain = Callable[[str, list[tuple[str, int]]], object]

_log = structlog.get_logger("timers")


class TimerLoop:
    """Fires timers whenever some are due.

    *wanted* is notified when timers are due, or must be loaded. *changed* is called when
    timers were loaded or changed: one may be due soon.
    """

    def __init__(
        self,
        shell: Shell,
        scheduler: TimerScheduler,
        log_writer: StateWriter,
        feed: LogTail,
        counts: Counts,
        *,
        instant: Callable[[], Instant],
        wanted: Notifier,
        changed: Callable[[], None],
    ) -> None:
        self.failure: str | None = None  # why the table cannot be read
        self._shell = shell
        self._scheduler = scheduler
        self._log_writer = log_writer
        self._feed = feed
        self._counts = counts
        self._instant = instant
        self._wanted = wanted
        self._changed = changed

    async def run(self) -> NoReturn:
        """Read and fire timers forever; after a failure try again each `RETRY_S`."""
        log_throttled = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
        while True:
            try:
                with ExitStack() as stack:
                    db = stack.enter_context(
                        reading(self._log_writer.timers.table.path)
                    )
                    while True:
                        await self._wanted.wait()
                        while await self._fire_due(db) | await self._load(db):
                            self.failure = None
            except sqlite3.Error as error:
                self._scheduler.reading_failed()
                self.failure = f"the timers' table cannot be read: {error}"
                message = "timers cannot be read; it is tried again"
                log_throttled(_log.warning, message, key=message, error=str(error))
                await trio.sleep(RETRY_S)
                self._wanted.notify()

    def applied(
        self, commands: list[TimerCommand], transaction: TimerTransaction
    ) -> None:
        """Note that the table has these commands, and wake what waits for them."""
        self._scheduler.applied(commands, transaction)
        self._changed()
        self._feed.notify_waiting()
        self._log_writer.notify_flushed()

    async def _fire_due(self, db: sqlite3.Connection) -> bool:
        """Fire some of the timers that are due; return whether there were any."""
        with self._shell as server:
            numbers = server.take_timers()
        if not numbers:
            return False
        rows, damaged = await in_thread(partial(timer_reader.read_due, db, numbers))
        for number in damaged:
            _log.error(
                "a timer is damaged on disk and does not fire; restore a backup, or have "
                "its gateway ask for it again",
                id=number,
            )
        with self._shell as server:
            lateness = server.fire_timers(rows, self._instant())
        for seconds in lateness:
            self._counts.timer_lateness.observe(seconds)
        return True

    async def _load(self, db: sqlite3.Connection) -> bool:
        """Load timers of the coming hour; return whether there were any left to load."""
        scheduler = self._scheduler
        window = scheduler.window()
        if window is None:
            return False
        rows = await in_thread(partial(timer_reader.read_coming, db, window))
        scheduler.fill(window, rows)
        self._changed()
        return True


class SkippedAttempts:
    """Searches the timers' table for attempts whose records their gateways skipped.

    What is skipped, and why, is in `core.links.handshake`.
    """

    def __init__(
        self,
        ranges: SkippedRanges,
        log_writer: StateWriter,
        limiter: trio.CapacityLimiter,
        *,
        clock: Clock,
    ) -> None:
        self.wake = Notifier()  # notified when there is a range to search
        self._ranges = ranges
        self._log_writer = log_writer
        self._limiter = limiter
        self._clock = clock
        self._every = LogThrottle(REPEAT_LOG_S, clock=clock.mono)

    async def run(self, fire_again: FireAgain) -> None:
        """Search skipped ranges for ever; call *fire_again* with the attempts found."""
        while True:
            await self.wake.wait()
            while self._ranges:
                for gateway in [*self._ranges]:
                    await self._search(gateway, fire_again)

    async def _search(self, gateway: str, fire_again: FireAgain) -> None:
        after, until = self._ranges[gateway]
        # The attempts, and what was found of them before, may not be in the table yet.
        await self._log_writer.flushed_for(gateway)
        table = self._log_writer.timers.table
        due_until = self._clock.state_ms() + table.retry_policy.away_ms

        def read() -> list[tuple[str, int]]:
            with reading(table.path) as db:
                return timer_reader.attempts(
                    db,
                    gateway,
                    after=after or 0,
                    until=until,
                    due_until=due_until,
                    limit=ATTEMPTS_AT_ONCE,
                )

        try:
            found = await in_thread(read, limiter=self._limiter)
        except (sqlite3.Error, OSError) as error:
            message = "skipped attempts of timers cannot be read; it is tried again"
            self._every(_log.warning, message, key=message, error=str(error))
            await trio.sleep(RETRY_S)
            return
        if found:
            fire_again(gateway, found)
        is_all = len(found) < ATTEMPTS_AT_ONCE
        self._ranges.searched(gateway, until if is_all else found[-1][1])
