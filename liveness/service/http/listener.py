"""Serves HTTP applications on a listening socket, with limits on each connection.

hypercorn speaks the protocol, but its own server is not used, for three reasons:

- In hypercorn an exception on one connection ends the whole server, and the sidecar with
  it. One byte after an upgrade request is enough (its issue 225), or a client that
  disconnects while its body is refused. Here it ends that connection only.
- hypercorn waits forever for the rest of a request's body, and for a client to read its
  answer, even during shutdown. Here a whole request, from its first byte on, has a time
  limit, and a whole answer too.
- hypercorn upgrades to WebSocket and HTTP/2, where our limits would not hold. Here such
  requests are answered in HTTP/1.

When all connections are in use, a new one closes the connection that has been idle
longest. If none is idle, the new one gets one of a few extra slots, in which only health
checks are answered. Otherwise a client that keeps all connections busy could make a
supervisor restart the sidecar. A new connection in these slots closes the oldest one: a
health check is answered long before its turn comes.
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

from liveness.metrics.counts import HttpRefusal
from liveness.service.common.logs import LogThrottle
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.middleware import Refused
from liveness.service.links.acceptor import Acceptor

LOG_S: Final = 10.0
# Connections at a time of clients without access, which get only an error.
DENIED_CONNECTIONS: Final = 10
# Connections at a time that only health checks may use, when all others are taken.
HEALTH_CONNECTIONS: Final = 10
# SO_LINGER with a time of 0: close() drops what the client has not read.
_NO_LINGER: Final = struct.pack("ii", 1, 0)

_ABSOLUTE_URL: Final = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)

_REASONS: Final = {408: HttpRefusal.SLOW, 431: HttpRefusal.HEAD}

_log = structlog.get_logger("http")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of a listener and of each of its connections."""

    connections: int
    request_s: float  # for a whole request to arrive, and for an answer to be read
    head_bytes: int

    def error_text(self, status: int) -> str:
        """The error for a request that is malformed, too large or too slow."""
        if status == 408:
            return (
                f"the request did not arrive whole within {self.request_s:g} s "
                "(http.request_s); send it faster"
            )
        if status == 431:
            return (
                f"the request's head is larger than {self.head_bytes} bytes; send less "
                "(http.max_header_bytes)"
            )
        return (
            "the request is malformed; send HTTP/1.1 with one Host and, if there is a body, "
            "one length"
        )


