"""The client library for programs without an event loop: it runs in a background thread.

The caller's thread notes reports, under a lock; everything else runs in the other one.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from liveness.client.background import Threaded, background_loop, waits
from liveness.client.inbox import End
from liveness.client.reconnecting_link import LinkState
from liveness.client.sidecar import Ends, Sidecar, SidecarCalls, client_of, connect
from liveness.client.task_runner import F, is_async
from liveness.core.records import Uid
from liveness.errors import ReportError

__all__ = ["SyncSidecar", "connect_sync"]

P = ParamSpec("P")
T = TypeVar("T")


def locked(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """The method that may be called from any thread."""

    @wraps(method)
    def call(sidecar: "SyncSidecar", /, *args: P.args, **options: P.kwargs) -> T:
        with sidecar._lock:
            return method(sidecar, *args, **options)

    return call


class SyncSidecar(SidecarCalls, Threaded):
    """The sidecar for a gateway with threads; from `connect_sync`.

    Every method may be called from any thread, and does what it does in `Sidecar`.
    """

    def __init__(self, sidecar: Sidecar, portal: BlockingPortal) -> None:
        SidecarCalls.__init__(self, sidecar._link, sidecar._tasks)
        Threaded.__init__(self, sidecar, portal)

    login = locked(SidecarCalls.login)
    logout = locked(SidecarCalls.logout)
    new_conn = locked(SidecarCalls.new_conn)
    stats = locked(SidecarCalls.stats)
    connected = waits(Sidecar.connected)
    resume = waits(Sidecar.resume)
    flush = waits(Sidecar.flush)

    # Called for every message of a user: so without the cost of `locked`.
    def keepalive(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report activity; see `Sidecar.keepalive`."""
        with self._lock:
            SidecarCalls.keepalive(self, uid, conn=conn)

    def message(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report a message; see `Sidecar.message`."""
        with self._lock:
            SidecarCalls.message(self, uid, conn=conn)

    def ended(self) -> Iterator[End]:
        """Iterate over open connections that have to be closed; see `Sidecar.ended`."""
        ends: Ends = self._target.ended()
        while True:
            with self._lock:
                end = ends.take()
            # Ask the background thread only to wait for it.
            if end is None:
                try:
                    end = self._wait(ends.__anext__)
                except (StopAsyncIteration, anyio.ClosedResourceError):
                    return
            yield end

    def _add_task(self, function: F, prefix: str, at_once: int) -> F:
        if is_async(function):
            raise ReportError(
                f"{function!r:.80} is async, and your program has no event loop here; use "
                "a plain function, or connect"
            )
        return super()._add_task(function, prefix, at_once)

    @property
    def _is_closed(self) -> bool:
        return self._link.is_closed


@contextmanager
def connect_sync(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str,
    timeout: float | None = None,
    fresh: bool | None = None,
    on_state: Callable[[LinkState], object] | None = None,
) -> Iterator[SyncSidecar]:
    """Like `connect`, for a program without an event loop: it runs one in a thread.

    `on_state` is called in that thread.

    Raises:
        ReportError: As `connect`.
    """
    client_of(name, timeout, fresh)  # raise before a thread is started
    run = connect(path, name=name, timeout=timeout, fresh=fresh, on_state=on_state)
    with background_loop() as (portal, stack):
        sidecar = stack.enter_context(portal.wrap_async_context_manager(run))
        yield SyncSidecar(sidecar, portal)
