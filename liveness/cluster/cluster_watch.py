"""Reads all partitions of the cluster: users coming and going on any host, and lists.

    async with ClusterWatch(settings) as watch:
        async for event in watch:
            ...

It runs under trio and asyncio, and reads nothing ahead: while the program waits for the
next event, the partitions are read in turn, and all events of a turn are delivered before
the next one begins. So a slow program delays only itself: the streams keep events that it
has not read for an hour.
"""

import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Self, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from liveness.cluster.chain import UNLISTED, Chain
from liveness.cluster.connection import CallError, Redis, connected
from liveness.cluster.events import ClusterEvent, Delivery
from liveness.cluster.format import ClusterRecord, Place
from liveness.cluster.questions import (
    ClusterTerms,
    HostRow,
    hosts,
    of_another_form,
    places_of,
    read_terms,
)
from liveness.config.cluster import ClusterSettings
from liveness.core.records import Uid, identity
from liveness.errors import ReportError

__all__ = ["OLDEST", "ClusterBatches", "ClusterWatch"]

# Most sessions in an answer to `where`: far more than the users in it have.
MOST_PLACES: Final = 1_000_000
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
# The position of the oldest kept entries.
OLDEST: Final = "oldest"

_PART: Final = re.compile(r"([0-9]{1,4}):((?:[0-9]{1,20}\.[0-9-]{1,60})?!?)")

# By partition; as text "0:VERSION.TOKEN,1:VERSION.TOKEN". An exclamation mark after one
# means that its list is still to come; an empty one, that there was no host yet.
Positions: TypeAlias = dict[int, str]

R = TypeVar("R")
logger: Final = logging.getLogger("liveness.client")


