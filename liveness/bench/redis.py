"""redis-server: a key with a TTL for each user, or one sorted set with a sweeper."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from liveness.bench.load import ANSWER_S, RECEIVE_BYTES, LoadError, cut
from liveness.bench.program import Program
from liveness.bench.server import ended
from liveness.bench.systems import KNOWN_AT_ONCE, LONG_S, Stream, System


class RedisServer(Program):
    """A redis-server that keeps nothing on disk.

    Args:
        folder: For its socket and what it says.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(self.socket)]
        command += ["--dir", str(folder), "--save", "", "--appendonly", "no"]
        super().__init__(folder, command, env={})

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with Pipeline(self.socket) as link:
                link.write(Stream(command("PING"), 1))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


def command(*words: str) -> bytes:
    """One command as Redis reads it."""
    lines = [f"*{len(words)}"]
    for word in words:
        lines += [f"${len(word)}", word]
    return ("\r\n".join(lines) + "\r\n").encode()


class Pipeline:
    """A link that commands are written to without waiting for their replies.

    The replies are one line each. A thread counts them.
    """

    def __init__(self, path: Path) -> None:
        self._replies = 0
        self._awaited = 0
        self._error = ""
        self._replied = threading.Condition()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.connect(str(path))
        except OSError:
            self._sock.close()
            raise
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the server was first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._sock.close()

    def write(self, stream: Stream) -> None:
        """Write commands, and wait until all of them are answered."""
        self._awaited += stream.replies
        for piece in stream.pieces():
            self._sock.sendall(piece)
        until = time.perf_counter() + ANSWER_S
        with self._replied:
            while self._replies < self._awaited and not self._error:
                if not self._replied.wait(until - time.perf_counter()):
                    raise LoadError(f"no reply within {ANSWER_S:g} s")
        if self._error:
            raise LoadError(f"redis-server answered {self._error}")

    def _read(self) -> None:
        end = "with the end of the stream"
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                if b"-" in data:
                    end = data.decode(errors="replace")[:200]
                    break
                with self._replied:
                    self._replies += data.count(b"\n")
                    self._replied.notify_all()
        except OSError as error:
            end = repr(error)
        with self._replied:
            self._error = end
            self._replied.notify_all()


class Setex(System):
    """A key for each user, which expires unless it is set anew.

    Args:
        program: The server.
        link: A link to it.
    """

    def __init__(self, program: RedisServer, link: Pipeline) -> None:
        super().__init__(program)
        self._link = link

    def make_known(self, numbers: range) -> None:
        """Set users' keys."""
        for part in cut(numbers, KNOWN_AT_ONCE):
            self.write(self.singles(part))

    def singles(self, numbers: Sequence[int]) -> Stream:
        """A SETEX for each."""
        data = b"".join(setex(number, LONG_S) for number in numbers)
        return Stream(data, len(numbers))

    def batches(self, numbers: Sequence[int]) -> None:
        """None: no command sets several keys and their expiry."""

    def write(self, stream: Stream) -> None:
        """Write commands; return once they are answered."""
        self._link.write(stream)


def setex(number: int, seconds: int) -> bytes:
    """What a gateway sends for a sign of life."""
    return command("SETEX", f"user-{number:012}", str(seconds), "gw-1")


@contextmanager
def redis_setex(folder: Path, _count: int) -> Iterator[Setex]:
    """A redis-server, its users keys."""
    server = RedisServer(folder)
    with ended(server):
        server.start()
        with Pipeline(server.socket) as link:
            yield Setex(server, link)
