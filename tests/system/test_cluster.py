"""Sidecars of several hosts on one Redis: who is online anywhere."""

from collections.abc import Callable

import pytest

from tests.helpers.cluster_state import PARTITIONS, ClusterState
from tests.helpers.redis_servers import RedisServer
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

LEASE_S = 3  # the shortest
LOST_S = 20.0  # a host is lost within one and a half leases, on a machine that is busy

Host = Callable[..., Sidecar]


@pytest.fixture
def state(redis: RedisServer) -> ClusterState:
    return ClusterState(redis)


@pytest.fixture
def host(start: Start, redis: RedisServer) -> Host:
    """Starts the sidecar of a host, by its name."""

    return lambda name: start(
        cluster_url=redis.url,
        cluster_host=name,
        cluster_lease_s=LEASE_S,
        cluster_partitions=PARTITIONS,
    )


def test_a_user_is_online_while_any_host_has_it(
    host: Host, state: ClusterState
) -> None:
    first, second = host("a").gateway("gw"), host("b").gateway("gw")
    first.send("login", ["ada", 7])
    eventually(lambda: state.hosts_of("ada") == ["a"] == state.hosts_of(7))
    second.send("login", ["ada"])
    eventually(lambda: state.hosts_of("ada") == ["b", "a"])
    first.send("logout", ["ada"])
    eventually(lambda: state.hosts_of("ada") == ["b"])
    second.send("logout", ["ada"])
    eventually(lambda: state.hosts_of("ada") == [])
    assert state.kinds("ada") == [
        ("online", "a", "login"),
        ("moved", "b", "login"),
        ("offline", "b", "logout"),
    ]


def test_a_host_that_dies_loses_its_users_to_the_hosts_that_have_them(
    host: Host, state: ClusterState
) -> None:
    lost, other = host("lost"), host("other")
    lost.gateway("gw").send("login", [f"u{n}" for n in range(50)])
    other.gateway("gw").send("login", ["u0"])
    eventually(lambda: len(state.users()) == 50 and len(state.hosts_of("u0")) == 2)
    lost.kill()
    eventually(lambda: [*state.users()] == ["u0"], within_s=LOST_S)
    assert state.hosts_of("u0") == ["other"]
    assert state.kinds("u1") == [
        ("online", "lost", "login"),
        ("offline", "lost", "host_lost"),
    ]
    eventually(lambda: [*state.hosts()] == ["other"])
    eventually(lambda: [line.get("lost") for line in other.lines].count("lost") == 1)


def test_while_redis_is_away_the_host_goes_on_and_then_catches_up(
    host: Host, state: ClusterState, redis: RedisServer
) -> None:
    sidecar = host("a")
    gateway = sidecar.gateway("gw")
    gateway.send("login", ["ada"])
    eventually(lambda: state.hosts_of("ada") == ["a"])
    sidecar.line("following", host="a")
    redis.kill()
    away = sidecar.line(
        "away: other hosts see nothing of this one until it answers; the users and "
        "gateways of this host go on"
    )
    assert away["error"].endswith("; is the address right, and does Redis run there?")
    gateway.apply("login", ["bob"])
    assert [row[0] for row in gateway.where("ada", "bob")] == ["ada", "bob"]
    redis.start()
    eventually(lambda: sorted(map(str, state.users())) == ["ada", "bob"])
