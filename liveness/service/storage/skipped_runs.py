"""Has timers fire again whose runs their gateway passed over.

A gateway that says `fresh`, or whose name is not known any more, begins to read at the end
of the log. What it was not told of sessions does not concern it; but timers outlive the
process that asked for them. So the records that it passed over are read for runs, which
take no attempt. If the sidecar ends meanwhile they are over without an answer.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.records import TIMER, Subscription, TimerRecord
from liveness.service.common.clock import Clock
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage import timer_reader
from liveness.service.storage.database import reading
from liveness.service.storage.log_writer import LogWriter

# Runs told of at once, each of which is an order to the timers' table.
RUNS_AT_ONCE: Final = 1_000
# Parts of the log that one gateway passed over and that are not read yet; of more the last
# two are one, and so what it was told in between counts as passed over.
MOST_PARTS: Final = 100
RETRY_S: Final = 1.0

_log = structlog.get_logger("timers")


class SkippedRuns:
    """The parts of the log that gateways passed over, and that are not read yet.

    Args:
        log_writer: The log.
        limiter: Of those who read it from disk.
        clock: For what is said of failures.
    """

    def __init__(
        self, log_writer: LogWriter, limiter: trio.CapacityLimiter, *, clock: Clock
    ) -> None:
        self._log_writer = log_writer
        self._limiter = limiter
        self._every = Every(SAY_AGAIN_S, clock=clock.mono)
        # By name: above which seq, and up to which; the first is being read.
        self._waiting: dict[str, list[tuple[int | None, int]]] = {}
        self._wake = Notifier()

    def add(self, gateway: str, *, after: int | None, until: int) -> None:
        """Note that a gateway passes over the records above *after*, up to *until*.

        None: nobody knows what it was told.
        """
        if (after or 0) >= until:
            return
        parts = self._waiting.setdefault(gateway, [])
        if len(parts) == MOST_PARTS:
            after, _ = parts.pop()
        parts.append((after, until))
        self._wake.notify()

    def delivered(self, gateway: str, position: int) -> int:
        """Up to which seq a gateway was told its records, that is at a position."""
        parts = self._waiting.get(gateway)
        return min(position, parts[0][0] or 0) if parts else position

    async def run(self, undelivered: Callable[[list[TimerRecord]], object]) -> None:
        """Read for ever what was passed over; *undelivered* is told of the runs in it."""
        while True:
            await self._wake.wait()
            while self._waiting:
                # All that was decided before is on disk then, so that it can be read.
                await self._log_writer.flushed_for(None)
                for gateway in [*self._waiting]:
                    await self._read_on(gateway, undelivered)

    async def _read_on(
        self, gateway: str, undelivered: Callable[[list[TimerRecord]], object]
    ) -> None:
        parts = self._waiting[gateway]
        after, until = parts[0]
        # Not what was decided meanwhile, and is not on disk yet.
        until = min(until, self._log_writer.durable_seq)
        try:
            if after is None:
                after = await self._beginning(gateway, until)
            read = partial(
                self._log_writer.store.read,
                after=after,
                until=until,
                wanted=Subscription(gateway, frozenset({TIMER})),
                limit=RUNS_AT_ONCE,
            )
            page = await in_thread(read, limiter=self._limiter)
        except (sqlite3.Error, OSError) as error:
            say = "the log cannot be read for timers; it is tried again"
            self._every(_log.warning, say, key=say, error=str(error))
            await trio.sleep(RETRY_S)
            return
        if runs := [it for it in page.records if isinstance(it, TimerRecord)]:
            undelivered(runs)
            # No more is asked of the timers' table at once.
            await self._log_writer.flushed_for(gateway)
        _, until = parts[0]  # the last of many parts may have become longer
        if page.reached < until:
            parts[0] = page.reached, until
        elif parts[1:]:
            del parts[0]
        else:
            del self._waiting[gateway]

    async def _beginning(self, gateway: str, until: int) -> int:
        """The seq above which the runs of a gateway are, up to *until*.

        Of a name that is new there are none, and the log may have gigabytes.
        """
        timers = self._log_writer.timers

        def first_of_table() -> int | None:
            with reading(timers.table.path) as db:
                return timer_reader.first_run(db, gateway)

        # Before the look at the table, as they go there.
        firsts = [timers.first_run(gateway)]
        firsts.append(await in_thread(first_of_table, limiter=self._limiter))
        return min((it - 1 for it in firsts if it is not None), default=until)
