"""A WebSocket chat server with a sidecar: one room; `README.md` explains the choices."""

import asyncio
import json
import signal
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import Any, Final

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed

from liveness import Sidecar, connect

MOST_CONNECTIONS: Final = 1_000  # a process may have 1,024 open files by default
MAX_UNSENT_BYTES: Final = 262_144  # for a user that reads too slowly
MESSAGE_PAUSE_S: Final = 0.02  # nobody sends more than 50 messages a second
LOGIN_S: Final = 60.0  # from connecting to logging in
CLOSE_S: Final = 2.0  # for a close to be written and answered
GOING_AWAY, REFUSED, FULL, ENDED, MOVED = 1001, 1008, 1013, 4000, 4001
# The sidecar alone judges silence, so the library's own keepalive is off.
OPTIONS: Final[Any] = {"ping_interval": None, "close_timeout": 1, "max_size": 4_096}


class Chat:
    """The room. Closing a connection may take a second, so it is done in *tasks*."""

    def __init__(self, sidecar: Sidecar, tasks: asyncio.TaskGroup, ping_s: float):
        self.room: dict[int, tuple[str, ServerConnection]] = {}  # by conn
        self._sidecar, self._tasks, self._ping_s, self._open = sidecar, tasks, ping_s, 0

    async def close_ended(self) -> None:
        """Close connections of users that are silent, or that logged in on another one."""
        async for end in self._sidecar.ended():
            self.end(end.conn, MOVED if end.reason == "moved" else ENDED, end.reason)

    async def serve(self, socket: ServerConnection) -> None:
        """Serve one connection: first a user's name, then what the user says."""
        self._open += 1
        try:
            if self._open > MOST_CONNECTIONS:
                return await socket.close(FULL, "come back later")
            async with asyncio.timeout(LOGIN_S):
                uid = await socket.recv(decode=True)  # your authentication
            await self._talk(self._sidecar.new_conn(), uid, socket)
        except (TimeoutError, ValueError):
            await socket.close(REFUSED, "first send your name")
        except ConnectionClosed:
            pass  # connections end that way
        finally:
            self._open -= 1

    async def _talk(self, conn: int, uid: str, socket: ServerConnection) -> None:
        self._sidecar.login(uid, conn=conn)
        self.room[conn] = uid, socket
        pinging = asyncio.create_task(self._ping(conn, uid, socket))
        try:
            self._say(joined=uid, users=len(self.room))
            while conn in self.room:
                self._say(uid=uid, say=await socket.recv(decode=True))
                self._sidecar.message(uid, conn=conn)
                await asyncio.sleep(MESSAGE_PAUSE_S)
        finally:
            pinging.cancel()
            self.end(conn)

    def end(self, conn: int | None, code: int = 1000, reason: str = "") -> None:
        """Close a connection; report a logout, unless the sidecar has ended it."""
        if conn in self.room:
            uid, socket = self.room.pop(conn)
            self._sidecar.logout(uid, conn=conn)
            self._tasks.create_task(_close(socket, code, reason))

    async def _ping(self, conn: int, uid: str, socket: ServerConnection) -> None:
        """Ping until the connection is closed: a user who only reads shows a pong."""
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(self._ping_s)
                await (await socket.ping())  # until its pong, however late
                self._sidecar.keepalive(uid, conn=conn)

    def _say(self, **content: object) -> None:
        broadcast([socket for _, socket in self.room.values()], json.dumps(content))
        for conn, (_, socket) in [*self.room.items()]:
            if socket.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self.end(conn, REFUSED, "you read too slowly")


async def _close(socket: ServerConnection, code: int, reason: str) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await socket.close(code, reason)
    except TimeoutError:  # its buffer is full: not even the close could be written
        socket.transport.abort()


async def run(given: Namespace) -> None:
    """Serve until SIGTERM, and log everybody out."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    link = connect(given.sidecar, name=given.name)
    async with link as sidecar, asyncio.TaskGroup() as tasks:
        chat = Chat(sidecar, tasks, given.ping)
        async with serve(chat.serve, "127.0.0.1", given.port, **OPTIONS) as server:
            host, port = server.sockets[0].getsockname()
            print(f"{given.name} listens on {host}:{port}", flush=True)
            closing = tasks.create_task(chat.close_ended())
            await stop.wait()
            closing.cancel()
            for conn in [*chat.room]:
                chat.end(conn, GOING_AWAY)


if __name__ == "__main__":
    parser = ArgumentParser(description="A WebSocket chat server with a sidecar.")
    parser.add_argument("--sidecar", metavar="PATH", help="the sidecar's socket")
    parser.add_argument("--name", default="gw-1", help="of this gateway; default gw-1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument("--ping", type=float, default=10.0, help="seconds; default 10")
    asyncio.run(run(parser.parse_args()))
