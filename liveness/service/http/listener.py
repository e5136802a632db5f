"""Serves HTTP applications on a socket, each connection for itself.

hypercorn speaks the protocol. Its own loop ends with the first fault of any connection,
and the sidecar with it: a byte after a request to upgrade is enough (its issue 225), or
a client that goes while its body is refused. Here such a fault ends that connection.

It waits for ever for the rest of a body, and for an answer to be read, even when it is to
stop. Here both have a time, and so has a head, from its first byte on: not each piece of
them, but the whole. Nor is there anything but HTTP/1: asked to go on with a websocket or
with HTTP/2, where no more bounds of ours would hold, it goes on with HTTP/1.

Where there are as many connections as there may be, the one that has been idle longest
makes room. If none is idle, a new one gets one of a few places where only health is told,
so that nobody can have the sidecar restarted by keeping its connections. Of those, too,
the oldest makes room: who asks for health is answered long before that.
"""

import json
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

import h11
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp

from liveness.metrics import HttpRefusal
from liveness.service.common.logs import Every
from liveness.service.http.pacing import Turnstile
from liveness.service.links.acceptor import Acceptor

LOG_S: Final = 10.0
# Connections at a time of those who are only told that they may not ask.
STRANGERS: Final = 10
# And of those who are told of health alone, as there are no other places.
HEALTH_PLACES: Final = 10
# To close without waiting for what the client has not read: the kernel lets go of it.
_AT_ONCE: Final = struct.pack("ii", 1, 0)

_ABSOLUTE: Final = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)

_WHY: Final = {408: HttpRefusal.SLOW, 431: HttpRefusal.HEAD}

