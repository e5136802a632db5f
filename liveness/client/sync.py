"""The client library for programs without an event loop: it runs in a background thread.

    with liveness.connect_sync(path, name="gw-1") as sidecar:
        sidecar.login("ada", conn=1)
        for end in sidecar.ended():
            close_connection(end.uid, end.conn)

The caller's thread notes reports, under a lock; everything else runs in the other one.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, overload

import anyio
from anyio.from_thread import BlockingPortal

from liveness.client.fired_timer import Timer
from liveness.client.forks import CONNECT, refuse_after_fork
from liveness.client.gateway_run import running
from liveness.client.inbox import End
from liveness.client.iterators import LinkIterator
from liveness.client.link_state import LinkState
from liveness.client.sidecar import Sidecar, Stats, client_of
from liveness.client.socket_path import socket_at
from liveness.client.task_runner import F, is_async
from liveness.client.tasks import DEFAULT_AT_ONCE
from liveness.client.threaded_watch import background_loop
from liveness.core.records import MOVED, OFFLINE, Uid
from liveness.errors import ReportError

__all__ = ["SyncSidecar", "connect_sync"]

T = TypeVar("T")


@contextmanager
def connect_sync(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str,
    timeout: float | None = None,
    kinds: Sequence[str] = (OFFLINE, MOVED),
    fresh: bool | None = None,
    strict: bool = False,
    on_state: Callable[[LinkState], object] | None = None,
) -> Iterator["SyncSidecar"]:
    """Like `connect`, for a program without an event loop: it runs one in a thread.

    `on_state` is called in that thread.

    Raises:
        ReportError: As `connect`.
        Replaced: As `connect`, if `strict`; from each call, and when the context is left.
        Refused: As `Replaced`.
    """
    client, socket = client_of(name, timeout, kinds, fresh), socket_at(path)
    with background_loop() as (portal, stack):
        make = partial(Sidecar, client, socket, strict=strict, on_state=on_state)
        sidecar = portal.call(make)
        run = running(sidecar._link, sidecar._tasks)
        stack.enter_context(portal.wrap_async_context_manager(run))
        yield SyncSidecar(sidecar, portal)


class SyncSidecar:
    """The sidecar for a gateway with threads; from `connect_sync`.

    Every method may be called from any thread, and does what it does in `Sidecar`.
    """

    def __init__(self, sidecar: Sidecar, portal: BlockingPortal) -> None:
        self._sidecar = sidecar
        self._portal = portal
        self._link = sidecar._link
        self._lock = sidecar._lock
        refuse_after_fork(self, CONNECT)

    def login(
        self,
        uid: Uid,
        *,
        conn: int | None = None,
        timeout: float | None = None,
        age: float = 0.0,
    ) -> None:
        """Report that a connection was authenticated; see `Sidecar.login`."""
        self._check()
        with self._lock:
            self._sidecar.login(uid, conn=conn, timeout=timeout, age=age)

    def keepalive(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report activity; see `Sidecar.keepalive`."""
        self._check()
        with self._lock:
            self._sidecar.keepalive(uid, conn=conn)

    def message(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report a message; see `Sidecar.message`."""
        self._check()
        with self._lock:
            self._sidecar.message(uid, conn=conn)

    def logout(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report that a connection has closed; see `Sidecar.logout`."""
        self._check()
        with self._lock:
            self._sidecar.logout(uid, conn=conn)

    def new_conn(self) -> int:
        """Return an id for a connection; see `Sidecar.new_conn`."""
        with self._lock:
            return self._sidecar.new_conn()

    def after(
        self,
        key: str,
        seconds: float,
        payload: str | None = None,
        *,
        ext: str | None = None,
    ) -> None:
        """Ask for a timer; see `Sidecar.after`."""
        self._check()
        self._sidecar.after(key, seconds, payload, ext=ext)

    def cancel(self, key: str | None = None, *, ext: str | None = None) -> None:
        """Cancel a timer, or all with an ext; see `Sidecar.cancel`."""
        self._check()
        self._sidecar.cancel(key, ext=ext)

    def timers(self) -> Iterator[Timer]:
        """Iterate over the timers that fire and have no task; see `Sidecar.timers`."""
        return self._iterate(self._sidecar.timers())

    @overload
    def task(self, function: F, /) -> F: ...
    @overload
    def task(
        self, prefix: str = "", /, *, at_once: int = DEFAULT_AT_ONCE
    ) -> Callable[[F], F]: ...
    def task(self, prefix: Any = "", /, *, at_once: int = DEFAULT_AT_ONCE) -> Any:
        """Have a plain function called for timers, in a thread; see `Sidecar.task`."""
        self._check()
        if not callable(prefix):
            return lambda function: self._add_task(function, prefix, at_once)
        return self._add_task(prefix, "", at_once)

    def _add_task(self, function: F, prefix: str, at_once: int) -> F:
        if is_async(function):
            raise ReportError(
                f"{function!r:.80} is async, and your program has no event loop here; use "
                "a plain function, or connect"
            )
        return self._sidecar._tasks.add(function, prefix, at_once)

    def ended(self) -> Iterator[End]:
        """Iterate over open connections that have to be closed; see `Sidecar.ended`."""
        return self._iterate(self._sidecar.ended())

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Iterate over all records, in their form on the wire; see `Sidecar.records`."""
        return self._iterate(self._sidecar.records())

    @property
    def name(self) -> str:
        """This gateway's name."""
        return self._sidecar.name

    @property
    def is_connected(self) -> bool:
        """Whether there is a link now."""
        return self._sidecar.is_connected

    @property
    def state(self) -> LinkState:
        """Whether there is a link now, and if not, why."""
        return self._sidecar.state

    def connected(self) -> None:
        """Wait until there is a link; see `Sidecar.connected`."""
        self._wait(self._sidecar.connected)

    def resume(self) -> None:
        """Take this gateway's name over again; see `Sidecar.resume`."""
        self._wait(self._sidecar.resume)

    def flush(self) -> None:
        """Wait until everything is applied and durable; see `Sidecar.flush`."""
        self._wait(self._sidecar.flush)

    def stats(self) -> Stats:
        """Return numbers for the gateway's own metrics."""
        with self._lock:
            return self._sidecar.stats()

    # --- the background thread --------------------------------------------------------

    def _check(self) -> None:
        """Raise the error that ended the link for good, if `strict`."""
        if self._link.error is not None:
            raise self._link.error.with_traceback(None)

    def _wait(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Run *wait* in the background thread."""
        self._check()
        try:
            result: T = self._portal.call(wait)
        except (anyio.ClosedResourceError, RuntimeError):  # the latter: no thread
            if not self._link.is_closed:
                raise
            self._check()
            raise anyio.ClosedResourceError("connect_sync was left") from None
        return result

    def _iterate(self, items: LinkIterator[T]) -> Iterator[T]:
        while (item := self._next(items)) is not None:
            yield item
        self._check()

    def _next(self, items: LinkIterator[T]) -> T | None:
        """Return the next item; ask the background thread only to wait for it."""
        with self._lock:
            item = items.take()
        if item is None and not self._link.is_closed:
            return self._wait(items.next_item)
        return item
