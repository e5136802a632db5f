"""The client library for programs without an event loop: it runs in a background thread.

The caller's thread notes reports, under a lock; everything else runs in the other one.
"""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from liveness.client.background import Threaded, background_loop, waits
from liveness.client.inbox import End
from liveness.client.reconnecting_link import LinkState
from liveness.client.sidecar import Sidecar, SidecarCalls, client_of, connect
from liveness.client.task_runner import F, is_async
from liveness.core.records import Uid
from liveness.errors import ReportError

__all__ = ["SyncSidecar", "connect_sync"]

P = ParamSpec("P")
T = TypeVar("T")


def locked(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """The method that may be called from any thread, and raises what has ended the link."""

    @wraps(method)
    def call(sidecar: "SyncSidecar", /, *args: P.args, **options: P.kwargs) -> T:
        sidecar._check()
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
        self._sidecar = sidecar

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
        self._check()
        with self._lock:
            SidecarCalls.keepalive(self, uid, conn=conn)

    def message(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report a message; see `Sidecar.message`."""
        self._check()
        with self._lock:
            SidecarCalls.message(self, uid, conn=conn)

    def ended(self) -> Iterator[End]:
        """Iterate over open connections that have to be closed; see `Sidecar.ended`."""
        ends = self._sidecar.ended()
        while True:
            with self._lock:
                end = ends.take()
            # Ask the background thread only to wait for it.
            if end is None:
                try:
                    end = self._wait(ends.__anext__)
                except (StopAsyncIteration, anyio.ClosedResourceError):
                    self._check()
                    return
            yield end

    def _add_task(self, function: F, prefix: str, at_once: int) -> F:
        if is_async(function):
            raise ReportError(
                f"{function!r:.80} is async, and your program has no event loop here; use "
                "a plain function, or connect"
            )
        return super()._add_task(function, prefix, at_once)

    def _check(self) -> None:
        """Raise the error that ended the link for good, if `strict`."""
        if self._link.error is not None:
            raise self._link.error.with_traceback(None)

    @property
    def _is_closed(self) -> bool:
        return self._link.is_closed

    def _wait(self, wait: Callable[[], Awaitable[T]]) -> T:
        self._check()
        try:
            return super()._wait(wait)
        except anyio.ClosedResourceError:
            self._check()
            raise


@contextmanager
def connect_sync(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str,
    timeout: float | None = None,
    fresh: bool | None = None,
    strict: bool = False,
    on_state: Callable[[LinkState], object] | None = None,
) -> Iterator[SyncSidecar]:
    """Like `connect`, for a program without an event loop: it runs one in a thread.

    `on_state` is called in that thread.

    Raises:
        ReportError: As `connect`.
        Replaced: As `connect`, if `strict`; from each call, and when the context is left.
        Refused: As `Replaced`.
    """
    client_of(name, timeout, fresh)  # raise before a thread is started
    run = connect(
        path,
        name=name,
        timeout=timeout,
        fresh=fresh,
        strict=strict,
        on_state=on_state,
    )
    with background_loop() as (portal, stack):
        sidecar = stack.enter_context(portal.wrap_async_context_manager(run))
        yield SyncSidecar(sidecar, portal)
