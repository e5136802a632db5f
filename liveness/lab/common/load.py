"""The load: a gateway that speaks the wire protocol, and users encoded beforehand.

The load must not limit what is measured. So all frames are encoded before the clock starts,
a thread reads and stamps what arrives, and `steady` has a figure of how far the load fell
behind its own pace.
"""

import queue
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Self

import msgpack

from liveness.errors import LivenessError
from liveness.lab.common.judge import Moment as Moment
from liveness.lab.common.judge import Notices as Notices

BATCH: Final = 1_000
MAX_BATCH: Final = 4_000  # users in a frame, which every server accepts
RECEIVE_BYTES: Final = 262_144
# Above this rate, in frames a second, those of each period of `GATHER_S` are written
# together.
GATHER_ABOVE: Final = 5_000
GATHER_S: Final = 0.002
ANSWER_S: Final = 300.0  # far longer than any answer takes, even to a million logins


class LoadError(LivenessError):
    """The server broke the protocol or went away, so nothing can be measured."""


def now() -> Moment:
    return Moment(time.perf_counter(), time.time_ns() / 1e6)


def uid(number: int, kind: str = "user") -> str:
    return f"{kind}-{number:012}"


class LoadUsers:
    """Simulated users, each on one connection, numbered from 0.

    Their uids are computed when they are needed: ten million would take 0.7 GB.
    """

    def __init__(self, count: int, *, kind: str = "user") -> None:
        self._kind = kind
        # As the protocol advises: the start time in units of 2^-20 s, and a counter.
        first = time.time_ns() * 2**20 // 10**9
        self._conns = range(first, first + count)

    def __len__(self) -> int:
        return len(self._conns)

    def uid(self, number: int) -> str:
        return uid(number, self._kind)

    def logins(self, part: range, **options: object) -> bytes:
        return b"".join(
            self._frame("login", batch, options) for batch in cut(part, BATCH)
        )

    def logouts(self, part: range) -> bytes:
        return b"".join(self._frame("logout", batch, {}) for batch in cut(part, BATCH))

    def keepalives(self) -> list[tuple[range, bytes]]:
        """Frames of maximum size that together name all users; each with its users."""
        return [
            (part, self._frame("keepalive", part, {}))
            for part in cut(range(len(self)), MAX_BATCH)
        ]

    def batch(self, numbers: Sequence[int]) -> bytes:
        return self._frame("keepalive", numbers, {})

    def single(self, number: int, event: str = "keepalive", **options: object) -> bytes:
        options["conn"] = self._conns[number]
        return packed(event, self.uid(number), options)

    def _frame(
        self, event: str, numbers: Sequence[int], options: dict[str, object]
    ) -> bytes:
        uids = [self.uid(number) for number in numbers]
        conns = [self._conns[number] for number in numbers]
        return packed(event, uids, {**options, "conn": conns})


def packed(*frame: object) -> bytes:
    data: bytes = msgpack.packb(frame)
    return data


def cut(part: range, size: int) -> list[range]:
    return [part[start : start + size] for start in range(0, len(part), size)]


def connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(path))
    return sock


class LoadGateway:
    """One link. A thread reads it, and acknowledges every record.

    Args:
        path: The server's socket.
        use: Called by the thread with each batch, instead of adding it to `notices`: the
            records of ten million users would fill the memory.
        hello: Options of the hello; the default name is `bench`.
    """

    def __init__(
        self,
        path: Path,
        *,
        use: Callable[[Notices], None] | None = None,
        **hello: object,
    ) -> None:
        self.notices: list[Notices] = []
        self.count = 0  # records received so far
        self._use = self.notices.append if use is None else use
        self._changed = threading.Condition()  # of the count, or by the link's end
        self._has_ended = False
        self._replies: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._sock = connected(path)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._request("welcome", "hello", {"protocol": 1, "name": "bench", **hello})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the server has closed it already
            self._sock.shutdown(socket.SHUT_RDWR)  # also for the thread that reads it
        self._reader.join()
        self._sock.close()

    def send(self, data: bytes | memoryview) -> None:
        """Write encoded frames; blocks while the server does not read."""
        with self._writing:
            self._sock.sendall(data)

    def ping(self) -> None:
        """Return once everything sent so far is applied and durable."""
        self._request("pong", "ping", 1)

    def sessions(self) -> Iterator[tuple[str, int]]:
        """Ask for this gateway's sessions: uid and session number of each."""
        _, rows, *seq = self._request("list", "list")
        while True:
            for uid, _gateway, session, _conn in rows:
                yield uid, session
            if seq:
                return
            _, rows, *seq = self._reply("list")

    def wait_for(self, count: int, *, until: float) -> None:
        """Wait for *count* records in all, until a monotonic moment or the link's end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.count >= count or self._has_ended,
                max(0.0, until - time.perf_counter()),
            )

    def _request(self, reply: str, *frame: object) -> tuple[Any, ...]:
        self.send(packed(*frame))
        return self._reply(reply)

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
        end = "the end of the stream"
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                received = time.perf_counter()
                unpacker.feed(data)
                for frame in unpacker:
                    if frame[0] == "notices":
                        self._take(Notices(received, frame[1]))
                    else:
                        self._replies.put(frame)
        except Exception as error:  # raised where a reply is waited for
            end = repr(error)
        self._replies.put((end,))
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _take(self, notices: Notices) -> None:
        self.send(packed("ack", notices.records[-1]["seq"]))
        self._use(notices)
        with self._changed:
            self.count += len(notices.records)
            self._changed.notify_all()


class Pace:
    """Writes frames spread evenly over time, and notes when each was written.

    Up to `GATHER_ABOVE` frames a second, each is written alone. Above that, the sleeps
    would limit the rate, so the frames of 2 ms are stamped and written together.
    """

    def __init__(self, gateway: LoadGateway, *, rate: float) -> None:
        self.began = now()
        self.lags_s = array("d")  # of each frame: how late it was written
        self._mono = array("d")  # of each frame: when it was written
        self._wall_ms = array("d")
        self._gateway = gateway
        self._rate = rate

    def moments(self) -> Iterator[Moment]:
        return map(Moment, self._mono, self._wall_ms)

    def run(self, frames: Sequence[bytes]) -> None:
        """Write *frames*, each at its time, which continues from the last call's frames."""
        send, rate, began, done = self._gateway.send, self._rate, self.began.mono, 0
        first, gather_s = len(self.lags_s), GATHER_S if rate > GATHER_ABOVE else 0.0
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
