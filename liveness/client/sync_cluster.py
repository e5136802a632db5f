"""Reading the cluster for programs without an event loop: it runs in a background thread."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from anyio.from_thread import BlockingPortal

from liveness.client.threaded_watch import ThreadedWatch, background_loop
from liveness.cluster.cluster_watch import ClusterListing, ClusterWatch
from liveness.cluster.events import ClusterEvent
from liveness.cluster.format import Place
from liveness.cluster.questions import HostRow
from liveness.core.records import Uid

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

    def __init__(self, watch: ClusterWatch, portal: BlockingPortal) -> None:
        super().__init__(watch, portal)
        self._watch = watch

    def __next__(self) -> ClusterEvent:
        """Finish the last event, and wait for the next one."""
        with self._lock:
            event = self._watch.take()
            return self._next(self._watch.__anext__) if event is None else event

    @property
    def position(self) -> str | None:
        """Where another watch can continue; see `ClusterWatch.position`."""
        return self._watch.position

    def where(self, users: Uid | Iterable[Uid]) -> list[Place]:
        """Ask on which hosts these users are online; see `ClusterWatch.where`."""
        return self._wait(lambda: self._watch.where(users))

    def online(self, users: Uid | Iterable[Uid]) -> set[Uid]:
        """Ask which of these users are online; see `ClusterWatch.online`."""
        return self._wait(lambda: self._watch.online(users))

    def hosts(self) -> list[HostRow]:
        """Ask for the hosts; see `ClusterWatch.hosts`."""
        return self._wait(self._watch.hosts)

    def list(self) -> ClusterListing:
        """Ask for all users that are online; see `ClusterWatch.list`."""
        return self._wait(self._watch.list)
