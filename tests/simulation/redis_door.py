"""The Redis of the cluster's outlet, behind a door that answers late, endlessly, half.

What comes in is handed to a real redis-server, whose answer is waited for in no time. Its
functions read the key `now` in place of their clock, as those of `cluster` do.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

import trio

from liveness.cluster.format import entry_of, keys_of
from liveness.cluster.functions import functions
from liveness.config.cluster import REDIS_PORT, ClusterSettings
from liveness.promises.delivery_history import ClusterOutbound
from tests.simulation.cluster.redis import Connection, first_value
from tests.simulation.cluster.world import pairs, virtual_functions
from tests.simulation.doors import MOODS_OF_DOORS, Door
from tests.simulation.situations import reached

HOST: Final = "here"
BEGAN_S: Final = 1_700_000_000  # by its clock
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


def cluster_of(lease_s: float, linger_s: float) -> ClusterSettings:
    """The settings of the cluster that the door leads to."""
    return ClusterSettings(
        url=URL,
        host=HOST,
        partitions=PARTITIONS,
        prefix=PREFIX,
        lease_s=lease_s,
        linger_s=linger_s,
    )


class RedisDoor(Door):
    """Where the sidecar finds Redis.

    Args:
        redis: A connection to the server, which is emptied.
        folder: Where the door's socket is.
        random: Draws what each command meets.
        now_s: The server's clock, from `BEGAN_S` on.
        linger_s: Of the host.
    """

    def __init__(
        self,
        redis: Connection,
        folder: Path,
        random: Random,
        now_s: Callable[[], float],
        linger_s: float,
    ) -> None:
        super().__init__(folder / "redis.sock")
        self.outbound = ClusterOutbound(linger_s)
        self._redis = redis
        self._random = random
        self._now_s = now_s
        self._own, self._virtual = functions(), virtual_functions()
        self._empty()

    def suffer(self, mood: str, seconds: float) -> Callable[[], None]:
        if mood == "is emptied":
            reached("outlets: Redis is emptied")
            self._empty()
        return super().suffer(mood, seconds)

    def _empty(self) -> None:
        self._redis.many(("FLUSHALL",), ("FUNCTION", "FLUSH"))

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
                outbound.since_s |= {
                    it.place.session: it.place.since / 1000
                    for it in entry.records
                    if it.kind != "offline" and it.place.reason != "resync"
                }

    async def serve(self, stream: trio.SocketStream) -> None:
        data = b""
        with closing(Connection(self._redis.path)) as server:
            while more := await stream.receive_some():
                data += more
                while (first := first_value(data)) is not None:
                    command, data = first
                    await self._answer(stream, server, command)
                    if self.mood in ("cuts its answers off", "resets connections"):
                        return

    async def _answer(
        self, stream: trio.SocketStream, server: Connection, command: list[bytes]
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

    def _run(self, server: Connection, command: list[bytes]) -> bytes:
        """Have the server do it now, with its functions on virtual time."""
        self._redis("SET", "now", int(1e6 * (BEGAN_S + self._now_s())))
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
        return server.raw(*words)
