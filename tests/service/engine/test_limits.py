"""How many users there may be, and what links that share the hand take of its time."""

from typing import Any

import pytest

from liveness.service.engine import engine_shell
from liveness.service.links.link_socket import PIECE_BYTES
from tests.service.rig import Caller, Rig


async def refusal(caller: Caller, limit: str) -> Any:
    """The next frame, which must be an error for too many users by this limit."""
    (error,) = await caller.expect("error")
    assert (error["code"], error["fatal"]) == ("too-many-users", False)
    assert limit in error["message"]
    return error


def met(rig: Rig) -> dict[str, int]:
    """Which limits were met by now, and how often."""
    return {name: count for name, count in rig.counts.limits_met.items() if count}


@pytest.mark.rig(max_handshakes=2)
async def test_only_the_hello_of_a_crowd_is_read_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a pass whose time for reading is used up.
    monkeypatch.setattr(engine_shell, "OTHERS_S", -1.0)
    talker = await rig.connect()
    await talker.send(["hello", {"protocol": 1, "name": "talker"}])
    await talker.send(*[["ping", number] for number in range(4 * PIECE_BYTES)])
    (link,) = rig.engine.shell.sockets.values()
    sent = link.unread()
    assert sent > 4 * PIECE_BYTES
    for _ in range(3):
        await rig.connect()
    await talker.expect("welcome")
    assert link.unread() == sent - PIECE_BYTES


async def test_watchers_take_no_time_from_gateways(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if those before them had used up all their time.
    monkeypatch.setattr(engine_shell, "OTHERS_S", -1.0)
    gateway = await rig.connect()
    await gateway.send(["hello", {"protocol": 1, "name": "gw", "ping": 1}])
    assert await gateway.is_told_nothing(1)
    monkeypatch.setattr(engine_shell, "OTHERS_S", 0.001)
    await gateway.expect("welcome")
    watcher = await rig.watcher()
    monkeypatch.setattr(engine_shell, "OTHERS_S", -1.0)
    await watcher.send(["ping", 1])
    await gateway.sync()
    assert await watcher.is_told_nothing(1)
    monkeypatch.setattr(engine_shell, "OTHERS_S", 0.001)
    await watcher.expect("pong")


@pytest.mark.rig(max_gateway_users=3, max_refused=1)
async def test_users_of_a_gateway_are_at_most_so_many(rig: Rig) -> None:
    gateway = await rig.gateway_of(["a", "b", "c"], "full")
    for _ in range(3):  # it is no fault, so it ends no link
        await gateway.send(["login", ["a", "d", "b", "e"]])
        told = await refusal(gateway, "limits.max_gateway_users")
        assert (told["frame"], told["index"]) == ("login", 1)
        assert "2 of these users" in told["message"]
    assert met(rig) == {"limits.max_gateway_users": 3}
    assert rig.presence.ignored["no_room"] == 6
    # One of another gateway's cannot be moved here either, and stays where it is.
    await rig.gateway_of(["x"], "other")
    await gateway.send(["login", "x"])
    told = await refusal(gateway, "limits.max_gateway_users")
    assert told["index"] == 0
    assert rig.presence.where(["x"])[0][1] == "other"
    # A keepalive opens no session beyond the bound; as soon as there is room it does.
    await gateway.apply(["keepalive", "d"])
    assert rig.presence.where(["d"]) == []
    await gateway.apply(["logout", "a"], ["keepalive", "d"])
    assert [row[0] for row in rig.presence.where(["a", "d"])] == ["d"]


@pytest.mark.rig(max_users=2)
async def test_users_of_all_gateways_are_bounded_and_may_still_move(rig: Rig) -> None:
    await rig.gateway_of(["a", "b"], "one")
    two = await rig.gateway("two")
    await two.send(["login", ["c", "b"]])
    told = await refusal(two, "limits.max_users")
    assert told["index"] == 0
    assert [record["kind"] for record in await two.records(1)] == ["moved"]
    assert met(rig) == {"limits.max_users": 1}
    found = {row[0]: row[1] for row in rig.presence.where(["a", "b", "c"])}
    assert found == {"a": "one", "b": "two"}
