"""The iterators that a gateway reads: timers and ends."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from anyio.lowlevel import checkpoint

from liveness.client.fired_timer import Timer
from liveness.client.inbox import Arrival, End
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
        attempt = self._link.client.tasks.unclaimed.take()
        return None if attempt is None else Timer(self._link, attempt)


class EndIterator(LinkIterator[End]):
    """Ends. Those that a loop leaves unfinished wait for the next, unless it is closed."""

    def __init__(self, link: ReconnectingLink) -> None:
        super().__init__(link)
        self._inbox = link.client.inbox
        self._current: Arrival | None = None

    async def aclose(self) -> None:
        """End the iteration; acknowledge the ends that wait, too."""
        if not self._is_closed:
            self._current = None
            with self._link.lock:
                self._inbox.unfinished.clear()
            self._link.write_soon()
        await super().aclose()

    def take(self) -> End | None:
        if self._current is not None:
            self._inbox.finish(self._current)
            self._link.write_soon()  # its ack
        self._current = self._inbox.take()
        return None if self._current is None else self._current.end

    def __del__(self) -> None:
        if self._current is not None:
            self._inbox.abandoned.append(self._current)
