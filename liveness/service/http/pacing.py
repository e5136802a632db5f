"""Limits the share of the event loop that HTTP takes, however many clients ask at once.

trio runs every task that can run before it looks at the clock again. Without a limit, a
hundred requests that arrive together would all be answered before the wheel's hand moves.
So each pass of the loop works on one request, in the order of their arrival. A page that is
costly to make is made once for all requests that wait for it, with a pause between two. A
request waits for the next page to be made, so it never gets one older than itself.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from liveness.service.common.turnstile import Turnstile

# Between two pages. The metrics of a hundred gateways take 4 ms to make: with this pause,
# at most a twelfth of a processor.
PAUSE_S: Final = 0.05

K = TypeVar("K")


class _PlannedPage:
    """When a page will be made, and the page once it is."""

    __slots__ = ("at", "page")

    def __init__(self, at: float) -> None:
        self.at = at
        self.page: bytes | None = None


class SharedPages(Generic[K]):
    """Pages that are made once for all requests that wait for them.

    Args:
        make: Makes the page of a key. Clients must not be able to add keys at will.
        turnstile: A request that has waited for a page passes it.
    """

    def __init__(self, make: Callable[[K], bytes], turnstile: Turnstile) -> None:
        self._make = make
        self._turnstile = turnstile
        self._planned: dict[K, _PlannedPage] = {}
        self._free_at = 0.0  # when the next page may be made

    async def page(self, key: K) -> bytes:
        """The page of *key*, made after this was called."""
        planned = self._planned.get(key)
        if planned is None:
            at = max(trio.current_time(), self._free_at)
            planned = self._planned[key] = _PlannedPage(at)
            self._free_at = at + PAUSE_S
        await trio.sleep_until(planned.at)
        # The first waiter to wake up makes it. No waiter is in charge: it could be cancelled.
        if planned.page is None:
            if self._planned.get(key) is planned:
                del self._planned[key]
            planned.page = self._make(key)
            self._free_at = max(self._free_at, trio.current_time() + PAUSE_S)
        page = planned.page
        await self._turnstile.wait()
        return page
