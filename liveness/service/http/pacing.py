"""How much of the event loop HTTP takes, however many ask at once.

trio runs all tasks that can run before it looks at the clock again: a hundred requests
that came together would be answered before the hand moves. So one of them is worked on in
each pass of the loop, in the order in which they came. And a page that is costly to make
is made once for all who asked before, and no more than so often: a page is never older
than its request, which waits for the next one to be made.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

# From one page to the next: with the 4 ms that the metrics of a hundred gateways take, a
# twelfth of the processor.
PAUSE_S: Final = 0.05

K = TypeVar("K")


class Turnstile:
    """Lets one task through in each pass of the event loop, in the order they came."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def wait(self) -> None:
        """Wait for a pass of the loop in which no other task is let through."""
        async with self._lock:
            await trio.lowlevel.checkpoint()


class _Making:
    """A page that is to be made."""

    __slots__ = ("at", "page")

    def __init__(self, at: float) -> None:
        self.at = at
        self.page: bytes | None = None


class SharedPages(Generic[K]):
    """Pages that are made once for all who asked before.

    Args:
        make: Makes the page of a key. There are few keys, whatever is asked.
        turnstile: Whoever has waited for a page goes through it.
    """

    def __init__(self, make: Callable[[K], bytes], turnstile: Turnstile) -> None:
        self._make = make
        self._turnstile = turnstile
        self._planned: dict[K, _Making] = {}
        self._free_at = 0.0  # when the next one may be made

    async def page(self, key: K) -> bytes:
        """The page of *key*, made after this was called."""
        making = self._planned.get(key)
        if making is None:
            at = max(trio.current_time(), self._free_at)
            making = self._planned[key] = _Making(at)
            self._free_at = at + PAUSE_S
        await trio.sleep_until(making.at)
        # Whoever is awake first makes it: any of them may have been cancelled.
        if making.page is None:
            if self._planned.get(key) is making:
                del self._planned[key]
            making.page = self._make(key)
            self._free_at = max(self._free_at, trio.current_time() + PAUSE_S)
        page = making.page
        await self._turnstile.wait()
        return page
