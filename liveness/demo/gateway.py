"""A chat gateway with a sidecar: one room, each of its users on a TCP connection.

    python -m liveness.demo.gateway --port 7000      and then, as often as you like,
    nc 127.0.0.1 7000                                type {"login": "ada"}

Copy this file and start from it. All that it does about silence is four calls, `login`,
`keepalive`, `message` and `logout`, and one loop, over `ended`. It has no timer for any
user and need not know the timeout. What somebody wants the room reminded of is a timer,
which outlasts both processes: two calls, `after` and `cancel`, and a task. It runs whether the sidecar does or not: what it
reports is collected until there is one, and sent again where that may have been lost.
"""

import json
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import trio

import liveness

HOST: Final = "127.0.0.1"
HOW_TO: Final = (
    'log in with {"login": "ada"}; then {"say": "hi"}, {"remind": "tea", "in": 5}, '
    '{"forget": "tea"}, {"ping": 1} or {"logout": 1}'
)
MAX_LINE_BYTES: Final = 4_096
MAX_NAME: Final = 32
# Lines that wait for a reader who is too slow, beyond what the kernel holds for him.
MAX_UNSENT_LINES: Final = 128
# A connection is read at most 50 lines a second. What is more waits in its socket, and
# so does the sender: nobody can flood the room until others look too slow.
LINE_PAUSE_S: Final = 0.02
LOGIN_S: Final = 60.0  # a person types it
# Who is silent may be gone without a trace, and would never take the last line.
LAST_LINES_S: Final = 1.0
# A process may have 1,024 files open, unless somebody has raised that.
MOST_CONNECTIONS: Final = 1_000


