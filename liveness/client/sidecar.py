"""What a gateway in Python imports: it reports, and is told whose connection to close.

    async with liveness.connect(path, name="gw-1") as sidecar:
        sidecar.login("ada", conn=1)
        sidecar.keepalive("ada", conn=1)
        async for end in sidecar.ended():
            close_connection(end.uid, end.conn)

Timers are asked for, and done when they come due, by the same link:

    @sidecar.task("remind:")
    async def remind(timer):
        await write_to(timer.payload)

    sidecar.after("remind:ada", 24 * 3600, "ada")

It runs under trio and under asyncio, and for programs with neither in a thread of its
own (`client_sync`). Reporting is a plain call that never waits: it puts the
connection into a set. A task writes what is in the sets, each sign of life at most
`flush` after it was reported, and connects again whenever the link has ended. What all
this decides is `core.client`; here are only its socket, its clock and its waiting.
"""

import logging
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable, iscoroutinefunction
from threading import Lock, get_ident
from traceback import format_exception_only
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from liveness.client.inbox import Arrival, End
from liveness.client.protocol import FINAL, NOTHING, Client
from liveness.client.tasks import AT_ONCE, Run, TaskLane
from liveness.core.frames import MAX_AGE_S
from liveness.core.framing import PIECE_BYTES, Reader
from liveness.core.records import MOVED, OFFLINE, Uid
from liveness.errors import (
    ConfigError,
    LivenessError,
    Refused,
    Replaced,
    ReportError,
    TaskFailed,
    WireError,
)
from liveness.host_clock import read_host

__all__ = [
    "ConfigError",
    "End",
    "LivenessError",
    "Refused",
    "Replaced",
    "ReportError",
    "Sidecar",
    "Stats",
    "TaskFailed",
    "Timer",
    "connect",
]

# Logins, logouts and acks that come together are written together.
GATHER_S: Final = 0.02
# Signs of life are at most a flush old when they are written: a tenth of it is for the
# event loop to get round to it.
FLUSH_SHARE: Final = 0.9
LEAST_FLUSH_S: Final = 0.01
# After a link has ended, and between two tries: at a random moment, so that a restarted
# sidecar does not meet all gateways at once, and always within a second.
RETURN_S: Final = (0.0, 0.5)
RETRY_S: Final = (0.25, 0.75)
# A link that was refused for a fault of ours or for load: up to 1 s, 2 s, 4 s, and so on.
MOST_BACKOFF_S: Final = 10.0
# After this a link without a welcome is worth a line in the log. It is not given up: a
# sidecar that stands still would take its hello for that of a newer link than the next.
WELCOME_S: Final = 5.0
# At the end, for the tasks under way, and as long again for what was reported last: the
# sidecar may not be reading just then.
LAST_S: Final = 1.0
# From the sidecar: a frame has 1,000 records, or one row for each uid that was asked for.
# It may hold four times as many values as this: 99 a record, keys and all.
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH: Final = 25_000
MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path, less its end

logger: Final = logging.getLogger("liveness.client")

T = TypeVar("T")
F = TypeVar("F", bound="Callable[[Timer], object]")


class Stats(NamedTuple):
    """How a gateway's side stands; the first three and `waiting` also fall."""

    open: int  # connections
    pending: int  # what was reported and not written yet; of signs of life, one a user
    unconfirmed: int  # what was written and no pong has covered yet
    links: int  # begun
    ignored: int  # reports about connections that were not open
    duplicates: int  # records that came again
    refused: int  # frames that the sidecar refused
    waiting: int  # timers that have fired, and no task or loop has taken yet
    unkept: int  # timers and answers there was no room for; such timers come again


