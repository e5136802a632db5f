"""Users online on any host: a sidecar of host `a` answers, while `b` is in Redis only."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from liveness.service.http.http_server import PAGE
from tests.cluster.hosts import There, publish
from tests.helpers.redis_servers import RedisServer, redis_server
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

ANYWHERE: Final = {"cluster": True}
API: Final[dict[str, Any]] = json.loads((PAGE / "openapi.json").read_text())
THERE: Final = (
    There("ada", "gw-2", 44, 2_000),
    There("bob"),
    There("zoe", "gw-2", 45, 3_000, "/desk"),
)


def host_a(start: Callable[..., Sidecar], redis: RedisServer) -> Sidecar:
    """A sidecar in the cluster, whose gateway has ada and a device of zoe."""
    publish(redis, "b", *THERE, separator="/")
    sidecar = start(
        cluster_url=redis.url, cluster_host="a", presence_device_separator="/"
    )
    gateway = sidecar.gateway("gw-1")
    gateway.apply("login", ["ada", "zoe/phone"], {"conn": [5, 6]})
    return sidecar


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    def start(**settings: object) -> Sidecar:
        made = Sidecar(tmp_path_factory.mktemp("s"), 60, **settings)
        return made.start()

    with redis_server() as redis, host_a(start, redis) as running:
        yield running


def shown(body: bytes, schema: str) -> Any:
    """An answer, which has the shape that the document says."""
    value = json.loads(body)
    whole = {"$ref": f"#/components/schemas/{schema}", "components": API["components"]}
    Draft202012Validator(whole).validate(value)
    return value


def test_a_gateway_learns_on_which_host_a_user_is(sidecar: Sidecar) -> None:
    gateway = sidecar.gateway("gw-3")
    assert "cluster" in gateway.welcome["features"]
    assert gateway.welcome["host"] == "a"
    gateway.send("where", ["ada", "bob", "zoe", "eve"], ANYWHERE)
    rows, terms = gateway.expect("where")
    assert terms == ANYWHERE
    # Of this host's sessions Redis may have the beginning, or not yet.
    assert [row[:5] for row in rows] == [
        ["ada", "gw-1", 1, 5, "a"],
        ["zoe/phone", "gw-1", 2, 6, "a"],
        ["ada", "gw-2", 44, None, "b"],
        ["bob", "gw", 1, None, "b"],
        ["zoe/desk", "gw-2", 45, None, "b"],
    ]
    assert [row[5] for row in rows[2:]] == [2_000, 1_000, 3_000]
    gateway.send("where", ["ada", "bob"])
    assert gateway.expect("where") == [[["ada", "gw-1", 1, 5]]]


def test_http_shows_what_redis_knows(sidecar: Sidecar) -> None:
    desk = {"host": "b", "gateway": "gw-2", "session": 45, "since": 3_000}
    for door in ("http", "admin"):
        response, body = sidecar.ask(
            door, "POST", "/v1/cluster/where", b'{"uids": ["bob", "eve", "zoe/desk"]}'
        )
        assert response.status == 200
        bob = {"host": "b", "gateway": "gw", "session": 1, "since": 1_000}
        rows = [bob | {"uid": "bob"}, desk | {"uid": "zoe/desk"}]
        assert shown(body, "ClusterWhere") == {"users": rows}


def test_without_redis_all_answers_have_this_host_and_say_so(
    start: Start, redis: RedisServer
) -> None:
    sidecar = host_a(start, redis)
    gateway = sidecar.gateway("gw-3")
    redis.pause()
    gateway.apply("where", ["ada", "bob"], ANYWHERE)
    rows, terms = gateway.expect("where")
    assert [row[:5] for row in rows] == [["ada", "gw-1", 1, 5, "a"]]
    assert terms == ANYWHERE | {"partial": "slow"}
    redis.resume()
    redis.kill()
    response, body = sidecar.ask(
        "http", "POST", "/v1/cluster/where", b'{"uids": ["ada"]}'
    )
    assert response.status == 503
    error = shown(body, "Error")["error"]
    assert error.startswith("Redis cannot be asked: ")
    assert sidecar.ask("http", "GET", "/readyz")[0].status == 200