async def run(
    *, sidecar_path: str | None, name: str, host: str, port: int, most: int
) -> None:
    """Runs a gateway until SIGTERM or cancelled, and prints where it listens.

    Its users are logged out then: they end as `logout`, and not with their gateway.

    Args:
        sidecar_path: The sidecar's socket; None for the default one.
        name: This gateway's, the same at every start.
        host: The address that it listens on.
        port: Where it listens there; 0 for any that is free.
        most: Connections at a time; one more is refused.
    Raises:
        liveness.Replaced: Another process has taken the name.
        liveness.Refused: The sidecar will not have this gateway.
    """
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with liveness.connect(sidecar_path, name=name) as sidecar:
            gateway = Gateway(sidecar, most=most)
            listeners = await trio.open_tcp_listeners(port, host=host)
            port = listeners[0].socket.getsockname()[1]
            print(f"{name} listens on {host}:{port}", flush=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(gateway.close_ended)
                nursery.start_soon(trio.serve_listeners, gateway.serve, listeners)
                await anext(signals)
                nursery.cancel_scope.cancel()


@dataclass(eq=False, slots=True)
class Connection:
    """One TCP connection, and whose it is."""

    conn: int
    outbox: trio.MemorySendChannel[bytes]
    reading: trio.CancelScope
    uid: str = ""  # until it has logged in

    def send(self, line: bytes) -> None:
        """Queues *line*; cuts the connection off if it does not read what is sent."""
        try:
            self.outbox.send_nowait(line)
        except trio.WouldBlock:
            self.reading.cancel()

    def end(self, why: str) -> None:
        """Says *why* it ends, and reads no more of it."""
        self.send(_line(bye=why))
        self.reading.cancel()


class Gateway:
    """The room, and all connections.

    Args:
        sidecar: Is told what happens to them.
        most: Connections at a time; one more is refused.
    """

    def __init__(self, sidecar: liveness.Sidecar, *, most: int) -> None:
        self.room: dict[int, Connection] = {}  # those that have logged in, by conn
        self._sidecar = sidecar
        self._most = most
        self._open = 0
        sidecar.task("remind:")(self.remind)

    async def close_ended(self) -> None:
        """Closes the connection of whoever is silent, or has come back on another."""
        async for end in self._sidecar.ended():
            assert end.conn is not None  # we name it at each login
            if connection := self.room.get(end.conn):
                self._leave(connection)
                connection.end(end.reason)

    async def remind(self, timer: liveness.Timer) -> None:
        """Says what the room was to be reminded of; later, if nobody is here."""
        if not self.room:
            raise liveness.TaskFailed("nobody is in the room", final=False)
        assert timer.payload is not None  # we give each one
        self._say(timer.payload.encode())

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serves one connection until either side has enough."""
        try:
            with self._place():
                await self._talk(stream)
        except* trio.BrokenResourceError:
            pass  # that is how connections end

    @contextmanager
    def _place(self) -> Iterator[None]:
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def _talk(self, stream: trio.SocketStream) -> None:
        """Reads and writes, each in a task of its own."""
        outbox, unsent = trio.open_memory_channel[bytes](MAX_UNSENT_LINES)
        conn = self._sidecar.new_conn()
        connection = Connection(conn, outbox, trio.CancelScope())
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(_write, stream, unsent)
            try:
                with connection.reading:
                    await self._read(stream, connection)
                if connection.reading.cancelled_caught and not connection.uid:
                    connection.send(_line(bye=f"no login within {LOGIN_S:g} s"))
            finally:
                self._leave(connection)
                outbox.close()  # the writer ends with the last line, or at the deadline
                nursery.cancel_scope.deadline = trio.current_time() + LAST_LINES_S

    async def _read(self, stream: trio.SocketStream, connection: Connection) -> None:
        if self._open > self._most:
            return connection.end("the gateway is full, come back later")
        connection.send(_line(welcome=HOW_TO))
        connection.reading.deadline = trio.current_time() + LOGIN_S
        unread = b""
        while data := await stream.receive_some(MAX_LINE_BYTES):
            *lines, unread = (unread + data).split(b"\n")
            if max(map(len, (*lines, unread))) > MAX_LINE_BYTES:
                return connection.end(f"a line has at most {MAX_LINE_BYTES} bytes")
            for line in lines:
                self._take(connection, line)
                await trio.sleep(LINE_PAUSE_S)
        return None

    def _take(self, connection: Connection, line: bytes) -> None:
        """Does what *line* asks for. Whatever it says, it is a sign of life."""
        conn, uid = connection.conn, connection.uid
        is_in = conn in self.room
        if is_in:
            self._sidecar.keepalive(uid, conn=conn)
        try:
            self._do(connection, _parsed(line), is_in=is_in)
        except liveness.ReportError as error:  # that cannot be a timer
            connection.send(_line(error=str(error)))

    def _do(self, connection: Connection, asked: object, *, is_in: bool) -> None:
        conn, uid = connection.conn, connection.uid
        match asked:
            case {"login": str(name)} if not uid and _is_name(name):
                self._join(connection, name)
            case {"say": str(text)} if is_in:
                self._sidecar.message(uid, conn=conn)
                self._say(_line(uid=uid, say=text))
            case {"remind": str(what), "in": int(seconds) | float(seconds)} if is_in:
                line = _line(uid=uid, reminder=what).decode()
                self._sidecar.after(f"remind:{uid}:{what}", seconds, line)
                connection.send(_line(reminding=what))
            case {"forget": str(what)} if is_in:
                self._sidecar.cancel(f"remind:{uid}:{what}")
                connection.send(_line(forgotten=what))
            case {"ping": _}:
                connection.send(_line(pong=1))
            case {"logout": _}:
                connection.end("logout")
            case _:
                connection.send(_line(error=HOW_TO))

    def _join(self, connection: Connection, name: str) -> None:
        connection.uid = name
        connection.reading.deadline = inf
        self.room[connection.conn] = connection
        self._sidecar.login(name, conn=connection.conn)
        connection.send(_line(joined=name, users=len(self.room)))

    def _leave(self, connection: Connection) -> None:
        """Takes the connection out of the room and reports it, if it is still there."""
        if self.room.pop(connection.conn, None):
            self._sidecar.logout(connection.uid, conn=connection.conn)

    def _say(self, line: bytes) -> None:
        for connection in self.room.values():
            connection.send(line)


async def _write(
    stream: trio.SocketStream, unsent: trio.MemoryReceiveChannel[bytes]
) -> None:
    async for line in unsent:
        await stream.send_all(line)


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= MAX_NAME and name.isprintable()


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # the latter: 4,096 brackets
        return None


def _line(**content: object) -> bytes:
    """One line, all ASCII: nothing that a user says can steer another's terminal."""
    return json.dumps(content).encode() + b"\n"


def main() -> None:
    """Runs a gateway as its command line says, until it is ended by a signal."""
    parser = ArgumentParser(description="A chat gateway with a sidecar.")
    parser.add_argument("--sidecar", metavar="PATH", help="the sidecar's socket")
    parser.add_argument("--name", default="gw-1", help="of this gateway; default gw-1")
    parser.add_argument(
        "--host", default=HOST, help=f"where it listens; default {HOST}"
    )
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument(
        "--most", type=int, default=MOST_CONNECTIONS, help="connections at a time"
    )
    asked = parser.parse_args()

    where = {"host": asked.host, "port": asked.port}
    wanted = {"sidecar_path": asked.sidecar, "name": asked.name, "most": asked.most}
    try:
        trio.run(partial(run, **wanted, **where))
    except* (liveness.Refused, liveness.Replaced, ValueError, OSError) as errors:
        sys.exit(f"{asked.name}: {errors.exceptions[0]}")
    except* KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
