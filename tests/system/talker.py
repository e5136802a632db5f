"""A gateway that never pauses for an answer, as a process: to be stopped and killed.

It knows the wire contract and nothing of this package. Run as a program it logs its
users in, says the same frames again and again, as often as asked or as fast as its
socket takes them, acknowledges every record, and tells, a JSON line each, what happens
to it. It does not reconnect.
"""

import itertools
import json
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Protocol, Self

from tests.helpers.tree import ROOT
from tests.helpers.wire import Record, packed
from tests.system.client import SOON_S, Client

EVERY_S: Final = 0.05
# What is offered to the socket at once by one who does not pause.
FLOOD_BYTES: Final = 1 << 18
# How often a full socket is reported, while it is full.
TELL_FULL_S: Final = 0.1

Line = dict[str, Any]
Frame = list[Any]


class Process(Protocol):
    """One of ours."""

    def signal(self, number: int) -> None:
        """Sends it a signal."""


@contextmanager
def standing_still(process: Process) -> Iterator[float]:
    """Has a process stand still; the moment from which on it does."""
    process.signal(signal.SIGSTOP)
    try:
        yield perf_counter()
    finally:
        process.signal(signal.SIGCONT)


def alive(users: Iterable[tuple[str, int]], batch: int = 1_000) -> list[Frame]:
    """Keepalives of these users, by uid and conn."""
    return _frames("keepalive", list(users), batch)


def logins(
    users: Iterable[tuple[str, int]], batch: int = 1_000, **options: Any
) -> list[Frame]:
    """Logins of these users, by uid and conn."""
    return _frames("login", list(users), batch, **options)


def _frames(
    event: str, users: Sequence[tuple[str, int]], batch: int, **options: Any
) -> list[Frame]:
    parts = [users[n : n + batch] for n in range(0, len(users), batch)]
    return [
        [
            event,
            [uid for uid, _ in part],
            {**options, "conn": [conn for _, conn in part]},
        ]
        for part in parts
    ]


class Talker:
    """The process, as a test has it; it is up once its first frames are on disk.

    Args:
        path: The sidecar's socket.
        name: Its name.
        first: What it says at first.
        again: What it says again and again.
        every_s: How often it does; 0 is as fast as its socket takes it.
        counted: In place of *again*: it logs in `COUNTED-0`, `COUNTED-1` and so on.
        hello: Further options of its hello.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        first: Sequence[Frame] = (),
        again: Sequence[Frame] = (),
        *,
        every_s: float = EVERY_S,
        counted: str | None = None,
        **hello: Any,
    ) -> None:
        self._lines: list[Line] = []
        self._told = threading.Condition()
        asked = {
            "path": str(path), "hello": {"name": name, **hello}, "first": first,
            "again": again, "every_s": every_s, "counted": counted,
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked))
        self._process.stdin.close()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.told("up")
        except BaseException:  # or its process would outlive the test
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait(SOON_S)
        self._reader.join(SOON_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def records(self) -> list[Record]:
        """All that it was told by now."""
        return [one for line in self.lines("notices") for one in line["records"]]

    def lines(self, event: str) -> list[Line]:
        """Its lines about an event by now; `at` is this machine's monotonic time."""
        with self._told:
            return [line for line in self._lines if line["event"] == event]

    def told(
        self,
        event: str,
        is_it: Callable[[Line], bool] = lambda _: True,
        within_s: float = SOON_S,
    ) -> Line:
        """Waits for the first line about an event that is as it should be."""

        def found() -> list[Line]:
            return [it for it in self._lines if it["event"] == event and is_it(it)]

        with self._told:
            self._told.wait_for(found, within_s)
            lines = found()
            assert lines, (event, self._lines[-3:])
            return lines[0]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if not text.endswith("\n"):
                break  # killed in the middle of it
            with self._told:
                self._lines.append(json.loads(text))
                self._told.notify_all()


# --- the program -------------------------------------------------------------------


class _Link:
    """A link that is read while it is written to."""

    def __init__(self, path: str, hello: dict[str, Any]) -> None:
        self._client = Client(Path(path))
        self._client.hello(**hello)
        self._poll = select.poll()
        self._whole = 0  # writes that the socket took to their end
        self._full_at = 0.0
        self._unacked = 0

    def begin(self, frames: Sequence[Frame]) -> None:
        self._client.send_bytes(packed(*frames))
        self._client.sync()
        self._note()

    def write(self, data: bytes) -> None:
        """Has the socket take it all, and an ack of what was heard by then."""
        self._push(data)
        self._whole += 1
        if self._unacked:
            seq, self._unacked = self._unacked, 0
            self._push(packed(["ack", seq]))

    def _push(self, data: bytes) -> None:
        left = memoryview(data)
        while left := left[self._client.offer(left) :]:
            if perf_counter() > self._full_at + TELL_FULL_S:
                self._full_at = perf_counter()
                _tell("full", whole=self._whole)
            self._listen(select.POLLIN | select.POLLOUT, TELL_FULL_S)

    def listen_until(self, moment: float) -> None:
        while (left_s := moment - perf_counter()) > 0:
            self._listen(select.POLLIN, left_s)

    def _listen(self, events: int, within_s: float) -> None:
        self._poll.register(self._client, events)
        for _, event in self._poll.poll(within_s * 1_000):
            if event & ~select.POLLOUT:
                self._take()

    def _take(self) -> None:
        try:
            while (frame := self._client.receive(within_s=0)) is not None:
                if frame[0] == "error":
                    _tell("error", **frame[1])
        except TimeoutError:
            self._note()
        else:
            _tell("end")
            sys.exit()

    def _note(self) -> None:
        records = self._client.records
        if records:
            _tell("notices", records=records)
            self._unacked, self._client.records = records[-1]["seq"], []


def _talk(asked: dict[str, Any]) -> None:
    link = _Link(asked["path"], asked["hello"])
    link.begin(asked["first"])
    _tell("up")
    for data in _spoken(asked):
        next_at = perf_counter() + asked["every_s"]
        link.write(data)
        link.listen_until(next_at)


def _spoken(asked: dict[str, Any]) -> Iterator[bytes]:
    if asked["counted"]:
        for number in itertools.count():
            yield packed(["login", f"{asked['counted']}-{number}"])
    data = packed(*asked["again"])
    if not asked["every_s"]:
        data *= max(1, FLOOD_BYTES // len(data))
    while True:
        yield data


def _tell(event: str, **facts: object) -> None:
    line = {"event": event, "at": perf_counter(), **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _talk(json.load(sys.stdin))
