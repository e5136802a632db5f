"""A chat gateway: one room, and each of its users on a TCP connection.

Whoever connects logs in and is in the room; a line is a JSON object. With a sidecar
beside it a gateway has no timer per connection and need not know any timeout. It
reports login, message, keepalive and logout, and closes a connection when a record says
that it is offline, or that its user has moved to another.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Final

import trio

from liveness.demo.sidecar import Record, Sidecar
from liveness.service.clock import Clock

HOST: Final = "127.0.0.1"
HOW_TO: Final = (
    'log in with {"login": "ada"}; then {"say": "hi"}, {"ping": 1} or {"logout": 1}'
)
MAX_LINE_BYTES: Final = 4_096
# In characters, of four bytes at most: a full batch of such names fits a frame.
MAX_NAME: Final = 32
# Lines that wait for a reader who is too slow, beyond what the kernel holds for him.
MAX_UNSENT_LINES: Final = 128
# A connection is read at most 50 lines a second. What is more waits in its socket, and
# so does the sender: nobody can flood the room until others look too slow.
LINE_PAUSE_S: Final = 0.02
LOGIN_S: Final = 60.0  # a person types it
# Who is silent may be gone without a trace, and would never take the last line.
LAST_LINES_S: Final = 1.0


@dataclass(eq=False, slots=True)
class Connection:
    """One TCP connection, and whose it is."""

    conn: int
    outbox: trio.MemorySendChannel[bytes]
    reading: trio.CancelScope
    uid: str = ""  # until it has logged in
    heard: float = -inf  # when its last line was read

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
        name: The one that the sidecar knows us by.
        most: Connections at a time; one more is refused.
    """

    def __init__(self, sidecar: Sidecar, *, name: str, most: int) -> None:
        self.room: dict[int, Connection] = {}  # those that have logged in, by conn
        self.lines_said = 0
        self._sidecar = sidecar
        self._name = name
        self._most = most
        self._open = 0
        # A conn never repeats, not even in a later process: to reach that one's first,
        # it would take a million connections in each millisecond between the two.
        self._conns = count(Clock().wall_ms() << 20)

    async def serve(
        self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves on a free port until cancelled; started, with the port, once it listens."""
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        task_status.started(listener.socket.getsockname()[1])
        await trio.serve_listeners(self._serve_one, [listener])

    def told(self, record: Record) -> None:
        """Acts on a record: a connection that it ended is closed.

        Records may be late, and the user back on another connection: only the one whose
        conn the record has is meant.
        """
        match record:
            case {"kind": "offline", "gateway": self._name, "conn": int(conn)}:
                self._end(conn, record["reason"])
            case {"kind": "moved", "from": self._name, "from_conn": int(conn)}:
                self._end(conn, "moved")
            case _:
                pass

    def _end(self, conn: int, why: str) -> None:
        if connection := self.room.get(conn):
            self._leave(connection)
            connection.end(why)

    # --- one connection -----------------------------------------------------------

    async def _serve_one(self, stream: trio.SocketStream) -> None:
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
        """Reads and writes, each in a task of its own, until one side has enough."""
        outbox, unsent = trio.open_memory_channel[bytes](MAX_UNSENT_LINES)
        connection = Connection(next(self._conns), outbox, trio.CancelScope())
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
            connection.heard = trio.current_time()
            self._sidecar.keepalive(conn, uid)
        match _parsed(line):
            case {"login": str(name)} if not uid and _is_name(name):
                self._join(connection, name)
            case {"say": str(text)} if is_in:
                self._sidecar.message(conn, uid)
                self._say(_line(uid=uid, say=text))
            case {"ping": _}:
                connection.send(_line(pong=1))
            case {"logout": _}:
                connection.end("logout")
            case _:
                connection.send(_line(error=HOW_TO))

    def _join(self, connection: Connection, name: str) -> None:
        connection.uid = name
        connection.heard = trio.current_time()
        connection.reading.deadline = inf
        self.room[connection.conn] = connection
        self._sidecar.login(connection.conn, name)
        connection.send(_line(joined=name, users=len(self.room)))

    def _leave(self, connection: Connection) -> None:
        """Takes the connection out of the room and reports it, if it is still there.

        Also if a record has ended it: by its conn the logout can hurt no newer session,
        and it ends the one that a line under way just then has opened again.
        """
        if self.room.pop(connection.conn, None):
            self._sidecar.logout(connection.conn, connection.uid)

    def _say(self, line: bytes) -> None:
        self.lines_said += 1
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
