"""Faults of the Redis of several hosts, and the state after them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import sleep
from typing import Final

import pytest

import liveness
from liveness.cluster.events import Listed
from liveness.cluster.format import ClusterRecord, field_of, keys_of, partition_of
from liveness.config.cluster import ClusterSettings
from liveness.core.records import OFFLINE, Uid
from tests.helpers.cluster_state import PARTITIONS, ClusterState
from tests.helpers.needs import require
from tests.helpers.processes import ran, succeeded
from tests.helpers.proxy import Proxy
from tests.helpers.redis_connection import RedisRefusal
from tests.helpers.redis_servers import (
    RedisCluster,
    redis_cluster_of_six,
    redis_replica,
    redis_server,
)
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

LEASE_S = 3
SLOT_USERS = 100_000  # the most that a partition of a Cluster should have
FRAME_USERS = 4_000
SETTLED_S = 30.0  # a failover takes some seconds, and what follows a lease

pytestmark = pytest.mark.long


def host_on(
    start: Start, settings: ClusterSettings, name: str, partitions: int = PARTITIONS
) -> Sidecar:
    """Starts the sidecar of a host."""
    return start(
        cluster_url=settings.url,
        cluster_nodes=settings.nodes,
        cluster_host=name,
        cluster_lease_s=LEASE_S,
        cluster_partitions=partitions,
    )


class Traffic:
    """Users who come and go through one gateway of a host."""

    def __init__(self, sidecar: Sidecar, name: str) -> None:
        self.sidecar = sidecar
        self._gateway: Client = sidecar.gateway(f"gw of {name}")
        self._name = name
        self._numbers = count()
        self.online: set[Uid] = set()

    def go_on(self, users: int = 40, leaving: int = 20) -> None:
        """Log in some users, and log some out."""
        new = [f"{self._name}-{next(self._numbers)}" for _ in range(users)]
        leave = sorted(map(str, self.online))[:leaving]
        self._gateway.send("login", new)
        self._gateway.apply("logout", leave)
        self.online = (self.online | set(new)) - set(leave)


@contextmanager
def two_hosts(
    start: Start, settings: ClusterSettings, partitions: int = PARTITIONS
) -> Iterator[list[Traffic]]:
    yield [
        Traffic(host_on(start, settings, name, partitions), name)
        for name in ("north", "south")
    ]


Users = Callable[[], set[Uid]]


def expected(hosts: list[Traffic]) -> set[Uid]:
    """The users that are online on any host."""
    return set[Uid]().union(*(traffic.online for traffic in hosts))


def is_true(hosts: list[Traffic], users: Users) -> Callable[[], bool]:
    """Whether the cluster has exactly the users of the hosts."""
    return lambda: users() == expected(hosts)


def users_of(redis: RedisCluster, partitions: int) -> Users:
    """Reads everyone who is online, wherever the partitions are."""

    def read() -> set[Uid]:
        found = set[Uid]()
        for number in range(partitions):
            try:
                master = redis.master_of(keys_of("lv", number).meta)
                found |= {*ClusterState(master, partitions).users_in(number)}
            except (OSError, RedisRefusal):  # a failover is under way
                return set()
        return found

    return read


@contextmanager
def two_hosts_on_a_cluster(
    start: Start, partitions: int = PARTITIONS
) -> Iterator[tuple[RedisCluster, list[Traffic], Users]]:
    """Six nodes, and two hosts whose first users they have."""
    with (
        redis_cluster_of_six() as redis,
        two_hosts(start, redis.settings(), partitions) as hosts,
    ):
        users = users_of(redis, partitions)
        go_on(hosts)
        eventually(is_true(hosts, users), within_s=SETTLED_S)
        yield redis, hosts, users


def go_on(hosts: list[Traffic]) -> None:
    for traffic in hosts:
        traffic.go_on()


@contextmanager
def following(settings: ClusterSettings) -> Iterator[Users]:
    """A reader of all hosts in a thread: who is online, by its lists and records."""
    online: dict[int, set[Uid]] = {}

    def read(watch: liveness.SyncClusterWatch) -> None:
        for event in watch:
            if isinstance(event, Listed):
                online[event.partition] = {place.user for place in event.places}
            elif isinstance(event, ClusterRecord):
                users = online.setdefault(event.partition, set())
                change = users.discard if event.kind == OFFLINE else users.add
                change(event.user)

    with liveness.watch_sync(cluster=settings, lists=True) as watch:
        thread = threading.Thread(target=read, args=[watch])
        thread.start()
        yield lambda: set[Uid]().union(*[*online.values()])
    thread.join()


def test_a_failover_that_lost_writes_is_made_good(start: Start) -> None:
    with (
        two_hosts_on_a_cluster(start) as (redis, hosts, users),
        following(redis.settings()) as followed,
    ):
        eventually(is_true(hosts, followed), within_s=SETTLED_S)
        master = redis.master_of(keys_of("lv", 0).meta)
        replica = redis.replica_of(master)
        master.lose_what_follows(replica)
        go_on(hosts)
        wanted = {
            user
            for user in expected(hosts)
            if partition_of(field_of(user), PARTITIONS) == 0
        }
        state = ClusterState(master)
        eventually(lambda: {*state.users_in(0)} == wanted)
        eventually(is_true(hosts, followed))
        master.kill()
        replica.resume()
        go_on(hosts)
        eventually(is_true(hosts, users), within_s=SETTLED_S)
        eventually(is_true(hosts, followed), within_s=SETTLED_S)


def test_a_slot_with_100000_users_moves_under_traffic(start: Start) -> None:
    with two_hosts_on_a_cluster(start, partitions=1) as (redis, hosts, users):
        for _ in range(SLOT_USERS // FRAME_USERS):
            hosts[0].go_on(FRAME_USERS, leaving=0)
        eventually(is_true(hosts, users), within_s=SETTLED_S)
        finish = redis.move_slot(keys_of("lv", 0).meta)
        go_on(hosts)
        finish()
        go_on(hosts)
        eventually(is_true(hosts, users), within_s=SETTLED_S)


def test_masters_that_were_emptied_are_filled_again(start: Start) -> None:
    with (
        two_hosts_on_a_cluster(start) as (redis, hosts, users),
        following(redis.settings()) as followed,
    ):
        eventually(is_true(hosts, followed), within_s=SETTLED_S)
        for master in redis.masters:
            master("FLUSHALL")
            master("FUNCTION", "FLUSH")
        eventually(is_true(hosts, users), within_s=SETTLED_S)
        go_on(hosts)
        eventually(is_true(hosts, followed), within_s=SETTLED_S)


# libfaketime does not work with Redis' allocator.
WRONG_CLOCK: Final = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

int gettimeofday(struct timeval *tv, void *zone) {
    long failed = syscall(SYS_gettimeofday, tv, zone);
    tv->tv_sec += atoi(getenv("OFF_BY_S"));
    return failed;
}
"""


