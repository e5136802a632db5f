"""Reading the cluster for programs without an event loop: it runs in a background thread."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from liveness.client.forks import WATCH, refuse_after_fork
from liveness.cluster.cluster_watch import ClusterListing, ClusterWatch
from liveness.cluster.events import ClusterEvent
from liveness.cluster.format import Place
from liveness.cluster.questions import HostRow
from liveness.core.records import Uid

__all__ = ["SyncClusterWatch", "reading"]

T = TypeVar("T")


@contextmanager
def reading(watch: ClusterWatch) -> Iterator["SyncClusterWatch"]:
    """Run *watch* in a thread, for a block."""
    with (
        start_blocking_portal("trio", name="liveness") as portal,
        portal.wrap_async_context_manager(watch),
    ):
        yield SyncClusterWatch(watch, portal)


class SyncClusterWatch(Iterator[ClusterEvent]):
    """The events of all hosts for a program with threads; from `watch_sync`.

    It is an endless `for` over events, for one loop at a time; see `ClusterWatch`.
    Questions may come from any thread.
    """

    def __init__(self, watch: ClusterWatch, portal: BlockingPortal) -> None:
        self._watch = watch
        self._portal = portal
        self._lock = Lock()  # of the loop
        refuse_after_fork(self, WATCH)

    def __next__(self) -> ClusterEvent:
        """Finish the last event, and wait for the next one."""
        with self._lock:
            event = self._watch.take()
            return self._next(self._watch.__anext__) if event is None else event

    def batches(self) -> Iterator[list[ClusterEvent]]:
        """Iterate over lists of events; see `ClusterWatch.batches`."""
        batches = self._watch.batches()
        while True:
            with self._lock:
                try:
                    batch = self._next(batches.__anext__)
                except StopIteration:
                    return
            yield batch

    def _next(self, wait: Callable[[], Awaitable[T]]) -> T:
        try:
            return self._wait(wait)
        except (StopAsyncIteration, anyio.ClosedResourceError):
            raise StopIteration from None

    @property
    def position(self) -> str | None:
        """Where another watch goes on; see `ClusterWatch.position`."""
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

    def _wait(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Run *wait* in the background thread."""
        try:
            return self._portal.call(wait)
        except RuntimeError:
            if not self._watch.is_closed:
                raise
        raise anyio.ClosedResourceError("watch_sync was left")