@asynccontextmanager
async def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str,
    timeout: float | None = None,  # noqa: ASYNC109 - of users, not of this function
    kinds: Sequence[str] = (OFFLINE, MOVED),
    fresh: bool | None = None,
) -> AsyncIterator["Sidecar"]:
    """Keep a link to the sidecar; reports are collected while there is none.

    It does not wait for the sidecar: a gateway can serve without it. On leaving, tasks
    that are under way have a second to end, then they are cancelled; what was reported
    last is still written, for a second at most; what is reported after that goes
    nowhere. What happens to the link is logged, as "liveness.client".

    Args:
        path: The sidecar's socket. None: where the command line looks for it too.
        name: This gateway's, 1 to 64 bytes. No other gateway of this sidecar may have
            it, and it has to stay the same over restarts.
        timeout: Silence after which this gateway's users are offline, 1 to 86,400
            seconds. None: as the sidecar is set. Below 12 s the gateway is heard more
            often, so that a frozen one is known before its users are silent; it is taken
            for frozen where its event loop is blocked, time after time, for more than
            about a sixth of the timeout.
        kinds: Which records to be told of: "online", "offline", "moved". This gateway's
            own timers come in any case.
        fresh: Whether this process starts without connections, so that those of an
            earlier one are lost. None: it does, unless one is reported before the first
            link whose `age` says that it is older than this.
    Raises:
        ReportError: One of these cannot be. (It is a ValueError too.)
        ConfigError: Without a path: the settings do not tell where the socket is.
        Replaced: Another process has taken this name. What runs inside is cancelled.
        Refused: The sidecar will not have this gateway. The same.
    """
    client = client_of(name, timeout, kinds, fresh)
    async with Sidecar(client, socket_at(path))._running() as sidecar:
        yield sidecar


