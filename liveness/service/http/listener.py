"""Serves HTTP applications on a listening socket.

When all connections are in use, a new one closes the connection that has been idle
longest. If none is idle, the new one gets one of a few extra slots, in which only health
checks are answered. Otherwise a client that keeps all connections busy could make a
supervisor restart the sidecar. A new connection in these slots closes the oldest one: a
health check is answered long before its turn comes.
"""

import json
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
# Clients without access get an error at once. This many of their connections are kept
# open, so that they can send their request, and then read it.
DENIED_CONNECTIONS: Final = 10
# Connections at a time that only health checks may use, when all others are taken.
HEALTH_CONNECTIONS: Final = 10

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
        connection = HttpConnection(
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
