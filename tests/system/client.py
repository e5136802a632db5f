"""A gateway or watcher that knows the wire contract and nothing of this package."""

import itertools
import socket
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Self

from tests.helpers.wire import Frame, Frames, Record, contents, hello, packed

Uid = str | int

SOON_S: Final = 120.0  # long after anything that was asked for has come
PIECE_BYTES: Final = 1 << 18


class Client:
    """One connection. It reads only when asked to, so it can leave things unread.

    Args:
        to: The sidecar's socket; or a connection to it, owned from now on.
    """

    def __init__(self, to: Path | socket.socket) -> None:
        self.records: list[Record] = []  # all that were received, in order
        self.log = ""
        self.next = 0
        self.welcome: dict[str, Any] = {}
        self.frames = Frames()
        self._pings = itertools.count(1)
        if isinstance(to, socket.socket):
            self._sock = to
        else:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sock.settimeout(SOON_S)
            self._sock.connect(str(to))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    # --- to the sidecar -------------------------------------------------------

    def send(self, *frame: Any) -> None:
        """Sends one frame."""
        self.send_bytes(packed([*frame]))

    def send_bytes(self, data: bytes) -> None:
        self._sock.settimeout(SOON_S)
        self._sock.sendall(data)

    def offer(self, data: bytes | memoryview) -> int:
        """Writes what the socket takes without waiting; how many bytes that was."""
        self._sock.settimeout(0)
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    def say_hello(self, name: str, **options: Any) -> None:
        self.send(*hello(name, **options))

    def hello(self, name: str, **options: Any) -> dict[str, Any]:
        """Introduces itself; what `welcome` tells."""
        self.say_hello(name, **options)
        (self.welcome,) = self.expect("welcome")
        self.log, self.next = self.welcome["log"], self.welcome["next"]
        return self.welcome

    def sync(self) -> None:
        """Waits until everything sent is applied, and its records are on disk."""
        number = next(self._pings)
        self.send("ping", number)
        assert self.expect("pong") == [number]

    def apply(self, *frame: Any) -> None:
        """Sends one frame, and waits until all that was sent is applied."""
        self.send(*frame)
        self.sync()

    # --- from the sidecar -----------------------------------------------------

    def receive(self, within_s: float = SOON_S) -> Frame | None:
        """The next frame, or None at the end of the stream.

        Raises:
            TimeoutError: Neither came in time.
        """
        until = perf_counter() + within_s
        while (frame := self.frames.next()) is None:
            self._sock.settimeout(max(until - perf_counter(), 0.001))
            data = self._sock.recv(PIECE_BYTES)
            if not data:
                return None
            self.frames.feed(data)
        if frame[0] == "notices":
            self.records += frame[1]
        return frame

    def fileno(self) -> int:
        return self._sock.fileno()

    def expect(self, name: str, within_s: float = SOON_S) -> list[Any]:
        """The content of the next frame of this name; notices before it are collected.

        Any other frame in between is a failure.
        """
        until = perf_counter() + within_s
        while True:
            frame = self.receive(max(until - perf_counter(), 0))
            if name == "notices" or frame is None or frame[0] != "notices":
                return contents(frame, name)

    def refusal(self) -> dict[str, Any]:
        """The content of the next `error`."""
        error: dict[str, Any] = self.expect("error")[0]
        return error

    def until(
        self, is_enough: Callable[[list[Record]], object], within_s: float = SOON_S
    ) -> list[Record]:
        """Receives until the records suffice; all of them."""
        until = perf_counter() + within_s
        while not is_enough(self.records):
            (_,) = self.expect("notices", max(until - perf_counter(), 0))
        return self.records

    def take(self, count: int, within_s: float = SOON_S) -> list[Record]:
        """Takes the records that have arrived, and at least this many."""
        taken = self.until(lambda records: len(records) >= count, within_s)
        self.records = []
        return taken

    def listed(self) -> tuple[dict[Uid, tuple[str, int, int | None]], int]:
        """Who `list` says is online, and the `seq` at which that is true."""
        self.send("list")
        everyone: dict[Uid, tuple[str, int, int | None]] = {}
        while True:
            rows, *seq = self.expect("list")
            for uid, gateway, session, conn in rows:
                assert uid not in everyone
                everyone[uid] = (gateway, session, conn)
            if seq:
                return everyone, seq[0]

    def where(self, *uids: Uid) -> list[list[Any]]:
        self.send("where", list(uids))
        rows: list[list[Any]] = self.expect("where")[0]
        return rows

    def leave(self) -> None:
        """Goes as a gateway does that was told `bye`: reads to the end, and closes."""
        if self._sock.fileno() >= 0:
            while self.receive() is not None:
                pass
            self.close()
