"""Has timers fire again whose runs their gateway passed over, as it came back fresh.

A gateway that says `fresh` begins to read at the end of the log. What it was not told of
sessions does not concern it any more; but timers outlive the process that asked for them.
So the records that it passed over are read for runs, which take no attempt. A crash of the
sidecar meanwhile forgets about it: these runs are then over without an answer.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.records import TIMER, TimerRecord, Wanted
from liveness.service.clock import Clock
from liveness.service.journal import Journal
from liveness.service.logs import Every
from liveness.service.wake import Wake
from liveness.service.writer import SAY_AGAIN_S

# Runs told of at once, each of which is an order to the timers' table.
RUNS_AT_ONCE: Final = 1_000
RETRY_S: Final = 1.0

_log = structlog.get_logger("timers")


class PassedOver:
    """The parts of the log that gateways passed over, and that are not read yet.

    Args:
        journal: The log.
        limiter: Of those who read it from disk.
        clock: For what is said of failures.
    """

    def __init__(
        self, journal: Journal, limiter: trio.CapacityLimiter, *, clock: Clock
    ) -> None:
        self._journal = journal
        self._limiter = limiter
        self._every = Every(SAY_AGAIN_S, clock=clock.mono)
        self._waiting: dict[str, tuple[int, int]] = {}  # by name: above, and up to
        self._wake = Wake()

    def add(self, gateway: str, *, after: int, until: int) -> None:
        """Note that a gateway passes over the records above *after*, up to *until*."""
        after = self._waiting.get(gateway, (after, until))[0]
        if after < until:
            self._waiting[gateway] = after, until
            self._wake.ring()

    def delivered(self, gateway: str, position: int) -> int:
        """Up to which seq a gateway was told its records, that is at a position."""
        return min(position, self._waiting.get(gateway, (position, position))[0])

    async def run(self, undelivered: Callable[[list[TimerRecord]], object]) -> None:
        """Read for ever what was passed over; *undelivered* is told of the runs in it."""
        while True:
            await self._wake.wait()
            while self._waiting:
                # All that was decided before is on disk then, so that it can be read.
                await self._journal.settled_of(None)
                for gateway in [*self._waiting]:
                    await self._read_on(gateway, undelivered)

    async def _read_on(
        self, gateway: str, undelivered: Callable[[list[TimerRecord]], object]
    ) -> None:
        after, until = self._waiting[gateway]
        read = partial(
            self._journal.store.read,
            after=after,
            until=until,
            wanted=Wanted(gateway, frozenset({TIMER})),
            limit=RUNS_AT_ONCE,
        )
        try:
            page = await trio.to_thread.run_sync(read, limiter=self._limiter)
        except (sqlite3.Error, OSError) as error:
            say = "the log cannot be read for timers; it is tried again"
            self._every(_log.warning, say, key=say, error=str(error))
            await trio.sleep(RETRY_S)
            return
        if runs := [it for it in page.records if isinstance(it, TimerRecord)]:
            undelivered(runs)
            # No more is asked of the timers' table at once.
            await self._journal.settled_of(gateway)
        _, until = self._waiting[gateway]  # it may have come back once more
        if page.reached < until:
            self._waiting[gateway] = page.reached, until
        else:
            del self._waiting[gateway]
