"""Sidecars of several hosts on one Redis: who is online anywhere."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from liveness.cluster.format import field_of, keys_of
from tests.helpers.cluster_state import PARTITIONS, ClusterState
from tests.helpers.redis_servers import RedisServer, redis_server
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

LEASE_S = 3  # the shortest
LOST_S = 20.0  # a host is lost within one and a half leases, on a machine that is busy

Host = Callable[..., Sidecar]


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    """One for the tests that leave it as it is; each begins with an empty database."""
    with redis_server() as server:
        yield server


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    shared_redis("FLUSHALL")
    shared_redis("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 0)
    return shared_redis


@pytest.fixture
def state(redis: RedisServer) -> ClusterState:
    return ClusterState(redis)


@pytest.fixture
def host(start: Start, redis: RedisServer) -> Host:
    """Starts the sidecar of a host, by its name."""

    def started(name: str, **settings: object) -> Sidecar:
        given = {
            "cluster_url": redis.url,
            "cluster_host": name,
            "cluster_lease_s": LEASE_S,
            "cluster_partitions": PARTITIONS,
        }
        return start(**given | settings)

    return started


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


def test_a_user_is_online_while_one_device_is(host: Host, state: ClusterState) -> None:
    first, second = (
        host(name, presence_device_separator="/").gateway("gw") for name in "ab"
    )
    first.send("login", ["ada/phone", "ada/desk"])
    second.send("login", ["ada/tablet"])
    eventually(lambda: len(state.hosts_of("ada")) == 3)
    assert {seen.device for seen in state.users()["ada"]} == {
        "/phone",
        "/desk",
        "/tablet",
    }
    second.send("logout", ["ada/tablet"])
    first.send("logout", ["ada/phone"])
    eventually(lambda: [seen.device for seen in state.users()["ada"]] == ["/desk"])
    first.send("logout", ["ada/desk"])
    eventually(lambda: not state.users())
    kinds = [kind for kind, *_ in state.kinds("ada")]
    assert (kinds[0], kinds[-1], {*kinds[1:-1]}) == ("online", "offline", {"moved"})


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


def test_a_host_that_was_paused_beyond_its_lease_lists_its_users_again(
    host: Host, state: ClusterState
) -> None:
    paused, _ = host("paused"), host("other")
    gateway = paused.gateway("gw")
    gateway.send("login", ["ada"])
    eventually(lambda: state.hosts_of("ada") == ["paused"])
    os.kill(paused.pid, signal.SIGSTOP)
    eventually(lambda: not state.users(), within_s=LOST_S)
    os.kill(paused.pid, signal.SIGCONT)
    eventually(lambda: state.hosts_of("ada") == ["paused"])
    assert [kind for kind, *_ in state.kinds("ada")] == ["online", "offline", "online"]


def test_a_restart_of_a_sidecar_goes_on_where_it_was(
    host: Host, state: ClusterState
) -> None:
    sidecar = host("a")
    sidecar.gateway("gw").send("login", ["ada"])
    eventually(lambda: state.hosts_of("ada") == ["a"])
    sidecar.stop()
    sidecar.start()
    sidecar.gateway("gw").send("login", ["bob"])
    eventually(lambda: state.hosts_of("bob") == ["a"])
    assert len(state.kinds("ada")) == 1
    assert {it.incarnation for it in state.hosts()["a"]} == {1}
    assert sidecar.stop() == 0


def test_a_host_that_lost_its_state_takes_back_what_it_had_said(
    host: Host, state: ClusterState
) -> None:
    sidecar = host("a")
    sidecar.gateway("gw").send("login", ["ada", "bob"])
    eventually(lambda: [*sorted(map(str, state.users()))] == ["ada", "bob"])
    sidecar.stop()
    shutil.rmtree(sidecar.state)
    sidecar.start()
    sidecar.gateway("gw").send("login", ["bob"])
    eventually(lambda: [*state.users()] == ["bob"])
    assert [kind for kind, *_ in state.kinds("bob")][-1] != "offline"


def test_an_emptied_redis_is_filled_again(
    host: Host, state: ClusterState, redis: RedisServer
) -> None:
    sidecar = host("a")
    sidecar.gateway("gw").send("login", [f"u{n}" for n in range(1_500)])
    eventually(lambda: len(state.users()) == 1_500)
    redis("FLUSHALL")
    redis("FUNCTION", "FLUSH")
    eventually(lambda: len(state.users()) == 1_500)


def test_what_another_program_deletes_is_filled_again(
    host: Host, state: ClusterState, redis: RedisServer
) -> None:
    users = [f"u{n}" for n in range(200)]
    host("a").gateway("gw").send("login", users[::2])
    host("b").gateway("gw").send("login", users[1::2])
    eventually(lambda: state.users().keys() == {*users})
    keys, user = keys_of("lv", 0), next(iter(state.users_in(0)))

    def has_begun_since(before: object) -> bool:
        return redis("HGET", keys.meta, "conf") not in (None, before)

    for command in (
        ("HDEL", keys.users, field_of(user)),
        ("DEL", keys.users),
        ("DEL", keys.meta),
        ("HSET", keys.users, "stranger", "nonsense"),
    ):
        before = redis("HGET", keys.meta, "conf")
        redis(*command)
        eventually(partial(has_begun_since, before))
        eventually(lambda: state.users().keys() == {*users})


def test_while_redis_is_away_the_host_goes_on_and_then_catches_up(
    start: Start, state: ClusterState
) -> None:
    with redis_server() as own:
        state = ClusterState(own)
        sidecar = start(
            cluster_url=own.url,
            cluster_host="a",
            cluster_lease_s=LEASE_S,
            cluster_partitions=PARTITIONS,
        )
        gateway = sidecar.gateway("gw")
        gateway.send("login", ["ada"])
        eventually(lambda: state.hosts_of("ada") == ["a"])
        sidecar.line("following", host="a")
        own.kill()
        away = sidecar.line(
            "away: other hosts see nothing of this one until it answers; the users and "
            "gateways of this host go on"
        )
        assert away["error"].endswith(
            "; is the address right, and does Redis run there?"
        )
        gateway.apply("login", ["bob"])
        assert [row[0] for row in gateway.where("ada", "bob")] == ["ada", "bob"]
        own.start()
        eventually(lambda: sorted(map(str, state.users())) == ["ada", "bob"])


def test_of_two_hosts_with_one_name_the_later_start_publishes(
    host: Host, state: ClusterState
) -> None:
    older = host("twin")
    older.gateway("gw").send("login", ["ada"])
    eventually(lambda: state.hosts_of("ada") == ["twin"])
    newer = host("twin")
    older.line("replaced")
    eventually(lambda: state.users() == {})
    newer.kill()
    eventually(lambda: state.hosts_of("ada") == ["twin"], within_s=LOST_S)


def test_a_server_that_may_evict_the_keys_is_refused(
    start: Start, host: Host, state: ClusterState, redis: RedisServer
) -> None:
    redis("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    sidecar = host("a")
    gateway = sidecar.gateway("gw")
    gateway.send("login", ["ada"])
    away = "away: other hosts see nothing of this one until it answers; the users and "
    assert "allkeys-lru" in sidecar.line(f"{away}gateways of this host go on")["error"]
    assert gateway.where("ada")
    assert not state.users()
    redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
    eventually(lambda: state.hosts_of("ada") == ["a"])


def test_a_host_with_other_settings_is_refused(host: Host, state: ClusterState) -> None:
    host("a").gateway("gw").send("login", ["ada"])
    eventually(lambda: state.hosts_of("ada") == ["a"])
    other = host("b", cluster_partitions=PARTITIONS + 1)
    assert "partitions" in other.line("refused")["message"]
