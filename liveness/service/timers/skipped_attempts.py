"""Searches the records that gateways skipped for attempts of their timers.

What is skipped, and why, is in `core.links.skipped_ranges`.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.links.skipped_ranges import SkippedRanges
from liveness.core.records import TIMER, Subscription, TimerRecord
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage.database import reading
from liveness.service.timers import timer_reader
from liveness.service.timers.state_writer import StateWriter

# Attempts that fire again at once. Each takes one command to the timers' table.
ATTEMPTS_AT_ONCE: Final = 1_000
RETRY_S: Final = 1.0

_log = structlog.get_logger("timers")


class SkippedAttempts:
    """Reads the skipped ranges of the log."""

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
        self._every = LogThrottle(REPEAT_LOG_S, clock=clock.mono)

    async def run(self, fire_again: Callable[[list[TimerRecord]], object]) -> None:
        """Search skipped ranges for ever; call *fire_again* with the attempts found."""
        while True:
            await self.wake.wait()
            while self._ranges.gateways():
                # Ranges are read from disk, and may not be durable yet.
                await self._log_writer.flushed_for(None)
                for gateway in self._ranges.gateways():
                    await self._read_on(gateway, fire_again)

    async def _read_on(
        self, gateway: str, fire_again: Callable[[list[TimerRecord]], object]
    ) -> None:
        after, until = self._ranges.next(gateway)
        # A range added since may not be durable yet.
        until = min(until, self._log_writer.durable_seq)
        try:
            if after is None:
                after = await self._before_first_run(gateway, until)
            read = partial(
                self._log_writer.store.read,
                after=after,
                until=until,
                wanted=Subscription(gateway, frozenset({TIMER})),
                limit=ATTEMPTS_AT_ONCE,
            )
            page = await in_thread(read, limiter=self._limiter)
        except (sqlite3.Error, OSError) as error:
            message = "the log cannot be read for timers; it is tried again"
            self._every(_log.warning, message, key=message, error=str(error))
            await trio.sleep(RETRY_S)
            return
        if runs := [run for run in page.records if isinstance(run, TimerRecord)]:
            fire_again(runs)
            # So at most these commands are queued for the timers' table.
            await self._log_writer.flushed_for(gateway)
        self._ranges.searched(gateway, page.reached)

    async def _before_first_run(self, gateway: str, until: int) -> int:
        """The seq above which a gateway may have attempts; *until* if it has none.

        A new name has none, and must not cause a search of the whole log, which may have
        gigabytes.
        """
        timers = self._log_writer.timers

        def first_in_table() -> int | None:
            with reading(timers.table.path) as db:
                return timer_reader.first_attempt(db, gateway)

        # In this order, as attempts move from memory to the table.
        firsts = [timers.first_run(gateway)]
        firsts.append(await in_thread(first_in_table, limiter=self._limiter))
        return min((seq - 1 for seq in firsts if seq is not None), default=until)
