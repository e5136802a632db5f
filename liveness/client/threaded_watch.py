"""Reading without an event loop: the loop runs in a thread.

`sync_watch` uses this to read a sidecar, and `sync_cluster` to read all hosts.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from liveness.client.forks import WATCH, leak, refuse_after_fork

T = TypeVar("T")
B = TypeVar("B", covariant=True)


class Batched(Protocol[B]):
    """The watch in the thread: `Watch` or `ClusterWatch`."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""

    def batches(self) -> AsyncIterator[B]:
        """Lists of its records or events."""


@contextmanager
def background_loop() -> Iterator[tuple[BlockingPortal, ExitStack]]:
    """An event loop in a thread, for a block; contexts on the stack are left before it ends.

    In a child that was forked in the block nothing is left: the thread is its parent's, and
    waiting for it to end would take for ever.
    """
    own_process = os.getpid()
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal("trio", name="liveness"))
        try:
            yield portal, stack
        finally:
            if os.getpid() != own_process:
                leak(stack.pop_all())


class ThreadedWatch(Generic[B]):
    """Runs a watch in the thread of a portal, for one loop at a time."""

    def __init__(self, watch: Batched[B], portal: BlockingPortal) -> None:
        self._batched = watch
        self._portal = portal
        self._lock = Lock()  # of the loop
        refuse_after_fork(self, WATCH)

    def batches(self) -> Iterator[B]:
        """Iterate over lists of records or events; see `batches` of the watch."""
        batches = self._batched.batches()
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

    def _wait(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Run *wait* in the background thread."""
        try:
            return self._portal.call(wait)
        except RuntimeError:
            if not self._batched.is_closed:
                raise
        raise anyio.ClosedResourceError("watch_sync was left")
