"""Links to other systems: requests written without waiting for replies, and offlines."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from liveness.bench.load import (
    ANSWER_S,
    RECEIVE_BYTES,
    LoadError,
    Notices,
    WaitableCount,
    now,
)
from liveness.bench.program import Program
from liveness.bench.systems import Stream, System


class Pipeline:
    """Writes requests, while a thread reads the replies and counts them.

    The address is a Unix socket's path, or a port on loopback.
    """

    def __init__(self, address: Path | int, *, reply: bytes, error: bytes) -> None:
        self._reply = reply
        self._error = error
        self._replies = WaitableCount()
        self._expected = 0
        self._sock = _connected(address)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _shut_down(self._sock)
        self._reader.join()
        self._sock.close()

    def post(self, stream: Stream) -> None:
        """Write requests; do not wait for their replies."""
        self._expected += stream.replies
        for piece in stream.pieces():
            self._sock.sendall(piece)

    def write(self, stream: Stream) -> None:
        """Write requests; return once all requests so far are answered."""
        self.post(stream)
        until = time.perf_counter() + ANSWER_S
        is_answered = self._replies.wait_for(self._expected, until=until)
        if self._replies.end:
            raise LoadError(f"the server answered {self._replies.end}")
        if not is_answered:
            raise LoadError(f"no reply within {ANSWER_S:g} s")

    def _read(self) -> None:
        end, tail, overlap = "with the end of the stream", b"", len(self._reply) - 1
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                if self._error in data:
                    end = data.decode(errors="replace")[:200]
                    break
                # A reply may be split between two reads.
                data = tail + data
                tail = data[len(data) - overlap :]
                self._replies.add(data.count(self._reply))
        except OSError as error:
            end = repr(error)
        self._replies.finish(end)


class OfflineStream:
    """Collects the users that a system reports silent.

    A thread iterates over *batches* of uids and stamps them, until *stop* is called.
    """

    def __init__(
        self, batches: Iterable[Sequence[str]], stop: Callable[[], None]
    ) -> None:
        self._batches = batches
        self._stop = stop
        self._notices: list[Notices] = []
        self._records = WaitableCount()
        self._is_closing = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._stop()
        self._thread.join()

    def wait_for(self, count: int, *, until: float) -> Sequence[Notices]:
        """Wait for *count* users, until a monotonic moment; return all reported ones."""
        self._records.wait_for(count, until=until)
        if self._records.end:
            raise LoadError(f"no more offlines are received: {self._records.end}")
        return self._notices

    def _listen(self) -> None:
        end = "the end of the stream"
        try:
            for uids in self._batches:
                mono, wall_ms = now()
                records = [
                    {"uid": uid, "reason": "silence", "at": wall_ms} for uid in uids
                ]
                self._notices.append(Notices(mono, records))
                self._records.add(len(records))
        except Exception as error:  # raised by wait_for
            end = repr(error)
        self._records.finish("" if self._is_closing else end)


class PipelinedServer(Program):
    """A server for pipelined requests. Subclasses set these three attributes."""

    REPLY: ClassVar[bytes]  # bytes that each reply has exactly once
    ERROR: ClassVar[bytes]  # bytes that only an error reply has
    PROBE: ClassVar[bytes]  # a request that it answers once it is ready

    def __init__(self, folder: Path, address: Path | int, command: list[str]) -> None:
        super().__init__(folder, command)
        self.address = address

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with self.link() as link:
                link.write(Stream(self.PROBE, 1))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def link(self) -> Pipeline:
        """A link for requests."""
        return Pipeline(self.address, reply=self.REPLY, error=self.ERROR)


@dataclass(eq=False)
class PipelinedSystem(System):
    """A system with one link for requests, and one that reports silent users."""

    link: Pipeline
    offlines: OfflineStream

    def write(self, stream: Stream) -> None:
        """Write requests; return once they are answered."""
        self.link.write(stream)

    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        """As in `System`."""
        return self.offlines.wait_for(count, until=until)


@contextmanager
def pipelined(
    start: Callable[[Path], PipelinedServer],
    use: Callable[[Program, Pipeline, OfflineStream], PipelinedSystem],
    listen: Callable[[socket.socket], Iterator[Sequence[str]]],
    folder: Path,
    _count: int,
) -> Iterator[PipelinedSystem]:
    """A running server with both links; *listen* yields the uids that it reports silent."""
    with start(folder) as server:
        server.start()
        with (
            _connected(server.address) as sock,
            server.link() as link,
            OfflineStream(listen(sock), partial(_shut_down, sock)) as offlines,
        ):
            yield use(server, link, offlines)


def _connected(address: Path | int) -> socket.socket:
    if isinstance(address, int):
        return socket.create_connection(("127.0.0.1", address))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(address))
    except OSError:
        sock.close()
        raise
    return sock


def _shut_down(sock: socket.socket) -> None:
    """Ends a link, also for the thread that reads it."""
    with suppress(OSError):  # the server has closed it already
        sock.shutdown(socket.SHUT_RDWR)
