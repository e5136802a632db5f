"""Reads the partitions of a cluster in turn, and reports failures of Redis once."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import anyio

from liveness.cluster.chain import Chain
from liveness.cluster.connection import CallError, Redis
from liveness.cluster.events import Delivery
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
# The pause of a partition after a failed read, and of a question.
RETRY_S: Final = 1.0
# Failures that only an operator can end.
LASTING: Final = frozenset({"auth", "permission"})

Take = Callable[[Chain, list[Delivery]], int]


class Troubles:
    """Failures of Redis, at *server*: raised, or reported once.

    *strict*: raise before the first answer all, later only permanent failures.
    """

    def __init__(
        self, server: str, *, strict: bool, report_line: Callable[[str], None]
    ) -> None:
        self._error: Exception | None = None  # to be raised
        self._server = server
        self._strict = strict
        self._report_line = report_line
        self._has_answer = False
        self._failing = set[int | None]()  # partitions; None: a question

    def failed(self, error: CallError | ValueError, number: int | None = None) -> None:
        """Note that a read of a partition failed, or a question (None)."""
        if isinstance(error, ValueError):
            self._error = of_another_form(error, self._server)
        elif self._strict and (not self._has_answer or error.kind in LASTING):
            self._error = self._error or error
        else:
            if not self._failing:
                self._report_line(f"{error}; trying again")
            self._failing.add(number)

    def succeeded(self, number: int | None = None) -> None:
        self._has_answer = True
        if self._failing:
            self._failing.discard(number)
            if not self._failing:
                self._report_line(f"{self._server} answers again: reading on")

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class Turns:
    """The partitions, each read in its turn.

    *take* is called with the events of a partition, and returns how many events wait.
    """

    def __init__(self, chains: list[Chain], *, troubles: Troubles, take: Take) -> None:
        self.pause_s = FASTEST_S  # after a turn without events
        self._chains = deque(chains)
        self._retry_at: dict[int, float] = {}  # partitions whose read failed
        self._troubles = troubles
        self._take = take

    async def read(self, redis: Redis) -> bool:
        """Read each partition once, some at a time; return whether there were no events."""
        now, late = anyio.current_time(), self._retry_at
        due = deque(it for it in self._chains if late.get(it.partition, now) <= now)
        count, is_idle, waiting = len(due), True, 0

        async def work() -> None:
            nonlocal is_idle, waiting
            while due and waiting < MOST_IN_TURN:
                chain = due.popleft()
                found = await self._read(redis, chain)
                waiting = self._take(chain, found)
                is_idle = is_idle and not found

        async with anyio.create_task_group() as tasks:
            for _ in range(min(AT_ONCE, count)):
                tasks.start_soon(work)
        # The remaining ones come first in the next turn.
        self._chains.rotate(len(due) - count)
        slower = min(self.pause_s * SLOWER, SLOWEST_S)
        self.pause_s = slower if is_idle else FASTEST_S
        return is_idle

    async def _read(self, redis: Redis, chain: Chain) -> list[Delivery]:
        found = list[Delivery]()
        try:
            while not found:
                method, args = chain.request
                answer: Any = await getattr(redis, method)(chain.partition, *args)
                found = chain.answer(answer, anyio.current_time())
                if chain.is_caught_up:
                    break
        except CallError as error:
            chain.failed()
            self._retry_at[chain.partition] = anyio.current_time() + RETRY_S
            self._troubles.failed(error, chain.partition)
        except ValueError as error:
            self._troubles.failed(error)
        else:
            self._retry_at.pop(chain.partition, None)
            self._troubles.succeeded(chain.partition)
        return found
