"""redis-server: a key with a TTL for each user, or one sorted set that is swept.

Commands are written without waiting for replies. A second link reports silent users.
"""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, Self

from liveness.lab.bench.program import Program
from liveness.lab.bench.systems import LOGINS_AT_ONCE, LONG_S, Stream, System
from liveness.lab.common.load import (
    ANSWER_S,
    BATCH,
    RECEIVE_BYTES,
    LoadError,
    Notices,
    WaitableCount,
    connected,
    cut,
    now,
    shut_down,
    uid,
)
from liveness.lab.common.redis_link import command

EXPIRED: Final = "__keyevent@0__:expired"
USERS: Final = "online"
# The pause between two searches of the sorted set for due users, and the most that one
# search returns.
SWEEP_S: Final = 1.0
SWEEP_AT_ONCE: Final = "1000"

# Each reply is one line; only an error has a minus.
REPLY: Final = b"\n"
ERROR: Final = b"-"
# The key in a notification; no channel has such a name.
KEY: Final = re.compile(rb"\r\n(user-[0-9]{12})\r\n")


class Pipeline:
    """Writes commands, while a thread reads the replies and counts them."""

    def __init__(self, path: Path) -> None:
        self._replies = WaitableCount()
        self._expected = 0
        self._sock = connected(path)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shut_down(self._sock)
        self._reader.join()
        self._sock.close()

    def post(self, stream: Stream) -> None:
        """Write commands; do not wait for their replies."""
        self._expected += stream.replies
        for piece in stream.pieces():
            self._sock.sendall(piece)

    def write(self, stream: Stream) -> None:
        """Write commands; return once all so far are answered."""
        self.post(stream)
        until = time.perf_counter() + ANSWER_S
        is_answered = self._replies.wait_for(self._expected, until=until)
        if self._replies.end:
            raise LoadError(f"redis-server answered {self._replies.end}")
        if not is_answered:
            raise LoadError(f"no reply within {ANSWER_S:g} s")

    def _read(self) -> None:
        end = "with the end of the stream"
        try:
            while data := self._sock.recv(RECEIVE_BYTES):
                if ERROR in data:
                    end = data.decode(errors="replace")[:200]
                    break
                self._replies.add(data.count(REPLY))
        except OSError as error:
            end = repr(error)
        self._replies.finish(end)


class OfflineStream:
    """Collects the users that are reported silent.

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


class RedisServer(Program):
    """A redis-server without a disk, on a Unix socket; *options* are further ones.

    *program* may name another server that takes the same ones.
    """

    def __init__(
        self, folder: Path, *options: str, program: str = "redis-server"
    ) -> None:
        self.socket = folder / "redis.sock"
        words = [program, "--port", "0", "--unixsocket", str(self.socket)]
        words += ["--dir", str(folder), "--save", "", "--appendonly", "no", *options]
        super().__init__(folder, words)

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with self.link() as link:
                link.write(Stream(command("PING"), 1))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def link(self) -> Pipeline:
        """A link for commands."""
        return Pipeline(self.socket)


@dataclass(eq=False)
class Setex(System):
    """A key for each user that expires unless it is set again; Redis then notifies."""

    link: Pipeline
    offlines: OfflineStream

    def log_in(self, numbers: range) -> None:
        """Send one activity of each: Redis has no separate login."""
        for part in cut(numbers, LOGINS_AT_ONCE):
            self.write(self.batches(part) or self.singles(part))

    def singles(self, numbers: Sequence[int]) -> Stream:
        """A command for each."""
        data = b"".join(self._activity([number], LONG_S) for number in numbers)
        return Stream(data, len(numbers))

    def write(self, stream: Stream) -> None:
        """Write commands; return once they are answered."""
        self.link.write(stream)

    def fall_silent(self, number: int, timeout_s: int) -> None:
        """Send a user's last activity."""
        self.link.post(Stream(self._activity([number], timeout_s), 1))

    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        """As in `System`."""
        return self.offlines.wait_for(count, until=until)

    def _activity(self, numbers: Sequence[int], timeout_s: int) -> bytes:
        (number,) = numbers  # no command sets several keys with an expiry
        return command("SETEX", uid(number), str(timeout_s), "gw-1")


class Zset(Setex):
    """One sorted set of all users by their deadlines, and a sweeper."""

    def batches(self, numbers: Sequence[int]) -> Stream:
        """Commands for 1,000 users each."""
        parts = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
        data = b"".join(self._activity(part, LONG_S) for part in parts)
        return Stream(data, len(parts))

    def _activity(self, numbers: Sequence[int], timeout_s: int) -> bytes:
        due_s = now().wall_ms / 1000 + timeout_s
        # Distinct deadlines, as in practice, within one command too.
        pairs = (
            (f"{due_s + place * 1e-6:.6f}", uid(number))
            for place, number in enumerate(numbers)
        )
        return command("ZADD", USERS, *chain.from_iterable(pairs))


def expired(sock: socket.socket) -> Iterator[Sequence[str]]:
    """The keys that expire."""
    sock.sendall(command("SUBSCRIBE", EXPIRED))
    rest = b""
    while data := sock.recv(RECEIVE_BYTES):
        rest += data
        found = [*KEY.finditer(rest)]
        if found:
            rest = rest[found[-1].end() :]
            yield [match[1].decode() for match in found]


def swept(sock: socket.socket) -> Iterator[Sequence[str]]:
    """The members of the sorted set that are due; they are removed from it."""
    with sock.makefile("rb") as replies:
        while True:
            due_s = f"{now().wall_ms / 1000:.6f}"
            words = ["ZRANGEBYSCORE", USERS, "-inf", due_s, "LIMIT", "0", SWEEP_AT_ONCE]
            sock.sendall(command(*words))
            uids = [_bulk(replies) for _ in range(_number(replies, b"*"))]
            if uids:
                sock.sendall(command("ZREM", USERS, *uids))
                _number(replies, b":")
                yield uids
            if len(uids) < int(SWEEP_AT_ONCE):
                time.sleep(SWEEP_S)


@contextmanager
def redis_system(
    use: Callable[[Program, Pipeline, OfflineStream], Setex],
    listen: Callable[[socket.socket], Iterator[Sequence[str]]],
    program: str,
    folder: Path,
    _count: int,
) -> Iterator[Setex]:
    """A server with both links; *listen* yields the uids that it reports silent."""
    events = ("--notify-keyspace-events", "Ex")
    with RedisServer(folder, *events, program=program) as server:
        server.start()
        with (
            connected(server.socket) as sock,
            server.link() as link,
            OfflineStream(listen(sock), partial(shut_down, sock)) as offlines,
        ):
            yield use(server, link, offlines)


def _number(replies: BinaryIO, kind: bytes) -> int:
    line = replies.readline()
    if not line.startswith(kind):
        raise LoadError(f"redis-server answered {line!r}")
    return int(line[1:])


def _bulk(replies: BinaryIO) -> str:
    size = _number(replies, b"$")
    return replies.read(size + 2)[:size].decode()
