"""A host of the cluster for tests of its readers: it calls the functions on Redis itself."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from liveness.cluster.connection import functions
from liveness.cluster.format import (
    Place,
    configuration_of,
    ending_bytes,
    field_of,
    gateway_of,
    keys_of,
    partition_of,
    place_bytes,
    session_bytes,
)
from liveness.core.records import Uid
from tests.helpers.redis_servers import RedisServer

PARTITIONS: Final = 2
LEASE_S: Final = 30.0


class ClusterPublisher:
    """A host that is known in all partitions, with no users yet.

    Args:
        server: Where it publishes.
        name: Its own.
        partitions: How many there are.
    """

    def __init__(
        self, server: RedisServer, name: str = "a", *, partitions: int = PARTITIONS
    ) -> None:
        self._server = server
        self._name = name
        self._count = partitions
        self._seq = 0
        self._epochs = defaultdict[int, int](int)
        self._last = defaultdict[int, int](int)  # by partition
        self._incarnations: dict[int, int] = {}
        self._sessions: dict[Uid, int] = {}
        self._token = 0
        source = functions()[0]
        server("FUNCTION", "LOAD", "REPLACE", source)
        for partition in range(partitions):
            self.begin(partition)
            self._list(partition)

    def begin(self, partition: int) -> None:
        """Start over: its sessions have to be listed."""
        conf, lease_us = configuration_of(self._count, ""), round(LEASE_S * 1e6)
        self._epochs[partition] += 1
        who = [self._name, self._epochs[partition], 1]
        answer = self._call(
            "begin", partition, [*who, "log", 0, conf, lease_us, 0, 1, self._next_token]
        )
        assert answer[0] == b"reset", answer
        self._incarnations[partition] = answer[2]

    def _list(self, partition: int) -> None:
        who = self._who(partition)
        answer = self._call("assert", partition, [*who, 0, 0, 0, 1, "", 0])
        assert answer[0] == b"ok", answer

    def _who(self, partition: int) -> list[Any]:
        return [self._name, self._epochs[partition], 1, self._incarnations[partition]]

    def age(self) -> None:
        """The partitions have begun long ago: a list need not wait for other hosts."""
        for partition in range(self._count):
            conf = f"{configuration_of(self._count, '')} 1"
            self._server("HSET", keys_of("lv", partition).meta, "conf", conf)

    @property
    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def online(self, *users: Uid) -> None:
        self._change(users, is_end=False)

    def offline(self, *users: Uid) -> None:
        self._change(users, is_end=True)

    def _change(self, users: Sequence[Uid], *, is_end: bool) -> None:
        by_partition = defaultdict[int, list[Uid]](list)
        for user in users:
            by_partition[partition_of(field_of(user), self._count)].append(user)
        for partition, some in by_partition.items():
            self._apply(partition, some, is_end=is_end)

    def _apply(self, partition: int, users: list[Uid], *, is_end: bool) -> None:
        inc, values, bodies = self._incarnations[partition], [], []
        for user in users:
            self._seq += 1
            name, gateway = field_of(user).decode(), gateway_of("gw", user)
            if is_end:
                session = self._sessions.pop(user)
                values.append(ending_bytes(session))
                place = Place(name, self._name, gateway, session, 0, "logout")
            else:
                session = self._sessions[user] = self._seq
                values.append(session_bytes(inc, session, 1_000, gateway.encode(), b""))
                place = Place(name, self._name, gateway, session, 1_000, "login")
            bodies.append(place_bytes(place))
        last, self._last[partition] = self._last[partition], self._seq
        head = [*self._who(partition), last, self._seq, 0, self._next_token, ""]
        fields = [field_of(user) for user in users]
        args = [*head, len(users), *fields, *values, *bodies]
        answer = self._call("apply", partition, args)
        assert answer[0] == b"ok", answer

    def _call(self, function: str, partition: int, args: Sequence[Any]) -> Any:
        name = functions()[1] + function
        keys = keys_of("lv", partition)
        return self._server("FCALL", name, len(keys), *keys, *args)
