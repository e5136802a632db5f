"""Limits the share of the event loop that HTTP takes, however many clients ask at once.

trio runs every task that can run before it looks at the clock again. Without a limit, a
hundred requests that arrive together would all be answered before the wheel's hand moves.
So each pass of the loop works on one request, in the order of their arrival. A page that is
costly to make is made once for all requests that wait for it, with a pause between two. A
request never gets a page that is older than itself.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from liveness.service.common.turnstile import Turnstile

# Between two pages. The metrics of a hundred gateways take 4 ms to make: with this pause,
# at most a twelfth of a processor.
PAUSE_S: Final = 0.05

K = TypeVar("K")


class SharedPages(Generic[K]):
    """Pages that are made once for all requests that wait for them.

    Args:
        make: Makes the page of a key. Clients must not be able to add keys at will.
        turnstile: A request that has waited for a page passes it.
    """

    def __init__(self, make: Callable[[K], bytes], turnstile: Turnstile) -> None:
        self._make = make
        self._turnstile = turnstile
        self._lock = trio.Lock()
        self._pages: dict[K, tuple[int, bytes]] = {}  # the newest, and its number
        self._made = 0
        self._free_at = 0.0  # when the next page may be made

    async def page(self, key: K) -> bytes:
        """The page of *key*, made after this was called."""
        before = self._made
        async with self._lock:
            number, page = self._pages.get(key, (0, b""))
            if number <= before:
                await trio.sleep_until(self._free_at)
                page = self._make(key)
                self._made += 1
                self._pages[key] = self._made, page
                self._free_at = trio.current_time() + PAUSE_S
        await self._turnstile.wait()
        return page
