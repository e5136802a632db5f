"""The format on Redis, `proto/cluster.md`: its vectors, and what its page shows."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from liveness.cluster.connection import functions
from liveness.cluster.format import (
    Place,
    configuration_of,
    ending_bytes,
    entry_of,
    field_of,
    gateway_of,
    host_of,
    keys_of,
    partition_of,
    place_bytes,
    session_bytes,
    sessions_of,
)
from tests.helpers.needs import require
from tests.helpers.redis_servers import RedisServer, redis_server
from tests.helpers.tree import ROOT

PAGE: Final = (ROOT / "proto/cluster.md").read_text()
CASES: Final[list[dict[str, Any]]] = json.loads(
    (ROOT / "proto/vectors/cluster.json").read_text()
)["cases"]
NOW_US: Final = 1_795_168_800_000_000
EPOCH: Final = NOW_US // 1_000
PARTITIONS: Final = 16


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


# --- bytes ----------------------------------


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
    made = [
        session_bytes(
            it.incarnation,
            it.session,
            it.since,
            it.gateway.encode(),
            it.device.encode(),
        )
        for it in found
    ]
    assert b"".join(made) == value


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


# --- a real server, filled by the functions ------------------------------------------------


class Publisher:
    """Two hosts that publish by the functions, with a clock that stands still."""

    def __init__(self, server: RedisServer, partitions: int) -> None:
        self.server, self.partitions = server, partitions
        self.library = functions(f"return {NOW_US}")
        server("FUNCTION", "LOAD", "REPLACE", self.library[0])
        self._last: dict[tuple[str, int], int] = {}
        conf = configuration_of(partitions, ":")
        for number in range(partitions):
            for name, nonce, log in (("north", 11, "log-n"), ("south", 22, "log-s")):
                begin = [name, EPOCH, nonce, log, 0, conf, 30_000_000, 1, 1, nonce]
                self._call("begin", number, *begin)
                inc = nonce // 11
                head = [name, EPOCH, nonce, inc, 0, 0, 0, inc, EPOCH, 0]
                self._call("assert", number, *head)

    def _call(self, function: str, number: int, *args: Any) -> None:
        keys = keys_of("lv", number)
        answer = self.server("FCALL", self.library[1] + function, 3, *keys, *args)
        assert answer[0] in (b"reset", b"ok"), answer

    def apply(self, name: str, token: int, *changes: tuple[Any, ...]) -> None:
        """Publish sessions: user, device, session, gateway, reason, whether it ended."""
        inc = 1 if name == "north" else 2
        parts: dict[int, list[tuple[Any, ...]]] = {}
        for change in changes:
            number = partition_of(field_of(change[0]), self.partitions)
            parts.setdefault(number, []).append(change)
        for number, its in parts.items():
            values, bodies = [], []
            for user, device, session, name_of_gateway, reason, has_ended in its:
                gateway = gateway_of(name_of_gateway, user)
                since = 0 if has_ended else EPOCH + session
                value = ending_bytes(session)
                if not has_ended:
                    value = session_bytes(
                        inc, session, since, gateway.encode(), device.encode()
                    )
                values.append(value)
                text = field_of(user).decode()
                place = Place(text, name, gateway, session, since, reason, device)
                bodies.append(place_bytes(place))
            before = self._last.get((name, number), 0)
            self._last[name, number] = last = before + len(its)
            head = [name, EPOCH, inc * 11, inc, before]
            fields = [field_of(change[0]) for change in its]
            args = [last, 0, token, EPOCH, len(its), *fields, *values, *bodies]
            self._call("apply", number, *head, *args)


COME: Final = (
    ("north", 1001, ("ada", "", 1, "chat-1", "login", False), (7, "", 2, "chat-1", "login", False)),
    ("south", 2001, ("ada", ":phone", 3, "chat-9", "login", False)),
)  # fmt: skip
GO: Final = (
    ("south", 2002, ("ada", ":phone", 3, "chat-9", "logout", True)),
    ("north", 1002, ("ada", "", 1, "chat-1", "silence", True), (7, "", 2, "chat-1", "logout", True)),
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def empty(server: RedisServer) -> RedisServer:
    server("FLUSHALL")
    return server


def test_the_functions_write_what_the_vectors_have(empty: RedisServer) -> None:
    hosts = Publisher(empty, 1)
    for change in COME:
        hosts.apply(*change)
    keys = keys_of("lv", 0)
    by_name = {case["name"].removeprefix("cluster-"): case for case in CASES}
    for user in ("ada", 7):
        label = f"the-session{'s' if user == 'ada' else ''}-of-{user}"
        (case,) = (it for name, it in by_name.items() if name.startswith(label))
        assert empty("HGET", keys.users, field_of(user)).hex() == case["hex"]
    for name in ("north", "south"):
        case = by_name[f"a-host-{name}"]
        value = host_of(empty("HGET", keys.meta, f"h{name}"))
        kept = {"epoch", "incarnation", "sessions", "current", "total", "nonce", "log"}
        assert {key: getattr(value, key) for key in kept} == {
            key: case["host"][key] for key in kept
        }
    for change in GO:
        hosts.apply(*change)
    entries = [
        {
            "id": entry.decode(),
            "fields": {
                name.decode(): value.hex()
                for name, value in zip(flat[::2], flat[1::2], strict=True)
            },
        }
        for entry, flat in empty("XRANGE", keys.stream, "-", "+")
    ]
    assert entries == [
        {"id": case["id"], "fields": case["fields"]}
        for case in CASES
        if case["what"] == "entry"
    ]


@pytest.fixture
def crowd(empty: RedisServer) -> RedisServer:
    """Three users on two hosts, one of them with a name that is hard to print."""
    hosts = Publisher(empty, PARTITIONS)
    for change in COME:
        hosts.apply(*change)
    hosts.apply("south", 2003, ('eve\\"é', "", 9, "chat\n9", "login", False))
    return empty


def test_the_shell_lines_of_the_page_list_who_is_online(crowd: RedisServer) -> None:
    program = block("sh", "HSCAN")
    assert len(program.splitlines()) <= 10
    command = f'redis-cli() {{ command redis-cli -p {crowd.port} "$@"; }}\n{program}'
    require("redis-cli", "redis-tools")
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run(
        [bash, "-c", command], capture_output=True, check=True, text=True
    )
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == sorted(
        ['"ada"', '"7"', '"eve\\\\\\"\\xc3\\xa9"']
    )


def test_the_python_of_the_page_lists_who_is_online(crowd: RedisServer) -> None:
    program = block("python", "hscan_iter")
    assert len([line for line in program.splitlines() if line]) <= 10
    program = program.replace("6379", str(crowd.port))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stderr == ""
    assert sorted(done.stdout.replace("chat\n9", "chat/9").splitlines()) == sorted(
        ["ada south chat-9", "7 north chat-1", 'eve\\"é south chat/9']
    )
