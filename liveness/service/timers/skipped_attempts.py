"""Has timers fire again whose attempts are among records that their gateways skipped.

What is skipped, and why, is in `core.links.skipped_ranges`.
"""

import sqlite3
from collections.abc import Callable
from typing import Final

import structlog
import trio

from liveness.core.links.skipped_ranges import SkippedRanges
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage.database import reading
from liveness.service.timers import timer_reader
from liveness.service.timers.state_writer import StateWriter

# Attempts that fire again at once. Each takes one command to the timers' table.
ATTEMPTS_AT_ONCE: Final = 10_000
RETRY_S: Final = 1.0

# Called with a gateway, and the keys and seqs of some of its attempts.
FireAgain = Callable[[str, list[tuple[str, int]]], object]

_log = structlog.get_logger("timers")


class SkippedAttempts:
    """Searches the timers' table for attempts in the skipped ranges of the log."""

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
            while gateways := self._ranges.gateways():
                for gateway in gateways:
                    await self._search(gateway, fire_again)

    async def _search(self, gateway: str, fire_again: FireAgain) -> None:
        after, until = self._ranges.next(gateway)
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
