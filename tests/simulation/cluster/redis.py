"""A redis-server on a Unix socket, and one connection to it.

A history makes thousands of small calls; so commands are sent together, and replies read
by the few lines that they need.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from io import BytesIO
from multiprocessing.util import Finalize
from pathlib import Path
from socket import AF_UNIX, socket
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, BinaryIO, Final

from liveness.demo.processes import PARENT_DEATH
from tests.helpers.needs import require

# Longer than a server takes to start on a busy machine.
START_S: Final = 30.0
RECEIVED_BYTES: Final = 65_536
Word = str | int | bytes


class RedisError(Exception):
    """The server answered a command with an error."""


class Connection:
    """One connection, in turns: commands, then their replies."""

    def __init__(self, path: str) -> None:
        self.path = path  # of the server's socket
        self._socket = socket(AF_UNIX)
        self._socket.settimeout(START_S)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._replies = self._socket.makefile("rb")

    def __call__(self, *words: Word) -> Any:
        """The reply to a command.

        Raises:
            RedisError: It is an error.
        """
        return self.many(words)[0]

    def many(self, *commands: tuple[Word, ...]) -> list[Any]:
        """The replies to commands that are sent together.

        Raises:
            RedisError: One of them is an error.
        """
        self._socket.sendall(b"".join(map(_encoded, commands)))
        replies = [_value(self._replies) for _ in commands]
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return replies

    def raw(self, *words: Word) -> bytes:
        """The reply to a command, as it is sent."""
        self._socket.sendall(_encoded(words))
        reply = b""
        while first_value(reply) is None:
            reply += self._socket.recv(RECEIVED_BYTES)
        return reply

    def close(self) -> None:
        """End it."""
        self._replies.close()
        self._socket.close()


def first_value(data: bytes) -> tuple[Any, bytes] | None:
    """What *data* begins with, and the rest; None: it is not whole."""
    file = BytesIO(data)
    try:
        return _value(file), file.read()
    except EOFError:
        return None


def _value(file: BinaryIO) -> Any:
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    kind, rest = line[:1], line[1:-2]
    if kind in b"$=!" and rest != b"-1":
        value = file.read(int(rest) + 2)
        if len(value) < int(rest) + 2:
            raise EOFError
        return value[:-2]
    match kind:
        case b":":
            return int(rest)
        case b"$" | b"_":
            return None
        case b"*" | b">" | b"~":
            return [_value(file) for _ in range(int(rest))]
        case b"%":
            return [_value(file) for _ in range(2 * int(rest))]
        case b"-":
            return RedisError(rest.decode())
        case _:
            return rest


def _encoded(words: tuple[Word, ...]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    head = b"*%d\r\n" % len(parts)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@contextmanager
def connected() -> Iterator[Connection]:
    """A server of our own, until left."""
    program = require("redis-server")
    with TemporaryDirectory(prefix="redis-") as folder:
        path = Path(folder, "s")
        # However this process ends, the server ends with it.
        words = [sys.executable, "-I", "-S", str(PARENT_DEATH), str(os.getpid())]
        words += [program, "--port", "0", "--unixsocket", str(path), "--dir", folder]
        words += ["--save", "", "--logfile", str(Path(folder, "log"))]
        # Otherwise their order is drawn by the server, and a seed is not played again.
        words += ["--hash-max-listpack-value", "100000"]
        # So it trims what it may, and not only whole nodes of a hundred.
        words += ["--stream-node-max-entries", "1"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
            try:
                connection = _connect(path)
                yield connection
                connection.close()
            finally:
                process.kill()


@cache
def server_of(_process: int) -> Connection:
    """The one server of this process, which ends with it; somebody may have used it.

    It is named by its id: one that is forked has another server.
    """
    stack = ExitStack()
    Finalize(None, stack.close, exitpriority=0)  # also runs as a worker of a pool ends
    return stack.enter_context(connected())


def _connect(path: Path) -> Connection:
    until = perf_counter() + START_S
    while True:
        try:
            return Connection(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            assert perf_counter() < until, "redis-server does not start"
            sleep(0.01)
