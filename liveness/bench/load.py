"""The load: a gateway that knows the wire contract, and users encoded beforehand.

It must not be what is measured: every byte is encoded before the clock starts, a
thread of its own reads and stamps what arrives, and what it cost in CPU and how far
it fell behind its own pace are figures beside the others.
"""

import queue
import socket
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgpack

from liveness.errors import LivenessError

BATCH: Final = 1_000
MAX_BATCH: Final = 4_000  # of every server
RECEIVE_BYTES: Final = 262_144
# Above so many frames a second, those of so long are written at once.
GATHER_ABOVE: Final = 5_000
GATHER_S: Final = 0.002
ANSWER_S: Final = 300.0  # long after anything that works, a million logins too


class LoadError(LivenessError):
    """The server did not do what a gateway can count on; nothing can be measured."""


class Moment(NamedTuple):
    """A moment on both clocks: monotonic seconds and Unix milliseconds."""

    mono: float
    wall_ms: float


def now() -> Moment:
    """Read both clocks: a gateway has its own, and never asks the server's."""
    return Moment(time.perf_counter(), time.time_ns() / 1e6)


def uid(number: int, kind: str = "user") -> str:
    """A user's uid: of 17 bytes, as a kind has four letters."""
    return f"{kind}-{number:012}"


class LoadUsers:
    """Simulated users, each on one connection, by number from 0.

    Args:
        count: How many.
        kind: What their uids begin with.
    """

    def __init__(self, count: int, *, kind: str = "user") -> None:
        self.uids = [uid(number, kind) for number in range(count)]
        # As the contract advises: start time in milliseconds, and a counter.
        first = (time.time_ns() // 1_000_000) << 20
        self._conns = range(first, first + count)

    def __len__(self) -> int:
        return len(self.uids)

    def logins(self, part: range, **options: object) -> bytes:
        """Frames of 1,000 that log in the users of *part*."""
        return b"".join(
            self._frame("login", batch, options) for batch in cut(part, BATCH)
        )

    def keepalives(self) -> list[tuple[range, bytes]]:
        """Frames, as large as may be, that together name everyone; whom beside each."""
        return [
            (part, self._frame("keepalive", part))
            for part in cut(range(len(self)), MAX_BATCH)
        ]

    def batch(self, numbers: Sequence[int]) -> bytes:
        """A keepalive that names these."""
        return self._frame("keepalive", numbers)

    def single(self, number: int, event: str = "keepalive", **options: object) -> bytes:
        """A frame that names no one else."""
        options["conn"] = self._conns[number]
        return _packed([event, self.uids[number], options])

    def _frame(
        self,
        event: str,
        numbers: Sequence[int],
        options: dict[str, object] | None = None,
    ) -> bytes:
        uids = [self.uids[number] for number in numbers]
        conns = [self._conns[number] for number in numbers]
        return _packed([event, uids, {**(options or {}), "conn": conns}])


def _packed(frame: object) -> bytes:
    packed: bytes = msgpack.packb(frame)
    return packed


def cut(part: range, size: int) -> list[range]:
    """*part* in pieces of *size*; the last one may be smaller."""
    return [part[start : start + size] for start in range(0, len(part), size)]


class Notices(NamedTuple):
    """One frame of records, and when it was there whole (monotonic)."""

    received: float
    records: Sequence[dict[str, Any]]


class LoadGateway:
    """One link: writes what it is given, reads and acknowledges in its own thread.

    Args:
        path: The server's socket.
        hello: Options of the hello; the name is `bench` unless given.
    """

    def __init__(self, path: Path, **hello: object) -> None:
        self.notices: list[Notices] = []
        self.welcome: dict[str, Any] = {}
        self._replies: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._noticed = threading.Condition()
        self.count = 0  # of all records
        self._is_over = False
        self._writing = threading.Lock()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(ANSWER_S)
            self._sock.connect(str(path))
            self._sock.settimeout(None)
        except OSError:
            self._sock.close()
            raise
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.tell("hello", {"protocol": 1, "name": "bench", **hello})
            self.welcome = self._reply("welcome")[1]
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    # --- what a gateway does --------------------------------------------------

    def send(self, data: bytes | memoryview) -> None:
        """Write encoded frames, waiting as long as the server does not read."""
        with self._writing:
            self._sock.sendall(data)

    def tell(self, *frame: object) -> None:
        """Encode and write one frame."""
        self.send(msgpack.packb(frame))

    def ping(self) -> None:
        """Return once everything so far is applied and on disk."""
        self.tell("ping", 1)
        self._reply("pong")

    def listed(self) -> dict[str, int]:
        """Ask for this gateway's sessions: uid to session."""
        self.tell("list")
        listed: dict[str, int] = {}
        while True:
            _, rows, *seq = self._reply("list")
            listed |= {uid: session for uid, _gateway, session, _conn in rows}
            if seq:
                return listed

    def wait_for(self, count: int, *, until: float) -> None:
        """Wait for *count* records in all, until a monotonic moment or the link's end."""
        with self._noticed:
            while self.count < count and not self._is_over:
                left_s = until - time.perf_counter()
                if left_s <= 0 or not self._noticed.wait(left_s):
                    return

    # --- within ---------------------------------------------------------------

    def _reply(self, name: str) -> tuple[Any, ...]:
        try:
            frame = self._replies.get(timeout=ANSWER_S)
        except queue.Empty:
            raise LoadError(f"no {name} within {ANSWER_S:g} s") from None
        if frame[0] != name:
            raise LoadError(f"the server answered {frame!s:.200}, not {name}")
        return frame

    def _read(self) -> None:
        unpacker = msgpack.Unpacker(use_list=False)
        end = ("the end of the stream",)
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                received = time.perf_counter()
                unpacker.feed(data)
                for frame in unpacker:
                    if frame[0] == "notices":
                        self._take(Notices(received, frame[1]))
                    else:
                        self._replies.put(frame)
        except Exception as error:  # whoever waits for a reply is told
            end = (repr(error),)
        self._replies.put(end)
        with self._noticed:
            self._is_over = True
            self._noticed.notify_all()

    def _take(self, notices: Notices) -> None:
        self.tell("ack", notices.records[-1]["seq"])
        self.notices.append(notices)
        with self._noticed:
            self.count += len(notices.records)
            self._noticed.notify_all()

    def _close(self) -> None:
        with suppress(OSError):  # the server was first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._sock.close()


class Pace:
    """Writes frames spread evenly, and notes when it did.

    One by one, up to a rate at which the sleep between two would be what is measured;
    above, those of two milliseconds in one write, before which all of them are stamped.

    Args:
        gateway: Where to.
        rate: Frames a second.
    """

    def __init__(self, gateway: LoadGateway, *, rate: float) -> None:
        self.began = now()
        self._mono = array("d")  # beside each other: when each frame was written
        self._wall_ms = array("d")
        self.lags_s = array("d")  # how late against its own plan
        self._gateway = gateway
        self._rate = rate

    @property
    def count(self) -> int:
        """How many frames were written so far."""
        return len(self.lags_s)

    def moments(self) -> Iterator[Moment]:
        """When each of them was written."""
        return map(Moment, self._mono, self._wall_ms)

    def run(self, frames: Sequence[bytes]) -> None:
        """Write *frames*, each at its time; the first follows the last run's last."""
        send, rate, began, done = self._gateway.send, self._rate, self.began.mono, 0
        first, gather_s = self.count, GATHER_S if rate > GATHER_ABOVE else 0.0
        while done < len(frames):
            ahead_s = began + (first + done) / rate - time.perf_counter()
            if ahead_s > 0:
                time.sleep(ahead_s + gather_s)
            mono, wall_ms = now()
            due = int((mono - began) * rate) + 1 - first if gather_s else done + 1
            part = frames[done : max(due, done + 1)]
            self._mono.extend(repeat(mono, len(part)))
            self._wall_ms.extend(repeat(wall_ms, len(part)))
            planned = range(first + done, first + done + len(part))
            self.lags_s.extend(mono - began - number / rate for number in planned)
            send(b"".join(part))
            done += len(part)