class Sidecar:
    """The sidecar, as a gateway sees it; from `connect`.

    For one thread; but `after`, `cancel` and the answers to timers may come from any.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path
        # Held while the client is used, except by whoever reports what only one thread
        # may: see `SyncSidecar`.
        self._lock = Lock()
        self._call_soon = _call_soon()
        self._clock = _clock()
        self._began = self._clock()
        self._scope = anyio.CancelScope(shield=True)
        self._is_closed = False
        self._error: LivenessError | None = None
        self._is_called = False  # to write; the event may be renewed meanwhile
        self._urgent = anyio.Event()
        self._news = anyio.Event()  # something was read
        self._said = ""
        self._tasks = list[_Task]()
        self._workers: anyio.abc.TaskGroup | None = None
        self._is_leaving = False  # no more tasks are started
        self._busy = 0  # workers that have a run, or look for the next one
        # Shortcuts, as these are used for every line that a user sends.
        self._uids = client.reports.uids
        self._keepalives = client.reports.keepalives
        self._messages = client.reports.messages

    # --- what a gateway reports -------------------------------------------------

    def login(
        self,
        uid: Uid,
        *,
        conn: int | None = None,
        timeout: float | None = None,
        age: float = 0.0,
    ) -> None:
        """Report that a connection was authenticated; again, that it lives.

        Args:
            uid: Whose it is: 1 to 255 bytes without control characters, or an integer
                from 0 to 2^63-1. Users with several connections: "user:device".
            conn: Its id, see `new_conn`. Without one, a uid has one connection here, and
                every login is that of a new one.
            timeout: The silence timeout of this uid, in seconds, until its next login or
                the end of its session.
            age: How long ago that was, in seconds, if it was not just now.
        Raises:
            ReportError: One of these cannot be; nothing was reported.
        """
        if type(age) not in (int, float) or not 0 <= age < float("inf"):
            raise ReportError(f"age is {age!r:.40}; it must be 0 seconds or more")
        at = self._clock() - min(age, MAX_AGE_S)
        self._client.login(uid, conn, at=at, timeout=timeout)
        if at < self._began:
            self._client.adopts()
        self._call()

    def keepalive(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report a sign of life; ignored, and counted, if the connection is not open.

        Raises:
            ReportError: This is no uid, or the connection is somebody else's.
        """
        known = self._uids.get(conn)  # type: ignore[arg-type]  # None is never open
        if known == uid and type(known) is type(uid) and type(conn) is int:
            self._keepalives[conn] = uid
        else:
            self._client.reports.sign(self._keepalives, uid, conn)

    def message(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report a message, which is a sign of life like any other.

        Raises:
            ReportError: As `keepalive`.
        """
        known = self._uids.get(conn)  # type: ignore[arg-type]
        if known == uid and type(known) is type(uid) and type(conn) is int:
            self._messages[conn] = uid
        else:
            self._client.reports.sign(self._messages, uid, conn)

    def logout(self, uid: Uid, *, conn: int | None = None) -> None:
        """Report that a connection has ended; ignored if it is not open (any more).

        So it can be reported wherever a connection is closed, for whatever reason.

        Raises:
            ReportError: As `keepalive`.
        """
        self._client.logout(uid, conn)
        self._call()

    def new_conn(self) -> int:
        """Give an id for a connection: it never repeats, over restarts too."""
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

        It is kept here until it is on the sidecar's disk, and there until it was done:
        over disconnects and restarts of both. It may fire more than once, never early.

        Args:
            key: Its name in this gateway: 1 to 255 bytes without control characters. A
                timer of that name that there is already is replaced, whatever it does.
            seconds: 0.1 to 31,622,400, which is 366 days.
            payload: What it is to bring with it: at most 4,096 bytes without U+0000.
            ext: A name that several timers may share, to cancel them by; as a key.
        Raises:
            ReportError: One of these cannot be; or the sidecar at hand has no timers,
                or too much waits for its disk. Nothing was taken.
        """
        with self._lock:
            self._client.after(key, seconds, payload, ext, self._clock())
        self._call()

    def cancel(self, key: str | None = None, *, ext: str | None = None) -> None:
        """Cancel the timer of this key, or all with this ext; there need be none.

        One that has fired is not tried again; a task that runs for it just now goes on.

        Raises:
            ReportError: As `after`; or it was not exactly one of both.
        """
        with self._lock:
            self._client.cancel(key, ext)
        self._call()

    def timers(self) -> "Reading[Timer]":
        """Give, in an endless `async for`, each timer that fires and no task takes.

        Each is to be answered, `done` or `fail`; one that is not comes again. Loops that
        run at the same time share them: each timer is given to one.
        """
        return TimerReading(self)

    @overload
    def task(self, function: F, /) -> F: ...
    @overload
    def task(
        self, prefix: str = "", /, *, at_once: int = AT_ONCE
    ) -> Callable[[F], F]: ...
    def task(self, prefix: Any = "", /, *, at_once: int = AT_ONCE) -> Any:
        """Have a function called for each timer that fires: `@sidecar.task("order:")`.

        It takes the `Timer`. What it returns, a string or None, is the message that the
        timer was done with. If it raises, the timer failed and is tried again later,
        except after a `TaskFailed` that is final. If it does not come back within the
        sidecar's run timeout it failed too: an async function is cancelled; a plain
        one, which runs in a thread, cannot be and keeps its place until it comes back.

        Args:
            prefix: What the keys of its timers begin with; the longest prefix wins. Bare,
                `@sidecar.task`, it takes every timer that no other task does.
            at_once: How many may run at once, 1 to 10,000. They hold up no other task.
                Of one key there is only ever one.
        Raises:
            ReportError: One of these cannot be, or the prefix has a task already.
        """
        if not callable(prefix):
            return lambda function: self._add_task(function, prefix, at_once)
        return self._add_task(prefix, "", at_once)

    def _add_task(self, function: F, prefix: str, at_once: int) -> F:
        if not callable(function):
            raise ReportError(f"{function!r:.80} is no function that a timer can call")
        with self._lock:
            lane = self._client.tasks.open(prefix, at_once)
            self._tasks.append(_Task(function, lane, is_async(function)))
        self._call_soon(self._start_tasks)
        return function

    # --- what a gateway is told -----------------------------------------------------

    def ended(self) -> "Reading[End]":
        """Give, in an endless `async for`, each open connection that is to be closed.

        An end is acknowledged when the loop comes back for the next; one that it did not
        come back from is given again, to the next loop; to another process only if that
        is not `fresh`. Between two loops ends wait: if there will be no next one,
        `aclose` what this gives, or what waits keeps all behind it from being
        acknowledged. Loops that run at the same time are given everything each.
        """
        return RecordReading(self, _is_end, _end, lasts=True)

    def records(self) -> "Reading[Mapping[str, Any]]":
        """Give, as `ended` does, each record as it is on the wire.

        Old ones too, and of connections that are not open: compare before you act. What
        comes between two loops waits for the second only if nobody reads `ended`; that a
        timer has fired is told only to a loop that runs then.
        """
        return RecordReading(self, _is_any, _record, lasts=False)

    # --- how things are ---------------------------------------------------------------

    @property
    def name(self) -> str:
        """This gateway's name."""
        return self._client.name

    @property
    def is_connected(self) -> bool:
        """Whether there is a link just now."""
        return self._client.is_linked

    async def connected(self) -> None:
        """Wait until there is a link."""
        await self._until(lambda: self._client.is_linked)

    async def flush(self) -> None:
        """Wait until all that was reported is applied, and on the sidecar's disk.

        Without a sidecar it waits for one.

        Raises:
            anyio.ClosedResourceError: `connect` was left meanwhile.
            ReportError: Timers were asked for, and the sidecar has none, or no room.
        """
        with self._lock:
            number = self._client.want_pong()
        self._call()
        await self._until(lambda: self._client.has_pong(number))

    def stats(self) -> Stats:
        """Give the numbers that a gateway's own metrics may show."""
        client, reports = self._client, self._client.reports
        tasks, schedule = client.tasks, reports.schedule
        return Stats(
            open=len(reports.uids),
            pending=reports.pending,
            unconfirmed=reports.unconfirmed,
            links=client.links,
            ignored=reports.ignored,
            duplicates=client.inbox.duplicates,
            refused=client.refused,
            waiting=tasks.waiting,
            unkept=tasks.unkept + schedule.unkept,
        )

    # --- waiting -------------------------------------------------------------------

    def _call(self) -> None:
        """Have what waits written soon."""
        if not self._is_called:
            self._is_called = True
            self._call_soon(self._set_urgent)

    def _set_urgent(self) -> None:
        self._urgent.set()

    def _tell(self) -> None:
        """Have everyone who waits look again."""
        self._news.set()
        self._news = anyio.Event()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        await checkpoint()
        while not is_so():
            if self._is_closed:
                raise anyio.ClosedResourceError
            await self._news.wait()

    async def _next(self, reading: "Reading[T]") -> T | None:
        """What *reading* gives next; None when it, or `connect`, was left."""
        await checkpoint()
        while True:
            with self._lock:
                if (given := reading.take()) is not None or self._is_closed:
                    return given
            await self._news.wait()

    # --- tasks -----------------------------------------------------------------------

    def _start_tasks(self) -> None:
        """Start as many runs as there are places for; each worker goes on by itself."""
        if self._workers is None:
            return
        for task in self._tasks:
            while (run := self._next_run(task)) is not None:
                self._busy += 1
                self._workers.start_soon(self._work, task, run)

    def _next_run(self, task: "_Task") -> Run | None:
        with self._lock:
            return None if self._is_leaving else task.lane.take()

    async def _work(self, task: "_Task", run: Run | None) -> None:
        """Call the task for one run after the other, while there are any."""
        try:
            while run is not None:
                try:
                    await self._call_task(task, Timer(self, run))
                finally:
                    with self._lock:
                        task.lane.ended(run)
                await checkpoint()  # the task need not have had one
                run = self._next_run(task)
        finally:
            self._busy -= 1
            if not self._busy:
                self._tell()  # whoever leaves may wait for it

    async def _call_task(self, task: "_Task", timer: "Timer") -> None:
        """Call it once, and answer the timer by what comes of it."""
        try:
            if task.is_async:
                returned = await self._returned_in_time(task, timer)
            else:
                returned = await self._returned_by_thread(task, timer)
            timer._answer(message=self._message_of(timer, returned))
        except TaskFailed as failure:
            self._log_task(timer, f"failed: {failure}")
            timer._answer(fail=str(failure), final=failure.final)
        except Exception as error:
            self._log_task(timer, "failed", error)
            timer._answer(fail="".join(format_exception_only(error)).strip())
        except BaseException:  # cancelled, or ended by what ends the program
            self._log_task(timer, "was cut short: its gateway stops")
            timer._answer(fail="its gateway stopped meanwhile")
            raise

    async def _returned_in_time(self, task: "_Task", timer: "Timer") -> object:
        limit_s = self._run_timeout_s
        with anyio.move_on_after(limit_s) as scope:
            returned: object = await task.function(timer)
        if scope.cancelled_caught:
            raise TaskFailed(_too_late(limit_s), final=False)
        return returned

    async def _returned_by_thread(self, task: "_Task", timer: "Timer") -> object:
        """What a plain function returns, however late: its work is done all the same."""
        assert self._workers is not None
        scope = anyio.CancelScope()
        self._workers.start_soon(self._fail_in_time, timer, scope)
        try:
            returned: object = await anyio.to_thread.run_sync(
                _returned,
                task.function,
                timer,
                abandon_on_cancel=True,  # at the end; nothing else cancels it
                limiter=anyio.CapacityLimiter(1),  # the places are counted by the lane
            )
        finally:
            scope.cancel()
        return returned

    async def _fail_in_time(self, timer: "Timer", scope: anyio.CancelScope) -> None:
        limit_s = self._run_timeout_s
        with scope:
            await anyio.sleep(limit_s)
            self._log_task(timer, f"failed so far: {_too_late(limit_s)}")
            timer._answer(fail=_too_late(limit_s), is_last=False)

    def _message_of(self, timer: "Timer", returned: object) -> str | None:
        """What the timer was done with; the work is, whatever was returned of it."""
        if returned is None or isinstance(returned, str):
            return returned
        what = f"returned {returned!r:.80}, which is no message and not kept"
        self._log_task(timer, what)
        return None

    @property
    def _run_timeout_s(self) -> float:
        assert self._client.welcome is not None  # else nothing would have fired
        return self._client.welcome.run_timeout

    def _log_task(
        self, timer: "Timer", what: str, error: Exception | None = None
    ) -> None:
        line = "%s: the task of timer %r (attempt %d) %s"
        logger.warning(line, self.name, timer.key, timer.attempt, what, exc_info=error)

    # --- the link --------------------------------------------------------------------

    @asynccontextmanager
    async def _running(self) -> AsyncIterator["Sidecar"]:
        only: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                self._workers = tasks
                tasks.start_soon(self._keep_linked)
                try:
                    yield self
                finally:
                    self._is_leaving = True
                    with anyio.move_on_after(LAST_S, shield=True):
                        await self._idle()
                    tasks.cancel_scope.cancel()  # which the link is shielded from
                    with anyio.move_on_after(LAST_S, shield=True):
                        await self._idle()  # their answers are told too
                        await self._tell_the_rest()
                    self._close()
        except BaseExceptionGroup as group:
            # Nobody who uses this knows of a task group: one error comes out as it is.
            if len(group.exceptions) > 1:
                raise
            only = group.exceptions[0]
        if only is not None:
            raise only

    async def _idle(self) -> None:
        """Wait until no task is under way."""
        await self._until(lambda: not self._busy)

    async def _tell_the_rest(self) -> None:
        has_some = self._is_urgent() or self._client.reports.pending
        if self._error is None and (has_some or self._client.is_linked):
            # Refused just now, or without timers: both were logged.
            with suppress(anyio.ClosedResourceError, ReportError):
                await self.flush()

    def _close(self) -> None:
        self._is_closed = True
        self._tell()
        self._scope.cancel()

    async def _keep_linked(self) -> None:
        """Link again and again, until `_close`; what ends a link is logged once."""
        refusals = 0
        with self._scope:
            while True:
                wait_s = RETURN_S
                try:
                    why: Exception | None = await self._link()
                except (OSError, anyio.BrokenResourceError) as error:
                    why, wait_s = error, RETRY_S
                with self._lock:
                    self._client.lost()
                if isinstance(why, Refused) and why.code in FINAL:
                    self._error = why
                    raise why
                if isinstance(why, LivenessError):
                    wait_s = (0.0, min(2.0 ** min(refusals, 10), MOST_BACKOFF_S))
                    refusals += 1
                else:
                    refusals = 0
                self._say(f"no link to the sidecar at {self._path}: {_reason(why)}")
                await anyio.sleep(random.uniform(*wait_s))

    async def _link(self) -> Exception | None:
        """One link, from its hello until it ends; give why, if anyone said so."""
        async with await anyio.connect_unix(self._path) as stream:
            reading = read_host(self._clock)
            with self._lock:
                hello = self._client.hello(*reading or ())
            # Who is not wanted is told so before it has said anything: that is then read.
            with suppress(anyio.BrokenResourceError):
                await stream.send(hello)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._say_if_unwelcome)
                why = await self._read(stream, tasks)
                tasks.cancel_scope.cancel()
        return why

    async def _say_if_unwelcome(self) -> None:
        await anyio.sleep(WELCOME_S)
        if not self._client.is_linked:
            self._say(
                f"no welcome at {self._path} for {WELCOME_S:g} s; it stands still or is "
                "no sidecar. Still waiting"
            )

    async def _read(
        self, stream: anyio.abc.ByteStream, tasks: anyio.abc.TaskGroup
    ) -> Exception | None:
        """Take what comes; from the welcome on, *tasks* write."""
        reader = Reader(max_frame_bytes=MAX_FRAME_BYTES, max_batch=MAX_BATCH)
        try:
            async for data in stream:
                was_linked = self._client.is_linked
                for frame in reader.feed(data):
                    with self._lock:
                        told = self._client.take(frame)
                    if told:
                        self._say(told)
                if self._client.is_linked and not was_linked:
                    self._say(f"linked to the sidecar at {self._path}", logging.INFO)
                    tasks.start_soon(self._write, stream)
                self._tell()
                self._start_tasks()
                if self._is_urgent():  # a ping had to wait for this pong
                    self._call()
        except (Refused, WireError, anyio.BrokenResourceError) as error:
            return error
        return None

    async def _write(self, stream: anyio.abc.ByteSendStream) -> None:
        """Write what waits, while the link lasts: it is `_read` who sees its end."""
        assert self._client.welcome is not None
        flush_s = max(self._client.welcome.flush * FLUSH_SHARE, LEAST_FLUSH_S)
        idle_s = self._client.ping_s / 3
        due_at = wrote_at = self._clock()
        try:
            while True:
                is_due = self._clock() >= due_at
                if is_due:
                    due_at = self._clock() + flush_s
                if await self._write_frames(stream, is_due=is_due):
                    wrote_at = self._clock()
                elif self._clock() - wrote_at >= idle_s:
                    await stream.send(NOTHING)
                    wrote_at = self._clock()
                await self._wait_for_call(min(due_at, wrote_at + idle_s))
        except anyio.BrokenResourceError:
            pass

    async def _write_frames(
        self, stream: anyio.abc.ByteSendStream, *, is_due: bool
    ) -> bool:
        """Write in pieces: what is reported while one is written comes with the next."""
        self._is_called = False
        self._urgent = anyio.Event()
        frames = self._client.frames(self._clock(), is_due=is_due)
        is_first = True
        while piece := self._piece(frames):
            await stream.send(piece)
            is_first = False
        return not is_first

    def _piece(self, frames: Iterator[bytes]) -> bytes:
        piece = bytearray()
        with self._lock:
            for frame in frames:
                piece += frame
                if len(piece) >= PIECE_BYTES:
                    break
        return bytes(piece)

    async def _wait_for_call(self, until: float) -> None:
        if self._client.reports.is_behind:
            await checkpoint()
            return
        with anyio.move_on_after(until - self._clock()):
            if not self._is_urgent():
                await self._urgent.wait()
            await anyio.sleep(GATHER_S)

    def _is_urgent(self) -> bool:
        with self._lock:
            return self._client.is_urgent

    def _say(self, line: str, level: int = logging.WARNING) -> None:
        """Log *line*, unless it is the same as before: tries are many."""
        if line != self._said:
            self._said = line
            logger.log(level, "%s: %s", self.name, line)


