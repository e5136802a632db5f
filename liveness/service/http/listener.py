"""Serves HTTP applications on a listening socket.

When all connections are in use, a new one closes the connection that has been idle
longest. If none is idle, the new one gets one of a few extra slots, in which only health
checks are answered. Otherwise a client that keeps all connections busy could make a
supervisor restart the sidecar. A new connection in these slots closes the oldest one: a
health check is answered long before its turn comes.
"""

import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio
from starlette.types import ASGIApp

from liveness.config.settings import HttpSettings
from liveness.metrics.counts import HttpRefusal
from liveness.service.common.logs import LogThrottle
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.http_connection import HttpConnection
from liveness.service.http.middleware import Refused
from liveness.service.links.acceptor import Acceptor

LOG_S: Final = 10.0
# How long requests may go on at a stop.
STOP_S: Final = 0.5
# Connections at a time of clients without access, which get only an error.
DENIED_CONNECTIONS: Final = 10
# Connections at a time that only health checks may use, when all others are taken.
HEALTH_CONNECTIONS: Final = 10

_log = structlog.get_logger("http")


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

    def end_idle(self) -> None:
        """End the connections that wait for a request."""
        while self._idle:
            self._end_first(self._idle)

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
        settings: The limits of this listener and of each of its connections.
        refused: Counts requests and connections that are refused, by reason.
        only_health: Wraps an application so that it answers health checks only.
        turnstile: Passed by each received piece, and by each request.
        is_denied: Whether a client has no access; its application answers with the
            reason. Such connections have slots of their own, and take none from others.
    """

    app_for: Callable[[socket.socket], ASGIApp]
    settings: HttpSettings
    refused: Refused
    only_health: Callable[[ASGIApp], ASGIApp]
    turnstile: Turnstile
    is_denied: Callable[[socket.socket], bool] = lambda _: False

    def __post_init__(self) -> None:
        most = self.settings.max_connections
        self._is_stopping = False
        self._log_throttled = LogThrottle(LOG_S, clock=trio.current_time)
        self._slots = _ConnectionSlots(most)
        self._denied = trio.Semaphore(min(DENIED_CONNECTIONS, most))

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
            self._slots.end_idle()
            connections.cancel_scope.deadline = trio.current_time() + STOP_S

    async def _accept(self, acceptor: Acceptor, connections: trio.Nursery) -> None:
        """Accept connections forever, and serve them in a nursery."""
        while True:
            sock = await acceptor.accept()
            scope = trio.CancelScope()
            if not self.is_denied(sock):
                is_for_all = self._slots.take(scope)
                connections.start_soon(self._serve_in_slot, sock, scope, is_for_all)
            elif self._denied.value:
                self._denied.acquire_nowait()
                connections.start_soon(self._serve_denied, sock, scope)
            else:
                self.refused(HttpRefusal.CONNECTIONS)
                _turn_away(sock)

    async def _serve_in_slot(
        self, sock: socket.socket, scope: trio.CancelScope, is_for_all: bool
    ) -> None:
        try:
            app = self.app_for(sock)
            if is_for_all:
                set_idle = partial(self._slots.set_idle, scope)
                await self._serve(sock, app, scope, set_idle)
            else:
                await self._serve(sock, self.only_health(app), scope, lambda _: None)
        finally:
            self._slots.release(scope, is_for_all=is_for_all)

    async def _serve_denied(self, sock: socket.socket, scope: trio.CancelScope) -> None:
        try:
            await self._serve(sock, self.app_for(sock), scope, lambda _: None)
        finally:
            self._denied.release()

    async def _serve(
        self,
        sock: socket.socket,
        app: ASGIApp,
        scope: trio.CancelScope,
        set_idle: Callable[[bool], None],
    ) -> None:
        try:
            with scope:
                connection = HttpConnection(
                    sock,
                    app,
                    self.settings,
                    refused=self.refused,
                    turnstile=self.turnstile,
                    scope=scope,
                    set_idle=set_idle,
                    is_stopping=lambda: self._is_stopping,
                )
                await connection.serve()
        except Exception as error:
            message = "an HTTP connection ended with a fault; the others go on"
            self._log_throttled(
                _log.warning, message, key=type(error).__name__, error=repr(error)
            )
        finally:
            sock.close()


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
