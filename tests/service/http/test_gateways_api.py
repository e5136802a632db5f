"""Gateways and watchers for operators, and forgetting a name."""

import os
from pathlib import Path
from typing import Any

from trio.testing import MockClock

from liveness.metrics.counts import DOORS
from tests.helpers import disk
from tests.service.http.doors import Doors
from tests.service.rig import Caller, running

GATEWAYS = "/v1/gateways"


async def forget(doors: Doors, name: str) -> tuple[int, dict[str, Any]]:
    return await doors.change(f"{GATEWAYS}/forget", role="gateway", name=name)


async def close(doors: Doors, caller: Caller) -> None:
    """End a link, and wait until the sidecar has noticed."""
    named = doors.rig.registry.named
    before = len(named)
    caller.close()
    await doors.rig.until(lambda: len(named) < before)


async def test_names_are_listed_with_what_is_known_of_them(doors: Doors) -> None:
    gateway = await doors.rig.gateway("gw-1", timeout=7)
    await gateway.apply(["login", ["a", "b"]])
    await close(doors, await doors.rig.gateway("gw-0"))
    away, linked = await doors.listed(GATEWAYS)
    assert away.pop("used") > 1_700_000_000_000
    assert away == {
        "name": "gw-0", "role": "gateway", "linked": False, "seq": 2, "users": 0,
    }  # fmt: skip
    assert linked.pop("used") > 1_700_000_000_000
    assert linked.pop("seq") in (0, 2)  # it follows what does not concern it
    assert linked == {
        "name": "gw-1", "role": "gateway", "linked": True, "users": 2,
        "unacked": 0, "timeout": 7.0, "pid": os.getpid(), "unix_user": os.getuid(),
    }  # fmt: skip


async def test_watchers_are_listed_apart_and_those_without_a_cursor_while_linked(
    doors: Doors,
) -> None:
    await doors.rig.watcher("kept", ack=True)
    passing = await doors.rig.watcher("passing")

    async def names() -> list[tuple[str, bool]]:
        found = await doors.listed(GATEWAYS, role="watcher")
        return [(watcher["name"], "seq" in watcher) for watcher in found]

    assert await names() == [("kept", True), ("passing", False)]
    assert await doors.listed(GATEWAYS) == []
    await close(doors, passing)
    assert await names() == [("kept", True)]


async def test_a_listing_comes_in_pages(doors: Doors) -> None:
    for name in "edcba":
        await doors.rig.gateway(name)
    found = await doors.pages(GATEWAYS, "after", limit="2")
    assert [[row["name"] for row in page] for page in found] == [
        [*"ab"],
        [*"cd"],
        ["e"],
    ]


async def test_a_query_for_another_role_is_refused(doors: Doors) -> None:
    answer = await doors.get(f"{GATEWAYS}?role=other")
    assert answer.status == 400
    assert "must be one of gateway, watcher" in answer.error


async def test_a_name_is_forgotten_for_good_and_begins_anew(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        doors = Doors(rig)
        gateway = await rig.gateway("gw-1", kinds=["online", "offline"])
        await gateway.apply(["login", ["u"]])
        status, answer = await forget(doors, "gw-1")
        assert status == 409
        assert "is connected" in answer["error"]
        await close(doors, gateway)
        status, answer = await forget(doors, "gw-1")
        assert status == 409
        assert "1 users online" in answer["error"]
        other = await rig.gateway("gw-2")
        await other.apply(["login", ["u"], {"age": 0}], ["logout", ["u"]])
        status, answer = await forget(doors, "gw-1")
        assert (status, answer["name"], answer["users"]) == (200, "gw-1", 0)
        # On disk when it is answered, so that a crash changes nothing of it.
        names = disk.rows(rig.store.path, "select name from cursors")
        assert names == [("gw-2",)]
        assert (await forget(doors, "gw-1"))[0] == 404
    async with running(tmp_path) as rig:
        doors = Doors(rig)
        for door in DOORS:
            found = await doors.listed(GATEWAYS, door)
            assert [gateway["name"] for gateway in found] == ["gw-2"]
        # What was decided before is delivered to nobody.
        again = await rig.gateway("gw-1", kinds=["online", "offline", "moved"])
        await again.sync()
        assert again.received() == []


async def test_a_body_that_names_no_gateway_is_refused(doors: Doors) -> None:
    body = b'{"role": "king", "name": "x"}'
    answer = await doors.ask("admin", "POST", f"{GATEWAYS}/forget", body)
    assert answer.status == 400
    assert answer.error
