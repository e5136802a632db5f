"""The Redis of the cluster's outlet, behind a door that answers late, endlessly, half.

What comes in is handed to a real redis-server, whose answer is waited for in no time. Its
functions read the key `now` in place of their clock, as those of `cluster` do.
"""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import trio

from liveness.cluster.format import entry_of, keys_of
from liveness.cluster.functions import functions
from liveness.config.cluster import REDIS_PORT, ClusterSettings
from liveness.promises.delivery_history import ClusterOutbound
from tests.simulation.cluster.redis import Connection
from tests.simulation.cluster.world import pairs, virtual_functions
from tests.simulation.doors import MOODS_OF_DOORS, Door
from tests.simulation.situations import reached

HOST: Final = "here"
PARTITIONS: Final = 2
PREFIX: Final = "lv"
URL: Final = f"redis://127.0.0.1:{REDIS_PORT}"
# The product's own limit of an answer.
TIMEOUT_S: Final = 2.0
MOODS: Final = (
    *MOODS_OF_DOORS,
    "says nothing",
    "is late",
    "fails",
    "sends answers without end",
    "cuts its answers off",
    "is emptied",
)
_FAILURES: Final = (
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"-READONLY You can't write against a read only replica.\r\n",
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    b"-BUSY Redis is busy running a script.\r\n",
    b"-MASTERDOWN Link with MASTER is down.\r\n",
    b"-NOPERM this user has no permissions to run it\r\n",
    b"-WEIRD\r\n",
)
_ENDLESS: Final = (
    (b"*1000000000\r\n", b":1\r\n"),
    (b"$1000000000\r\n", b"x" * 1_000),
    (b"+", b"x" * 100),
    (b"", b">2\r\n+invalidate\r\n*0\r\n"),
)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The settings of the cluster, for a run."""

    lease_s: float
    linger_s: float

    @property
    def settings(self) -> ClusterSettings:
        """The section."""
        return ClusterSettings(
            url=URL,
            host=HOST,
            partitions=PARTITIONS,
            prefix=PREFIX,
            lease_s=self.lease_s,
            linger_s=self.linger_s,
        )


class RedisDoor(Door):
    """Where the sidecar finds Redis.

    Args:
        redis: A connection to the server, which is emptied.
        folder: Where the door's socket is.
        random: Draws what each command meets.
        now_us: The server's clock.
    """

    def __init__(
        self,
        redis: Connection,
        folder: Path,
        *,
        random: Random,
        now_us: Callable[[], int],
    ) -> None:
        super().__init__(folder / "redis.sock")
        self.outbound = ClusterOutbound()
        self._redis = redis
        self._random = random
        self._now_us = now_us
        self._own, self._virtual = functions(), virtual_functions()
        redis("FLUSHALL")

    def suffer(self, mood: str, seconds: float) -> Callable[[], None]:
        if mood == "is emptied":
            reached("outlets: Redis is emptied")
            self._redis.many(("FLUSHALL",), ("FUNCTION", "FLUSH"))
            self.outbound.is_emptied = True
        return super().suffer(mood, seconds)

    def note_rest(self) -> None:
        """Note what is on the server in the end."""
        outbound = self.outbound
        for number in range(PARTITIONS):
            keys = keys_of(PREFIX, number)
            users = pairs(self._redis("HGETALL", keys.users))
            outbound.online += [user.decode() for user in users]
            for name, fields in self._redis("XRANGE", keys.stream, "-", "+"):
                entry = entry_of(number, name, pairs(fields))
                outbound.events += [
                    (it.kind, str(it.user), it.place.session) for it in entry.records
                ]

    async def serve(self, stream: trio.SocketStream) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self._redis.path)
            server, client = _Answers(sock), _Commands(stream)
            while (command := await client.next()) is not None:
                await self._answer(stream, server, command)
                if self.mood in ("cuts its answers off", "resets connections"):
                    return

    async def _answer(
        self, stream: trio.SocketStream, server: "_Answers", command: list[bytes]
    ) -> None:
        random = self._random
        match self.mood:
            case "says nothing" | "resets connections":
                if random.random() < 0.5:
                    self._run(server, command)
                    reached("outlets: Redis does what it is asked, and says nothing")
                if self.mood == "says nothing":
                    await trio.sleep_forever()
                return
            case "is late":
                answer = self._run(server, command)
                await trio.sleep(random.uniform(0, 3) * TIMEOUT_S)
                try:
                    await stream.send_all(answer)
                except trio.BrokenResourceError:
                    reached("outlets: an answer of Redis comes after its time")
                    raise
            case "fails":
                reached("outlets: Redis refuses a command")
                await stream.send_all(random.choice(_FAILURES))
            case "sends answers without end":
                first, again = random.choice(_ENDLESS)
                pace_s = random.choice([0.01, 0.3, 1.5])
                await stream.send_all(first)
                try:
                    while True:
                        await stream.send_all(again)
                        await trio.sleep(pace_s)
                except trio.BrokenResourceError:
                    reached("outlets: an answer of Redis without end is cut off")
                    raise
            case "cuts its answers off":
                answer = self._run(server, command)
                reached("outlets: an answer of Redis ends in its middle")
                await stream.send_all(answer[: random.randrange(len(answer))])
            case _:
                await stream.send_all(self._run(server, command))

    def _run(self, server: "_Answers", command: list[bytes]) -> bytes:
        """Have the server do it now, with its functions on virtual time."""
        self._redis("SET", "now", self._now_us())
        own, virtual = self._own, self._virtual
        source, prefix = own.source.encode(), own.prefix.encode()
        words = [
            virtual.source.encode()
            if word == source
            else word.replace(prefix, virtual.prefix.encode(), 1)
            for word in command
        ]
        if words[:2] == [b"FUNCTION", b"LOAD"]:
            reached("outlets: Redis has its functions loaded")
        return server.ask(words)


class _Commands:
    """The commands that come over a connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = b""

    async def next(self) -> list[bytes] | None:
        """The next one; None: the connection has ended."""
        words = _words(self._data)
        while words is None:
            if not (more := await self._stream.receive_some()):
                return None
            self._data += more
            words = _words(self._data)
        found, used = words
        self._data = self._data[used:]
        return found


def _words(data: bytes) -> tuple[list[bytes], int] | None:
    """The first command, and its length; None if it is not whole."""
    at, words = data.find(b"\r\n"), list[bytes]()
    if at < 0:
        return None
    at, count = at + 2, int(data[1:at])
    while len(words) < count:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        begin, size = end + 2, int(data[at + 1 : end])
        at = begin + size + 2
        if at > len(data):
            return None
        words.append(data[begin : begin + size])
    return words, at


class _Answers:
    """A connection to the server, which says how long each answer is."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")

    def ask(self, words: list[bytes]) -> bytes:
        """The answer to a command, as it is sent."""
        parts = (b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        self._socket.sendall(b"*%d\r\n" % len(words) + b"".join(parts))
        return b"".join(self._answer())

    def _answer(self) -> Iterator[bytes]:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        yield line
        if kind in b"$=!" and rest != b"-1":
            yield self._file.read(int(rest) + 2)
        elif kind in b"*>~%" and rest != b"-1":
            for _ in range(int(rest) * (2 if kind == b"%" else 1)):
                yield from self._answer()
