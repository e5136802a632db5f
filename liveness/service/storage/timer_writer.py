"""Orders about timers on their way to disk: one writer, group commit, in order.

It is a journal of its own beside the log's, with a file of its own: a thousand timers
written at random places take longer than a thousand records at the end of a log.

Each gateway has a queue of its own, and all of them an equal share of a transaction: the
many orders of one delay those of another by a transaction, not by a queue.

For new timers there may be no room on the disk. They wait apart then, with what was asked
of their keys after them, and everything else is written meanwhile: so timers end.

Runs are not in a hurry. Each is in the log already, from which a crash has them given
anew. So a run waits a moment for its answer, and with most of them the timer's row is
read and written once and not twice. An order about the same timer takes it along. While
it waits it is no debt to the disk, and counts as none.
"""

import sqlite3
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Final, NamedTuple

import structlog
import trio

from liveness.core.fair_share import fair_share
from liveness.core.timer_states import (
    Fire,
    TimerCommand,
    TimerTransaction,
    gateway_of,
    key_of,
    weight_of,
    without_new,
)
from liveness.service.common.clock import Clock
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage.timer_store import TimerStore, Written
from liveness.service.storage.writer import RETRY_S, Writer

# So many orders go into one transaction, or as many as carry 4 MB: some twentieth of a
# second of writing, the most that a new order should wait for the ones before it.
COMMIT_ORDERS: Final = 4_000
# A run waits so long for its answer: what an operator may see of it lags no more.
RUN_WAIT_S: Final = 1.0
# No more wait, some 5 MB: as many as fire in that time where the gateways keep up.
MOST_RUNS: Final = 20_000
# However many orders there are, so many runs whose time is over go with them.
LATE_RUNS: Final = COMMIT_ORDERS // 4
# Of what finds no room so many of each gateway are tried at a time, so that what little
# room there may be is used.
LATER_AT_ONCE: Final = 100
# While nothing fires the table follows the log in steps of so many records: what a start
# after a crash has to look through at most, in some tenths of a second.
FOLLOW_RECORDS: Final = 100_000
# What was written is written back to its places after so long; a place that is written
# several times meanwhile once.
WRITE_BACK_S: Final = 5.0
LOOK_AT_WAL_S: Final = 1.0  # and at once where the WAL takes too much of the disk

_log = structlog.get_logger("timers")


class _Given(NamedTuple):
    ticket: int  # nobody is told of what came up to here before these are on disk
    orders: Sequence[TimerCommand]


class _Run(NamedTuple):
    fire: Fire
    late_at: float  # when it waits no more


