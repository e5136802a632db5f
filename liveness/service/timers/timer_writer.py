"""Writes timer commands to disk, in order, many in one transaction.

The log has another writer and file: a thousand timers written at random places take
longer than a thousand records at the end of a log.

Each gateway has its own queue, and an equal share of every transaction. So many commands
of one gateway delay those of another by a transaction, not by a whole queue.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from liveness.core.sessions.fair_share import fair_share
from liveness.core.timer_states import Fire, TimerCommand
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.service.common.notifier import Notifier
from liveness.service.timers.timer_store import TimerStore

# The most commands of one transaction. With texts of full length they are 4 MB, and take
# about a twentieth of a second to write: the most that a new command should wait for others.
COMMIT_COMMANDS: Final = 1_000
# While nothing fires, the table follows the log in steps of this many records: the most
# that a start after a crash has to read, in some tenths of a second.
FOLLOW_RECORDS: Final = 100_000


class _Queued(NamedTuple):
    ticket: int
    commands: Sequence[TimerCommand]


class TimerWriter:
    """Writes commands, and calls *on_applied* with them and their outcome.

    A ticket stands for all commands queued with it or before it.
    """

    def __init__(
        self,
        table: TimerStore,
        *,
        on_applied: Callable[[list[TimerCommand], TimerTransaction], None],
    ) -> None:
        self.table = table
        self.writer = table.writer
        self._on_applied = on_applied
        # The requests that are queued or being written; attempts are counted apart, as
        # gateways are not read while they have too many of these.
        self.pending_by_gateway = Counter[str]()
        self.fires = 0
        self._queues: dict[str, deque[_Queued]] = {}  # by gateway; none is empty
        self._first = ""  # the gateway whose turn was first in the last transaction
        # By gateway: the lowest ticket of the commands that are being written.
        self._writing: dict[str, int] = {}
        # The log's attempts up to this seq were given to `add_fires`.
        self._fires_until = 0
        self._wake = Notifier()

    @property
    def pending(self) -> int:
        """How many requests are queued or being written."""
        return self.pending_by_gateway.total()

    @property
    def oldest_ticket(self) -> int | None:
        tickets = map(self.oldest_ticket_of, {*self._writing, *self._queues})
        return min((ticket for ticket in tickets if ticket is not None), default=None)

    def oldest_ticket_of(self, gateway: str) -> int | None:
        """The lowest ticket of a gateway's commands that are not durable."""
        if gateway in self._writing:
            return self._writing[gateway]
        queue = self._queues.get(gateway)
        return queue[0].ticket if queue else None

    def append(self, commands: Iterable[TimerCommand], *, ticket: int) -> None:
        """Queue commands under *ticket*, which must not be lower than the last one."""
        groups: dict[str, list[TimerCommand]] = {}
        for command in commands:
            groups.setdefault(command.gateway, []).append(command)
        for gateway, group in groups.items():
            queue = self._queues.setdefault(gateway, deque())
            queue.append(_Queued(ticket, group))
            self._count(group, 1)
        if groups:
            self._wake.notify()

    def add_fires(self, fires: Sequence[Fire], *, until: int, ticket: int) -> None:
        """Queue the attempts of the log up to the seq *until*, which is durable."""
        self._fires_until = until
        self.append(fires, ticket=ticket)

    async def run(self) -> None:
        """Write for ever. A failed commit is repeated; nothing is dropped."""
        while True:
            await self._wake.wait()
            while self._queues:
                await self._commit()

    async def follow(self, seq: int) -> None:
        """Store how far the table has followed the log, if that is worth a commit."""
        is_idle = not (self.pending or self.fires)
        if is_idle and seq - self.table.seq >= FOLLOW_RECORDS:
            await self.writer.once(partial(self.table.follow, seq))

    def _count(self, commands: Iterable[TimerCommand], more: int) -> None:
        """Add 1 or -1 to what is pending, for each of these commands."""
        pending = self.pending_by_gateway
        for command in commands:
            if isinstance(command, Fire):
                self.fires += more
            else:
                pending[command.gateway] += more
                if not pending[command.gateway]:
                    del pending[command.gateway]

    def _take(self) -> list[TimerCommand]:
        """Take the commands of one transaction, an equal share from each gateway."""
        taken = list[TimerCommand]()

        def take(gateway: str, most: int) -> int:
            queue, before = self._queues[gateway], len(taken)
            while queue and (room := before + most - len(taken)) > 0:
                ticket, commands = queue.popleft()
                self._writing.setdefault(gateway, ticket)
                taken.extend(commands[:room])
                if len(commands) > room:
                    queue.appendleft(_Queued(ticket, commands[room:]))
            return len(taken) - before

        names = sorted(self._queues)
        turn = bisect_right(names, self._first)
        names = names[turn:] + names[:turn]
        fair_share(names, COMMIT_COMMANDS, take)
        self._first = names[0]
        self._queues = {name: queue for name, queue in self._queues.items() if queue}
        return taken

    async def _commit(self) -> None:
        commands = self._take()
        # This commit brings the table up to this seq of the log; 0: unknown.
        seq = 0 if self._queues else self._fires_until
        outcome, unfinished = await self.writer.write(
            partial(self.table.write, commands, seq=seq), pending=lambda: self.pending
        )
        for cancel in reversed(unfinished):
            # To the front: its gateway's later tickets must not be durable before it.
            queue = self._queues.setdefault(cancel.gateway, deque())
            queue.appendleft(_Queued(self._writing[cancel.gateway], [cancel]))
        repeated = set(map(id, unfinished))
        applied = [command for command in commands if id(command) not in repeated]
        self._writing.clear()
        self._count(applied, -1)
        self._on_applied(applied, outcome)
