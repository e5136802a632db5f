"""Serves HTTP/1.1 on a listening socket, by h11, for ASGI applications.

A connection is one task. It serves its requests one after the other, and reads only what
is asked for: a body when the application does, the next request after the answer. A whole
request, from its first byte on, has a time limit, and each piece of an answer too. A
request for WebSocket or HTTP/2 is answered in HTTP/1.

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
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from math import inf
from typing import Final, NoReturn
from urllib.parse import unquote

import h11
import structlog
import trio
from starlette.types import ASGIApp, Message, Scope

from liveness.config.settings import HttpSettings
from liveness.metrics.counts import HttpRefusal
from liveness.service.common.logs import LogThrottle
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.middleware import Refused
from liveness.service.links.acceptor import Acceptor

LOG_S: Final = 10.0
# How long requests may go on at a stop.
STOP_S: Final = 0.5
# Clients without access get an error at once. This many of their connections are kept
# open, so that they can send their request, and then read it.
DENIED_CONNECTIONS: Final = 10
# Connections at a time that only health checks may use, when all others are taken.
HEALTH_CONNECTIONS: Final = 10
# How long the rest of a refused request is discarded: an earlier close would reset the
# connection, and the client might lose the answer (RFC 9112, 9.6).
LINGER_S: Final = 0.5
# SO_LINGER with a time of 0: close() drops what the client has not read.
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_ABSOLUTE_URL: Final = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)
# States of a client that may still send a part of its request.
_INCOMPLETE: Final = (h11.IDLE, h11.SEND_BODY, h11.ERROR)
_REFUSALS: Final = {  # by status
    408: (
        HttpRefusal.SLOW,
        "the request did not arrive whole within {0.request_s:g} s; send it faster",
    ),
    431: (
        HttpRefusal.HEAD,
        "the request's head is larger than {0.max_header_bytes} bytes; send less",
    ),
}
_MALFORMED: Final = (
    HttpRefusal.MALFORMED,
    "the request is malformed; send HTTP/1.1 with one Host and, if there is a body, one "
    "length",
)

_log = structlog.get_logger("http")


class HttpListener:
    """Serves each connection in a task of its own.

    *health* is the application of connections for health checks only. *refused* counts
    requests and connections that are refused. *why_denied* says why a client has no access,
    if it has none.
    """

    def __init__(
        self,
        app: ASGIApp,
        health: ASGIApp,
        settings: HttpSettings,
        refused: Refused,
        turnstile: Turnstile,
        why_denied: Callable[[socket.socket], str | None] = lambda _: None,
    ) -> None:
        self._app = app
        self._health = health
        self._settings = settings
        self._refused = refused
        self._turnstile = turnstile
        self._why_denied = why_denied
        self._is_stopping = False
        self._log_throttled = LogThrottle(LOG_S, clock=trio.current_time)
        # Each connection is represented by the cancel scope that ends it. Dicts keep the
        # order: the one that is idle longest, or the oldest, is first.
        self._for_all = set[trio.CancelScope]()
        self._idle: dict[trio.CancelScope, None] = {}  # of those
        self._for_health: dict[trio.CancelScope, None] = {}
        self._denied = deque[socket.socket]()

    async def run(
        self, acceptor: Acceptor, stopped: Callable[[], Awaitable[object]]
    ) -> None:
        """Serve connections until *stopped* returns, then finish those that are open.

        They have `STOP_S` for that. The listening socket of the acceptor stays open.
        """
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self._accept, acceptor, connections)
                await stopped()
                accepting.cancel_scope.cancel()
            self._is_stopping = True
            while self._idle:
                _end_first(self._idle)
            connections.cancel_scope.deadline = trio.current_time() + STOP_S
        for sock in self._denied:
            sock.close()

    async def _accept(self, acceptor: Acceptor, connections: trio.Nursery) -> None:
        while True:
            sock = await acceptor.accept()
            if why := self._why_denied(sock):
                self._deny(sock, why)
                continue
            scope = trio.CancelScope()
            app = self._app if self._take_slot(scope) else self._health
            connections.start_soon(self._serve, sock, app, scope)

    def _deny(self, sock: socket.socket, why: str) -> None:
        """Answer without reading the request, and without waiting for the client."""
        self._refused(HttpRefusal.ACCESS)
        body = json.dumps({"error": why})
        with suppress(OSError):  # the client may have disconnected
            sock.send(
                "HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
            )
        self._denied.append(sock)
        if len(self._denied) > DENIED_CONNECTIONS:
            self._denied.popleft().close()

    def _take_slot(self, connection: trio.CancelScope) -> bool:
        """Whether a new connection, which is idle, may request every page."""
        is_full = len(self._for_all) >= self._settings.max_connections
        if is_full and not self._idle:
            self._for_health[connection] = None
            if len(self._for_health) > HEALTH_CONNECTIONS:
                _end_first(self._for_health)
            return False
        if is_full:
            _end_first(self._idle)  # its slot is free once its task has ended
        self._for_all.add(connection)
        self._idle[connection] = None
        return True

    async def _serve(
        self, sock: socket.socket, app: ASGIApp, scope: trio.CancelScope
    ) -> None:
        connection = _Connection(
            *(sock, app, self._settings, self._refused, self._turnstile),
            *(scope, partial(self._set_idle, scope)),
        )
        try:
            with scope:
                await connection.serve()
        except Exception as error:
            message = "an HTTP connection ended with a fault; the others go on"
            self._log_throttled(
                _log.warning, message, key=type(error).__name__, error=repr(error)
            )
        finally:
            sock.close()
            self._for_all.discard(scope)
            self._idle.pop(scope, None)
            self._for_health.pop(scope, None)

    def _set_idle(self, connection: trio.CancelScope, is_idle: bool) -> None:
        self._idle.pop(connection, None)
        if is_idle and self._is_stopping:
            connection.cancel()
        elif is_idle and connection in self._for_all:
            self._idle[connection] = None


def _end_first(connections: dict[trio.CancelScope, None]) -> None:
    first = next(iter(connections))
    del connections[first]
    first.cancel()


class _Connection:
    """Serves the requests of one connection, in the cancel scope *scope*.

    *set_idle* is called when the connection begins or ends to wait for a request. Each
    received piece and each request passes the turnstile. The caller closes the socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        app: ASGIApp,
        settings: HttpSettings,
        refused: Refused,
        turnstile: Turnstile,
        scope: trio.CancelScope,
        set_idle: Callable[[bool], None],
    ) -> None:
        self._client: tuple[str, int] | None = None
        if sock.family is not socket.AF_UNIX:
            with suppress(OSError):  # it has disconnected already
                self._client = sock.getpeername()[:2]
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._app = app
        self._limits = settings
        self._refused = refused
        self._turnstile = turnstile
        self._scope = scope
        self._set_idle = set_idle
        # An incomplete head of exactly the limit is too large once its rest arrives.
        most = settings.max_header_bytes - 1
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=most)
        self._due = inf  # when the request that is being read must be complete
        self._left_s = 0.0  # of that time, until the application asks for the body
        self._is_head = False  # the method: its answer has no body
        self._unsent: list[bytes] = []

    async def serve(self) -> None:
        """Serve requests until there are no more, or one cannot be answered."""
        http = self._http
        while request := await self._next_request():
            await self._turnstile.wait()  # a piece may have many requests
            self._is_head = request.method == b"HEAD"
            scope = _scope_of(request, self._client)
            await self._app(scope, self._receive, self._send)
            while http.their_state is h11.SEND_BODY:  # the application left it unread
                if await self._next_event(may_wait=False) is None:
                    break
            if not http.our_state is http.their_state is h11.DONE:
                break
            http.start_next_cycle()
        if http.our_state is not h11.IDLE and http.their_state in _INCOMPLETE:
            with trio.move_on_after(LINGER_S), suppress(trio.BrokenResourceError):
                await self._stream.send_eof()
                while await self._stream.receive_some(self._limits.max_header_bytes):
                    await self._turnstile.wait()

    @property
    def _unread_bytes(self) -> int:
        """Bytes received that belong to an incomplete head or to the next request."""
        return len(self._http.trailing_data[0])

    async def _next_request(self) -> h11.Request | None:
        """The next request's head; None if there is none, or if it was refused."""
        self._is_head = False
        self._set_idle(not self._unread_bytes)
        self._due = trio.current_time() + self._limits.request_s
        request = await self._next_event()
        if not isinstance(request, h11.Request):
            return None
        names = {name for name, _ in request.headers}
        # A proxy in front may see the end of such a request elsewhere, and take the rest
        # for the next request, of another client (RFC 9112, 6.1 and 11.2).
        if b"transfer-encoding" in names and (
            b"content-length" in names or request.http_version == b"1.0"
        ):
            await self._refuse(400)
            return None
        self._left_s = self._due - trio.current_time()
        return request

    async def _next_event(self, *, may_wait: bool = True) -> h11.Event | None:
        """The next part of the request; None if it ends here, or if it was refused."""
        while True:
            await trio.lowlevel.checkpoint()  # a piece may have thousands
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return None
            if isinstance(event, h11.Request | h11.Data | h11.EndOfMessage):
                return event
            if event is not h11.NEED_DATA or not may_wait:
                return None
            if self._http.they_are_waiting_for_100_continue:
                self._put(h11.InformationalResponse(status_code=100, headers=[]))
                await self._flush()
            if not await self._read(self._due):
                if self._unread_bytes or self._http.their_state is h11.SEND_BODY:
                    await self._refuse(408)
                return None

    async def _read(self, until: float) -> bool:
        """Read what the client sends, or its end; False if that takes too long."""
        unread = self._unread_bytes
        # No more than is left of a head: h11 accepts one that is too large if its end is
        # in the same read. There is none left only behind a request that is answered now.
        room = self._limits.max_header_bytes - unread
        if not room:
            await trio.sleep_forever()
        with trio.move_on_at(until) as waiting:
            await trio.lowlevel.wait_readable(self._stream.socket)
        if waiting.cancelled_caught:
            return False
        if not unread and self._http.their_state is h11.IDLE:
            self._set_idle(False)
            self._due = trio.current_time() + self._limits.request_s
        await self._turnstile.wait()
        try:
            # Not cancelled once it has read something.
            data = await self._stream.receive_some(room)
        except trio.BrokenResourceError:
            await self._end()
        self._http.receive_data(bytes(data))
        return True

    async def _receive(self) -> Message:
        """ASGI's receive: the body, then the end of the client."""
        if self._http.their_state is h11.SEND_BODY:
            if self._left_s:  # the application may have waited for other requests
                self._due = trio.current_time() + self._left_s
                self._left_s = 0.0
            event = await self._next_event()
            if isinstance(event, h11.Data):
                data = bytes(event.data)
                return {"type": "http.request", "body": data, "more_body": True}
            if isinstance(event, h11.EndOfMessage):
                return {"type": "http.request", "body": b"", "more_body": False}
        else:
            while not self._http.trailing_data[1]:  # until the client has ended
                await self._read(inf)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        """ASGI's send: the head waits for the first data."""
        if message["type"] == "http.response.start":
            date = (b"date", formatdate(usegmt=True).encode())
            headers = [*message["headers"], date]
            self._put(h11.Response(status_code=message["status"], headers=headers))
            return
        if message.get("body") and not self._is_head:
            self._put(h11.Data(data=message["body"]))
        if not message.get("more_body"):
            self._put(h11.EndOfMessage())
        await self._flush()

    def _put(self, event: h11.Event) -> None:
        self._unsent.append(self._http.send(event) or b"")

    async def _flush(self) -> None:
        pieces, self._unsent = self._unsent, []
        try:
            with trio.fail_after(self._limits.request_s):
                for piece in pieces:
                    await self._stream.send_all(piece)
        except trio.TooSlowError:
            self._refused(HttpRefusal.SLOW)
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            await self._end()
        except trio.BrokenResourceError:
            await self._end()

    async def _refuse(self, status: int) -> None:
        """Answer with an error, unless an answer has begun."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        why, error = _REFUSALS.get(status, _MALFORMED)
        self._refused(why)
        body = json.dumps({"error": error.format(self._limits)}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        self._put(h11.Response(status_code=status, headers=headers))
        if not self._is_head:
            self._put(h11.Data(data=body))
        self._put(h11.EndOfMessage())
        await self._flush()

    async def _end(self) -> NoReturn:
        self._scope.cancel()
        await trio.sleep_forever()


def _scope_of(request: h11.Request, client: tuple[str, int] | None) -> Scope:
    target, headers = request.target, list(request.headers)
    if absolute := _ABSOLUTE_URL.fullmatch(target):
        # Written as for a proxy: its host overrides Host (RFC 9112, 3.2.2).
        host, target = absolute[1], absolute[2]
        target = target if target[:1] == b"/" else b"/" + target
        headers = [header for header in headers if header[0] != b"host"]
        headers.append((b"host", host))
    path, _, query = target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
        "http_version": request.http_version.decode(),
        "method": request.method.decode(),
        "scheme": "http",
        "path": unquote(path.decode()),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": client,
        "server": None,
    }
