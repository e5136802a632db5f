"""What a gateway in Python uses to report connections, and to learn which have ended.

It runs under trio and asyncio; `liveness.client.sync` is for programs without an event
loop. Reporting is a plain call that never waits: it notes the report, and
`ReconnectingLink` sends it. `liveness.client.protocol` decides what is sent, and what the
answers mean.
"""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, overload

from anyio.lowlevel import checkpoint

from liveness.client.background import refuse_after_fork
from liveness.client.dialer import socket_at
from liveness.client.inbox import Arrival, End
from liveness.client.protocol import Client
from liveness.client.reconnecting_link import LinkState, ReconnectingLink
from liveness.client.task_runner import F, TaskRunner, is_async, running
from liveness.client.tasks import DEFAULT_AT_ONCE
from liveness.core.records import Uid
from liveness.core.wire.frames import MAX_AGE_S
from liveness.errors import ReportError


class Stats(NamedTuple):
    """Numbers for a gateway. All but the first three and `waiting` only grow.

    A gateway whose `refusals` or `replacements` grow is not watched; see `Sidecar.state`.
    """

    open: int  # connections
    pending: int  # reports not written yet; at most one activity for each user
    unconfirmed: int  # reports written, and not confirmed by a pong yet
    links: int  # begun
    ignored: int  # reports about connections that were not open
    duplicates: int  # records that arrived again
    refused: int  # frames that the sidecar refused
    waiting: int  # timers that have fired, and that no task has taken yet
    unkept: int  # timers and answers dropped for lack of room; such timers come again
    refusals: int  # links that the sidecar refused, or ended with an error
    replacements: int  # how often another process has taken this gateway's name


