"""Reading for programs without an event loop: it runs in a background thread.

    with liveness.watch_sync(name="mailer", kinds=["offline"]) as watch:
        for record in watch:
            send_mail(record["uid"])

The caller's thread takes records that have arrived. The other one connects, reads,
acknowledges and asks.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

from liveness.client.inbox import RecordMap
from liveness.client.question_link import HostSessions, Listing, Sessions
from liveness.client.threaded_watch import ThreadedWatch, background_loop
from liveness.client.watcher import ACK_EVERY_S, Batch, Watch
from liveness.core.records import Uid
from liveness.core.sessions.damping import DampingCounts

__all__ = ["SyncWatch", "watch_sync"]

T = TypeVar("T")


@contextmanager
def watch_sync(
    path: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Iterator["SyncWatch"]:
    """Read in a thread; the options are those of `Watch`."""
    watch = Watch(path, **options)
    with background_loop() as (portal, stack):
        stack.callback(portal.call, watch.aclose)
        yield SyncWatch(watch, portal)


class SyncWatch(ThreadedWatch[Batch], Iterator[RecordMap]):
    """The records of a sidecar for a program with threads; from `watch_sync`.

    It is an endless `for` over records, for one loop at a time; see `Watch`. Questions may
    come from any thread.
    """

    def __init__(self, watch: Watch, portal: BlockingPortal) -> None:
        super().__init__(watch, portal)
        self._watch = watch
        self._waited_at = 0.0

    def __next__(self) -> RecordMap:
        """Finish the last record, and wait for the next one."""
        with self._lock:
            record = None
            if perf_counter() - self._waited_at < ACK_EVERY_S:
                record = self._watch.take()
            if record is None:
                record = self._next(self._watch.__anext__)
                self._waited_at = perf_counter()  # its acks are written by now
            return record

    @property
    def log(self) -> str | None:
        """The id of the log that the last record is from; see `Watch.log`."""
        return self._watch.log

    @property
    def position(self) -> int | None:
        """The seq after which to continue; see `Watch.position`. For the loop's thread."""
        return self._watch.position

    @property
    def damping(self) -> DampingCounts:
        """Counts of `settle_s`; see `Watch.damping`."""
        return self._watch.damping

    @property
    def name(self) -> str:
        """The name of this reader; see `Watch.name`."""
        return self._watch.name

    def connected(self) -> None:
        """Wait until there is a link; see `Watch.connected`."""
        self._wait(self._watch.connected)

    def where(self, uids: Uid | Iterable[Uid]) -> Sessions:
        """Ask which of these users are online, and where; see `Watch.where`."""
        return self._wait(lambda: self._watch.where(uids))

    def anywhere(self, uids: Uid | Iterable[Uid]) -> HostSessions:
        """Ask which of these users are online on any host; see `Watch.anywhere`."""
        return self._wait(lambda: self._watch.anywhere(uids))

    def online(self, uids: Uid | Iterable[Uid], *, anywhere: bool = False) -> set[Uid]:
        """Ask which of these users are online; see `Watch.online`."""
        return self._wait(lambda: self._watch.online(uids, anywhere=anywhere))

    def list(self) -> Listing:
        """Ask for all sessions; see `Watch.list`."""
        return self._wait(self._watch.list)
