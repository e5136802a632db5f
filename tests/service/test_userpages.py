"""One user's page: what memory and log have of it, as it was a moment ago."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from starlette.applications import Starlette
from trio.testing import MockClock

from liveness.service.clock import Clock
from liveness.service.database import connect
from liveness.service.userpages import MOST_RECORDS, UserPages
from liveness.text import uid_text
from tests import disk
from tests.service.asgi import Answer, ask
from tests.service.rig import Rig, running
from tests.strategies import HARD_UIDS


def pages(rig: Rig) -> Starlette:
    pages = UserPages(rig.engine, rig.journal, wall_ms=Clock().wall_ms)
    return Starlette(routes=pages.routes(may_change=False))


async def user(rig: Rig, uid: str | int, query: str = "") -> dict[str, Any]:
    name = uid_text(uid)
    answer = await ask_for(rig, f"{quote(name, safe='')}{query}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def ask_for(rig: Rig, name: str) -> Answer:
    """As a server has it: the path read, and beside it the bytes that came."""

    async def with_path(scope: Any, receive: Any, send: Any) -> None:
        path = unquote(scope["raw_path"].decode())
        await pages(rig)({**scope, "path": path}, receive, send)

    return await ask(with_path, "GET", f"/v1/users/{name}")


async def test_a_user_is_told_from_login_to_silence(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw-1")
        assert (await user(rig, "eve"))["told"] == "never heard of: the log is empty"
        await gateway.send(["login", "eve", {"conn": 4}])
        await gateway.settle()
        found = await user(rig, "eve")
        (opening,) = found.pop("records")
        assert (opening["kind"], opening["seq"]) == ("online", 1)
        assert found.pop("told").startswith("online through gw-1 (connection 4); ")
        assert found.pop("seen") >= opening["at"]  # of a wall clock that is real
        assert 29 < found.pop("fires_in") <= 30
        assert found.pop("slot") in (29, 0)  # the last of the ring, a moment in or not
        assert found == {
            "uid": "eve", "online": True, "gateway": "gw-1", "session": 1, "conn": 4,
            "last": "login", "layer": 0, "held": None, "timeout": 30.0,
            "looked_back_to": None,
        }  # fmt: skip
        await rig.until(lambda: not len(rig.presence))
        await rig.until(lambda: rig.journal.durable_seq == 2)
        found = await user(rig, "eve")
        assert [one["kind"] for one in found.pop("records")] == ["offline", "online"]
        assert " after 30.0 s of silence; last heard: login at " in found.pop("told")
        assert found == {
            "uid": "eve", "online": False, "looked_back_to": None,
            **dict.fromkeys(("gateway", "session", "conn", "last", "seen", "slot")),
            **dict.fromkeys(("layer", "fires_in", "held", "timeout")),
        }  # fmt: skip


async def test_who_waits_for_its_gateway_or_the_disk_is_told_so(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_firing=100) as rig:
        gateway = await rig.gateway("gw-1", ping=1.0)
        await gateway.send(["login", "eve", {"conn": 4}])
        await gateway.settle()
        await rig.until(lambda: len(rig.presence.due_gateways()) == 1)
        found = await user(rig, "eve")
        assert (found["held"], found["slot"], found["fires_in"]) == ("mute", None, 0.0)
        assert "; held: gw-1 says nothing at all" in found["told"]
        rig.journal.pending_ends += 100  # as behind a disk that takes nothing
        assert (await user(rig, "eve"))["held"] == "disk"
        rig.journal.pending_ends -= 100
        rig.engine._attended.stand(0.0)
        assert (await user(rig, "eve"))["held"] == "stands"


async def test_a_session_is_told_once_it_is_on_disk(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw-1")
        with disk.locked(rig.store.path):
            await gateway.send(["login", "eve"])
            await rig.until(lambda: len(rig.presence) == 1)
            found = await user(rig, "eve")
        assert (found["online"], found["gateway"]) == (True, "gw-1")
        assert (found["session"], found["records"]) == (None, [])
        await gateway.settle()
        assert (await user(rig, "eve"))["session"] == 1


@pytest.mark.parametrize("uid", HARD_UIDS, ids="{!a:.40}".format)
async def test_whatever_a_user_is_called_it_is_found_by_that(
    tmp_path: Path, jumping: MockClock, uid: str | int
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw-1")
        await gateway.send(["login", uid])
        await gateway.settle()
        found = await user(rig, uid)
        assert found["online"]
        assert len(found["records"]) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "'' is no uid"),
        ("a%00", "is no uid: a string of 1 to 255 bytes"),
        ("x" * 256, "is no uid"),
        ("int:9223372036854775808", "N from 0 to 2^63-1"),
        ("int:" + "9" * 250, "N from 0 to 2^63-1"),
        ("%ff", "it is not UTF-8"),
        ("eve?limit=0", f"1 to {MOST_RECORDS}"),
        (f"eve?limit={MOST_RECORDS + 1}", f"1 to {MOST_RECORDS}"),
        ("eve?before=3", "it may have limit"),
    ],
)
async def test_what_names_nobody_is_refused(
    tmp_path: Path, jumping: MockClock, name: str, told: str
) -> None:
    async with running(tmp_path) as rig:
        answer = await ask_for(rig, name)
        assert answer.status == 400
        assert told in answer.error


async def test_so_many_records_as_are_asked_for_the_newest_first(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw-1")
        for _ in range(15):
            await gateway.send(["login", "eve"], ["logout", "eve"])
        await gateway.settle()
        seqs = [one["seq"] for one in (await user(rig, "eve"))["records"]]
        assert seqs == [*range(30, 10, -1)]
        found = await user(rig, "eve", "?limit=3")
        assert [one["seq"] for one in found["records"]] == [30, 29, 28]
        assert found["looked_back_to"]["seq"] == 28
        # The record that its session began with is not among them, and is found.
        found = await user(rig, "eve", "?limit=1")
        assert " by a logout through gw-1; logged in " in found["told"]


async def test_a_log_that_cannot_be_read_is_told_and_harms_nobody(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw-1")
        await gateway.send(["login", "eve"])
        await gateway.settle()
        with closing(connect(rig.store.path)) as db:
            db.execute("alter table log rename to gone")
        answer = await ask_for(rig, "eve")
        assert answer.status == 503
        assert "the log cannot be read (no such table" in answer.error
        await gateway.settle()