class Timer:
    """A timer that has fired, and is to be answered; from a task or `Sidecar.timers`.

    The first answer counts. A message is for whoever looks at the timer: of a longer one
    4,096 bytes are kept.

    Attributes:
        key: As it was asked for; so are `payload` and `ext`, None if there was none.
        due: When this attempt was due, in Unix milliseconds.
        attempt: Which one it is, from 1.
        seq: Of the record that told of it.
    """

    def __init__(self, sidecar: Sidecar, run: Run) -> None:
        self.key = run.key
        self.payload = run.payload
        self.ext = run.ext
        self.due = run.due
        self.attempt = run.attempt
        self.seq = run.seq
        self._run = run
        self._sidecar = sidecar
        self._is_answered = False

    def __repr__(self) -> str:
        return f"<Timer {self.key!r}, attempt {self.attempt}, seq {self.seq}>"

    def done(self, message: str | None = None) -> None:
        """Answer that the work is done, in any thread.

        Raises:
            ReportError: The message is no string.
        """
        self._answer(message=message)

    def fail(self, message: str, *, final: bool = False) -> None:
        """Answer that it failed: it comes again later, unless this is *final*.

        Raises:
            ReportError: The message is no string.
        """
        self._answer(fail=message, final=final)

    def _answer(
        self,
        *,
        message: str | None = None,
        fail: str | None = None,
        final: bool = False,
        is_last: bool = True,
    ) -> None:
        client = self._sidecar._client
        with self._sidecar._lock:
            if self._is_answered:
                return
            if fail is None:
                client.done(self._run, message)
            else:
                client.fail(self._run, fail, final=final)
            self._is_answered = is_last
        self._sidecar._call()


