"""Which of some users are online, and why: their pages, as memory and log have them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.parse import quote

import pytest
import trio

from liveness.config.settings import PresenceSettings
from liveness.service.http.users_api import MAX_RECORDS, MOST_UIDS, WHERE, WHERE_BYTES
from liveness.service.storage.database import connect
from liveness.text import uid_text
from tests.helpers import disk
from tests.service.http.asgi import Answer
from tests.service.http.doors import Doors
from tests.service.rig import Rig


async def user(rig: Rig, uid: str | int) -> dict[str, Any]:
    answer = await ask_for(rig, quote(uid_text(uid), safe=""))
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def ask_for(rig: Rig, name: str) -> Answer:
    return await Doors(rig).get(f"/v1/users/{name}")


async def test_a_user_is_shown_from_login_to_silence(rig: Rig) -> None:
    gateway = await rig.gateway("gw-1")
    assert (await user(rig, "eve"))["told"] == "never heard of: the log is empty"
    await gateway.apply(["login", "eve", {"conn": 4}])
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
    await rig.until(lambda: rig.log_writer.durable_seq == 2)
    found = await user(rig, "eve")
    assert [record["kind"] for record in found.pop("records")] == ["offline", "online"]
    assert " after 30.0 s of silence; last heard: login at " in found.pop("told")
    assert found == {
        "uid": "eve", "online": False, "looked_back_to": None,
        **dict.fromkeys(("gateway", "session", "conn", "last", "seen", "slot")),
        **dict.fromkeys(("layer", "fires_in", "held", "timeout")),
    }  # fmt: skip


@pytest.mark.rig(presence=PresenceSettings(device_separator="/"))
async def test_a_user_is_shown_with_all_devices(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada/a", "ada/b"], "gw-1")
    ada = await user(rig, "ada")
    assert (ada["online"], ada["session"], ada["user"]) == (True, None, "ada")
    assert ada["devices_online"] == 2
    sessions = [(it["uid"], it["gateway"], it["session"]) for it in ada["devices"]]
    assert sessions == [("ada/a", "gw-1", 1), ("ada/b", "gw-1", 2)]
    assert [record["uid"] for record in ada["records"]] == ["ada/b", "ada/a"]
    assert ada["told"].startswith("online with 2 devices; ada/b through gw-1, last")
    phone = await user(rig, "ada/a")
    assert (phone["session"], phone["user"], phone["devices_online"]) == (1, "ada", 2)
    assert phone["told"].startswith("online through gw-1; ")
    await gateway.apply(["logout", ["ada/a", "ada/b"]])
    ada = await user(rig, "ada")
    assert (ada["online"], ada["devices_online"], ada["devices"]) == (False, 0, [])
    assert " by a logout through gw-1" in ada["told"]


@pytest.mark.rig(pause_firing=100)
async def test_a_held_user_is_shown_with_the_reason(rig: Rig) -> None:
    await rig.gateway_of("eve", "gw-1", ping=1.0)
    await rig.until(lambda: len(rig.firing.due_gateways()) == 1)
    found = await user(rig, "eve")
    assert (found["held"], found["slot"], found["fires_in"]) == ("mute", None, 0.0)
    assert "; held: gw-1 sends nothing at all" in found["told"]
    rig.log_writer.pending_ends += 100  # as behind a disk that takes nothing
    assert (await user(rig, "eve"))["held"] == "disk"
    rig.log_writer.pending_ends -= 100
    rig.attended.pause(0.0)
    assert (await user(rig, "eve"))["held"] == "stands"


async def test_a_session_is_shown_once_it_is_on_disk(rig: Rig) -> None:
    gateway = await rig.gateway("gw-1")
    with disk.locked(rig.store.path):
        await gateway.send(["login", "eve"])
        await rig.until(lambda: len(rig.presence) == 1)
        found, row = await user(rig, "eve"), await where(rig, "eve")
    assert (found["online"], found["gateway"]) == (True, "gw-1")
    assert (found["session"], found["records"]) == (None, [])
    expected = {"uid": "eve", "gateway": "gw-1", "session": None, "conn": None}
    assert row == {"users": [expected], "log": rig.store.log, "seq": 0}
    await gateway.sync()
    assert (await user(rig, "eve"))["session"] == 1


async def test_a_conn_beyond_2_53_keeps_its_digits(rig: Rig) -> None:
    conn, newer = 2**53 + 1, 2**63 - 1
    gateway = await rig.gateway("gw-1")
    await gateway.send(["login", "eve", {"conn": conn}])
    await gateway.send(["login", "eve", {"conn": newer}])
    await gateway.sync()
    found = await user(rig, "eve")
    assert found["conn"] == f"int:{newer}"
    assert f"(connection {newer})" in found["told"]
    moved, online = found["records"]
    assert (moved["conn"], moved["from_conn"]) == (f"int:{newer}", f"int:{conn}")
    assert online["conn"] == f"int:{conn}"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "'' is no uid"),
        ("int:9223372036854775808", "N from 0 to 2^63-1"),
        ("%ff", "it is not UTF-8"),
        (f"eve?limit={MAX_RECORDS + 1}", f"1 to {MAX_RECORDS}"),
        ("eve?before=3", "it may have limit"),
    ],
)
async def test_a_path_of_no_user_is_refused(rig: Rig, name: str, told: str) -> None:
    answer = await ask_for(rig, name)
    assert answer.status == 400
    assert told in answer.error


async def test_a_log_that_cannot_be_read_is_reported_alone(rig: Rig) -> None:
    gateway = await rig.gateway_of("eve")
    with closing(connect(rig.store.path)) as db:
        db.execute("alter table log rename to gone")
    answer = await ask_for(rig, "eve")
    assert answer.status == 503
    assert "the log cannot be read (no such table" in answer.error
    await gateway.sync()


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
async def test_where_shows_a_user_by_each_device(rig: Rig) -> None:
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