class ClusterWatch(AsyncIterator[ClusterEvent]):
    """An endless `async for` over events of all hosts, for one loop at a time.

    Use it with `async with`. An event is finished when the loop comes back for the next
    one; another watch can continue from `position`, which is after the finished ones. Some
    of its records may come again then, so make your work idempotent: a record is identified
    by partition and version.

    A `Rollback` says that delivered records are void: Redis failed over to a server that
    did not have them. A `ClusterGap` says that some were no longer kept. Both concern one
    partition. With *lists*, a `Listed` follows each of them, and is the first event of each
    partition: users not in it are offline.

    If a wait is cancelled, no event is lost. While Redis is down, it waits.

    Args:
        settings: Where Redis is. The number of partitions and the lease are those of the
            hosts. After Redis was emptied, a list waits for the lease.
        position: The `position` of an earlier watch; "oldest": everything that is kept;
            None: only new events.
        kinds: The records to deliver: "online", "offline", "moved". Empty: all.
        lists: Whether to list online users.
        strict: Whether to raise a CallError for failures that are otherwise logged and
            tried again: before the first answer all, later only permanent ones.
        report_line: Called with each line about the connection, in place of the logger
            "liveness.client".
    Raises:
        ReportError: The position is not valid.
        StartError: On entry, coredis is not installed, or a file of the settings is unusable.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        position: str | None = None,
        kinds: Sequence[str] = (),
        lists: bool = False,
        strict: bool = False,
        report_line: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        is_text = position is not None and position != OLDEST
        self._positions = parsed(position) if is_text and position else Positions()
        self._start = "" if position == OLDEST else None
        self._kinds = frozenset(kinds)
        self._lists = lists
        self._strict = strict
        self._report_line = report_line or logger.warning
        self._server = settings.url or settings.nodes
        self._error: Exception | None = None  # to be raised
        self._has_answer = False
        self._failing = set[int | None]()  # partitions; None: a question
        self._stack = AsyncExitStack()
        self._redis: Redis | None = None
        self._terms: ClusterTerms | None = None
        self._chains = deque[Chain]()
        self._retry_at: dict[int, float] = {}  # partitions whose read failed
        self._pause_s = FASTEST_S
        self._guard = anyio.ResourceGuard("reading the events of")
        self._cancel_scope: anyio.CancelScope | None = None  # of the loop's wait
        self._is_closed = False
        self._waiting = deque[Delivery]()
        self._given = Positions()  # of events that the loop has not finished

    async def __aenter__(self) -> Self:
        self._redis = await self._stack.enter_async_context(connected(self._settings))
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._close()
        await self._stack.__aexit__(*error)  # noqa: ASYNC102 - ends its own tasks only

    async def aclose(self) -> None:
        """End the iteration. The connections end with `async with`."""
        self._close()
        await checkpoint()

    def _close(self) -> None:
        self._is_closed = True
        if self._cancel_scope is not None:
            self._cancel_scope.cancel()

    # --- events -----------------------------------------------------------------------

    async def __anext__(self) -> ClusterEvent:
        await self._ready()
        event = self.take()
        assert event is not None
        return event

    def batches(self) -> "ClusterBatches":
        """Iterate over lists of the events that have arrived; none is empty."""
        return ClusterBatches(self)

    async def _next_batch(self) -> list[ClusterEvent]:
        await self._ready()
        batch = list(self._waiting)
        self._waiting.clear()
        self._given = {event.partition: position for event, position in batch}
        return [event for event, _ in batch]

    def take(self) -> ClusterEvent | None:
        """Return the next event if it has arrived; finish the last one. Do not wait."""
        self.finish()
        if not self._waiting or self._is_closed:
            return None
        event, position = self._waiting.popleft()
        self._given = {event.partition: position}
        return event

    @property
    def has_event(self) -> bool:
        return bool(self._waiting)

    @property
    def position(self) -> str | None:
        """The position after the finished events; None until each partition was read."""
        if self._terms is None or len(self._positions) < self._terms.partitions:
            return None
        return text_of(self._positions)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def finish(self) -> None:
        """Finish the events given to the loop, which takes no more."""
        self._positions |= self._given
        self._given = {}

    async def _ready(self) -> None:
        """Finish the events given to the loop; wait until the next is ready."""
        with self._guard:
            await checkpoint()
            self.finish()
            if not self._is_closed:
                with anyio.CancelScope() as self._cancel_scope:
                    await self._arrived()
            if self._is_closed:
                raise StopAsyncIteration

    async def _arrived(self) -> None:
        while not self._waiting:
            self._check()
            await self._begun()
            is_idle = await self._read_all()
            self._check()
            slower = min(self._pause_s * SLOWER, SLOWEST_S)
            self._pause_s = slower if is_idle else FASTEST_S
            if is_idle:
                await anyio.sleep(self._pause_s)

    async def connected(self) -> None:
        """Wait until the cluster was found. No event is read."""
        with self._guard:
            await self._begun()

    # --- reading ----------------------------------------------------------------------

    async def _begun(self) -> ClusterTerms:
        """Find out how many partitions there are; wait until a host has made them."""
        while self._terms is None:
            terms = await self._ask(read_terms)
            if terms is None:
                # Whatever is there once it has begun is new: leave nothing out.
                self._start = ""
                await anyio.sleep(SLOWEST_S)
            elif self._terms is None:
                self._begin(terms)
        return self._terms

    def _begin(self, terms: ClusterTerms) -> None:
        numbers = range(terms.partitions)
        if self._positions and self._positions.keys() != {*numbers}:
            raise ReportError(
                f"position has {len(self._positions)} partitions, and the cluster "
                f"{terms.partitions}: it is of another one; begin without a position"
            )
        start = self._start
        if start is not None:
            start += UNLISTED if self._lists else ""
            self._positions = self._positions or dict.fromkeys(numbers, start)
        self._terms = terms
        self._chains += [
            Chain(
                number,
                position=self._positions.get(number),
                lists=self._lists,
                lease_s=terms.lease_s,
            )
            for number in numbers
        ]

    async def _read_all(self) -> bool:
        now, late = anyio.current_time(), self._retry_at
        due = deque(it for it in self._chains if late.get(it.partition, now) <= now)
        count, is_idle = len(due), True

        async def work() -> None:
            nonlocal is_idle
            while due and len(self._waiting) < MOST_IN_TURN:
                found = await self._read(chain := due.popleft())
                self._take(chain, found)
                is_idle = is_idle and not found

        async with anyio.create_task_group() as tasks:
            for _ in range(min(AT_ONCE, count)):
                tasks.start_soon(work)
        # The remaining ones come first in the next turn.
        self._chains.rotate(len(due) - count)
        return is_idle

    async def _read(self, chain: Chain) -> list[Delivery]:
        """Read a partition until it has events, or is caught up."""
        found, number = list[Delivery](), chain.partition
        try:
            while not found:
                method, args = chain.request
                answer: Any = await getattr(self._redis, method)(number, *args)
                found = chain.answer(answer, anyio.current_time())
                if chain.is_caught_up:
                    break
        except (CallError, ValueError) as error:
            chain.failed()
            self._retry_at[number] = anyio.current_time() + RETRY_S
            self._failed(error, number)
        else:
            self._retry_at.pop(number, None)
            self._succeeded(number)
        return found

    def _take(self, chain: Chain, found: list[Delivery]) -> None:
        wanted = [delivery for delivery in found if self._wants(delivery[0])]
        if wanted:
            # The position after the last event is also after those that are not wanted.
            wanted[-1] = wanted[-1][0], chain.position
            self._waiting += wanted
        elif chain.has_begun:
            self._positions[chain.partition] = chain.position

    def _wants(self, event: ClusterEvent) -> bool:
        is_record = isinstance(event, ClusterRecord)
        return not (is_record and self._kinds) or event.kind in self._kinds

    # --- failures of Redis: raised, or reported once ------------------------------------

    def _failed(self, error: CallError | ValueError, number: int | None = None) -> None:
        if self._is_closed:
            pass  # a call that met the end of its own connection
        elif isinstance(error, ValueError):
            self._error = of_another_form(error, self._server)
        elif self._strict and (not self._has_answer or error.kind in LASTING):
            self._error = self._error or error
        else:
            if not self._failing:
                self._report_line(f"{error}; trying again")
            self._failing.add(number)

    def _succeeded(self, number: int | None = None) -> None:
        self._has_answer = True
        if self._failing:
            self._failing.discard(number)
            if not self._failing:
                self._report_line(f"{self._server} answers again: reading on")

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    # --- questions --------------------------------------------------------------------

    async def _ask(self, question: Callable[[Redis], Awaitable[R]]) -> R:
        while not self._is_closed:
            if self._redis is None:
                raise ReportError("a watch of a cluster is used with `async with`")
            try:
                answer = await question(self._redis)
            except (CallError, ValueError) as error:
                self._failed(error)
            else:
                self._succeeded()
                return answer
            self._check()
            await anyio.sleep(RETRY_S)
        raise anyio.ClosedResourceError

    async def where(self, users: Uid | Iterable[Uid]) -> list[Place]:
        """Ask which of these users are online, and on which hosts.

        Without Redis a question waits for it: use a timeout.

        Args:
            users: A uid, or any number of them. The name of a user stands for all of its
                devices.
        Returns:
            Their sessions, in the order of *users*, the newest of a user first.
        """
        terms = await self._begun()
        asked = [users] if isinstance(users, str | int) else list(users)
        return await self._ask(
            lambda redis: places_of(
                redis,
                asked,
                partitions=terms.partitions,
                limit=MOST_PLACES,
                separator=terms.separator,
            )
        )

    async def online(self, users: Uid | Iterable[Uid]) -> set[Uid]:
        asked = [users] if isinstance(users, str | int) else list(users)
        found = await self.where(asked)
        named = {identity(uid) for place in found for uid in (place.user, place.uid)}
        return {uid for uid in asked if identity(uid) in named}

    async def hosts(self) -> list[HostRow]:
        terms = await self._begun()
        return await self._ask(lambda redis: hosts(redis, terms.partitions))


class ClusterBatches(AsyncIterator[list[ClusterEvent]]):
    """An endless `async for` over lists of events; from `ClusterWatch.batches`."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch

    async def __anext__(self) -> list[ClusterEvent]:
        return await self._watch._next_batch()


def text_of(positions: Positions) -> str:
    return ",".join(f"{number}:{name}" for number, name in sorted(positions.items()))


def parsed(position: str) -> Positions:
    positions = Positions()
    for part in position.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ReportError(
                f"position {position!r:.80} is none: it has to be as `position` had it"
            )
        positions[int(match[1])] = match[2]
    return positions
