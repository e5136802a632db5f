"""One user's page: what memory and log have of it, as it was a moment ago."""

import json
from contextlib import closing
from typing import Any
from urllib.parse import quote, unquote

import pytest

from liveness.config.settings import PresenceSettings
from liveness.service.http.users_api import MAX_RECORDS
from liveness.service.storage.database import connect
from liveness.text import uid_text
from tests.helpers import disk
from tests.service.http.asgi import Answer, ask
from tests.service.http.doors import validate_answer
from tests.service.rig import Rig


async def user(rig: Rig, uid: str | int, query: str = "") -> dict[str, Any]:
    answer = await ask_for(rig, f"{quote(uid_text(uid), safe='')}{query}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def ask_for(rig: Rig, name: str) -> Answer:
    """As a server has it: the path read, and beside it the bytes that came."""

    async def with_path(scope: Any, receive: Any, send: Any) -> None:
        path = unquote(scope["raw_path"].decode())
        await rig.door()({**scope, "path": path}, receive, send)

    answer = await ask(with_path, "GET", f"/v1/users/{name}")
    validate_answer("GET", f"/v1/users/{name}", answer)
    return answer


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
        found = await user(rig, "eve")
    assert (found["online"], found["gateway"]) == (True, "gw-1")
    assert (found["session"], found["records"]) == (None, [])
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


async def test_as_many_records_as_asked_for_come_newest_first(rig: Rig) -> None:
    gateway = await rig.gateway("gw-1")
    for _ in range(15):
        await gateway.send(["login", "eve"], ["logout", "eve"])
    await gateway.sync()
    seqs = [record["seq"] for record in (await user(rig, "eve"))["records"]]
    assert seqs == [*range(30, 10, -1)]
    found = await user(rig, "eve", "?limit=3")
    assert [record["seq"] for record in found["records"]] == [30, 29, 28]
    assert found["looked_back_to"]["seq"] == 28


async def test_a_log_that_cannot_be_read_is_reported_alone(rig: Rig) -> None:
    gateway = await rig.gateway_of("eve")
    with closing(connect(rig.store.path)) as db:
        db.execute("alter table log rename to gone")
    answer = await ask_for(rig, "eve")
    assert answer.status == 503
    assert "the log cannot be read (no such table" in answer.error
    await gateway.sync()
