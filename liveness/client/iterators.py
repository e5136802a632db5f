"""The iterators that a gateway reads: timers, ends and records."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from anyio.lowlevel import checkpoint

from liveness.client.fired_timer import Timer
from liveness.client.inbox import Arrival
from liveness.client.reconnecting_link import ReconnectingLink

T = TypeVar("T")


class LinkIterator(ABC, Generic[T]):
    """An endless `async for`, for one loop at a time; see `Sidecar.ended`."""

    def __init__(self, link: ReconnectingLink) -> None:
        self._link = link
        self._is_closed = False

    def __aiter__(self) -> "LinkIterator[T]":
        return self

    async def __anext__(self) -> T:
        item = None if self._is_closed else await self.next_item()
        if item is None:
            raise StopAsyncIteration
        return item

    async def next_item(self) -> T | None:
        """Wait for the next item; None when `connect` was left."""
        await checkpoint()
        while True:
            with self._link.lock:
                if (item := self.take()) is not None or self._link.is_closed:
                    return item
            await self._link.changed.wait()

    async def aclose(self) -> None:
        """End the iteration; nothing waits for another loop."""
        self._is_closed = True
        await checkpoint()

    @abstractmethod
    def take(self) -> T | None:
        """Finish the last item; return the next one if it is here. Needs the lock."""


class TimerIterator(LinkIterator[Timer]):
    """Timers without a task. Those that fire between two loops wait for the next."""

    def __init__(self, link: ReconnectingLink) -> None:
        super().__init__(link)
        link.client.tasks.has_reader = True

    def take(self) -> Timer | None:
        """Return the next timer if there is one. Needs the lock."""
        attempt = self._link.client.tasks.unclaimed.take()
        return None if attempt is None else Timer(self._link, attempt)


class RecordIterator(LinkIterator[T]):
    """Arrived records that *wants* chooses, each converted by *convert*."""

    def __init__(
        self,
        link: ReconnectingLink,
        wants: Callable[[Arrival], bool],
        convert: Callable[[Arrival], T],
        *,
        persists: bool,
    ) -> None:
        super().__init__(link)
        self._convert = convert
        self._inbox = link.client.inbox
        with link.lock:
            self._queue = self._inbox.open_queue(wants, persists=persists)

    async def aclose(self) -> None:
        """End the iteration; acknowledge unfinished records, too."""
        if not self._is_closed:
            self._inbox.abandoned.append((self._queue, True))
            self._link.write_soon()  # the ack that this queue has delayed
        await super().aclose()

    def take(self) -> T | None:
        """Finish the last record; return the next one if it is here. Needs the lock."""
        if self._queue.current is not None:
            self._link.write_soon()  # its ack
        arrival = self._queue.next()
        return None if arrival is None else self._convert(arrival)

    def __del__(self) -> None:
        if not self._is_closed:
            self._inbox.abandoned.append((self._queue, False))