class _Http1(H11Protocol):
    """HTTP/1 without upgrades, and with stricter checks than hypercorn's."""

    def __init__(
        self, *args: Any, limits: HttpLimits, refused: Refused, turnstile: Turnstile
    ) -> None:
        super().__init__(*args)
        self._limits = limits
        self._refused = refused
        self._turnstile = turnstile

    @property
    def unread_bytes(self) -> int:
        """Bytes received that belong to an incomplete head or to the next request."""
        return len(self.connection.trailing_data[0])

    @property
    def is_within_a_request(self) -> bool:
        """Whether part of a request has arrived, and the rest has not."""
        state = self.connection.their_state
        return state is h11.SEND_BODY or (state is h11.IDLE and self.unread_bytes > 0)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Override: hypercorn switches to HTTP/2 here, by upgrade or prior knowledge."""

    async def _create_stream(self, request: h11.Request) -> None:
        await self._turnstile.wait()  # a piece may have many requests
        names = {name for name, _ in request.headers}
        # A proxy in front may see the end of such a request elsewhere, and take the rest
        # for the next request, of another client (RFC 9112, 6.1 and 11.2).
        if b"transfer-encoding" in names and (
            b"content-length" in names or request.http_version == b"1.0"
        ):
            await self._send_error_response(400)
            await self.send(Closed())
            return
        target = request.target
        headers = [header for header in request.headers if header[0] != b"upgrade"]
        if absolute := _ABSOLUTE_URL.fullmatch(target):
            # Written as for a proxy: its host overrides Host (RFC 9112, 3.2.2).
            host, target = absolute[1], absolute[2]
            target = target if target[:1] == b"/" else b"/" + target
            headers = [header for header in headers if header[0] != b"host"]
            headers.append((b"host", host))
        await super()._create_stream(
            h11.Request(
                method=request.method,
                target=target,
                headers=headers,
                http_version=request.http_version,
            )
        )

    async def _send_error_response(self, status_code: int) -> None:
        self._refused(_REASONS.get(status_code, HttpRefusal.MALFORMED))
        body = json.dumps({"error": self._limits.error_text(status_code)}).encode()
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

    async def time_out(self) -> None:
        """Answer 408, unless an answer has begun already."""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_error_response(408)


class _Connection(TCPServer):
    """One connection, with time limits on requests and answers.

    It ends as soon as its client disconnects. hypercorn keeps such a connection until its
    idle timeout, and so may run out of file descriptors.
    """

    def __init__(
        self,
        *args: Any,
        limits: HttpLimits,
        refused: Refused,
        turnstile: Turnstile,
        set_idle: Callable[[bool], None],
    ) -> None:
        super().__init__(*args)
        self._limits = limits
        self._refused = refused
        self._turnstile = turnstile
        self._set_idle = set_idle
        self._due = inf  # when the request that is being read must be complete

    async def _read_data(self) -> None:
        wrapper = self.protocol  # its own protocol would accept upgrades: replace it
        http = wrapper.protocol = _Http1(
            *(self.app, self.config, self.context, self._task_group),
            *(wrapper.state, wrapper.ssl, wrapper.client, wrapper.server),
            self.protocol_send,
            limits=self._limits,
            refused=self._refused,
            turnstile=self._turnstile,
        )
        while True:
            # Read no more than is left of a head: h11 accepts a head that is too large
            # if its end is in the same read.
            room = self._limits.head_bytes - http.unread_bytes
            if not room:
                break  # h11 has refused the head
            try:
                with trio.fail_at(self._due):
                    data = await self.stream.receive_some(room)
            except trio.TooSlowError:
                await http.time_out()
                break
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            if data:
                self._set_idle(False)
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
        """Send data, or note whether the connection is idle."""
        if isinstance(event, RawData):
            await self._send(event.data)
            return
        if isinstance(event, Updated):
            http = self.protocol.protocol
            assert isinstance(http, _Http1)
            self._set_idle(event.idle and not http.unread_bytes)
            if event.idle:
                self._due = inf  # bytes received already belong to the next request
        await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        async with self.send_lock:
            try:
                with trio.fail_after(self._limits.request_s):
                    await self.stream.send_all(data)
            except trio.TooSlowError:
                self._refused(HttpRefusal.SLOW)
                self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                self.stream.socket.close()
                await self.protocol.handle(Closed())
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())


class _ConnectionSlots:
    """The connections of a listener: how many are free, and which are idle.

    *connections* may be open, besides those for health checks only. Each is represented
    by the cancel scope that ends it. A new one is idle.
    """

    def __init__(self, connections: int) -> None:
        self._free = connections
        # Dicts keep the order: the one that is idle longest, or the oldest, is first.
        self._idle: dict[trio.CancelScope, None] = {}
        self._for_health: dict[trio.CancelScope, None] = {}

    def take(self, connection: trio.CancelScope) -> bool:
        """Give a connection a slot.

        Returns:
            Whether it may request every page, and not health checks only.
        """
        if self._free <= 0 and not self._idle:
            self._for_health[connection] = None
            if len(self._for_health) > HEALTH_CONNECTIONS:
                self._end_first(self._for_health)
            return False
        if self._free <= 0:
            self._end_first(self._idle)  # its slot is free once its task has ended
        self._free -= 1
        self._idle[connection] = None
        return True

    def release(self, connection: trio.CancelScope, *, is_for_all: bool) -> None:
        """Free the slot of a connection; *is_for_all* is what `take` returned."""
        self._idle.pop(connection, None)
        self._for_health.pop(connection, None)
        self._free += is_for_all

    def set_idle(self, connection: trio.CancelScope, is_idle: bool) -> None:
        """Note whether a connection waits for its client's next request."""
        self._idle.pop(connection, None)
        if is_idle:
            self._idle[connection] = None

    @staticmethod
    def _end_first(connections: dict[trio.CancelScope, None]) -> None:
        first = next(iter(connections))
        del connections[first]
        first.cancel()


