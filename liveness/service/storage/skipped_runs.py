"""Fires timers again if their gateway skipped the records of their attempts.

A gateway that says `fresh`, or whose name was forgotten, begins to read at the end of the
log. It does not need the older records of sessions; but timers outlive the process that
scheduled them. So the records that it skipped are searched for attempts of its timers,
and these timers fire again, which does not count as another attempt. If the sidecar ends
before that, such an attempt times out, like one without an answer.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.records import TIMER, Subscription, TimerRecord
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage import timer_reader
from liveness.service.storage.database import reading
from liveness.service.storage.log_writer import LogWriter

# Attempts that fire again at once. Each takes one command to the timers' table.
RUNS_AT_ONCE: Final = 1_000
# The most ranges of one gateway. A further one is joined with the last: records between
# them then count as skipped, though the gateway got them.
MOST_RANGES: Final = 100
RETRY_S: Final = 1.0

_log = structlog.get_logger("timers")


class SkippedRuns:
    """The ranges of the log that gateways skipped, until they are searched.

    Args:
        log_writer: The log.
        limiter: Bounds the threads that read the log from disk.
        clock: Limits how often a lasting failure is logged.
    """

    def __init__(
        self, log_writer: LogWriter, limiter: trio.CapacityLimiter, *, clock: Clock
    ) -> None:
        self._log_writer = log_writer
        self._limiter = limiter
        self._every = LogThrottle(REPEAT_LOG_S, clock=clock.mono)
        # By gateway, ranges: above the first seq, up to the second. A gateway's first
        # range is being read.
        self._ranges: dict[str, list[tuple[int | None, int]]] = {}
        self._wake = Notifier()

    def add(self, gateway: str, *, after: int | None, until: int) -> None:
        """Note that a gateway skips the records above *after*, up to *until*.

        *after* is None if it is unknown which record it got last.
        """
        if (after or 0) >= until:
            return
        ranges = self._ranges.setdefault(gateway, [])
        if len(ranges) == MOST_RANGES:
            after, _ = ranges.pop()
        ranges.append((after, until))
        self._wake.notify()

    def delivered(self, gateway: str, position: int) -> int:
        """The seq up to which a gateway with its cursor at *position* skipped nothing."""
        ranges = self._ranges.get(gateway)
        return min(position, ranges[0][0] or 0) if ranges else position

    async def run(self, fire_again: Callable[[list[TimerRecord]], object]) -> None:
        """Search skipped ranges for ever; call *fire_again* with the attempts found."""
        while True:
            await self._wake.wait()
            while self._ranges:
                # Ranges are read from disk, and may not be there yet.
                await self._log_writer.flushed_for(None)
                for gateway in [*self._ranges]:
                    await self._read_on(gateway, fire_again)

    async def _read_on(
        self, gateway: str, fire_again: Callable[[list[TimerRecord]], object]
    ) -> None:
        ranges = self._ranges[gateway]
        after, until = ranges[0]
        # A range added since may not be on disk yet.
        until = min(until, self._log_writer.durable_seq)
        try:
            if after is None:
                after = await self._before_first_run(gateway, until)
            read = partial(
                self._log_writer.store.read,
                after=after,
                until=until,
                wanted=Subscription(gateway, frozenset({TIMER})),
                limit=RUNS_AT_ONCE,
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
        _, until = ranges[0]  # `add` may have extended it
        if page.reached < until:
            ranges[0] = page.reached, until
        elif ranges[1:]:
            del ranges[0]
        else:
            del self._ranges[gateway]

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
