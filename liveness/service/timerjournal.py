"""Orders about timers on their way to disk: one writer, group commit, in order.

It is a journal of its own beside the log's, with a file of its own: a thousand timers
written at random places take longer than a thousand records at the end of a log.

Runs are not in a hurry. Each is in the log already, from which a crash has them given
anew. So a run waits a moment for its answer, and with most of them the timer's row is
read and written once and not twice. An order about the same timer takes it along. While
it waits it is no debt to the disk, and counts as none.
"""

import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple

import structlog
import trio

from liveness.core.timers import Drop, Fire, Order, Settlement, key_of
from liveness.service.clock import Clock
from liveness.service.database import cut
from liveness.service.logs import Every
from liveness.service.timertable import TimerTable
from liveness.service.wake import Wake
from liveness.service.writer import SAY_AGAIN_S, Writer

# So many orders go into one transaction: some twentieth of a second of writing, the most
# that a new order should wait for the ones before it.
COMMIT_ORDERS: Final = 4_000
# A run waits so long for its answer: what an operator may see of it lags no more.
RUN_WAIT_S: Final = 1.0
# No more wait, some 5 MB: as many as fire in that time where the gateways keep up.
MOST_RUNS: Final = 20_000
# However many orders there are, so many runs whose time is over go with them.
LATE_RUNS: Final = COMMIT_ORDERS // 4
# While nothing fires the table follows the log in steps of so many records: what a start
# after a crash has to look through at most, in some tenths of a second.
FOLLOW_RECORDS: Final = 100_000
# What was written is written back to its places after so long; a place that is written
# several times meanwhile once.
WRITE_BACK_S: Final = 5.0

_log = structlog.get_logger("timers")


class _Given(NamedTuple):
    mark: int  # nobody is told of what came up to here before these are on disk
    orders: Sequence[Order]


class _Run(NamedTuple):
    fire: Fire
    late_at: float  # when it waits no more


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
        self._clock = clock
        self._settled = settled
        self.pending = 0  # orders that are to be written now
        self._waiting: deque[_Given] = deque()  # and those being written, in front
        # By gateway and key, the oldest first. Of each at most one: it is not fired again
        # before an order has said what became of that run.
        self._runs: OrderedDict[tuple[str, str], _Run] = OrderedDict()
        self._told_until = 0  # of the log all runs up to here were given
        self._is_written_back = True
        self._every = Every(SAY_AGAIN_S, clock=clock.mono)
        self._wake = Wake()

    @property
    def oldest(self) -> int | None:
        """The lowest mark that waits for an order; None if none does."""
        return self._waiting[0].mark if self._waiting else None

    @property
    def runs(self) -> int:
        """How many runs wait for their answer."""
        return len(self._runs)

    def append(self, orders: list[Order], *, mark: int) -> None:
        """Queue orders; whoever waits for *mark*, never lower, waits for these too."""
        if any(isinstance(it, Drop) and it.ext is not None for it in orders):
            runs, self._runs = self._runs, OrderedDict()
            for piece in cut([run.fire for run in runs.values()], COMMIT_ORDERS):
                self._give(mark, piece)
        elif self._runs:
            orders = self._behind_their_runs(orders)
        self._give(mark, orders)

    def begun(self, runs: list[Fire], *, until: int) -> None:
        """Take what began by the log up to *until*, which is on disk."""
        self._told_until = until
        late_at = self._clock.mono() + RUN_WAIT_S
        for fire in runs:
            self._runs[fire.gateway, fire.key] = _Run(fire, late_at)
        if runs:
            self._wake.ring()

    def hurry(self, gateway: str, key: str, *, mark: int) -> None:
        """Have the run of a timer written now; whoever waits for *mark* waits for it."""
        run = self._runs.pop((gateway, key), None)
        self._give(mark, [] if run is None else [run.fire])

    async def run(self) -> None:
        """Write for ever. Failures are retried, never dropped."""
        while True:
            with trio.move_on_at(self._late_at):
                await self._wake.wait()
            while self._waiting or self._late_at <= self._clock.mono():
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
                say = "the WAL was not written back"
                self._every(_log.warning, say, key=say, error=str(error))
                self._is_written_back = False

    async def follow(self, seq: int) -> None:
        """Note how far the table has followed the log, if it is worth a commit."""
        if not (self.pending or self._runs) and seq - self.table.seq >= FOLLOW_RECORDS:
            await self.writer.once(partial(self.table.follow, seq))

    @property
    def _late_at(self) -> float:
        """When the oldest run waits no more."""
        if len(self._runs) > MOST_RUNS:
            return -inf
        return next(iter(self._runs.values())).late_at if self._runs else inf

    def _give(self, mark: int, orders: Sequence[Order]) -> None:
        """Queue orders, which stay together."""
        if orders:
            self._waiting.append(_Given(mark, orders))
            self.pending += len(orders)
            self._wake.ring()

    def _behind_their_runs(self, orders: list[Order]) -> list[Order]:
        """The same orders, each behind the run of its timer."""
        both: list[Order] = []
        for order in orders:
            key = key_of(order)
            run = None if key is None else self._runs.pop(key, None)
            if run is not None:
                both.append(run.fire)
            both.append(order)
        return both

    def _late_runs(self, most: int) -> list[Order]:
        """Take runs that are to wait no more, the oldest first; nothing is behind them."""
        late = list[Order]()
        while len(late) < most and self._late_at <= self._clock.mono():
            late.append(self._runs.popitem(last=False)[1].fire)
        return late

    async def _commit(self) -> None:
        orders, taken, mark = list[Order](), 0, 0
        for given in self._waiting:
            if taken and len(orders) + len(given.orders) > COMMIT_ORDERS:
                break
            mark = mark or given.mark
            orders += given.orders
            taken += 1
        late = self._late_runs(max(COMMIT_ORDERS - len(orders), LATE_RUNS))
        orders += late
        self.pending += len(late)
        seq = 0
        if taken == len(self._waiting):
            waits = next(iter(self._runs.values()), None)
            seq = self._told_until if waits is None else waits.fire.seq - 1
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
