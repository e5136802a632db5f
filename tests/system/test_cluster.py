"""Sidecars of several hosts on one Redis: who is online anywhere."""

import json
from collections.abc import Callable

import pytest

from tests.helpers.redis_servers import RedisServer
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

LEASE_S = 3  # the shortest
LOST_S = 20.0  # a host is lost within one and a half leases, on a machine that is busy

Host = Callable[[str], Sidecar]


@pytest.fixture
def host(start: Start, redis: RedisServer) -> Host:
    """Starts the sidecar of a host, by its name."""
    return lambda name: start(
        cluster_url=redis.url, cluster_host=name, cluster_lease_s=LEASE_S
    )


def hosts_of(uid: str | int, asked: Sidecar) -> list[str]:
    """On which hosts a sidecar says that a user is; none while it cannot ask Redis."""
    question = json.dumps({"uids": [uid]}).encode()
    _, body = asked.ask("admin", "POST", "/v1/cluster/where", question)
    return sorted(row["host"] for row in json.loads(body).get("users", []))


def test_a_user_is_online_while_any_host_has_it(host: Host) -> None:
    a, b, other = host("a"), host("b"), host("other")
    first, second = a.gateway("gw"), b.gateway("gw")
    first.send("login", ["ada", 7])
    eventually(lambda: hosts_of("ada", other) == ["a"] == hosts_of(7, other))
    second.send("login", ["ada"])
    eventually(lambda: hosts_of("ada", other) == ["a", "b"])
    first.send("logout", ["ada"])
    eventually(lambda: hosts_of("ada", other) == ["b"])
    second.send("logout", ["ada"])
    eventually(lambda: hosts_of("ada", other) == [])


def test_a_host_that_dies_loses_its_users_to_the_hosts_that_have_them(
    host: Host,
) -> None:
    lost, other = host("lost"), host("other")
    lost.gateway("gw").send("login", [f"u{n}" for n in range(50)])
    other.gateway("gw").send("login", ["u0"])
    eventually(lambda: hosts_of("u0", other) == ["lost", "other"])
    eventually(lambda: hosts_of("u49", other) == ["lost"])
    lost.kill()
    eventually(lambda: hosts_of("u49", other) == [], within_s=LOST_S)
    eventually(lambda: hosts_of("u0", other) == ["other"])
    eventually(lambda: [line.get("lost") for line in other.lines].count("lost") == 1)


def test_while_redis_is_away_the_host_goes_on_and_then_catches_up(
    host: Host, redis: RedisServer
) -> None:
    sidecar, other = host("a"), host("other")
    gateway = sidecar.gateway("gw")
    gateway.send("login", ["ada"])
    eventually(lambda: hosts_of("ada", other) == ["a"])
    redis.kill()
    away = sidecar.line(
        "away: other hosts see nothing of this one until it answers; the users and "
        "gateways of this host go on"
    )
    assert away["error"].endswith("; is the address right, and does Redis run there?")
    gateway.apply("login", ["bob"])
    assert [row[0] for row in gateway.where("ada", "bob")] == ["ada", "bob"]
    redis.start()
    eventually(lambda: hosts_of("bob", other) == ["a"])