class SidecarCalls:
    """The calls of a gateway that do not wait, with an event loop or without one."""

    def __init__(self, link: ReconnectingLink, tasks: TaskRunner) -> None:
        self._link = link
        self._tasks = tasks
        self._client = link.client
        self._lock = link.lock
        self._clock = link.clock
        self._began = link.clock()
        # Shortcuts, for the calls that are made for every message of a user.
        self._uids = link.client.reports.uids
        self._keepalives = link.client.reports.keepalives
        self._messages = link.client.reports.messages
        refuse_after_fork(self)

    # --- reports ----------------------------------------------------------------

    def login(
        self,
        uid: Uid,
        *,
        conn: int | None = None,
        timeout: float | None = None,
        age: float = 0.0,
    ) -> None:
        """Report that a connection was authenticated; if repeated, that it is alive.

        Args:
            uid: The user: 1 to 255 bytes without control characters, or an integer from
                0 to 2^63-1. For a user with several devices, a uid for each ("ada/phone").
            conn: The connection's id, see `new_conn`. Without one, a uid has one
                connection here, and every login is a new connection.
            timeout: The silence timeout of this uid, in seconds, until its next login or
                the end of its session.
            age: How many seconds ago it was authenticated.
        Raises:
            ReportError: An argument is invalid; nothing was reported.
        """
        if type(age) not in (int, float) or not 0 <= age < float("inf"):
            raise ReportError(f"age is {age!r:.40}; it must be 0 seconds or more")
        at = self._clock() - min(age, MAX_AGE_S)
        self._client.login(uid, conn, at=at, timeout=timeout)
        if at < self._began:
            self._client.adopt_older()
        self._link.write_soon()

    def keepalive(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report activity; ignored, and counted, if the connection is not open.

        Raises:
            ReportError: The uid is invalid, or the connection belongs to another.
        """
        known = self._uids.get(conn)  # type: ignore[arg-type]  # None is never open
        if known == uid and type(known) is type(uid) and type(conn) is int:
            self._keepalives[conn] = uid
        else:
            self._client.reports.activity(self._keepalives, uid, conn)

    def message(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report a message; it is activity too.

        Raises:
            ReportError: As `keepalive`.
        """
        # As in `keepalive`, without a call for each event.
        known = self._uids.get(conn)  # type: ignore[arg-type]  # None is never open
        if known == uid and type(known) is type(uid) and type(conn) is int:
            self._messages[conn] = uid
        else:
            self._client.reports.activity(self._messages, uid, conn)

    def logout(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report that a connection has closed; ignored if it is not open any more.

        So you can call it wherever you close a connection.

        Raises:
            ReportError: As `keepalive`.
        """
        self._client.logout(uid, conn)
        self._link.write_soon()

    def new_conn(self) -> int:
        """Return an id for a connection, below 2^53.

        It never repeats, not even after a restart.
        """
        return self._client.reports.new_conn()

    # --- timers ---------------------------------------------------------------------

    def after(
        self,
        key: str,
        seconds: float,
        payload: str | None = None,
        *,
        ext: str | None = None,
    ) -> None:
        """Ask for a timer: it fires after so many seconds, unless it is cancelled.

        The request is kept here until it is on the sidecar's disk, and the timer is kept
        there until its work is done. It may fire more than once, but never early.

        Args:
            key: Its name in this gateway: 1 to 255 bytes without control characters. It
                replaces an older timer of that name, whatever its state.
            seconds: 0.1 to 31,622,400, which is 366 days.
            payload: Text to get back when it fires: at most 4,096 bytes without U+0000.
            ext: A name, like a key, that several timers may share, to cancel them all.
        Raises:
            ReportError: An argument is invalid, or too many requests wait for the sidecar's
                disk. Nothing was taken.
        """
        with self._lock:
            self._client.after(key, seconds, payload, ext, self._clock())
        self._link.write_soon()

    def cancel(self, key: str | None = None, *, ext: str | None = None) -> None:
        """Cancel the timer of this key, or all with this ext, if there are any.

        A timer that has fired is not tried again. A task that is running for it goes on.

        Raises:
            ReportError: As `after`; or both were given, or neither.
        """
        with self._lock:
            self._client.cancel(key, ext)
        self._link.write_soon()

    @overload
    def task(self, function: F, /) -> F: ...
    @overload
    def task(
        self, prefix: str = "", /, *, at_once: int = DEFAULT_AT_ONCE
    ) -> Callable[[F], F]: ...
    def task(self, prefix: Any = "", /, *, at_once: int = DEFAULT_AT_ONCE) -> Any:
        """Have a function called for each timer that fires: `@sidecar.task("order:")`.

        It gets the `Timer`, and may return a string, the message of the answer `done`.
        If it raises, the timer has failed and is tried again later, except after a
        `TaskFailed` that is final. If it does not return within the sidecar's run
        timeout, the timer is tried again too. An async function is then cancelled. A plain
        function runs in a thread, cannot be cancelled, and keeps its place until it
        returns.

        Args:
            prefix: The beginning of its timers' keys; the longest prefix wins. Without
                one, as `@sidecar.task`, it takes every timer that no other task does.
            at_once: How many calls may run at once, 1 to 10,000; they delay no other
                task. For one key only one runs at a time.
        Raises:
            ReportError: An argument is invalid, or the prefix has a task already.
        """
        if not callable(prefix):
            return lambda function: self._add_task(function, prefix, at_once)
        return self._add_task(prefix, "", at_once)

    def _add_task(self, function: F, prefix: str, at_once: int) -> F:
        return self._tasks.add(function, prefix, at_once)

    # --- the link -------------------------------------------------------------------

    @property
    def name(self) -> str:
        """This gateway's name."""
        return self._client.name

    @property
    def state(self) -> LinkState:
        """Whether there is a link now, and if not, why."""
        return self._link.state

    def stats(self) -> Stats:
        """Return numbers for the gateway's own metrics."""
        client, reports = self._client, self._client.reports
        return Stats(
            open=len(reports.uids),
            pending=reports.pending,
            unconfirmed=reports.unconfirmed,
            links=client.links,
            ignored=reports.ignored,
            duplicates=client.inbox.duplicates,
            refused=client.refused,
            waiting=client.tasks.waiting,
            unkept=client.tasks.dropped + reports.timer_requests.dropped,
            refusals=self._link.refusals,
            replacements=self._link.replacements,
        )


class Sidecar(SidecarCalls):
    """The sidecar, as a gateway sees it; from `connect`.

    Use it from one thread. Only `after` and `cancel` may come from any thread.
    """

    # --- ends -----------------------------------------------------------------------

    def ended(self) -> "Ends":
        """Iterate, without end, over the open connections that have to be closed.

        Close each without waiting, as by asyncio's `writer.transport.abort()`: its user may
        read nothing, and while the body of the loop waits, so do all later ends.

        An end is acknowledged when the loop asks for the next one. If the loop stops
        before, the next loop gets that end again; the next process gets it only if it
        is not `fresh`. Between two loops, ends wait, and no record behind them is
        acknowledged. Loops that run at the same time share the ends.
        """
        return Ends(self._link)

    async def connected(self) -> None:
        """Wait until there is a link, however long the sidecar is away or refuses."""
        await self._link.wait_until(lambda: self._client.is_linked)

    async def resume(self) -> None:
        """Take this gateway's name over again, from the process that has taken it.

        It returns once there is a link, and does nothing unless the state is `replaced`.
        All open connections are declared again; those that the other process reported
        stay with the sidecar until they are silent. The other process is replaced in turn:
        make sure that it has ended, or does not do the same.

        Raises:
            Replaced: Yet another process was faster.
            anyio.ClosedResourceError: `connect` was left meanwhile.
        """
        await self._link.resume()

    async def flush(self) -> None:
        """Wait until everything reported is applied and on the sidecar's disk.

        Without a sidecar it waits for one: also while the sidecar refuses this gateway,
        and after another process has taken its name, until `resume`. Bound it by a
        timeout if your gateway must go on.

        Raises:
            anyio.ClosedResourceError: `connect` was left meanwhile.
            ReportError: Timers were asked for, and the sidecar has no room.
        """
        await self._link.flush()


class Ends(AsyncIterator[End]):
    """An endless `async for` over ends, for one loop at a time; from `Sidecar.ended`."""

    def __init__(self, link: ReconnectingLink) -> None:
        self._link = link
        self._current: Arrival | None = None

    async def __anext__(self) -> End:
        """Wait for the next end; the iteration ends when `connect` was left."""
        await checkpoint()
        while True:
            with self._link.lock:
                if (end := self.take()) is not None:
                    return end
                if self._link.is_closed:
                    raise StopAsyncIteration
            await self._link.changed.wait()

    def take(self) -> End | None:
        """Finish the last end; return the next one if it is here. Needs the lock."""
        inbox = self._link.client.inbox
        if self._current is not None:
            inbox.finish(self._current)
            self._link.write_soon()  # its ack
        self._current = inbox.take(self)
        return None if self._current is None else self._current.end


@asynccontextmanager
async def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str,
    timeout: float | None = None,  # noqa: ASYNC109 - of users, not of this function
    fresh: bool | None = None,
    on_state: Callable[[LinkState], object] | None = None,
) -> AsyncIterator["Sidecar"]:
    """Keep a link to the sidecar; collect reports while there is none.

    It does not wait for the sidecar: a gateway can serve without it. Nothing that happens
    to the link ends the body. When the context is left, running tasks have a second to end,
    and are then cancelled. The last reports are still written, for at most a second; later
    reports are lost. The logger "liveness.client" logs what happens to the link.

    Args:
        path: The sidecar's socket. None: where the command line looks for it too.
        name: This gateway's name, 1 to 64 bytes. No other gateway of this sidecar may
            have it, and it has to stay the same over restarts. Each worker of a pre-fork
            server needs one, such as f"gw-1:{worker}", and its own `connect`, after the
            fork.
        timeout: Silence after which this gateway's users are offline, 1 to 86,400
            seconds. None: the sidecar's setting. Below 12 s the library writes more
            often, so that a frozen gateway is noticed before its users are silent. Such
            a gateway counts as frozen if its event loop is blocked, again and again, for
            more than about a sixth of the timeout.
        fresh: Whether this process starts without connections, so that those of an
            earlier process are lost. None: yes, unless a login before the first link has
            an `age` that makes it older than this `connect`.
        on_state: A plain function, called in the event loop with each new state of the
            link. What it raises is logged.
    Raises:
        ReportError: An argument is invalid. (It is a ValueError too.)
        ConfigError: Without a path: the settings do not say where the socket is.
    """
    if on_state is not None and (not callable(on_state) or is_async(on_state)):
        raise ReportError(
            f"on_state is {on_state!r:.80}; it must be a plain function of one argument"
        )
    link = ReconnectingLink(
        client_of(name, timeout, fresh),
        socket_at(path),
        on_state=on_state,
    )
    tasks = TaskRunner(link)
    sidecar = Sidecar(link, tasks)
    async with running(link, tasks):
        yield sidecar


def client_of(name: str, timeout: float | None, fresh: bool | None) -> Client:
    """Make the client of a new process, whose conns no earlier process has used."""
    # Seconds x 2^20, with the fraction of the second in units of 2^-20 s, and from there a
    # counter. So the conns of a later process are above all of an earlier one, unless that
    # made more than 2^20 conns a second on average. Until the year 2242 they stay below
    # 2^53: readers that hold numbers as doubles, such as JavaScript and jq, get them exactly.
    first_conn = time.time_ns() * 2**20 // 10**9
    return Client(name=name, timeout=timeout, fresh=fresh, first_conn=first_conn)