_log = structlog.get_logger("http")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one door, and each of its connections, may take."""

    connections: int
    request_s: float  # for a request to come whole, and for an answer to be read
    head_bytes: int

    def told(self, status: int) -> str:
        """What is told of a request that was never one, or not in time."""
        if status == 408:
            whole = f"{self.request_s:g} s"
            return f"the request did not come whole within {whole}; http.request_s"
        if status == 431:
            most = f"{self.head_bytes} bytes"
            return f"the request's head is larger than {most}; http.max_header_bytes"
        told = (
            "this is no HTTP/1.1 request with one Host, and one length if it has a body"
        )
        return f"{told}; ask by a URL"


Refused = Callable[[HttpRefusal], None]


class _Http1(H11Protocol):
    """HTTP/1, and nothing that it could be upgraded to."""

    def __init__(self, *args: Any, limits: HttpLimits, refused: Refused) -> None:
        super().__init__(*args)
        self._limits = limits
        self._refused = refused

    @property
    def unread_bytes(self) -> int:
        """What has come and is no whole head yet, or of the next request."""
        return len(self.connection.trailing_data[0])

    @property
    def is_within_a_request(self) -> bool:
        """Whether part of one has come, and the rest has not."""
        state = self.connection.their_state
        return state is h11.SEND_BODY or (state is h11.IDLE and self.unread_bytes > 0)

    async def _check_protocol(self, event: h11.Request) -> None:
        """HTTP/2 is asked for here: by an upgrade, or as if it were known to be there."""

    async def _create_stream(self, request: h11.Request) -> None:
        names = {name for name, _ in request.headers}
        # Where such a request ends a proxy in front may see otherwise, and take the rest
        # of it for the next one, of somebody else (RFC 9112, 6.1 and 11.2).
        if b"transfer-encoding" in names and (
            b"content-length" in names or request.http_version == b"1.0"
        ):
            await self._send_error_response(400)
            await self.send(Closed())
            return
        target = request.target
        headers = [one for one in request.headers if one[0] != b"upgrade"]
        if absolute := _ABSOLUTE.fullmatch(target):
            # As to a proxy. Whom it asks is said there, not by Host (RFC 9112, 3.2.2).
            host, target = absolute[1], absolute[2]
            target = target if target[:1] == b"/" else b"/" + target
            headers = [one for one in headers if one[0] != b"host"] + [(b"host", host)]
        await super()._create_stream(
            h11.Request(
                method=request.method,
                target=target,
                headers=headers,
                http_version=request.http_version,
            )
        )

    async def _send_error_response(self, status_code: int) -> None:
        self._refused(_WHY.get(status_code, HttpRefusal.MALFORMED))
        body = json.dumps({"error": self._limits.told(status_code)}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status_code, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            await self._send_h11_event(event)

    async def cut(self) -> None:
        """Give up a request that did not come in time."""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_error_response(408)


class _Connection(TCPServer):
    """One connection, whose client has a time for all that it does.

    It ends when its client goes. hypercorn's own waits on until a client that has gone
    would have been idle for too long: where descriptors are scarce, those have them all.
    """

    def __init__(
        self,
        *args: Any,
        limits: HttpLimits,
        refused: Refused,
        turnstile: Turnstile,
        is_idle: Callable[[bool], None],
    ) -> None:
        super().__init__(*args)
        self._limits = limits
        self._refused = refused
        self._turnstile = turnstile
        self._is_idle = is_idle
        self._due = inf  # when the request that is being read has to be whole

    async def _read_data(self) -> None:
        wrapper = self.protocol  # has made one that lets itself be upgraded
        http = wrapper.protocol = _Http1(
            *(self.app, self.config, self.context, self._task_group),
            *(wrapper.state, wrapper.ssl, wrapper.client, wrapper.server),
            self.protocol_send,
            limits=self._limits,
            refused=self._refused,
        )
        while True:
            # No more than a head may still have, or one that has more would be taken.
            room = self._limits.head_bytes - http.unread_bytes
            if not room:
                break  # it was refused
            try:
                with trio.fail_at(self._due):
                    data = await self.stream.receive_some(room)
            except trio.TooSlowError:
                await http.cut()
                break
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            if data:
                self._is_idle(False)
                await self._turnstile.wait()
            await wrapper.handle(RawData(bytes(data)))
            if data == b"":
                break
            if not http.is_within_a_request:
                self._due = inf
            elif self._due == inf:
                self._due = trio.current_time() + self._limits.request_s
                await self.idle_task.stop()
        await wrapper.handle(Closed())
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """Send, or take note of where the protocol is."""
        if isinstance(event, RawData):
            await self._send(event.data)
            return
        if isinstance(event, Updated):
            http = self.protocol.protocol
            assert isinstance(http, _Http1)
            self._is_idle(event.idle and not http.unread_bytes)
            if event.idle:
                self._due = inf  # what may have come already is of another request
        await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        async with self.send_lock:
            try:
                with trio.fail_after(self._limits.request_s):
                    await self.stream.send_all(data)
            except trio.TooSlowError:
                self._refused(HttpRefusal.SLOW)
                self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                self.stream.socket.close()
                await self.protocol.handle(Closed())
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())


class _Places:
    """Who has a place at a door; at first each is idle.

    Args:
        connections: So many may there be, and a few who are told of health alone.
    """

    def __init__(self, connections: int) -> None:
        self._free = connections
        # By what ends it, the one that is idle longest first, or the oldest.
        self._idle: dict[trio.CancelScope, None] = {}
        self._for_health: dict[trio.CancelScope, None] = {}

    def take(self, connection: trio.CancelScope) -> bool:
        """Give a place to a connection; whether it is one for everything."""
        if self._free <= 0 and not self._idle:
            self._for_health[connection] = None
            if len(self._for_health) > HEALTH_PLACES:
                self._end_first(self._for_health)
            return False
        if self._free <= 0:
            self._end_first(self._idle)  # whose place is free once it has ended
        self._free -= 1
        self._idle[connection] = None
        return True

    def leave(self, connection: trio.CancelScope, *, is_for_all: bool) -> None:
        """Take the place back."""
        self._idle.pop(connection, None)
        self._for_health.pop(connection, None)
        self._free += is_for_all

    def note(self, connection: trio.CancelScope, is_idle: bool) -> None:
        """Note whether nothing is asked on a connection."""
        self._idle.pop(connection, None)
        if is_idle:
            self._idle[connection] = None

    @staticmethod
    def _end_first(connections: dict[trio.CancelScope, None]) -> None:
        first = next(iter(connections))
        del connections[first]
        first.cancel()


async def serve_door(
    app_for: Callable[[socket.socket], ASGIApp],
    acceptor: Acceptor,
    stopped: Callable[[], Awaitable[object]],
    *,
    limits: HttpLimits,
    refused: Refused,
    grace_s: float,
    only_health: Callable[[ASGIApp], ASGIApp],
    turnstile: Turnstile,
    is_stranger: Callable[[socket.socket], bool] = lambda _: False,
) -> None:
    """Serve until *stopped* returns, and then those who are connected a little longer.

    Args:
        app_for: The application that a connection gets.
        acceptor: Of the socket where it listens; that stays open.
        stopped: Returns when no more is to be accepted.
        limits: Whoever is beyond one of them is refused.
        refused: Counts what is refused.
        grace_s: How long connections have from then on.
        only_health: An application that tells of health, and nothing else.
        turnstile: Passed by all that comes.
        is_stranger: Whether a connection is of somebody who is only to be told that it
            may not ask. They have places of their own, so that they take up nobody's.
    """
    config = Config()
    config.accesslog = None
    config.errorlog = None  # faults of an application are its gate's to tell
    config.graceful_timeout = grace_s
    config.include_server_header = False
    config.keep_alive_timeout = limits.request_s
    # A head that has as many as there may be, and is not whole, will have more.
    config.h11_max_incomplete_size = limits.head_bytes - 1
    context = WorkerContext(None)
    every = Every(LOG_S, clock=trio.current_time)
    places = _Places(limits.connections)
    strangers = trio.Semaphore(min(STRANGERS, limits.connections))

    async def converse(
        sock: socket.socket, app: ASGIApp, is_idle: Callable[[bool], None]
    ) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        try:
            await _Connection(
                ASGIWrapper(app),  # type: ignore[arg-type]  # the same in other words
                *(config, context, ConnectionState({}), stream),
                limits=limits,
                refused=refused,
                turnstile=turnstile,
                is_idle=is_idle,
            )
        except* Exception as group:
            error = group.exceptions[0]
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            say = "an HTTP connection ended with a fault; the others go on"
            every(_log.warning, say, key=type(error).__name__, error=repr(error))
        finally:
            stream.socket.close()

    async def with_place(
        sock: socket.socket, place: trio.CancelScope, is_for_all: bool
    ) -> None:
        try:
            with place:
                if is_for_all:
                    await converse(sock, app_for(sock), partial(places.note, place))
                else:
                    await converse(sock, only_health(app_for(sock)), lambda _: None)
        finally:
            places.leave(place, is_for_all=is_for_all)

    async def as_stranger(sock: socket.socket) -> None:
        try:
            await converse(sock, app_for(sock), lambda _: None)
        finally:
            strangers.release()

    async def accept(connections: trio.Nursery) -> None:
        while True:
            sock = await acceptor.accept()
            if not is_stranger(sock):
                place = trio.CancelScope()
                is_for_all = places.take(place)
                connections.start_soon(with_place, sock, place, is_for_all)
            elif strangers.value:
                strangers.acquire_nowait()
                connections.start_soon(as_stranger, sock)
            else:
                refused(HttpRefusal.CONNECTIONS)
                _turn_away(sock)

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(accept, connections)
            await stopped()
            accepting.cancel_scope.cancel()
        await context.terminated.set()
        connections.cancel_scope.deadline = trio.current_time() + grace_s


def _turn_away(sock: socket.socket) -> None:
    told = f"there are {STRANGERS} others here who may not ask, as many as there may be"
    body = json.dumps({"error": f"{told}; ask again later"})
    # Whoever has gone or does not read needs no answer; nobody is waited for.
    with sock, suppress(OSError):
        sock.send(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\nretry-after: 1\r\n\r\n"
            f"{body}".encode()
        )
        sock.recv(65_536)  # left unread, it would take the answer back
