"""One task waits until anyone has something for it."""

import trio


class Notifier:
    """A doorbell: rung any number of times, answered once."""

    def __init__(self) -> None:
        self._event = trio.Event()

    @property
    def is_notified(self) -> bool:
        """Whether to wait would be over at once."""
        return self._event.is_set()

    def notify(self) -> None:
        """Wake the waiting task, or the next one that waits."""
        self._event.set()

    def clear(self) -> None:
        """Forget the rings so far."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self) -> None:
        """Wait until rung; rings before this count."""
        await self._event.wait()
        self._event = trio.Event()
