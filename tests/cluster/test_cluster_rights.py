"""The rights that docs/cluster.md names are enough, and are for the keys of its prefix."""

import re
from pathlib import Path
from typing import Final

from liveness.cluster.connection import connected
from liveness.cluster.format import configuration_of
from tests.helpers.redis_servers import redis_server
from tests.helpers.tree import ROOT

Args = list[str | int | bytes]
PAGE: Final = (ROOT / "docs/cluster.md").read_text()


async def test_a_sidecar_needs_no_more_rights_than_the_page_names(
    tmp_path: Path,
) -> None:
    line = re.search(r"^ACL SETUSER .+ >PASSWORD .+$", PAGE, re.M)
    assert line
    password = tmp_path / "password"
    password.write_text("PASSWORD\n")
    password.chmod(0o600)
    with redis_server() as server:
        server(*line[0].split())
        settings = server.settings(user="liveness", password_file=password)
        me: Args = ["a", 1, 7]
        begin: Args = ["log", 0, configuration_of(1, ""), 10**7, 1, 1, 9]
        session, body = b"\0\0\0\1" + bytes(14), b"\x90"
        login: Args = [1, 0, 1, 0, 9, 1, b"ada", session, body]
        async with connected(settings) as redis:
            assert await redis.check_policy() == "noeviction"
            assert (await redis.call("begin", 0, me + begin))[0] == b"reset"
            assert (await redis.call("assert", 0, [*me, 1, 0, 0, 0, 9, 0]))[0] == b"ok"
            assert (await redis.call("apply", 0, me + login))[0] == b"ok"
            assert (await redis.call("look", 0, ["a", 1, 0, 10**9]))[0] == b"ok"
            assert await redis.call("fence", 0, ["a", 1, "b", 1, 1]) == [b"unknown"]
            assert (await redis.call("reap", 0, [0, 100, 0, 9]))[0] == b"ok"
            assert len(await redis.read("where", 0, ["ada"])) == 1
            assert len(await redis.entries(0, 0, 10)) == 1
            assert len(await redis.newest_entries(0, 10)) == 1
            assert await redis.meta(0, "v") != [None]
            assert await redis.everything(0)
            assert (await redis.scan(0, 0, 10))[1]
        assert server("ACL", "LOG") == []
        for command in (["SET", "lv:1", "x"], ["HGET", "other", "x"], ["FLUSHALL"]):
            answer = server("ACL", "DRYRUN", "liveness", *command)
            assert b"has no permissions" in answer, command
