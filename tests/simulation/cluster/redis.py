"""A redis-server on a Unix socket, and one connection to it.

A history makes thousands of small calls; so commands are sent together, and replies read
by the few lines that they need.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, socket
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, Final

from tests.helpers.needs import require

# Longer than a server takes to start on a busy machine.
START_S: Final = 30.0
Word = str | int | bytes


class RedisError(Exception):
    """The server answered a command with an error."""


class Connection:
    """One connection, in turns: commands, then their replies."""

    def __init__(self, connected: socket) -> None:
        self._socket = connected
        self._replies = connected.makefile("rb")

    @property
    def path(self) -> str:
        """The server's socket."""
        return str(self._socket.getpeername())

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
        replies = [self._reply() for _ in commands]
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return replies

    def close(self) -> None:
        """End it."""
        self._replies.close()
        self._socket.close()

    def _reply(self) -> Any:
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._replies.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        return RedisError(rest.decode()) if kind == b"-" else rest


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
        words = [program, "--port", "0", "--unixsocket", str(path), "--dir", folder]
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


def _connect(path: Path) -> Connection:
    client = socket(AF_UNIX)
    client.settimeout(START_S)
    until = perf_counter() + START_S
    while True:
        try:
            client.connect(str(path))
            return Connection(client)
        except (FileNotFoundError, ConnectionRefusedError):
            assert perf_counter() < until, "redis-server does not start"
            sleep(0.01)
