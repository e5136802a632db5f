"""Wakes one waiting task."""

import trio


class Notifier:
    """An event that resets itself; any number of notifications wake the task once."""

    def __init__(self) -> None:
        self._event = trio.Event()

    @property
    def is_notified(self) -> bool:
        """Whether `wait` would return at once."""
        return self._event.is_set()

    def notify(self) -> None:
        """Wake the waiting task, or the next one to wait."""
        self._event.set()

    def clear(self) -> None:
        """Forget earlier notifications."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self) -> None:
        """Wait for a notification; return at once if there was one already."""
        await self._event.wait()
        self._event = trio.Event()
