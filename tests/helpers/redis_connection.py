"""One connection to a redis-server on its Unix socket, for commands in turns.

A history of a cluster makes thousands of small calls; so commands are sent together, and
replies read by the few lines that they need.
"""

from io import BytesIO
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any, BinaryIO, Final

# Longer than any answer takes on a busy machine.
ANSWER_S: Final = 120.0
RECEIVED_BYTES: Final = 65_536
Word = str | int | bytes


class RedisRefusal(Exception):
    """The server answered with an error."""


class RedisConnection:
    def __init__(self, path: Path) -> None:
        self.path = path  # of the server's socket
        self._socket = socket(AF_UNIX)
        self._socket.settimeout(ANSWER_S)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._replies = self._socket.makefile("rb")

    def __call__(self, *words: Word) -> Any:
        """The reply to a command.

        Raises:
            RedisRefusal: It is an error.
        """
        return self.many(words)[0]

    def many(self, *commands: tuple[Word, ...]) -> list[Any]:
        """The replies to commands that are sent together.

        Raises:
            RedisRefusal: One of them is an error.
            ConnectionError: The server closed the connection.
        """
        self._socket.sendall(b"".join(map(_encoded, commands)))
        try:
            replies = [_value(self._replies) for _ in commands]
        except EOFError:
            raise ConnectionResetError("the server closed the connection") from None
        for reply in replies:
            if isinstance(reply, RedisRefusal):
                raise reply
        return replies

    def raw(self, *words: Word) -> bytes:
        self._socket.sendall(_encoded(words))
        reply = b""
        while first_value(reply) is None:
            reply += self._socket.recv(RECEIVED_BYTES)
        return reply

    def close(self) -> None:
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
        case b"*" if rest == b"-1":
            return None
        case b"*" | b">" | b"~":
            return [_value(file) for _ in range(int(rest))]
        case b"%":
            return [_value(file) for _ in range(2 * int(rest))]
        case b"-":
            return RedisRefusal(rest.decode())
        case _:
            return rest


def _encoded(words: tuple[Word, ...]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    head = b"*%d\r\n" % len(parts)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
