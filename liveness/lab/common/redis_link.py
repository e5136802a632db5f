"""A blocking connection to Redis, on its Unix socket: commands in bulk, and their replies.

The load encodes its commands beforehand, which no client library allows.
"""

from pathlib import Path
from typing import Any, Final, Self

from liveness.lab.common.load import ANSWER_S, LoadError, connected

READ_BYTES: Final = 65_536


def command(*words: str | int | bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class RedisLink:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self._sock = connected(path)
        self._sock.settimeout(ANSWER_S)
        self._replies = self._sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._sock.close()

    def __call__(self, *words: str | int | bytes) -> Any:
        self.send(command(*words))
        return self.reply()

    def send(self, data: bytes | memoryview) -> None:
        self._sock.sendall(data)

    def reply(self, within_s: float = ANSWER_S) -> Any:
        """The next reply: bytes, int, None, or a list of these.

        Raises:
            TimeoutError: None came in time; the link is of no use any more.
        """
        self._sock.settimeout(within_s)
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._replies.read(size + 2)[:size]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"+":
            return rest
        raise LoadError(f"redis-server answered {line.decode(errors='replace')!r}")

    def skip(self, count: int) -> None:
        """Read this many replies, each of one line, without looking at them.

        A hundred times as fast as `reply`: the load's own work must not count.
        """
        while count:
            data = self._replies.read1(READ_BYTES)
            if not data or b"-" in data:
                raise LoadError(f"redis-server answered {data[:200]!r}")
            count -= data.count(b"\n")
