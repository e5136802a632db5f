"""Writes timer commands to disk, in order, many in one transaction.

The log has another writer and file: a thousand timers written at random places take
longer than a thousand records at the end of a log.

Each gateway has its own queue, and an equal share of every transaction. So many commands
of one gateway delay those of another by a transaction, not by a whole queue.

A full disk may have no room for new timers. These are set aside, with all later commands
about their keys, while everything else is written: so timers can end.

The command `Fire` stores in the table that an attempt began. The log has that attempt
already, so a crash loses nothing, and `Fire` can wait a moment for the answer: most rows
are then read and written once instead of twice. A command about the same timer goes into
the queue together with its waiting `Fire`. Until then no ticket waits for the `Fire`, and
it does not count as pending.
"""

import sqlite3
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Final, NamedTuple

import trio

from liveness.core.sessions.fair_share import fair_share
from liveness.core.timer_states import (
    Fire,
    TimerCommand,
    gateway_of,
    key_of,
    split_new_timers,
    weight_of,
)
from liveness.core.timers.timer_commands import TimerTransaction, by_gateway
from liveness.service.common.clock import Clock
from liveness.service.common.notifier import Notifier
from liveness.service.storage.writer import RETRY_S, Writer
from liveness.service.timers.timer_store import TimerStore, WriteResult

# The weight of one transaction: this many commands, or 4 MB of text. That is about a
# twentieth of a second of writing, the most that a new command should wait for others.
COMMIT_COMMANDS: Final = 4_000
# How long a `Fire` waits for the answer, and so how late an operator may see it.
FIRE_WAIT_S: Final = 1.0
# How many wait at most, some 5 MB: as many as fire in that time if gateways keep up.
MOST_WAITING_FIRES: Final = 20_000
# Each transaction takes at least this many late `Fire`s, however full it is.
LATE_FIRES: Final = COMMIT_COMMANDS // 4
# How many commands without room are tried again at a time for each gateway, to use what
# little room there may be.
ROOM_TRIES: Final = 100
# While nothing fires, the table follows the log in steps of this many records: the most
# that a start after a crash has to read, in some tenths of a second.
FOLLOW_RECORDS: Final = 100_000


class _Queued(NamedTuple):
    ticket: int
    commands: Sequence[TimerCommand]
    weight: int  # of them together


class _WaitingFire(NamedTuple):
    fire: Fire
    until: float