@dataclass(eq=False, kw_only=True)
class HttpListener:
    """Serves each connection in a task of its own.

    Args:
        app_for: Returns the application for a connection.
        limits: The limits of this listener.
        refused: Counts requests and connections that are refused, by reason.
        grace_s: How long open connections may go on once the listener is stopped.
        only_health: Wraps an application so that it answers health checks only.
        turnstile: Passed by each received piece, and by each request.
        is_denied: Whether a client has no access; its application answers with the
            reason. Such connections have slots of their own, and take none from others.
    """

    app_for: Callable[[socket.socket], ASGIApp]
    limits: HttpLimits
    refused: Refused
    grace_s: float
    only_health: Callable[[ASGIApp], ASGIApp]
    turnstile: Turnstile
    is_denied: Callable[[socket.socket], bool] = lambda _: False

    def __post_init__(self) -> None:
        self._config = config = Config()
        config.accesslog = None
        config.errorlog = None  # the middleware logs what an application raises
        config.graceful_timeout = self.grace_s
        config.include_server_header = False
        config.keep_alive_timeout = self.limits.request_s
        # An incomplete head of exactly the limit is too large once its rest arrives.
        config.h11_max_incomplete_size = self.limits.head_bytes - 1
        self._context = WorkerContext(None)
        self._log_throttled = LogThrottle(LOG_S, clock=trio.current_time)
        self._slots = _ConnectionSlots(self.limits.connections)
        self._denied = trio.Semaphore(min(DENIED_CONNECTIONS, self.limits.connections))

    async def run(
        self, acceptor: Acceptor, stopped: Callable[[], Awaitable[object]]
    ) -> None:
        """Serve connections until *stopped* returns, then finish those that are open.

        The listening socket of the acceptor stays open afterwards.
        """
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self._accept, acceptor, connections)
                await stopped()
                accepting.cancel_scope.cancel()
            await self._context.terminated.set()
            connections.cancel_scope.deadline = trio.current_time() + self.grace_s

    async def _accept(self, acceptor: Acceptor, connections: trio.Nursery) -> None:
        """Accept connections forever, and serve them in a nursery."""
        while True:
            sock = await acceptor.accept()
            if not self.is_denied(sock):
                slot = trio.CancelScope()
                is_for_all = self._slots.take(slot)
                connections.start_soon(self._serve_in_slot, sock, slot, is_for_all)
            elif self._denied.value:
                self._denied.acquire_nowait()
                connections.start_soon(self._serve_denied, sock)
            else:
                self.refused(HttpRefusal.CONNECTIONS)
                _turn_away(sock)

    async def _serve_in_slot(
        self, sock: socket.socket, slot: trio.CancelScope, is_for_all: bool
    ) -> None:
        try:
            with slot:
                app = self.app_for(sock)
                if is_for_all:
                    await self._serve(sock, app, partial(self._slots.set_idle, slot))
                else:
                    await self._serve(sock, self.only_health(app), lambda _: None)
        finally:
            self._slots.release(slot, is_for_all=is_for_all)

    async def _serve_denied(self, sock: socket.socket) -> None:
        try:
            await self._serve(sock, self.app_for(sock), lambda _: None)
        finally:
            self._denied.release()

    async def _serve(
        self, sock: socket.socket, app: ASGIApp, set_idle: Callable[[bool], None]
    ) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        try:
            await _Connection(
                ASGIWrapper(app),  # type: ignore[arg-type]  # same type, other library
                *(self._config, self._context, ConnectionState({}), stream),
                limits=self.limits,
                refused=self.refused,
                turnstile=self.turnstile,
                set_idle=set_idle,
            )
        except* Exception as group:
            error = group.exceptions[0]
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            message = "an HTTP connection ended with a fault; the others go on"
            self._log_throttled(
                _log.warning, message, key=type(error).__name__, error=repr(error)
            )
        finally:
            stream.socket.close()


def _turn_away(sock: socket.socket) -> None:
    """Answer 503 without reading the request, and without waiting for the client."""
    message = (
        f"all {DENIED_CONNECTIONS} connections for users without access are in use; "
        "ask again later"
    )
    body = json.dumps({"error": message})
    with sock, suppress(OSError):  # the client may have disconnected
        sock.send(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\nretry-after: 1\r\n\r\n"
            f"{body}".encode()
        )
        sock.recv(65_536)  # close() with unread data would reset, and drop the answer
