"""The storm guard's pages: the held users, and their release."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from liveness.config.settings import GuardSettings
from tests.service.http.asgi import Answer, ask
from tests.service.rig import Rig, running

GUARDED: Final = GuardSettings(enabled=True, least_users=20, hold_s=600)


@asynccontextmanager
async def storm(folder: Path) -> AsyncIterator[Rig]:
    """A service that holds the 40 users of `gw-1`; those of `calm` are none."""
    async with running(folder, guard=GUARDED) as rig:
        await rig.gateway("calm")
        gateway = await rig.gateway("gw-1")
        await gateway.apply(["login", [f"u{n}" for n in range(40)]])
        await trio.sleep(31)
        yield rig


async def get(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (await ask(rig.door("admin"), "GET", "/v1/guard")).body
    )
    return found


async def release(rig: Rig, body: bytes) -> Answer:
    return await ask(rig.door("admin"), "POST", "/v1/guard/release", pieces=[body])


async def test_a_storm_is_shown_and_released_by_the_name_of_its_gateway(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with storm(tmp_path) as rig:
        found = await get(rig)
        assert (found["enabled"], found["more"]) == (True, 0)
        (held,) = found["storms"]
        assert (held["gateway"], held["users"]) == ("gw-1", 40)
        assert 598 < held["left_s"] < 600
        answer = await release(rig, b'{"gateway": "gw-1"}')
        assert json.loads(answer.body)["storms"][0]["users"] == 40
        await rig.until(lambda: rig.firing.ended["silence"] == 40, within_s=1)
        assert await get(rig) == {"enabled": True, "storms": [], "more": 0}
        answer = await release(rig, b"{}")
        assert json.loads(answer.body) == {"storms": [], "more": 0}


@pytest.mark.parametrize("name", ["calm", "nobody", "-x"])
async def test_to_release_a_gateway_whose_users_are_not_held_is_an_error(
    tmp_path: Path, jumping: MockClock, name: str
) -> None:
    async with storm(tmp_path) as rig:
        answer = await release(rig, json.dumps({"gateway": name}).encode())
        assert answer.status == 404
        assert answer.error == (
            f"no users of '{name}' are held by a storm; `liveness status` shows the storms"
        )
        assert (await get(rig))["storms"][0]["users"] == 40


@pytest.mark.parametrize("body", [b"{}", b'{"gateway": "gw-1"}'])
async def test_without_a_guard_a_release_says_how_to_have_one(
    tmp_path: Path, jumping: MockClock, body: bytes
) -> None:
    async with running(tmp_path) as rig:
        answer = await release(rig, body)
        assert answer.status == 409
        assert answer.error == (
            "the storm guard is off and holds nobody; to turn it on, set "
            "guard.enabled, and restart the sidecar"
        )
        assert await get(rig) == {"enabled": False, "storms": [], "more": 0}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"gateway": null}',
        b'{"gateway": ""}',
        b'{"gateway": "a\\n"}',
        b'{"gateway": 7}',
        b'{"name": "gw-1"}',
    ],
)
async def test_a_bad_body_is_refused_and_releases_nobody(
    tmp_path: Path, jumping: MockClock, body: bytes
) -> None:
    async with storm(tmp_path) as rig:
        answer = await release(rig, body)
        assert answer.status == 400
        assert "must be" in answer.error
        assert (await get(rig))["storms"][0]["users"] == 40


@pytest.mark.parametrize(
    ("door", "method", "path"),
    [
        ("http", "POST", "/v1/guard/release"),
        ("http", "POST", "/v1/guard"),
        ("admin", "GET", "/v1/guard/release"),
    ],
)
async def test_a_release_takes_a_post_by_the_admin_socket(
    tmp_path: Path, jumping: MockClock, door: str, method: str, path: str
) -> None:
    async with running(tmp_path) as rig:
        gate = rig.sidecar.http.app(door, lambda _: None)
        answer = await ask(gate, method, path)
        assert answer.status == 405
        if door == "admin":
            assert answer.error.startswith(
                "GET is not for this page; docs/http-api.md has"
            )
