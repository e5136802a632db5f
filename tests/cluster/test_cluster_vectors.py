"""The format on Redis, `proto/cluster.md`: its vectors, and what its page shows."""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from liveness.cluster.format import (
    entry_of,
    field_of,
    host_of,
    partition_of,
    session_bytes,
    sessions_of,
)
from tests.helpers.cluster_publisher import ClusterPublisher, There
from tests.helpers.needs import require
from tests.helpers.processes import ran, succeeded
from tests.helpers.redis_servers import RedisServer, redis_server
from tests.helpers.tree import ROOT

PAGE: Final = (ROOT / "proto/cluster.md").read_text()
CASES: Final[list[dict[str, Any]]] = json.loads(
    (ROOT / "proto/vectors/cluster.json").read_text()
)["cases"]


def of(what: str) -> pytest.MarkDecorator:
    """The cases of one sort, as a parameter."""
    cases = [case for case in CASES if case["what"] == what]
    ids = [case["name"].removeprefix("cluster-") for case in cases]
    return pytest.mark.parametrize("case", cases, ids=ids)


def block(language: str, has: str) -> str:
    """The one code block of the page in this language that has this in it."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    (found,) = (text for text in blocks if has in text)
    return str(found)


@of("field")
def test_a_user_has_its_field_and_partitions(case: dict[str, Any]) -> None:
    user, field = case["user"], bytes.fromhex(case["hex"])
    assert field_of(user) == field
    for partitions, number in case["partitions"].items():
        assert partition_of(field, int(partitions)) == number


@of("sessions")
def test_the_bytes_of_sessions(case: dict[str, Any]) -> None:
    value = bytes.fromhex(case["hex"])
    found = [*sessions_of(value)]
    assert [session._asdict() for session in found] == case["sessions"]
    made = b"".join(
        session_bytes(*it[:3], it.gateway.encode(), it.device.encode()) for it in found
    )
    assert made == value


@of("host")
def test_the_bytes_of_a_host(case: dict[str, Any]) -> None:
    found = host_of(bytes.fromhex(case["hex"]))
    assert found._asdict() | {"state": found.state.name.lower()} == case["host"]


@of("entry")
def test_the_bytes_of_an_entry(case: dict[str, Any]) -> None:
    fields = {name: bytes.fromhex(text) for name, text in case["fields"].items()}
    raw = {name.encode(): value for name, value in fields.items()}
    entry = entry_of(case["partition"], case["id"].encode(), raw)
    assert (entry.before, entry.name) == (case["before"], case["version"])
    assert [record.as_map() for record in entry.records] == case["records"]


@pytest.fixture(scope="module")
def crowd() -> Iterator[RedisServer]:
    """Three users on two hosts, one of them with a name that is hard to print."""
    with redis_server() as redis:
        north, south = (
            ClusterPublisher(redis, name, partitions=16) for name in ("north", "south")
        )
        north.publish(There("ada", "chat-1"), There(7, "chat-1", 2))
        phone = There("ada", "chat-9", 3, since=2_000, device="-phone")
        south.publish(phone, There('eve\\"é', "chat\n9", 9))
        yield redis


def test_the_shell_lines_and_the_python_of_the_page_list_who_is_online(
    crowd: RedisServer,
) -> None:
    require("redis-cli", "redis-tools")
    shell, python = block("sh", "HSCAN"), block("python", "hscan_iter")
    client = f'redis-cli() {{ command redis-cli -p {crowd.port} "$@"; }}\n'
    assert shown("bash", "-c", client + shell) == sorted(
        ['"ada"', '"7"', '"eve\\\\\\"\\xc3\\xa9"']
    )
    python = python.replace("6379", str(crowd.port))
    assert shown(sys.executable, "-c", python) == sorted(
        ["ada south chat-9", "7 north chat-1", 'eve\\"é south chat/9']
    )


def shown(*command: str) -> list[str]:
    """The lines of a program, sorted; a gateway's own line feed is no end of one."""
    done = succeeded(ran(*command))
    return sorted(done.replace("chat\n9", "chat/9").splitlines())
