"""A failover of a Redis Cluster that loses writes, under two hosts."""

from itertools import count
from typing import Final

import pytest

from liveness.cluster.format import field_of, keys_of, partition_of
from liveness.core.records import Uid
from tests.helpers.cluster_state import PARTITIONS, ClusterState
from tests.helpers.redis_connection import RedisRefusal
from tests.helpers.redis_servers import RedisCluster, redis_cluster_of_six
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

SETTLED_S: Final = 30.0  # a failover takes some seconds, and what follows a lease

pytestmark = pytest.mark.long


class Traffic:
    """Users who come and go through one gateway of a host."""

    def __init__(self, sidecar: Sidecar, name: str) -> None:
        self._gateway = sidecar.gateway(f"gw of {name}")
        self._name = name
        self._numbers = count()
        self.online: set[Uid] = set()

    def go_on(self) -> None:
        """Log in some users, and log some out."""
        new = [f"{self._name}-{next(self._numbers)}" for _ in range(40)]
        leave = sorted(map(str, self.online))[:20]
        self._gateway.send("login", new)
        self._gateway.apply("logout", leave)
        self.online = (self.online | set(new)) - set(leave)


def users_of(redis: RedisCluster) -> set[Uid]:
    """Everyone who is online, wherever the partitions are."""
    found = set[Uid]()
    for number in range(PARTITIONS):
        try:
            master = redis.master_of(keys_of("lv", number).meta)
            found |= {*ClusterState(master, PARTITIONS).users_in(number)}
        except (OSError, RedisRefusal):  # a failover is under way
            return set()
    return found


def test_a_failover_that_lost_writes_is_made_good(start: Start) -> None:
    with redis_cluster_of_six() as redis:
        settings = redis.settings()
        hosts = [
            Traffic(
                start(
                    cluster_url=settings.url,
                    cluster_nodes=settings.nodes,
                    cluster_host=name,
                    cluster_lease_s=3,
                    cluster_partitions=PARTITIONS,
                ),
                name,
            )
            for name in ("north", "south")
        ]

        def go_on() -> set[Uid]:
            for traffic in hosts:
                traffic.go_on()
            return set[Uid]().union(*(traffic.online for traffic in hosts))

        users = go_on()
        eventually(lambda: users_of(redis) == users, within_s=SETTLED_S)
        master = redis.master_of(keys_of("lv", 0).meta)
        replica = redis.replica_of(master)
        master.lose_what_follows(replica)
        lost = {
            user for user in go_on() if partition_of(field_of(user), PARTITIONS) == 0
        }
        state = ClusterState(master)
        eventually(lambda: {*state.users_in(0)} == lost)
        master.kill()
        replica.resume()
        later = go_on()
        eventually(lambda: users_of(redis) == later, within_s=SETTLED_S)
