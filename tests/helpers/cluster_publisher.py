"""A host of the cluster for tests of its readers: it calls the functions on Redis itself."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

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


class There(NamedTuple):
    """A session on that host."""

    user: Uid
    gateway: str = "gw"
    session: int = 1
    since: int = 1_000
    device: str = ""


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
        self._sessions: dict[Uid, There] = {}
        self._numbers = count(1)  # of sessions
        self._tokens = count(1)
        source = functions()[0]
        server("FUNCTION", "LOAD", "REPLACE", source)
        for partition in range(partitions):
            self.begin(partition)
            who = self._who(partition)
            answer = self._call("assert", partition, [*who, 0, 0, 0, 1, "", 0])
            assert answer[0] == b"ok", answer

    def begin(self, partition: int) -> None:
        """Start over: its sessions have to be listed."""
        conf, lease_us = configuration_of(self._count, ""), round(LEASE_S * 1e6)
        self._epochs[partition] += 1
        who = [self._name, self._epochs[partition], 1]
        answer = self._call(
            "begin",
            partition,
            [*who, "log", 0, conf, lease_us, 0, 1, next(self._tokens)],
        )
        assert answer[0] == b"reset", answer
        self._incarnations[partition] = answer[2]

    def _who(self, partition: int) -> list[Any]:
        return [self._name, self._epochs[partition], 1, self._incarnations[partition]]

    def age(self) -> None:
        """The partitions have begun long ago: a list need not wait for other hosts."""
        for partition in range(self._count):
            conf = f"{configuration_of(self._count, '')} 1"
            self._server("HSET", keys_of("lv", partition).meta, "conf", conf)

    def online(self, *users: Uid) -> None:
        new = {user: There(user, session=next(self._numbers)) for user in users}
        self._sessions |= new
        self.publish(*new.values())

    def offline(self, *users: Uid) -> None:
        self.publish(*map(self._sessions.pop, users), is_end=True)

    def publish(self, *sessions: There, is_end: bool = False) -> None:
        """Have these sessions begin, or end."""
        by_partition = defaultdict[int, list[There]](list)
        for session in sessions:
            partition = partition_of(field_of(session.user), self._count)
            by_partition[partition].append(session)
        for partition, some in by_partition.items():
            self._apply(partition, some, is_end=is_end)

    def _apply(self, partition: int, sessions: list[There], *, is_end: bool) -> None:
        inc, reason = self._incarnations[partition], "logout" if is_end else "login"
        fields, values, bodies = list[bytes](), list[bytes](), list[bytes]()
        for user, gateway, session, since, device in sessions:
            field, of_user = field_of(user), gateway_of(gateway, user)
            fields.append(field)
            its = (session, since, of_user.encode(), device.encode())
            values.append(ending_bytes(session) if is_end else session_bytes(inc, *its))
            where = (self._name, of_user, session, since, reason, device)
            bodies.append(place_bytes(Place(field.decode(), *where)))
        self._seq += 1
        last, self._last[partition] = self._last[partition], self._seq
        head = [*self._who(partition), last, self._seq, 0, next(self._tokens), ""]
        args = [*head, len(fields), *fields, *values, *bodies]
        answer = self._call("apply", partition, args)
        assert answer[0] == b"ok", answer

    def _call(self, function: str, partition: int, args: Sequence[Any]) -> Any:
        name = functions()[1] + function
        keys = keys_of("lv", partition)
        return self._server("FCALL", name, len(keys), *keys, *args)
