"""What befalls the Redis of several hosts, and what is so afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from liveness.config.cluster import ClusterSettings
from liveness.cluster.format import keys_of
from tests.helpers.cluster_state import PARTITIONS, ClusterState
from tests.helpers.redis_servers import (
    RedisCluster,
    redis_replica,
    redis_server,
    wait_until,
)
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

LEASE_S = 3
SETTLED_S = 30.0  # a failover takes some seconds, and what follows a lease

pytestmark = pytest.mark.long


def host_on(start: Start, settings: ClusterSettings, name: str) -> Sidecar:
    """Starts the sidecar of a host."""
    return start(
        cluster_url=settings.url,
        cluster_nodes=settings.nodes,
        cluster_host=name,
        cluster_lease_s=LEASE_S,
        cluster_partitions=PARTITIONS,
    )


class Traffic:
    """Users who come and go through one gateway of a host."""

    def __init__(self, sidecar: Sidecar, name: str) -> None:
        self.sidecar = sidecar
        self._gateway: Client = sidecar.gateway(f"gw of {name}")
        self._name = name
        self._numbers = count()
        self.online: set[str] = set()

    def go_on(self, users: int = 40) -> None:
        """Log in some users, and log out half of those that are online."""
        new = [f"{self._name}-{next(self._numbers)}" for _ in range(users)]
        leaving = sorted(self.online)[: len(self.online) // 2]
        self._gateway.send("login", new)
        self._gateway.send("logout", leaving)
        self._gateway.sync()
        self.online = (self.online | set(new)) - set(leaving)


@contextmanager
def two_hosts(start: Start, settings: ClusterSettings) -> Iterator[list[Traffic]]:
    yield [
        Traffic(host_on(start, settings, name), name) for name in ("north", "south")
    ]


def is_true(traffics: list[Traffic], users: Callable[[], object]) -> Callable[[], bool]:
    """Whether the cluster has exactly the users of the hosts."""

    def is_so() -> bool:
        return users() == set().union(*(traffic.online for traffic in traffics))

    return is_so
