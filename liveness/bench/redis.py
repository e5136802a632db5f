"""redis-server: a key with a TTL for each user, or one sorted set that is swept."""

import re
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from socket import socket
from typing import BinaryIO, Final

from liveness.bench.load import BATCH, RECEIVE_BYTES, LoadError, cut, now, uid
from liveness.bench.pipeline import PipelinedServer, PipelinedSystem
from liveness.bench.systems import LOGINS_AT_ONCE, LONG_S, Stream

EXPIRED: Final = "__keyevent@0__:expired"
USERS: Final = "online"
# The pause between two searches of the sorted set for due users, and the most that one
# search returns.
SWEEP_S: Final = 1.0
SWEEP_AT_ONCE: Final = "1000"

# The key in a notification; no channel has such a name.
KEY: Final = re.compile(rb"\r\n(user-[0-9]{12})\r\n")


def command(*words: str) -> bytes:
    """A command in Redis' protocol."""
    lines = [f"*{len(words)}"]
    for word in words:
        lines += [f"${len(word)}", word]
    return ("\r\n".join(lines) + "\r\n").encode()


class RedisServer(PipelinedServer):
    """A redis-server without a disk, which notifies of expired keys."""

    REPLY, ERROR, PROBE = b"\n", b"-", command("PING")  # each reply is one line

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        words = ["redis-server", "--port", "0", "--unixsocket", str(self.socket)]
        words += ["--dir", str(folder), "--save", "", "--appendonly", "no"]
        words += ["--notify-keyspace-events", "Ex"]
        super().__init__(folder, self.socket, words)


class Setex(PipelinedSystem):
    """A key for each user that expires unless it is set again; Redis then notifies."""

    def log_in(self, numbers: range) -> None:
        """Send one activity of each: Redis has no separate login."""
        for part in cut(numbers, LOGINS_AT_ONCE):
            self.write(self.batches(part) or self.singles(part))

    def singles(self, numbers: Sequence[int]) -> Stream:
        """A command for each."""
        data = b"".join(self._activity([number], LONG_S) for number in numbers)
        return Stream(data, len(numbers))

    def fall_silent(self, number: int, timeout_s: int) -> None:
        """Send a user's last activity."""
        self.link.post(Stream(self._activity([number], timeout_s), 1))

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


def expired(sock: socket) -> Iterator[Sequence[str]]:
    """The keys that expire."""
    sock.sendall(command("SUBSCRIBE", EXPIRED))
    rest = b""
    while data := sock.recv(RECEIVE_BYTES):
        rest += data
        found = [*KEY.finditer(rest)]
        if found:
            rest = rest[found[-1].end() :]
            yield [match[1].decode() for match in found]


def swept(sock: socket) -> Iterator[Sequence[str]]:
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


def _number(replies: BinaryIO, kind: bytes) -> int:
    line = replies.readline()
    if not line.startswith(kind):
        raise LoadError(f"redis-server answered {line!r}")
    return int(line[1:])


def _bulk(replies: BinaryIO) -> str:
    size = _number(replies, b"$")
    return replies.read(size + 2)[:size].decode()
