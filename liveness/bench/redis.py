"""redis-server: a key with a TTL for each user, or one sorted set with a sweeper."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from socket import socket
from typing import BinaryIO, Final

from liveness.bench.load import BATCH, RECEIVE_BYTES, LoadError, Notices, cut, now, uid
from liveness.bench.pipeline import Pipeline, linked
from liveness.bench.program import Program
from liveness.bench.systems import KNOWN_AT_ONCE, LONG_S, Stream, System
from liveness.bench.told import OfflineStream

EXPIRED: Final = "__keyevent@0__:expired"
USERS: Final = "online"
# The sorted set is searched for those who are due so often, so many at a time.
SWEEP_S: Final = 1.0
SWEEP_AT_ONCE: Final = "1000"

# A key in a notice; no channel has such a name.
KEY: Final = re.compile(rb"\r\n(user-[0-9]{12})\r\n")


class RedisServer(Program):
    """A redis-server that keeps nothing on disk, and gives notice of expired keys.

    Args:
        folder: For its socket and what it says.
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        words = ["redis-server", "--port", "0", "--unixsocket", str(self.socket)]
        words += ["--dir", str(folder), "--save", "", "--appendonly", "no"]
        words += ["--notify-keyspace-events", "Ex"]
        super().__init__(folder, words, env={})

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with self.link() as link:
                link.write(Stream(command("PING"), 1))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def link(self) -> Pipeline:
        """A link for commands that are answered by a line each."""
        return Pipeline(self.socket, reply=b"\n", error=b"-")


def command(*words: str) -> bytes:
    """One command as Redis reads it."""
    lines = [f"*{len(words)}"]
    for word in words:
        lines += [f"${len(word)}", word]
    return ("\r\n".join(lines) + "\r\n").encode()


class Setex(System):
    """A key for each user, which goes unless it is set anew, and of which notice is given.

    Args:
        program: The server.
        link: A link to it.
        told: Where it is told who fell silent.
    """

    def __init__(
        self, program: RedisServer, link: Pipeline, told: OfflineStream
    ) -> None:
        super().__init__(program)
        self._link = link
        self._told = told

    def make_known(self, numbers: range) -> None:
        """Tell of users by the commands of a sign of life, which are no others."""
        for part in cut(numbers, KNOWN_AT_ONCE):
            self.write(self.batches(part) or self.singles(part))

    def singles(self, numbers: Sequence[int]) -> Stream:
        """A command for each."""
        data = b"".join(self._sign([number], LONG_S) for number in numbers)
        return Stream(data, len(numbers))

    def batches(self, numbers: Sequence[int]) -> Stream | None:
        """None: no command sets several keys and when they expire."""

    def write(self, stream: Stream) -> None:
        """Write commands; return once they are answered."""
        self._link.write(stream)

    def silence(self, number: int, timeout_s: int) -> None:
        """Give a user's last sign of life."""
        self._link.post(Stream(self._sign([number], timeout_s), 1))

    def told(self, count: int, *, until: float) -> Sequence[Notices]:
        """Wait for so many to be told silent; return those who were."""
        return self._told.wait_for(count, until=until)

    def _sign(self, numbers: Sequence[int], timeout_s: int) -> bytes:
        (number,) = numbers
        return command("SETEX", uid(number), str(timeout_s), "gw-1")


class Zset(Setex):
    """One sorted set of everyone, by the moment at which each is due; and a sweeper."""

    def batches(self, numbers: Sequence[int]) -> Stream:
        """Commands for 1,000 each."""
        parts = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
        return Stream(b"".join(self._sign(it, LONG_S) for it in parts), len(parts))

    def _sign(self, numbers: Sequence[int], timeout_s: int) -> bytes:
        due_s = now().wall_ms / 1000 + timeout_s
        # Of those in one command, too, each has a moment of its own, as in life.
        pairs = (
            (f"{due_s + place * 1e-6:.6f}", uid(number))
            for place, number in enumerate(numbers)
        )
        return command("ZADD", USERS, *chain.from_iterable(pairs))


@contextmanager
def redis(
    kind: type[Setex],
    listen: Callable[[socket], Iterator[Sequence[str]]],
    folder: Path,
    _count: int,
) -> Iterator[Setex]:
    """A redis-server, with links to it.

    Args:
        kind: What it is used as.
        listen: How a link is told who fell silent.
        folder: For its files.
    """
    server = RedisServer(folder)
    with linked(server, server.link, address=server.socket, listen=listen) as links:
        yield kind(server, *links)


def expired(sock: socket) -> Iterator[Sequence[str]]:
    """The keys that the server gives notice of."""
    sock.sendall(command("SUBSCRIBE", EXPIRED))
    rest = b""
    while data := sock.recv(RECEIVE_BYTES):
        rest += data
        found = [*KEY.finditer(rest)]
        if found:
            rest = rest[found[-1].end() :]
            yield [one[1].decode() for one in found]


def swept(sock: socket) -> Iterator[Sequence[str]]:
    """The members that are due, which are taken out of the set."""
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


def _number(replies: BinaryIO, kind: bytes) -> int:
    line = replies.readline()
    if not line.startswith(kind):
        raise LoadError(f"redis-server answered {line!r}")
    return int(line[1:])


def _bulk(replies: BinaryIO) -> str:
    size = _number(replies, b"$")
    return replies.read(size + 2)[:size].decode()
