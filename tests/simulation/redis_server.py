"""The Redis of the cluster's outlet, which may answer late, in part, or without end.

What comes in is handed to a real redis-server, whose answer is waited for in no time. Its
functions read the key `now` in place of their clock, as those of `cluster` do.
"""

from collections.abc import Callable
from random import Random
from typing import Final

import trio

from liveness.cluster.format import entry_of, keys_of
from liveness.config.cluster import REDIS_PORT, ClusterSettings
from tests.helpers.redis_connection import RedisConnection, first_value
from tests.promises.run_history import ClusterEvent, ClusterOutbound, History
from tests.simulation.cluster.world import pairs
from tests.simulation.servers import SERVER_FAILURES, Server
from tests.simulation.situations import reached

BEGAN_S: Final = 1_700_000_000  # by its clock
# The product's own limit of an answer.
TIMEOUT_S: Final = 2.0
FAILURES: Final = (*SERVER_FAILURES, "fails", "is emptied")
_FAILURES: Final = (
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"-READONLY You can't write against a read only replica.\r\n",
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    b"-BUSY Redis is busy running a script.\r\n",
    b"-MASTERDOWN Link with MASTER is down.\r\n",
    b"-NOPERM this user has no permissions to run it\r\n",
    b"-WEIRD\r\n",
)
# Where it is.
CLUSTER: Final = ClusterSettings(
    url=f"redis://127.0.0.1:{REDIS_PORT}", host="here", partitions=2
)


class SimulatedRedis(Server[list[bytes]]):
    """Where the sidecar finds Redis.

    Args:
        settings: Of the cluster.
        redis: The only connection to the server, which is emptied.
        random: Draws what each command meets.
        now_s: The server's clock, from `BEGAN_S` on.
        history: Records what the server has in the end.
    """

    outbound: ClusterOutbound
    endless = (
        (b"*1000000000\r\n", b":1\r\n"),
        (b"$1000000000\r\n", b"x" * 1_000),
        (b"+", b"x" * 100),
        (b"", b">2\r\n+invalidate\r\n*0\r\n"),
    )

    def __init__(
        self,
        settings: ClusterSettings,
        redis: RedisConnection,
        random: Random,
        now_s: Callable[[], float],
        history: History,
    ) -> None:
        super().__init__(REDIS_PORT, random, TIMEOUT_S)
        self.outbound = history.cluster = ClusterOutbound(settings.linger_s)
        self._settings = settings
        self._redis = redis
        self._now_s = now_s
        self._empty()

    def inject(self, failure: str, seconds: float) -> Callable[[], None]:
        if failure == "is emptied":
            reached("outlets: Redis is emptied")
            self._empty()
        return super().inject(failure, seconds)

    def _empty(self) -> None:
        self._redis.many(("FLUSHALL",), ("FUNCTION", "FLUSH"))

    def note_rest(self) -> None:
        """Note what is on the server in the end."""
        for number in range(self._settings.partitions):
            keys = keys_of(self._settings.prefix, number)
            users = pairs(self._redis("HGETALL", keys.users))
            self.outbound.online += [user.decode() for user in users]
            for name, fields in self._redis("XRANGE", keys.stream, "-", "+"):
                for it in entry_of(number, name, pairs(fields)).records:
                    is_new = it.kind != "offline" and it.place.reason != "resync"
                    since_s = it.place.since / 1000 if is_new else None
                    event = it.kind, str(it.user), it.place.session, since_s
                    self.outbound.events.append(ClusterEvent(*event))

    def first_of(self, data: bytes) -> tuple[list[bytes], bytes] | None:
        return first_value(data)

    async def answer(self, stream: trio.SocketStream, command: list[bytes]) -> bool:
        if self.failure == "fails":
            answer = self.random.choice(_FAILURES)
        else:
            self._redis("SET", "now", int(1e6 * (BEGAN_S + self._now_s())))
            answer = self._redis.raw(*command)
        return await self.send(stream, command, answer)