@pytest.fixture
def wrong_clock(tmp_path: Path) -> Path:
    """A library that, loaded first, sets a process's wall clock off by `OFF_BY_S`."""
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(WRONG_CLOCK)
    gcc = require("gcc")
    succeeded(ran(gcc, "-shared", "-fPIC", "-o", str(library), str(source)))
    return library


def test_redis_away_for_two_leases_and_its_clock_an_hour_off_fence_nobody(
    start: Start, wrong_clock: Path
) -> None:
    with (
        redis_server("--appendonly", "yes") as redis,
        two_hosts(start, redis.settings()) as hosts,
    ):
        state = ClusterState(redis)
        go_on(hosts)
        eventually(is_true(hosts, lambda: {*state.users()}))
        epochs = {it.epoch for those in state.hosts().values() for it in those}
        for hours in (1, -1):
            redis.kill()
            sleep(2 * LEASE_S)
            redis.env = {"LD_PRELOAD": str(wrong_clock), "OFF_BY_S": str(3600 * hours)}
            redis.start()
            go_on(hosts)
            eventually(is_true(hosts, lambda: {*state.users()}), within_s=SETTLED_S)
        reasons = {record.place.reason for record in state.records()}
        assert "host_lost" not in reasons
        assert epochs == {it.epoch for those in state.hosts().values() for it in those}


def test_when_memory_runs_out_a_lost_host_is_still_reaped(start: Start) -> None:
    with redis_server() as redis, two_hosts(start, redis.settings()) as hosts:
        state = ClusterState(redis)
        north, south = hosts
        for _ in range(3):  # a reap takes several steps
            north.go_on(2_000, leaving=0)
        go_on(hosts)
        eventually(is_true(hosts, lambda: {*state.users()}))
        redis("CONFIG", "SET", "maxmemory", 1)
        north.sidecar.kill()
        eventually(lambda: {*state.users()} == south.online, within_s=SETTLED_S)
        south.go_on()
        redis("CONFIG", "SET", "maxmemory", 0)
        eventually(lambda: {*state.users()} == south.online)


def test_a_replica_that_takes_over_behind_the_same_address(start: Start) -> None:
    with (
        redis_server() as redis,
        redis_replica(redis) as replica,
        Proxy(redis.port) as proxy,
        two_hosts(start, proxy.settings()) as hosts,
    ):
        go_on(hosts)
        eventually(is_true(hosts, lambda: {*ClusterState(redis).users()}))
        redis.lose_what_follows(replica)
        go_on(hosts)
        eventually(is_true(hosts, lambda: {*ClusterState(redis).users()}))
        redis.kill()
        replica.resume()
        proxy.lead_to(replica.port)  # which is not writable yet
        go_on(hosts)
        replica("REPLICAOF", "NO", "ONE")
        eventually(is_true(hosts, lambda: {*ClusterState(replica).users()}))


def test_a_host_that_was_cut_off_is_lost_and_comes_back(start: Start) -> None:
    with redis_server() as redis, Proxy(redis.port) as proxy:
        state = ClusterState(redis)
        near = Traffic(host_on(start, redis.settings(), "near"), "near")
        far = Traffic(host_on(start, proxy.settings(), "far"), "far")
        go_on([near, far])
        eventually(is_true([near, far], lambda: {*state.users()}))
        proxy.cut()
        go_on([near, far])
        eventually(lambda: {*state.users()} == near.online, within_s=SETTLED_S)
        proxy.lead_to(redis.port)
        eventually(is_true([near, far], lambda: {*state.users()}))


def test_answers_that_are_late_or_lost_repeat_nothing(start: Start) -> None:
    with redis_server() as redis, Proxy(redis.port) as proxy:
        state = ClusterState(redis)
        host = Traffic(host_on(start, proxy.settings(), "a"), "a")
        for _ in range(10):
            host.go_on()
            proxy.drop_answers()  # the calls arrive, and their answers do not
            host.go_on()
            proxy.lead_to(redis.port)
        eventually(is_true([host], lambda: {*state.users()}))
        for user in host.online:
            assert [kind for kind, *_ in state.kinds(user)] == ["online"]
