"""A chat gateway with a sidecar: one room, and a TCP connection for each user.

    python -m liveness.lab.demo.gateway --port 7000      and then, as often as you like,
    nc 127.0.0.1 7000                                type {"login": "ada"}

Copy this file and start from it. To detect silent users it makes four calls, `login`,
`keepalive`, `message` and `logout`, and has one loop, over `ended`. It has no timer per
user, and need not know the timeout. A reminder is a timer of the sidecar, which survives
restarts of both processes: two calls, `after` and `cancel`, and a task. The gateway also
works while no sidecar runs, or while one refuses it: the library collects its reports, and
repeats those that may have been lost.
"""

import json
import signal
import sys
from argparse import ArgumentParser
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
# Lines queued for a user that reads too slowly, beyond the kernel's buffers.
MAX_UNSENT_LINES: Final = 128
# At most 50 lines a second are read from a connection. More lines wait in its socket, and
# so does their sender. Without this limit one user could flood the room until others, who
# cannot read as fast, are cut off.
LINE_PAUSE_S: Final = 0.02
LOGIN_S: Final = 60.0  # a person types it
# A silent user may be gone, and would never receive the last lines.
LAST_LINES_S: Final = 1.0
# A process may have 1,024 open files by default.
MOST_CONNECTIONS: Final = 1_000


async def run(
    *, sidecar_path: str | None, name: str, host: str, port: int, most: int
) -> None:
    """Runs a gateway until SIGTERM or cancelled, and prints where it listens.

    At the end it logs its users out: their sessions end by `logout`, not `gateway_lost`.

    Args:
        sidecar_path: The sidecar's socket; None for the default one.
        name: The gateway's name; the same at every start.
        host: The address to listen on.
        port: The port; 0 for any free one.
        most: The most connections at a time; more are refused.
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
    """One TCP connection, and its user."""

    conn: int
    outbox: trio.MemorySendChannel[bytes]
    reading: trio.CancelScope
    uid: str = ""  # until it has logged in

    def send(self, line: bytes) -> None:
        """Queues *line*; ends the connection if too many lines are queued."""
        try:
            self.outbox.send_nowait(line)
        except trio.WouldBlock:
            self.reading.cancel()

    def end(self, reason: str) -> None:
        """Sends the *reason*, and stops reading."""
        self.send(_line(bye=reason))
        self.reading.cancel()


class Gateway:
    """The room, and all connections.

    Args:
        sidecar: Receives the reports about users.
        most: The most connections at a time; more are refused.
    """

    def __init__(self, sidecar: liveness.Sidecar, *, most: int) -> None:
        self.room: dict[int, Connection] = {}  # logged in, by conn
        self._sidecar = sidecar
        self._most = most
        self._open = 0
        sidecar.task("remind:")(self.remind)

    async def close_ended(self) -> None:
        """Closes connections of users that are silent or that logged in on another one."""
        async for end in self._sidecar.ended():
            assert end.conn is not None  # each login names it
            if connection := self.room.get(end.conn):
                self._leave(connection)
                connection.end(end.reason)

    async def remind(self, timer: liveness.Timer) -> None:
        """Sends a reminder to the room; the sidecar retries it if the room is empty."""
        if not self.room:
            raise liveness.TaskFailed("nobody is in the room", final=False)
        assert timer.payload is not None  # each timer has one
        self._say(timer.payload.encode())

    async def serve(self, stream: trio.SocketStream) -> None:
        self._open += 1
        try:
            await self._talk(stream)
        except* trio.BrokenResourceError:
            pass  # connections end that way
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
                outbox.close()  # the writer ends after the last line, or at the deadline
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
        """Carries out *line*. Any line, even an invalid one, is an activity."""
        conn, uid = connection.conn, connection.uid
        is_in = conn in self.room
        if is_in:
            self._sidecar.keepalive(uid, conn=conn)
        try:
            self._do(connection, _parsed(line), is_in=is_in)
        except liveness.ReportError as error:  # no valid timer
            connection.send(_line(error=str(error)))

    def _do(self, connection: Connection, request: object, *, is_in: bool) -> None:
        conn, uid = connection.conn, connection.uid
        match request:
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
    except (ValueError, RecursionError):  # RecursionError: 4,096 brackets
        return None


def _line(**content: object) -> bytes:
    """One line of JSON, all ASCII: no user can send control codes to a terminal."""
    return json.dumps(content).encode() + b"\n"


def main() -> None:
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
    options = vars(parser.parse_args())
    options["sidecar_path"] = options.pop("sidecar")
    try:
        trio.run(partial(run, **options))
    except* (liveness.ConfigError, ValueError, OSError) as errors:
        sys.exit(f"{options['name']}: {errors.exceptions[0]}")
    except* KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
