"""Reading the cluster for programs without an event loop: it runs in a background thread."""

from collections.abc import Iterator
from contextlib import contextmanager

from liveness.client.background import ThreadedWatch, background_loop, waits
from liveness.cluster.cluster_watch import ClusterWatch
from liveness.cluster.events import ClusterEvent

__all__ = ["SyncClusterWatch", "reading"]


@contextmanager
def reading(watch: ClusterWatch) -> Iterator["SyncClusterWatch"]:
    """Run *watch* in a thread, for a block."""
    with background_loop() as (portal, stack):
        stack.enter_context(portal.wrap_async_context_manager(watch))
        yield SyncClusterWatch(watch, portal)


class SyncClusterWatch(ThreadedWatch[list[ClusterEvent]], Iterator[ClusterEvent]):
    """The events of all hosts for a program with threads; from `watch_sync`.

    It is an endless `for` over events, for one loop at a time; see `ClusterWatch`.
    Questions may come from any thread.
    """

    _target: ClusterWatch

    def __next__(self) -> ClusterEvent:
        """Finish the last event, and wait for the next one."""
        with self._lock:
            event = self._target.take()
            if event is None:
                event = self._next(self._target.__anext__)
            return event

    connected = waits(ClusterWatch.connected)
    where = waits(ClusterWatch.where)
    online = waits(ClusterWatch.online)
    hosts = waits(ClusterWatch.hosts)

    @property
    def position(self) -> str | None:
        """Where another watch can continue; see `ClusterWatch.position`."""
        return self._target.position