class _Task(NamedTuple):
    """A function that timers are for."""

    function: Callable[[Timer], Any]
    lane: TaskLane
    is_async: bool


class Reading(ABC, Generic[T]):
    """An endless `async for`, for one loop at a time; see `Sidecar.ended`."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._is_over = False

    def __aiter__(self) -> "Reading[T]":
        return self

    async def __anext__(self) -> T:
        given: T | None = None
        if not self._is_over:
            given = await self._sidecar._next(self)
        if given is None:
            raise StopAsyncIteration
        return given

    async def aclose(self) -> None:
        """Read no more, and let nothing wait for the next loop either."""
        self._is_over = True
        await checkpoint()

    @abstractmethod
    def take(self) -> T | None:
        """Finish what was given last, and give the next if it is here. Needs the lock."""


class TimerReading(Reading[Timer]):
    """Of timers. Those that come between two loops wait for the second."""

    def __init__(self, sidecar: Sidecar) -> None:
        super().__init__(sidecar)
        sidecar._client.tasks.is_read = True

    def take(self) -> Timer | None:
        run = self._sidecar._client.tasks.rest.take()
        return None if run is None else Timer(self._sidecar, run)


class RecordReading(Reading[T]):
    """Of what lies in the inbox."""

    def __init__(
        self,
        sidecar: Sidecar,
        wants: Callable[[Arrival], bool],
        give: Callable[[Arrival], T],
        *,
        lasts: bool,
    ) -> None:
        super().__init__(sidecar)
        self._give = give
        self._inbox = sidecar._client.inbox
        with sidecar._lock:
            self._view = self._inbox.view(wants, lasts=lasts)

    async def aclose(self) -> None:
        if not self._is_over:
            self._inbox.left.append((self._view, True))
            self._sidecar._call()  # what it has kept from being acknowledged
        await super().aclose()

    def take(self) -> T | None:
        if self._view.in_hand is not None:
            self._sidecar._call()  # to acknowledge it
        arrival = self._view.next()
        return None if arrival is None else self._give(arrival)

    def __del__(self) -> None:
        if not self._is_over:
            self._inbox.left.append((self._view, False))


def _reason(why: Exception | None) -> str:
    """Why there is no link, and what to do about it where a person can."""
    match why:
        case FileNotFoundError() | ConnectionRefusedError():
            return "it is not running, or runs elsewhere"
        case PermissionError():
            return "not allowed to connect; be its user, or of its group"
        case OSError() | LivenessError():
            return str(why)
        case _:
            return "the link has ended"


def is_async(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object that has one
    return iscoroutinefunction(function) or iscoroutinefunction(call)


def _returned(function: Callable[[Timer], object], timer: Timer) -> object:
    returned = function(timer)
    if isawaitable(returned):  # so nothing was done yet
        raise TypeError(f"{returned!r:.80} is awaited by nobody; make the task async")
    return returned


def _too_late(limit_s: float) -> str:
    return f"no answer within {limit_s:g} s"


def _is_any(_arrival: Arrival) -> bool:
    return True


def _is_end(arrival: Arrival) -> bool:
    return arrival.end is not None


def _record(arrival: Arrival) -> Mapping[str, Any]:
    return arrival.record


def _end(arrival: Arrival) -> End:
    assert arrival.end is not None  # as `_is_end` says
    return arrival.end


def client_of(
    name: str, timeout: float | None, kinds: Sequence[str], fresh: bool | None
) -> Client:
    # To reach the first conn of a later process, this one would have to give a million
    # in each millisecond between the two.
    first_conn = int(time.time() * 1_000) << 20
    return Client(
        name=name, timeout=timeout, kinds=kinds, fresh=fresh, first_conn=first_conn
    )


def socket_at(path: str | os.PathLike[str] | None) -> str:
    if path is None:
        from liveness.config.sources import (
            socket_path,  # the settings are rarely wanted
        )

        path = socket_path(None)
    socket = os.fsdecode(path)
    if not socket or "\0" in socket:
        raise ReportError(f"{socket!r} is no path of a socket")
    if (size := len(os.fsencode(socket))) > MAX_SOCKET_PATH_BYTES:
        raise ReportError(
            f"the socket's path has {size} bytes, and at most {MAX_SOCKET_PATH_BYTES} "
            f"are possible: {socket}"
        )
    return socket


def _call_soon() -> Callable[[Callable[[], object]], None]:
    """What has the event loop call something, from whatever thread."""
    own_thread = get_ident()
    trio = sys.modules.get("trio")
    soon: Callable[[Callable[[], object]], object]
    if trio is not None and trio.lowlevel.in_trio_run():
        soon = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        soon = sys.modules["asyncio"].get_running_loop().call_soon_threadsafe

    def call_soon(call: Callable[[], object]) -> None:
        if get_ident() == own_thread:
            call()
            return
        with suppress(
            RuntimeError
        ):  # the loop has ended, and nothing is written any more
            soon(call)

    return call_soon


def _clock() -> Callable[[], float]:
    """The event loop's own clock, at the price of one call."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        return clock
    return time.monotonic
