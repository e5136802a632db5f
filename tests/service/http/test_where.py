"""`POST /v1/where`: which of some users are online, for every reader."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from liveness.config.settings import PresenceSettings
from liveness.service.http.users_api import MOST_UIDS, WHERE, WHERE_BYTES
from tests.helpers import disk
from tests.service.http.asgi import Answer
from tests.service.http.doors import Doors
from tests.service.rig import Rig


async def asked(rig: Rig, body: bytes) -> Answer:
    return await Doors(rig).ask("http", "POST", WHERE, body)


async def where(rig: Rig, *uids: object) -> dict[str, Any]:
    answer = await asked(rig, json.dumps({"uids": uids}).encode())
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[None]]:
    """One item for each turn that another task gets meanwhile."""
    turns: list[None] = []

    async def count() -> None:
        while True:
            turns.append(None)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        yield turns
        nursery.cancel_scope.cancel()


async def test_those_online_are_shown_once_in_the_order_asked_for(rig: Rig) -> None:
    gateway = await rig.gateway("gw-1")
    await gateway.apply(["login", ["ada", 7, 2**63 - 1], {"conn": [4, None, None]}])
    found = await where(rig, "eve", "int:7", "ada", "7", 7, f"int:{2**63 - 1}")
    rows = [(7, 2, None), ("ada", 1, 4), (f"int:{2**63 - 1}", 3, None)]
    assert found.pop("users") == [
        {"uid": uid, "gateway": "gw-1", "session": session, "conn": conn}
        for uid, session, conn in rows
    ]
    assert found == {"log": rig.store.log, "seq": 3}
    assert (await where(rig))["users"] == []


@pytest.mark.rig(presence=PresenceSettings(device_separator="/"))
async def test_a_user_is_shown_by_each_device(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada/a", "ada/b", "eve/a"])
    found = await where(rig, "ada", "eve/a", "ada/b")
    assert [row["uid"] for row in found["users"]] == ["ada/a", "ada/b", "eve/a"]
    for part in range(3):
        await gateway.send(["login", [f"many/{part}-{n}" for n in range(4_000)]])
    await gateway.sync()
    answer = await asked(rig, b'{"uids": ["ada", "many"]}')
    assert answer.status == 413
    assert b"more than 10000 devices online; ask for fewer" in answer.body
    await gateway.apply(["logout", [f"many/2-{n}" for n in range(4_000)]])
    async with counted_turns() as turns:
        found = await where(rig, "many")
    assert len(found["users"]) == 8_000
    assert len(turns) > 12, "sixteen steps to write the rows"


async def test_a_session_is_shown_once_it_is_on_disk(rig: Rig) -> None:
    gateway = await rig.gateway("gw-1")
    with disk.locked(rig.store.path):
        await gateway.send(["login", "eve"])
        await rig.until(lambda: len(rig.presence) == 1)
        found = await where(rig, "eve")
    row = {"uid": "eve", "gateway": "gw-1", "session": None, "conn": None}
    assert found == {"users": [row], "log": rig.store.log, "seq": 0}


async def test_the_most_uids_are_taken_and_others_get_their_turn_meanwhile(
    rig: Rig,
) -> None:
    gateway = await rig.gateway("gw-1")
    for start in range(0, MOST_UIDS, 2_000):
        await gateway.send(["login", [*range(start, start + 2_000)]])
    await gateway.sync()
    async with counted_turns() as turns:
        found = await where(rig, *range(MOST_UIDS))
    assert len(found["users"]) == MOST_UIDS
    assert len(turns) > 20, "twenty steps to read the uids, and as many to answer"
    longest = [f"{n:0255}" for n in range(MOST_UIDS)]
    assert len(json.dumps({"uids": longest})) < WHERE_BYTES
    assert (await where(rig, *longest))["users"] == []


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"[" * 100_000, 400, 'exactly this key: {"uids": [...]}'),
        (b'{"uids": "ada"}', 400, "exactly this key"),
        (b'{"uids": [], "more": 1}', 400, "exactly this key"),
        ('{"uids": ["ada"]}'.encode("utf-16"), 400, "exactly this key"),
        (b'{"uids": ["ada", true]}', 400, "uids[1]: True is no uid"),
        # Not converted as a whole, which would take long: any integer so long is no uid.
        (b'{"uids": [' + b"9" * 5_000 + b"]}", 400, "uids[0]: "),
        (b'{"uids": [' + b"1," * MOST_UIDS + b"1]}", 413, "more than 10000 uids"),
        # Counted before they are parsed: the error at the end of this JSON is not found.
        (b'{"uids": [' + b"[]," * (MOST_UIDS + 1), 413, "more than 10000 uids"),
        (b'{"uids": ["' + b"," * 2 * MOST_UIDS + b'"]}', 400, "uids[0]: "),
        (b" " * (WHERE_BYTES + 1), 413, f"more than {WHERE_BYTES} bytes; send less"),
    ],
    ids=[
        *("nested", "text", "more keys", "utf-16", "boolean", "many digits"),
        *("too many", "no uids", "commas", "too long"),
    ],
)
async def test_what_names_no_users_is_refused(
    rig: Rig, body: bytes, status: int, told: str
) -> None:
    answer = await asked(rig, body)
    assert (answer.status, told in answer.error) == (status, True), answer.error
