"""Reading for programs without an event loop: it runs in a background thread.

The caller's thread takes records that have arrived. The other one connects, reads,
acknowledges and asks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from liveness.client.background import ThreadedWatch, background_loop, waits
from liveness.client.inbox import RecordMap
from liveness.client.watcher import ACK_EVERY_S, Batch, Watch
from liveness.core.sessions.damping import DampingCounts

__all__ = ["SyncWatch", "reading"]


@contextmanager
def reading(watch: Watch) -> Iterator["SyncWatch"]:
    """Run *watch* in a thread, for a block."""
    with background_loop() as (portal, stack):
        stack.callback(portal.call, watch.aclose)
        yield SyncWatch(watch, portal)


class SyncWatch(ThreadedWatch[Batch], Iterator[RecordMap]):
    """The records of a sidecar for a program with threads; from `watch_sync`.

    It is an endless `for` over records, for one loop at a time; see `Watch`. Questions may
    come from any thread.
    """

    _target: Watch
    _waited_at = 0.0

    def __next__(self) -> RecordMap:
        """Finish the last record, and wait for the next one."""
        with self._lock:
            record: RecordMap | None = None
            if perf_counter() - self._waited_at < ACK_EVERY_S:
                record = self._target.take()
            if record is None:
                record = self._next(self._target.__anext__)
                self._waited_at = perf_counter()  # its acks are written by now
            return record

    connected = waits(Watch.connected)
    where = waits(Watch.where)
    anywhere = waits(Watch.anywhere)
    online = waits(Watch.online)
    list = waits(Watch.list)

    @property
    def log(self) -> str | None:
        """The id of the log that the last record is from; see `Watch.log`."""
        return self._target.log

    @property
    def position(self) -> int | None:
        """The seq after which to continue; see `Watch.position`. For the loop's thread."""
        return self._target.position

    @property
    def damping(self) -> DampingCounts:
        """Counts of `settle_s`; see `Watch.damping`."""
        return self._target.damping

    @property
    def name(self) -> str:
        """The name of this reader; see `Watch.name`."""
        return self._target.name
