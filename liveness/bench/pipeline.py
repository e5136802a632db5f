"""A link that requests are written to without waiting for their replies."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

from liveness.bench.load import ANSWER_S, RECEIVE_BYTES, LoadError
from liveness.bench.program import Program
from liveness.bench.sidecar_process import ended
from liveness.bench.systems import Stream
from liveness.bench.told import OfflineStream


def connected(address: Path | int) -> socket.socket:
    """A socket to a Unix socket's path, or to a port on loopback."""
    if isinstance(address, int):
        return socket.create_connection(("127.0.0.1", address))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(address))
    except OSError:
        sock.close()
        raise
    return sock


def hang_up(sock: socket.socket) -> None:
    """End a link; a thread that reads it finds its end."""
    with suppress(OSError):  # the server was first
        sock.shutdown(socket.SHUT_RDWR)


class Pipeline:
    """Writes requests; a thread reads the replies, and no more than counts them.

    Args:
        address: A Unix socket's path, or a port on loopback.
        reply: What is in every reply once.
        error: What is only in one that tells of a mistake.
    """

    def __init__(self, address: Path | int, *, reply: bytes, error: bytes) -> None:
        self._reply = reply
        self._error = error
        self._replies = 0
        self._awaited = 0
        self._end = ""
        self._replied = threading.Condition()
        self._sock = connected(address)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        hang_up(self._sock)
        self._reader.join()
        self._sock.close()

    def post(self, stream: Stream) -> None:
        """Write requests."""
        self._awaited += stream.replies
        for piece in stream.pieces():
            self._sock.sendall(piece)

    def write(self, stream: Stream) -> None:
        """Write requests, and wait until everything so far is answered."""
        self.post(stream)
        until = time.perf_counter() + ANSWER_S
        with self._replied:
            while self._replies < self._awaited and not self._end:
                if not self._replied.wait(until - time.perf_counter()):
                    raise LoadError(f"no reply within {ANSWER_S:g} s")
        if self._end:
            raise LoadError(f"the server answered {self._end}")

    def _read(self) -> None:
        end, tail, kept = "with the end of the stream", b"", len(self._reply) - 1
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                if self._error in data:
                    end = data.decode(errors="replace")[:200]
                    break
                # A reply may come in two pieces.
                data = tail + data
                tail = data[len(data) - kept :]
                with self._replied:
                    self._replies += data.count(self._reply)
                    self._replied.notify_all()
        except OSError as error:
            end = repr(error)
        with self._replied:
            self._end = end
            self._replied.notify_all()


@contextmanager
def linked(
    server: Program,
    link: Callable[[], Pipeline],
    *,
    address: Path | int,
    listen: Callable[[socket.socket], Iterator[Sequence[str]]],
) -> Iterator[tuple[Pipeline, OfflineStream]]:
    """Start a server; give a link for requests, and who it tells on another.

    Args:
        server: It, not started; its process is gone at the end.
        link: Makes a link for requests.
        address: Where it listens: a Unix socket's path, or a port on loopback.
        listen: How a link is told who fell silent.
    """
    with ended(server):
        server.start()
        with (
            connected(address) as sock,
            link() as requests,
            OfflineStream(listen(sock), partial(hang_up, sock)) as told,
        ):
            yield requests, told