class TimerWriter:
    """Writes orders; tells what has become of them.

    Args:
        table: The open table.
        clock: For what is said of failures.
        settled: Called with orders that are over, and what became of them.
    """

    def __init__(
        self,
        table: TimerStore,
        *,
        clock: Clock,
        settled: Callable[[list[TimerCommand], TimerTransaction], None],
    ) -> None:
        self.table = table
        self.writer = Writer("the timers' table", table.path, clock=clock)
        self._clock = clock
        self._settled = settled
        self.pending = 0  # orders that are to be written now, or are being written
        self.pending_of: dict[str, int] = {}  # of which gateway, where there are any
        self._waiting: dict[str, deque[_Given]] = {}  # by gateway, if there are any
        self._first = ""  # the gateway that came first in the last transaction
        # By gateway what finds no room on the disk, each with its ticket; of which keys, and
        # when it is tried again.
        self._later: dict[str, deque[tuple[int, TimerCommand]]] = {}
        self._later_keys = Counter[tuple[str, str]]()
        self._later_at = inf
        self._no_room: sqlite3.Error | None = None
        self._writing: dict[str, int] = {}  # the lowest ticket of what is being written
        # By gateway and key, the oldest first. Of each at most one: it is not fired again
        # before an order has said what became of that run.
        self._runs: OrderedDict[tuple[str, str], _Run] = OrderedDict()
        self._keys: dict[str, dict[str, None]] = {}  # of these, by gateway
        self._told_until = 0  # of the log all runs up to here were given
        self._is_written_back = True
        self._every = Every(SAY_AGAIN_S, clock=clock.mono)
        self._wake = Notifier()

    @property
    def oldest(self) -> int | None:
        """The lowest ticket that waits for an order, but for what finds no room."""
        tickets = [*self._writing.values()]
        tickets += [waiting[0].ticket for waiting in self._waiting.values()]
        return min(tickets, default=None)

    def oldest_of(self, gateway: str) -> int | None:
        """The lowest ticket that waits for an order of this gateway."""
        tickets = [it for it in [self._writing.get(gateway)] if it is not None]
        if gateway in self._waiting:
            tickets.append(self._waiting[gateway][0].ticket)
        if gateway in self._later:
            tickets.append(self._later[gateway][0][0])
        return min(tickets, default=None)

    def writes(self, gateway: str | None, ticket: int) -> bool:
        """Whether orders of a gateway up to *ticket* are still to be written, with room."""
        if gateway is None:
            return False
        waiting = self._waiting.get(gateway)
        writing = self._writing.get(gateway, inf)
        return min(writing, waiting[0].ticket if waiting else inf) <= ticket

    def first_run(self, gateway: str) -> int | None:
        """The seq of the oldest run of a gateway that waits for its answer."""
        keys = self._keys.get(gateway, ())
        return min((self._runs[gateway, key].fire.seq for key in keys), default=None)

    @property
    def runs(self) -> int:
        """How many runs wait for their answer."""
        return len(self._runs)

    def append(self, orders: list[TimerCommand], *, ticket: int) -> None:
        """Queue orders; whoever waits for *ticket*, never lower, waits for these too."""
        lots: dict[str, list[TimerCommand]] = {}
        for order in orders:
            lots.setdefault(gateway_of(order), []).append(order)
        for gateway, lot in lots.items():
            if gateway in self._keys:
                lot = self._behind_their_runs(gateway, lot)
            self._give(gateway, ticket, lot)

    def begun(self, runs: list[Fire], *, until: int) -> None:
        """Take what began by the log up to *until*, which is on disk."""
        self._told_until = until
        late_at = self._clock.mono() + RUN_WAIT_S
        for fire in runs:
            self._runs[fire.gateway, fire.key] = _Run(fire, late_at)
            self._keys.setdefault(fire.gateway, {})[fire.key] = None
        if runs:
            self._wake.notify()

    def hurry(self, gateway: str, key: str, *, ticket: int) -> None:
        """Have the run of a timer written now; whoever waits for *ticket* waits for it."""
        self._give(gateway, ticket, self._taken(gateway, key))

    async def run(self) -> None:
        """Write for ever. Failures are retried, never dropped."""
        while True:
            with trio.move_on_at(min(self._late_at, self._later_at)):
                await self._wake.wait()
            while (
                self._waiting
                or min(self._late_at, self._later_at) <= self._clock.mono()
            ):
                await self._commit()

    async def write_back(self) -> None:
        """Write back to the file what the WAL has, every now and then, for ever."""
        put_off_s = 0.0
        while True:
            await trio.sleep(LOOK_AT_WAL_S)
            put_off_s += LOOK_AT_WAL_S
            # A full disk takes no commit until the WAL begins anew, where it has its room.
            if self._is_written_back and self.writer.failure is None:
                put_off_s = 0.0
                continue
            try:
                is_large = await in_thread(lambda: self.table.has_large_wal)
                if not is_large and put_off_s < WRITE_BACK_S:
                    continue
                put_off_s, self._is_written_back = 0.0, True
                await in_thread(self.table.write_back)
                if is_large or self.writer.failure is not None:
                    await self.writer.once(self.table.write_back_the_rest)
            except (OSError, sqlite3.Error) as error:
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

    def _give(self, gateway: str, ticket: int, orders: Sequence[TimerCommand]) -> None:
        """Queue orders of one gateway."""
        if orders:
            self._waiting.setdefault(gateway, deque()).append(_Given(ticket, orders))
            self._count(gateway, sum(map(weight_of, orders)))
            self._wake.notify()

    def _count(self, gateway: str, orders: int) -> None:
        """Count so many more orders of a gateway, or fewer, each by its weight."""
        self.pending += orders
        left = self.pending_of.get(gateway, 0) + orders
        if left:
            self.pending_of[gateway] = left
        else:
            self.pending_of.pop(gateway, None)

    def _behind_their_runs(
        self, gateway: str, orders: list[TimerCommand]
    ) -> list[TimerCommand]:
        """The same orders, each behind the run of its timer."""
        both: list[TimerCommand] = []
        for order in orders:
            key = key_of(order)
            # A cancel by ext may be about any of them.
            for name in [*self._keys.get(gateway, ())] if key is None else key[1:]:
                both += self._taken(gateway, name)
            both.append(order)
        return both

    def _taken(self, gateway: str, key: str) -> list[Fire]:
        """Let the run of a timer wait no more; none if there is none."""
        run = self._runs.pop((gateway, key), None)
        if run is None:
            return []
        keys = self._keys[gateway]
        del keys[key]
        if not keys:
            del self._keys[gateway]
        return [run.fire]

    def _late_runs(self, most: int) -> list[TimerCommand]:
        """Take runs that are to wait no more, the oldest first; nothing is behind them."""
        late = list[TimerCommand]()
        while len(late) < most and self._late_at <= self._clock.mono():
            late += self._taken(*next(iter(self._runs)))
        return late

    def _take(self) -> list[TimerCommand]:
        """Take what is to be written in one transaction, with an equal share for each."""
        orders = list[TimerCommand]()

        def take(gateway: str, most: int) -> int:
            waiting, taken = self._waiting[gateway], 0
            while waiting and taken < most:
                ticket, lot = waiting.popleft()
                self._writing.setdefault(gateway, ticket)
                count = 0
                while count < len(lot) and taken < most:
                    taken += weight_of(lot[count])
                    count += 1
                orders.extend(lot[:count])
                if count < len(lot):
                    waiting.appendleft(_Given(ticket, lot[count:]))
            return taken

        names = sorted(self._waiting)
        turn = bisect_right(names, self._first)
        names = names[turn:] + names[:turn]
        fair_share(names, COMMIT_ORDERS, take)
        self._first = names[0] if names else ""
        self._waiting = {name: it for name, it in self._waiting.items() if it}
        return orders

    async def _commit(self) -> None:
        orders = self._take()
        late = self._late_runs(max(COMMIT_ORDERS - len(orders), LATE_RUNS))
        for fire in late:
            self._count(gateway_of(fire), 1)
        orders += late
        seq = 0
        if not self._waiting:
            waits = next(iter(self._runs.values()), None)
            seq = self._told_until if waits is None else waits.fire.seq - 1
        again = self._tried_again()
        later = list[TimerCommand]()
        if self._later:
            orders, later = without_new(orders, self._later_keys)
        orders = [*again, *orders]

        def left(written: Written) -> sqlite3.Error | None:
            self._no_room = written.error or self._no_room
            has_more = sum(map(len, self._later.values())) > len(again)
            return self._no_room if written.later or later or has_more else None

        written = await self.writer.write(
            partial(self.table.write_what_fits, orders, seq=seq),
            pending=lambda: self.pending,
            left=left,
        )
        self._is_written_back = False
        self._put_off(again, [*written.later, *later], is_full=bool(written.error))
        # One that is put off as well is given again with those.
        later_ids = set(map(id, [*written.later, *later]))
        for drop in reversed(written.unfinished):
            if id(drop) in later_ids:
                continue
            # First again, so that its gateway's tickets are not reached before it is over.
            waiting = self._waiting.setdefault(drop.gateway, deque())
            waiting.appendleft(_Given(self._writing[drop.gateway], [drop]))
        put_off = set(map(id, [*written.unfinished, *written.later, *later]))
        orders = [order for order in orders if id(order) not in put_off]
        self._writing.clear()
        weights = Counter[str]()
        for order in orders:
            weights[gateway_of(order)] += weight_of(order)
        for gateway, weight in weights.items():
            self._count(gateway, -weight)
        self._settled(orders, written.settlement)

    def _tried_again(self) -> list[TimerCommand]:
        """What found no room before, as far as it is tried again by now."""
        if self._later_at > self._clock.mono():
            return []
        return [
            order
            for later in self._later.values()
            for _, order in islice(later, LATER_AT_ONCE)
        ]

    def _put_off(
        self, again: list[TimerCommand], later: list[TimerCommand], *, is_full: bool
    ) -> None:
        """Have wait what found no room, behind what waits already."""
        tried = set(map(id, again))
        if again and not is_full:
            for order in again:
                gateway, key = gateway_of(order), key_of(order)
                ticket, _ = self._later[gateway].popleft()
                self._writing[gateway] = min(ticket, self._writing.get(gateway, ticket))
                if key is not None:
                    self._later_keys[key] -= 1
            self._later = {name: it for name, it in self._later.items() if it}
            self._later_keys = +self._later_keys
        for order in later:
            if id(order) in tried:
                continue
            gateway, key = gateway_of(order), key_of(order)
            ticket = self._writing[gateway]
            self._later.setdefault(gateway, deque()).append((ticket, order))
            if key is not None:
                self._later_keys[key] += 1
        if not self._later:
            self._later_at, self._no_room = inf, None
        elif is_full or self._later_at == inf:
            self._later_at = self._clock.mono() + RETRY_S
