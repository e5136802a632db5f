"""Serves an HTTP application on a socket, each connection for itself.

hypercorn speaks the protocol. Its own loop ends with the first fault of any connection,
and the sidecar with it: a byte after a request to upgrade is enough (its issue 225), or
a client that goes while its body is refused. Here such a fault ends that connection.
"""

import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from liveness.service.accepting import Acceptor
from liveness.service.logs import Every

LOG_S: Final = 10.0

_log = structlog.get_logger("http")


class _Server(TCPServer):
    """One connection, which ends when its client goes.

    hypercorn's own waits on until a client that has gone would have been idle for too
    long: where descriptors are scarce, those have them all.
    """

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


async def serve_door(
    app: Any,
    acceptor: Acceptor,
    stopped: Callable[[], Awaitable[object]],
    *,
    grace_s: float,
) -> None:
    """Serve until *stopped* returns, and then those who are connected a little longer.

    Args:
        app: An ASGI application.
        acceptor: Of the socket where it listens; that stays open.
        stopped: Returns when no more is to be accepted.
        grace_s: How long connections have from then on.
    """
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = grace_s
    config.include_server_header = False
    context = WorkerContext(None)
    every = Every(LOG_S, clock=trio.current_time)

    async def converse(sock: socket.socket) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        try:
            state = ConnectionState({})
            await _Server(ASGIWrapper(app), config, context, state, stream)  # type: ignore[arg-type]  # no TLS here
        except* Exception as group:
            error = group.exceptions[0]
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            say = "an HTTP connection ended with a fault; the others go on"
            every(_log.warning, say, key=type(error).__name__, error=repr(error))
        finally:
            stream.socket.close()

    async def accept(connections: trio.Nursery) -> None:
        while True:
            connections.start_soon(converse, await acceptor.accept())

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(accept, connections)
            await stopped()
            accepting.cancel_scope.cancel()
        await context.terminated.set()
        connections.cancel_scope.deadline = trio.current_time() + grace_s
