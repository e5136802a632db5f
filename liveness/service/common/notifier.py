"""Wakes one waiting task."""

import trio


class Notifier:
    """An event that resets itself; any number of notifications wake the task once."""

    def __init__(self) -> None:
        self._event = trio.Event()

    @property
    def is_notified(self) -> bool:
        return self._event.is_set()

    def notify(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()
