"""Orders about timers on their way to disk: one writer, group commit, in order.

It is a journal of its own beside the log's, with a file of its own: a thousand timers
written at random places take longer than a thousand records at the end of a log.
"""

import sqlite3
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from liveness.core.timers import Order, Settlement
from liveness.service.clock import Clock
from liveness.service.timertable import TimerTable
from liveness.service.wake import Wake
from liveness.service.writer import Writer

# So many orders go into one transaction: some twentieth of a second of writing, the most
# that a new order should wait for the ones before it.
COMMIT_ORDERS: Final = 4_000
# While nothing fires the table follows the log in steps of so many records: what a start
# after a crash has to look through at most, in some tenths of a second.
FOLLOW_RECORDS: Final = 100_000
# What was written is written back to its places after so long; a place that is written
# several times meanwhile once.
WRITE_BACK_S: Final = 5.0

_log = structlog.get_logger("timers")


class _Given(NamedTuple):
    mark: int  # nobody is told of what came up to here before these are on disk
    orders: list[Order]


class TimerJournal:
    """Writes orders; tells what has become of them.

    Args:
        table: The open table.
        clock: For what is said of failures.
        settled: Called with orders that are over, and what became of them.
    """

    def __init__(
        self,
        table: TimerTable,
        *,
        clock: Clock,
        settled: Callable[[list[Order], Settlement], None],
    ) -> None:
        self.table = table
        self.writer = Writer("the timers' table", table.path, clock=clock)
        self._settled = settled
        self.pending = 0  # orders that are not on disk
        self.told_until = 0  # of the log all runs up to here were given
        self._waiting: deque[_Given] = deque()  # and those being written, in front
        self._is_written_back = True
        self._wake = Wake()

    @property
    def oldest(self) -> int | None:
        """The lowest mark that waits for an order; None if none does."""
        return self._waiting[0].mark if self._waiting else None

    def append(self, orders: list[Order], *, mark: int) -> None:
        """Queue orders; whoever waits for *mark*, never lower, waits for these too."""
        if orders:
            self._waiting.append(_Given(mark, orders))
            self.pending += len(orders)
            self._wake.ring()

    async def run(self) -> None:
        """Write for ever. Failures are retried, never dropped."""
        while True:
            await self._wake.wait()
            while self._waiting:
                await self._commit()

    async def write_back(self) -> None:
        """Write back to the file what the WAL has, every now and then, for ever."""
        while True:
            await trio.sleep(WRITE_BACK_S)
            if self._is_written_back:
                continue
            self._is_written_back = True
            try:
                if await trio.to_thread.run_sync(self.table.write_back):
                    await self.writer.once(self.table.write_back_the_rest)
            except sqlite3.Error as error:
                # The writer meets the same fault and reports it; this is put off.
                _log.warning("the WAL was not written back", error=str(error))
                self._is_written_back = False

    async def follow(self, seq: int) -> None:
        """Note how far the table has followed the log, if it is worth a commit."""
        if not self._waiting and seq - self.table.seq >= FOLLOW_RECORDS:
            await self.writer.once(partial(self.table.follow, seq))

    async def _commit(self) -> None:
        orders, taken, mark = list[Order](), 0, 0
        for given in self._waiting:
            if taken and len(orders) + len(given.orders) > COMMIT_ORDERS:
                break
            mark = mark or given.mark
            orders += given.orders
            taken += 1
        is_all = taken == len(self._waiting)
        seq = self.told_until if is_all else 0
        settlement, unfinished = await self.writer.write(
            partial(self.table.write, orders, seq=seq), pending=lambda: self.pending
        )
        self._is_written_back = False
        for _ in range(taken):
            self._waiting.popleft()
        if unfinished:
            # First again, so that no mark is reached before they are over.
            self._waiting.appendleft(_Given(mark, [*unfinished]))
            again = set(map(id, unfinished))
            orders = [order for order in orders if id(order) not in again]
        self.pending -= len(orders)
        self._settled(orders, settlement)
