"""The users of `deploy/redis`: what they may do is enough, and no more."""

import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from liveness.cluster import connection
from liveness.cluster.connection import CallError, Redis
from liveness.cluster.format import Place, field_of, place_bytes, session_bytes
from liveness.config.cluster import ClusterSettings
from tests.helpers.needs import needs
from tests.helpers.redis_servers import RedisServer, redis_server
from tests.helpers.tree import ROOT

USERS: Final = ROOT / "deploy/redis/liveness.conf"
PASSWORD: Final = "correct horse"
ADA: Final = field_of("ada")
Args = list[str | int | bytes]
# Longer than any answer takes on a busy machine.
connected = partial(connection.connected, timeout_s=10.0)
# Every function of the library, with arguments that make it write as much as it can.
SESSION: Final = session_bytes(1, 5, 1, b"g", b"")
BODY: Final = place_bytes(Place("ada", "A", "g", 5, 1, "login"))
CALLS: Final[dict[str, Args]] = {
    "begin": ["A", 1, 7, "log", 5, "1 16 -", 30_000_000, 1, 1, 9],
    "assert": ["A", 1, 7, 1, 0, 5, 0, 9, "", 1, ADA, SESSION, BODY],
    "apply": ["A", 1, 7, 1, 5, 6, 0, 9, "", 1, ADA, (5).to_bytes(6), BODY],
    "beat": ["A", 1, 7, 1, 6, 6, 0, 9, 0, 0],
    "look": ["B", 0, 0, 0],
    "fence": ["A", 0, "A", 1, 0],
    "reap": [0, 500, 0, 9],
    "where": [ADA],
    "now": [],
}

# A call that is refused would not show what the user may write.
TAKEN: Final = ("assert", "apply", "beat", "look", "reap")


@pytest.fixture
def guarded() -> Iterator[RedisServer]:
    """A server with the users of the file, which have passwords."""
    with redis_server("--include", str(USERS)) as server:
        for user in ("liveness", "liveness-reader"):
            server("ACL", "SETUSER", user, f">{PASSWORD}")
        yield server


def settings(server: RedisServer, folder: Path, user: str) -> ClusterSettings:
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    url = f"{server.url}/1"
    return ClusterSettings(url=url, user=user, password_file=secret)


READS: Final[list[Callable[[Redis], Awaitable[Any]]]] = [
    lambda redis: redis.read("where", 3, [ADA]),
    lambda redis: redis.read("now", 3, []),
    lambda redis: redis.users(3),
    lambda redis: redis.entries(3, 0, 10),
    lambda redis: redis.earlier_entries(3, 10, 10),
    lambda redis: redis.meta(3, "v", "t"),
    lambda redis: redis.everything(3),
    lambda redis: redis.scan(3, 0, 10),
]


async def test_their_rights_are_enough(guarded: RedisServer, tmp_path: Path) -> None:
    sidecar = settings(guarded, tmp_path, "liveness")
    async with connected(sidecar, must_keep=True) as redis:
        answers = {
            name: await redis.call(name, 3, args) for name, args in CALLS.items()
        }
        assert [answers[name][0] for name in TAKEN] == [b"ok"] * len(TAKEN), answers
        for read in READS:
            await read(redis)
    async with connected(settings(guarded, tmp_path, "liveness-reader")) as redis:
        for read in READS:
            await read(redis)


def test_every_function_is_called_here_and_every_command_is_allowed() -> None:
    source = (ROOT / "liveness/cluster/functions.lua").read_text()
    assert {*re.findall(r"^register\('(\w+)'", source, re.M)} == CALLS.keys()
    commands = {*re.findall(r"\bcall\('([A-Z]+)'", source)} | {"TIME"}
    assert {f"+{command.lower()}" for command in commands} <= {
        *USERS.read_text().split()
    }


def test_they_may_do_what_a_cluster_needs(guarded: RedisServer) -> None:
    for user in ("liveness", "liveness-reader"):
        for command in (["CLUSTER", "SLOTS"], ["ASKING"]):
            assert guarded("ACL", "DRYRUN", user, *command) == b"OK"


async def test_their_rights_are_no_more(guarded: RedisServer, tmp_path: Path) -> None:
    async with connected(settings(guarded, tmp_path, "liveness")) as redis:
        await redis.call("begin", 3, CALLS["begin"])
    async with connected(settings(guarded, tmp_path, "liveness-reader")) as redis:
        with pytest.raises(CallError) as caught:
            await redis.call("look", 3, CALLS["look"])
        assert caught.value.kind == "permission"
    for user, command in [
        ("liveness", ("SET", "x", "1")),
        ("liveness", ("HGETALL", "x")),
        ("liveness", ("DEL", "lv:{3}:m")),
        ("liveness", ("FUNCTION", "FLUSH")),
        ("liveness", ("CONFIG", "GET", "requirepass")),
        ("liveness-reader", ("HSET", "lv:{3}:u", "a", "b")),
        ("liveness-reader", ("HGETALL", "x")),
        ("liveness-reader", ("FUNCTION", "LOAD", "x")),
    ]:
        said = guarded("ACL", "DRYRUN", user, *command)
        assert b"no permissions" in said, (user, command, said)


@needs("redis-server")
async def test_nobody_can_log_in_without_a_password(tmp_path: Path) -> None:
    with redis_server("--include", str(USERS)) as server:
        async with connected(settings(server, tmp_path, "liveness")) as redis:
            with pytest.raises(CallError) as caught:
                await redis.meta(3, "v")
            assert caught.value.kind == "auth"


async def test_a_reader_before_any_sidecar_learns_why_it_fails(
    guarded: RedisServer, tmp_path: Path
) -> None:
    async with connected(settings(guarded, tmp_path, "liveness-reader")) as redis:
        with pytest.raises(CallError, match="functions of this version") as caught:
            await redis.read("where", 3, [ADA])
        assert caught.value.kind == "permission"