class TimerWriter:
    """Writes commands, and calls *on_applied* with them and their outcome.

    A ticket stands for all commands queued with it or before it.
    """

    def __init__(
        self,
        table: TimerStore,
        *,
        clock: Clock,
        on_applied: Callable[[list[TimerCommand], TimerTransaction], None],
    ) -> None:
        self.table = table
        self.writer = Writer("the timers' table", table.wal, clock=clock)
        self._clock = clock
        self._on_applied = on_applied
        self.pending = 0  # weight of the commands that are queued or being written
        self.pending_by_gateway: dict[str, int] = {}  # the same, by gateway
        self._queues: dict[str, deque[_Queued]] = {}  # by gateway; none is empty
        self._first = ""  # the gateway whose turn was first in the last transaction
        # By gateway: the lowest ticket of the commands that are being written.
        self._writing: dict[str, int] = {}
        # Commands that the disk has no room for: by gateway, each with its ticket; how
        # many there are of each key; when to try them again; the disk's error.
        self._without_room: dict[str, deque[tuple[int, TimerCommand]]] = {}
        self._keys_without_room = Counter[tuple[str, str]]()
        self._room_retry_at = inf
        self._no_room: sqlite3.Error | None = None
        # By gateway and key, the oldest first. A timer has at most one: it fires again
        # only after a command has ended the attempt.
        self._fires: OrderedDict[tuple[str, str], _WaitingFire] = OrderedDict()
        self._fire_keys: dict[str, dict[str, None]] = {}  # their keys, by gateway
        self._fires_until = (
            0  # the log's attempts up to this seq were given to `add_fires`
        )
        self._wake = Notifier()

    @property
    def oldest_ticket(self) -> int | None:
        """The lowest ticket not durable, except that of commands without room."""
        tickets = [*self._writing.values()]
        tickets += [queue[0].ticket for queue in self._queues.values()]
        return min(tickets, default=None)

    def oldest_ticket_of(self, gateway: str) -> int | None:
        """The lowest ticket of a gateway's commands that are not durable."""
        tickets = list[int]()
        if gateway in self._writing:
            tickets.append(self._writing[gateway])
        if gateway in self._queues:
            tickets.append(self._queues[gateway][0].ticket)
        if gateway in self._without_room:
            tickets.append(self._without_room[gateway][0][0])
        return min(tickets, default=None)

    def writes(self, gateway: str | None, ticket: int) -> bool:
        """Whether commands of a gateway up to *ticket*, that have room, are not durable."""
        if gateway is None:
            return False
        queue = self._queues.get(gateway)
        writing = self._writing.get(gateway, inf)
        return min(writing, queue[0].ticket if queue else inf) <= ticket

    def first_run(self, gateway: str) -> int | None:
        """The seq of a gateway's oldest attempt whose `Fire` waits."""
        keys = self._fire_keys.get(gateway, ())
        return min((self._fires[gateway, key].fire.seq for key in keys), default=None)

    @property
    def runs(self) -> int:
        """How many attempts have a `Fire` that waits."""
        return len(self._fires)

    def append(self, commands: list[TimerCommand], *, ticket: int) -> None:
        """Queue commands under *ticket*, which must not be lower than the last one."""
        for gateway, (queued, weight) in by_gateway(commands).items():
            if gateway in self._fire_keys:
                both = self._with_fires(gateway, queued)
                weight += len(both) - len(queued)  # each `Fire` weighs 1
                queued = both
            self._queue(gateway, ticket, queued, weight)

    def add_fires(self, fires: list[Fire], *, until: int) -> None:
        """Take the attempts of the log up to the seq *until*, which is durable."""
        self._fires_until = until
        waits_until = self._clock.mono() + FIRE_WAIT_S
        for fire in fires:
            self._fires[fire.gateway, fire.key] = _WaitingFire(fire, waits_until)
            self._fire_keys.setdefault(fire.gateway, {})[fire.key] = None
        if fires:
            self._wake.notify()

    def write_fire_now(self, gateway: str, key: str, *, ticket: int) -> None:
        """Queue the waiting `Fire` of a timer now, if there is one, under *ticket*."""
        if fires := self._pop_fire(gateway, key):
            self._queue(gateway, ticket, fires, len(fires))

    async def run(self) -> None:
        """Write for ever. A failed commit is repeated; nothing is dropped."""
        while True:
            with trio.move_on_at(self._next_at):
                await self._wake.wait()
            while self._queues or self._next_at <= self._clock.mono():
                await self._commit()

    async def follow(self, seq: int) -> None:
        """Store how far the table has followed the log, if that is worth a commit."""
        if not (self.pending or self._fires) and seq - self.table.seq >= FOLLOW_RECORDS:
            await self.writer.once(partial(self.table.follow, seq))

    @property
    def _next_fire_at(self) -> float:
        """When to write the oldest waiting `Fire`."""
        if len(self._fires) > MOST_WAITING_FIRES:
            return -inf
        return next(iter(self._fires.values())).until if self._fires else inf

    @property
    def _next_at(self) -> float:
        """When to write next, if nothing is queued before."""
        return min(self._next_fire_at, self._room_retry_at)

    def _queue(
        self, gateway: str, ticket: int, commands: Sequence[TimerCommand], weight: int
    ) -> None:
        queue = self._queues.setdefault(gateway, deque())
        queue.append(_Queued(ticket, commands, weight))
        self._count(gateway, weight)
        self._wake.notify()

    def _count(self, gateway: str, weight: int) -> None:
        """Add *weight*, which may be negative, to what is pending."""
        self.pending += weight
        pending = self.pending_by_gateway.get(gateway, 0) + weight
        if pending:
            self.pending_by_gateway[gateway] = pending
        else:
            self.pending_by_gateway.pop(gateway, None)

    def _with_fires(
        self, gateway: str, commands: list[TimerCommand]
    ) -> list[TimerCommand]:
        """Put before each command the waiting `Fire` of its timer."""
        both: list[TimerCommand] = []
        for command in commands:
            key = key_of(command)
            # A cancel by ext may be about any timer of the gateway.
            keys = [*self._fire_keys.get(gateway, ())] if key is None else key[1:]
            for name in keys:
                both += self._pop_fire(gateway, name)
            both.append(command)
        return both

    def _pop_fire(self, gateway: str, key: str) -> list[Fire]:
        """Take the waiting `Fire` of a timer; an empty list if there is none."""
        waiting = self._fires.pop((gateway, key), None)
        if waiting is None:
            return []
        keys = self._fire_keys[gateway]
        del keys[key]
        if not keys:
            del self._fire_keys[gateway]
        return [waiting.fire]

    def _late_fires(self, most: int) -> list[Fire]:
        """Take the `Fire`s that have waited enough; their timers have nothing queued."""
        fires = list[Fire]()
        while len(fires) < most and self._next_fire_at <= self._clock.mono():
            fires += self._pop_fire(*next(iter(self._fires)))
        return fires

    def _take(self) -> tuple[list[TimerCommand], Counter[str]]:
        """Take the commands of one transaction, an equal share from each gateway.

        Returns:
            The commands, and their weight by gateway.
        """
        taken, weights = list[TimerCommand](), Counter[str]()

        def take(gateway: str, most: int) -> int:
            queue, weight = self._queues[gateway], 0
            while queue and weight < most:
                ticket, commands, left = queue.popleft()
                self._writing.setdefault(gateway, ticket)
                if weight + left <= most:
                    weight += left
                    taken.extend(commands)
                    continue
                count = 0
                while count < len(commands) and weight < most:
                    one = weight_of(commands[count])
                    weight += one
                    left -= one
                    count += 1
                taken.extend(commands[:count])
                if count < len(commands):
                    queue.appendleft(_Queued(ticket, commands[count:], left))
            weights[gateway] += weight
            return weight

        names = sorted(self._queues)
        turn = bisect_right(names, self._first)
        names = names[turn:] + names[:turn]
        fair_share(names, COMMIT_COMMANDS, take)
        self._first = names[0] if names else ""
        self._queues = {name: queue for name, queue in self._queues.items() if queue}
        return taken, weights

    async def _commit(self) -> None:
        """Write one transaction."""
        commands, weights = self._take()
        late_fires = self._late_fires(max(COMMIT_COMMANDS - len(commands), LATE_FIRES))
        for fire in late_fires:
            self._count(fire.gateway, 1)
            weights[fire.gateway] += 1
        commands += late_fires
        seq = 0  # this commit brings the table up to this seq of the log; 0: unknown
        if not self._queues:
            oldest = next(iter(self._fires.values()), None)
            seq = self._fires_until if oldest is None else oldest.fire.seq - 1
        retried = self._room_retries()
        waiting = list[TimerCommand]()  # behind new timers that wait for room
        if self._without_room:
            commands, waiting = split_new_timers(commands, self._keys_without_room)
        commands = [*retried, *commands]

        def error_left(result: WriteResult) -> sqlite3.Error | None:
            self._no_room = result.error or self._no_room
            has_more = sum(map(len, self._without_room.values())) > len(retried)
            return self._no_room if result.without_room or waiting or has_more else None

        result = await self.writer.write(
            partial(self.table.write_what_fits, commands, seq=seq),
            pending=lambda: self.pending,
            left=error_left,
        )
        without_room = [*result.without_room, *waiting]
        self._set_aside(retried, without_room, is_full=bool(result.error))
        # A cancel that also waits for room is set aside with the others.
        not_applied = set(map(id, without_room))
        for cancel in reversed(result.unfinished):
            if id(cancel) not in not_applied:
                # To the front: its gateway's later tickets must not be durable before it.
                queue = self._queues.setdefault(cancel.gateway, deque())
                ticket = self._writing[cancel.gateway]
                queue.appendleft(_Queued(ticket, [cancel], 1))
        not_applied |= set(map(id, result.unfinished))
        applied = commands
        if not_applied or retried:
            applied = [
                command for command in commands if id(command) not in not_applied
            ]
            weights = Counter()
            for command in applied:
                weights[gateway_of(command)] += weight_of(command)
        self._writing.clear()
        for gateway, weight in weights.items():
            self._count(gateway, -weight)
        self._on_applied(applied, result.outcome)

    def _room_retries(self) -> list[TimerCommand]:
        """The commands without room that are to be tried again now."""
        if self._room_retry_at > self._clock.mono():
            return []
        return [
            command
            for queue in self._without_room.values()
            for _, command in islice(queue, ROOM_TRIES)
        ]

    def _set_aside(
        self, retried: list[TimerCommand], more: list[TimerCommand], *, is_full: bool
    ) -> None:
        """Set aside commands without room, behind those that wait already."""
        if retried and not is_full:
            for command in retried:
                gateway, key = gateway_of(command), key_of(command)
                ticket, _ = self._without_room[gateway].popleft()
                self._writing[gateway] = min(ticket, self._writing.get(gateway, ticket))
                if key is not None:
                    self._keys_without_room[key] -= 1
            self._without_room = {
                gateway: queue for gateway, queue in self._without_room.items() if queue
            }
            self._keys_without_room = +self._keys_without_room
        known = set(map(id, retried))
        for command in more:
            if id(command) in known:
                continue
            gateway, key = gateway_of(command), key_of(command)
            queue = self._without_room.setdefault(gateway, deque())
            queue.append((self._writing[gateway], command))
            if key is not None:
                self._keys_without_room[key] += 1
        if not self._without_room:
            self._room_retry_at, self._no_room = inf, None
        elif is_full or self._room_retry_at == inf:
            self._room_retry_at = self._clock.mono() + RETRY_S
