"""Reads the partitions of a cluster in turn, and reports failures of Redis once."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import anyio

from liveness.cluster.chain import (
    Chain,
    ReadEarlier,
    ReadEntries,
    ReadMeta,
    ReadNewest,
    ReadUsers,
    Request,
)
from liveness.cluster.connection import CallError, Redis
from liveness.cluster.events import DeliveredEvent
from liveness.cluster.terms import of_another_form

# The pauses between two turns, while events arrive and while none do. An idle turn is a
# short read of each partition.
FASTEST_S: Final = 0.02
SLOWEST_S: Final = 0.25
SLOWER: Final = 1.5  # factor of the pause after a turn without events
# Partitions that are read at a time.
AT_ONCE: Final = 8
# A turn ends early with this many events; the next begins with the partitions left.
MOST_IN_TURN: Final = 20_000
# The pause of a partition after a failed read: it doubles each time.
FIRST_RETRY_S: Final = 0.25
LAST_RETRY_S: Final = 5.0
# Failures that only an operator can end.
LASTING: Final = frozenset({"auth", "permission"})

Take = Callable[[Chain, list[DeliveredEvent]], int]


class Troubles:
    """Failures of Redis: raised, or reported once.

    Args:
        server: Where Redis is, for a person.
        strict: Whether to raise: before the first answer all, later only permanent
            failures.
        report_line: Called with each line otherwise.
    """

    def __init__(
        self, server: str, *, strict: bool, report_line: Callable[[str], None]
    ) -> None:
        self.error: Exception | None = None  # to be raised
        self._server = server
        self._strict = strict
        self._report_line = report_line
        self._has_answer = False
        self._failing = set[int | None]()  # partitions; None: a question

    def failed(self, error: CallError, number: int | None = None) -> None:
        """Note that a read of a partition failed, or a question (None)."""
        if self._strict and (not self._has_answer or error.kind in LASTING):
            self.error = self.error or error
            return
        if not self._failing:
            self._report_line(f"{error}; trying again")
        self._failing.add(number)

    def damaged(self, error: ValueError) -> None:
        """Note that data on Redis cannot be decoded."""
        self.error = of_another_form(error, self._server)

    def succeeded(self, number: int | None = None) -> None:
        """Note an answer."""
        self._has_answer = True
        if self._failing:
            self._failing.discard(number)
            if not self._failing:
                self._report_line(f"{self._server} answers again: reading on")

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class _Reading:
    """A partition, and the state of its reads."""

    chain: Chain
    retry_at: float = -inf
    retry_s: float = FIRST_RETRY_S


class Turns:
    """The partitions, each read in its turn.

    *take* is called with the events of a partition, and returns how many events wait.
    """

    def __init__(self, chains: list[Chain], *, troubles: Troubles, take: Take) -> None:
        self.pause_s = FASTEST_S  # after a turn without events
        self._partitions = deque(map(_Reading, chains))
        self._troubles = troubles
        self._take = take

    async def read(self, redis: Redis) -> bool:
        """Read each partition once, some at a time; return whether there were no events."""
        now = anyio.current_time()
        due = deque(part for part in self._partitions if part.retry_at <= now)
        count, is_idle, waiting = len(due), True, 0

        async def work() -> None:
            nonlocal is_idle, waiting
            while due and waiting < MOST_IN_TURN:
                part = due.popleft()
                found = await self._read(redis, part)
                waiting = self._take(part.chain, found)
                is_idle = is_idle and not found

        async with anyio.create_task_group() as tasks:
            for _ in range(min(AT_ONCE, count)):
                tasks.start_soon(work)
        # The remaining ones come first in the next turn.
        self._partitions.rotate(len(due) - count)
        slower = min(self.pause_s * SLOWER, SLOWEST_S)
        self.pause_s = slower if is_idle else FASTEST_S
        return is_idle

    async def _read(self, redis: Redis, part: _Reading) -> list[DeliveredEvent]:
        """Read a partition until it has events, or is caught up."""
        chain, found = part.chain, list[DeliveredEvent]()
        try:
            while not found:
                answer = await answer_to(redis, chain.partition, chain.request)
                found = chain.answer(answer, anyio.current_time())
                if chain.is_caught_up:
                    break
        except CallError as error:
            chain.failed()
            part.retry_at = anyio.current_time() + part.retry_s
            part.retry_s = min(2 * part.retry_s, LAST_RETRY_S)
            self._troubles.failed(error, chain.partition)
        except ValueError as error:
            self._troubles.damaged(error)
        else:
            part.retry_s = FIRST_RETRY_S
            self._troubles.succeeded(chain.partition)
        return found


async def answer_to(redis: Redis, partition: int, request: Request) -> Any:
    """Make the request of a chain."""
    match request:
        case ReadNewest():
            return await redis.meta(partition, "v", "t")
        case ReadEntries(after, limit):
            return await redis.entries(partition, after, limit)
        case ReadEarlier(until, limit):
            return await redis.earlier_entries(partition, until, limit)
        case ReadMeta():
            return await redis.everything(partition)
        case ReadUsers(cursor, limit):
            return await redis.scan(partition, cursor, limit)
