"""What a gateway in Python imports: it reports, and is told whose connection to close.

    async with liveness.connect(path, name="gw-1") as sidecar:
        sidecar.login("ada", conn=1)
        sidecar.keepalive("ada", conn=1)
        async for end in sidecar.ended():
            close_connection(end.uid, end.conn)

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
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from typing import Any, Final, Generic, NamedTuple, TypeVar

import anyio
import anyio.abc
from anyio.lowlevel import checkpoint

from liveness.core.client import FINAL, NOTHING, PING_S, Client
from liveness.core.frames import MAX_AGE_S
from liveness.core.inbox import Arrival, End
from liveness.core.records import MOVED, OFFLINE, Uid
from liveness.core.wire import PIECE_BYTES, Reader
from liveness.errors import (
    ConfigError,
    LivenessError,
    Refused,
    Replaced,
    ReportError,
    WireError,
)

__all__ = [
    "ConfigError",
    "End",
    "LivenessError",
    "Refused",
    "Replaced",
    "ReportError",
    "Sidecar",
    "Stats",
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
# At the end, for what was reported last; the sidecar may not be reading just then.
LAST_S: Final = 1.0
# From the sidecar: a frame has 1,000 records, or one row for each uid that was asked for.
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH: Final = 4_000
MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path, less its end

logger: Final = logging.getLogger("liveness.client")

T = TypeVar("T")


class Stats(NamedTuple):
    """How a gateway's side stands; all but the first three only ever grow."""

    open: int  # connections
    pending: int  # logins, logouts and signs of life that were not written yet
    unconfirmed: int  # those written that no pong has covered yet
    links: int  # begun
    ignored: int  # reports about connections that were not open
    duplicates: int  # records that came again
    refused: int  # frames that the sidecar refused


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

    It does not wait for the sidecar: a gateway can serve without it. On leaving, what
    was reported last is still written, for a second at most; what is reported after that
    goes nowhere. What happens to the link is logged, as "liveness.client".

    Args:
        path: The sidecar's socket. None: where the command line looks for it too.
        name: This gateway's, 1 to 64 bytes. No other gateway of this sidecar may have
            it, and it has to stay the same over restarts.
        timeout: Silence after which this gateway's users are offline, 1 to 86,400
            seconds. None: as the sidecar is set.
        kinds: Which records to be told of: "online", "offline", "moved".
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
    """The sidecar, as a gateway sees it; from `connect`. For one thread."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        lock: AbstractContextManager[object] | None = None,
        call_soon: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self._client = client
        self._path = path
        # Held while the client is used, except by whoever reports: see `SyncSidecar`.
        self._lock = lock or nullcontext()
        self._call_soon = call_soon or (lambda call: call())
        self._clock = _clock()
        self._began = self._clock()
        self._scope = anyio.CancelScope(shield=True)
        self._is_closed = False
        self._error: LivenessError | None = None
        self._is_called = False  # to write; the event may be renewed meanwhile
        self._urgent = anyio.Event()
        self._news = anyio.Event()  # something was read
        self._said = ""
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
            timeout: The silence timeout of this uid until its next login, in seconds.
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

    # --- what a gateway is told -----------------------------------------------------

    def ended(self) -> "Reading[End]":
        """Give, in an endless `async for`, each open connection that is to be closed.

        An end is acknowledged when the loop comes back for the next; one that it did not
        come back from is given again, to the next loop or process. Between two loops
        ends wait: if there will be no next one, `aclose` what this gives, or what waits
        keeps all behind it from being acknowledged. Loops that run at the same time are
        given everything each.
        """
        return Reading(self, _is_end, _end, lasts=True)

    def records(self) -> "Reading[Mapping[str, Any]]":
        """Give, as `ended` does, each record as it is on the wire.

        Old ones too, and of connections that are not open: compare before you act. What
        comes between two loops waits for the second only if nobody reads `ended`.
        """
        return Reading(self, _is_any, _record, lasts=False)

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
        """
        with self._lock:
            number = self._client.want_pong()
        self._call()
        await self._until(lambda: self._client.pongs >= number)

    def stats(self) -> Stats:
        """Give the numbers that a gateway's own metrics may show."""
        client, reports = self._client, self._client.reports
        return Stats(
            open=len(reports.uids),
            pending=reports.pending,
            unconfirmed=reports.unconfirmed,
            links=client.links,
            ignored=reports.ignored,
            duplicates=client.inbox.duplicates,
            refused=client.refused,
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

    # --- the link --------------------------------------------------------------------

    @asynccontextmanager
    async def _running(self) -> AsyncIterator["Sidecar"]:
        only: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_linked)
                try:
                    yield self
                finally:
                    with anyio.move_on_after(LAST_S, shield=True):
                        await self._tell_the_rest()
                    self._close()
        except BaseExceptionGroup as group:
            # Nobody who uses this knows of a task group: one error comes out as it is.
            if len(group.exceptions) > 1:
                raise
            only = group.exceptions[0]
        if only is not None:
            raise only

    async def _tell_the_rest(self) -> None:
        has_some = self._is_urgent() or self._client.reports.pending
        if self._error is None and (has_some or self._client.is_linked):
            with suppress(anyio.ClosedResourceError):  # refused just now
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
            with self._lock:
                hello = self._client.hello()
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
                if self._is_urgent():  # a ping had to wait for this pong
                    self._call()
        except (Refused, WireError, anyio.BrokenResourceError) as error:
            return error
        return None

    async def _write(self, stream: anyio.abc.ByteSendStream) -> None:
        """Write what waits, while the link lasts: it is `_read` who sees its end."""
        assert self._client.welcome is not None
        flush_s = max(self._client.welcome.flush * FLUSH_SHARE, LEAST_FLUSH_S)
        due_at = wrote_at = self._clock()
        try:
            while True:
                is_due = self._clock() >= due_at
                if is_due:
                    due_at = self._clock() + flush_s
                if await self._write_frames(stream, is_due=is_due):
                    wrote_at = self._clock()
                elif self._clock() - wrote_at >= PING_S / 3:
                    await stream.send(NOTHING)
                    wrote_at = self._clock()
                await self._wait_for_call(min(due_at, wrote_at + PING_S / 3))
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


class Reading(Generic[T]):
    """An endless `async for`, for one loop at a time; see `Sidecar.ended`."""

    def __init__(
        self,
        sidecar: Sidecar,
        wants: Callable[[Arrival], bool],
        give: Callable[[Arrival], T],
        *,
        lasts: bool,
    ) -> None:
        self._sidecar = sidecar
        self._give = give
        self._inbox = sidecar._client.inbox
        self._is_over = False
        with sidecar._lock:
            self._view = self._inbox.view(wants, lasts=lasts)

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
        if not self._is_over:
            self._is_over = True
            self._inbox.left.append((self._view, True))
            self._sidecar._call()  # what it has kept from being acknowledged
        await checkpoint()

    def take(self) -> T | None:
        """Finish what was given last, and give the next if it is here. Needs the lock."""
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
        from liveness.sources import socket_path  # the settings are rarely wanted

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


def _clock() -> Callable[[], float]:
    """The event loop's own clock, at the price of one call."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        return clock
    return time.monotonic
