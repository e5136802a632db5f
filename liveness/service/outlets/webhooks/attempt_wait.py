"""Waits until the next attempt of a request is due."""

from typing import Final

import trio

from liveness.service.common.clock import Clock
from liveness.service.common.notifier import Notifier
from liveness.service.outlets.webhooks.batch_store import StoredBatch

# How often a wait reads the state's clock, which runs on while the host sleeps.
LOOK_S: Final = 60.0


class AttemptWait:
    """The waits of one outlet, one at a time.

    The state's clock decides. No wait takes longer than planned: earlier versions may have
    stored a time of a wrong wall clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end = Notifier()

    def left_s(self, batch: StoredBatch) -> float:
        """Seconds until the next attempt is due; 0 if that is later than planned."""
        left_ms = batch.next_ms - self._clock.state_ms()
        return left_ms / 1000 if 0 < left_ms <= batch.wait_ms else 0.0

    async def until_due(self, batch: StoredBatch) -> None:
        """Wait until an attempt is due, or `end`."""
        self._end.clear()
        with trio.move_on_after(self.left_s(batch)):
            while left_s := self.left_s(batch):
                with trio.move_on_after(min(left_s, LOOK_S)):
                    await self._end.wait()
                    return

    def end(self) -> None:
        """End the wait, if there is one: the request is tried now."""
        self._end.notify()
