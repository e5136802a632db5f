"""Spreads work over passes of the event loop, so that the wheel's hand moves in between."""

import trio


class Turnstile:
    """Lets one task through in each pass of the event loop, first come, first served."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def wait(self) -> None:
        async with self._lock:
            await trio.lowlevel.checkpoint()
