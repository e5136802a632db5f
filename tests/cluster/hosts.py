"""A host of the cluster that puts its sessions into Redis, and nothing more."""

from collections import defaultdict
from typing import Final, NamedTuple

from liveness.cluster.connection import functions
from liveness.cluster.format import (
    Place,
    field_of,
    gateway_of,
    keys_of,
    partition_of,
    place_bytes,
    session_bytes,
)
from liveness.core.records import Uid
from tests.helpers.redis_servers import RedisServer

LEASE_US: Final = 30_000_000
PARTITIONS: Final = 16


class There(NamedTuple):
    """A session on that host."""

    user: Uid
    gateway: str = "gw"
    session: int = 1
    since: int = 1_000
    device: str = ""


def publish(
    redis: RedisServer,
    host: str,
    *sessions: There,
    partitions: int = PARTITIONS,
    separator: str = "-",
    epoch: int = 1,
) -> None:
    """Have a host assert that these are all of its sessions; "-": without devices.

    *epoch* is larger than that of its last time.
    """
    library = functions()
    redis("FUNCTION", "LOAD", "REPLACE", library[0])
    parts = defaultdict[int, list[There]](list)
    for session in sessions:
        parts[partition_of(field_of(session.user), partitions)].append(session)
    for partition in range(partitions):
        keys = keys_of("lv", partition)
        conf = f"1 {partitions} {separator}"
        head: list[str | int] = [host, epoch, 7]
        begun = redis(
            *("FCALL", f"{library[1]}begin", 3, *keys),
            *(*head, "log-1", 9, conf, LEASE_US, 0, 1, "t"),
        )
        assert begun[0] == b"reset", begun
        incarnation, mine = begun[2], parts[partition]
        users, values, bodies = list[bytes](), list[bytes](), list[bytes]()
        for user, gateway, number, since, device in mine:
            field, of_user = field_of(user), gateway_of(gateway, user)
            where = (host, of_user, number, since, "resync", device)
            users.append(field)
            bodies.append(place_bytes(Place(field.decode(), *where)))
            its = (number, since, of_user.encode(), device.encode())
            values.append(session_bytes(incarnation, *its))
        asserted = redis(
            *("FCALL", f"{library[1]}assert", 3, *keys),
            *(*head, incarnation, 0, 9, 0, "t", "", len(mine)),
            *(*users, *values, *bodies),
        )
        assert asserted[0] == b"ok", asserted
