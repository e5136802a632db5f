"""Each limit: up to it, all is served; one more is refused with its name, and counted."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
import trio

from liveness.core.links.conversation import HELLO_BYTES
from liveness.core.wire.framing import BATCHES_OF_VALUES, encode
from liveness.service.engine import engine_shell
from liveness.service.links.link_socket import LINGER_S, PIECE_BYTES
from tests.service.rig import Caller, Rig

N: Final = 8


async def refusal(caller: Caller, code: str, limit: str = "", *, fatal: bool) -> Any:
    """The next frame, which must be this error, and at its end the stream's if fatal."""
    (error,) = await caller.expect("error")
    assert (error["code"], error["fatal"]) == (code, fatal)
    assert limit in error["message"]
    if fatal:
        assert await caller.receive() is None
    return error


def met(rig: Rig) -> dict[str, int]:
    """Which limits were met by now, and how often."""
    return {name: count for name, count in rig.counts.limits_met.items() if count}


def can_go(rig: Rig, name: str) -> bool:
    """Whether a gateway can be forgotten."""
    return rig.registry.why_in_use("gateway", name) is None


# --- links --------------------------------------------------------------------


@pytest.mark.rig(max_links=50, max_handshakes=10)
async def test_a_crowd_that_says_nothing_keeps_nobody_out(rig: Rig) -> None:
    before = await rig.gateway("before")
    for number in range(500):
        await rig.connect()
        if number % 100 == 0:
            await (await rig.gateway(f"gw-{number}")).sync()
    await before.sync()
    await (await rig.gateway("behind")).sync()
    assert len(rig.registry.links) <= 7 + 10
    assert "limits.max_links" not in met(rig)


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


async def test_a_new_link_is_read_after_those_that_waited_longer(rig: Rig) -> None:
    await (await rig.gateway("before")).sync()
    await trio.sleep(1)
    await rig.connect()
    await rig.until(lambda: len(rig.registry.links) == 2)
    before, newcomer = rig.registry.links.values()
    assert before.read_at < newcomer.read_at


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


@pytest.mark.rig(hello_s=3)
async def test_a_link_without_a_hello_in_time_is_closed(rig: Rig) -> None:
    slow = await rig.connect()
    assert await slow.is_told_nothing(2.9)
    began = trio.current_time()
    await refusal(slow, "too-slow", "limits.hello_s", fatal=True)
    assert trio.current_time() - began <= 1.2
    assert met(rig) == {"limits.hello_s": 1}


@pytest.mark.rig(max_names=1)
async def test_forgetting_a_name_makes_room_for_another(rig: Rig) -> None:
    (await rig.gateway("a")).close()
    one_more = await rig.connect()
    await one_more.send(["hello", {"protocol": 1, "name": "b"}])
    error = await refusal(one_more, "overloaded", "limits.max_names", fatal=True)
    assert "gateways forget" in error["message"]
    await rig.until(partial(can_go, rig, "a"))
    rig.engine.forget("gateway", "a")
    await (await rig.gateway("b")).sync()


# --- users --------------------------------------------------------------------


@pytest.mark.rig(max_gateway_users=3, max_refused=1)
async def test_users_of_a_gateway_are_at_most_so_many(rig: Rig) -> None:
    gateway = await rig.gateway_of(["a", "b", "c"], "full")
    for _ in range(3):  # it is no fault, so it ends no link
        await gateway.send(["login", ["a", "d", "b", "e"]])
        told = await refusal(
            gateway, "too-many-users", "limits.max_gateway_users", fatal=False
        )
        assert (told["frame"], told["index"]) == ("login", 1)
        assert "2 of these users" in told["message"]
    assert met(rig) == {"limits.max_gateway_users": 3}
    assert rig.presence.ignored["no_room"] == 6
    # One of another gateway's cannot be moved here either, and stays where it is.
    await rig.gateway_of(["x"], "other")
    await gateway.send(["login", "x"])
    told = await refusal(gateway, "too-many-users", fatal=False)
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
    told = await refusal(two, "too-many-users", "limits.max_users", fatal=False)
    assert told["index"] == 0
    assert [record["kind"] for record in await two.records(1)] == ["moved"]
    assert met(rig) == {"limits.max_users": 1}
    found = {row[0]: row[1] for row in rig.presence.where(["a", "b", "c"])}
    assert found == {"a": "one", "b": "two"}


# --- frames -------------------------------------------------------------------


def batch_of(size: int) -> list[Any]:
    return ["login", [f"u{n}" for n in range(size)]]


def ping_of_bytes(size: int) -> list[Any]:
    return ["ping", "x" * (size - 9)]  # 9 bytes are not of the text


def ping_of_values(size: int) -> list[Any]:
    return ["ping", [0] * (size - 2)]


@pytest.mark.rig(max_batch=100, max_frame_bytes=9_000)
@pytest.mark.parametrize(
    ("limit", "most", "code", "fatal", "frame"),
    [
        ("max_batch", 100, "bad-frame", False, batch_of),
        ("max_batch", 100 * BATCHES_OF_VALUES, "too-large", True, ping_of_values),
        ("max_frame_bytes", 9_000, "too-large", True, ping_of_bytes),
    ],
)
async def test_a_frame_is_at_most_so_large(
    rig: Rig,
    limit: str,
    most: int,
    code: str,
    fatal: bool,
    frame: Callable[[int], list[Any]],
) -> None:
    gateway = await rig.gateway("gw")
    await gateway.send(frame(most))
    if frame is not batch_of:
        await gateway.expect("pong")
    await gateway.sync()
    assert met(rig) == {}
    await gateway.send(frame(most + 1))
    await refusal(gateway, code, str(most), fatal=fatal)
    assert met(rig) == {f"limits.{limit}": 1}


async def test_a_hello_has_a_bound_of_its_own(rig: Rig) -> None:
    hello = {"protocol": 1, "name": "later", "since": "x" * (HELLO_BYTES - 50)}
    stranger = await rig.connect()
    await stranger.send_bytes(encode(["hello", "x" * 2 * HELLO_BYTES])[:HELLO_BYTES])
    assert await stranger.is_told_nothing(1)
    await stranger.send_bytes(b"x")
    expected = f"hello, of at most {HELLO_BYTES} bytes"
    await refusal(stranger, "too-large", expected, fatal=True)
    assert met(rig) == {}  # it is no setting's bound
    # One that fits is taken, and what comes behind it may be larger.
    caller = await rig.connect()
    await caller.send(["hello", hello], ["ping", "x" * 2 * HELLO_BYTES])
    await caller.expect("welcome")
    await caller.expect("pong")


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param("max_replies", marks=pytest.mark.rig(max_replies=20)),
        pytest.param(
            "max_reply_bytes",
            marks=pytest.mark.rig(max_replies=100_000, max_reply_bytes=1 << 16),
        ),
    ],
)
@pytest.mark.parametrize("reads_at_last", [True, False])
async def test_a_gateway_that_reads_no_replies_is_sent_away(
    rig: Rig, limit: str, reads_at_last: bool
) -> None:
    rude, other = await rig.gateway("rude"), await rig.gateway("other")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rude.send, *(["ping", "x" * 60_000] for _ in range(60)))
        await rig.until(lambda: rig.counts.refused["overloaded"], 5)
        assert met(rig) == {f"limits.{limit}": 1}
        if reads_at_last:
            while (frame := await rude.receive()) and frame[0] == "pong":
                pass
            assert frame is not None
            assert (frame[0], frame[1]["code"]) == ("error", "overloaded")
            assert await rude.receive() is None
        else:
            took = await rig.until(lambda: len(rig.registry.links) == 1)
            assert took <= 2 * LINGER_S + 0.1
        nursery.cancel_scope.cancel()
    await other.sync()
    await (await rig.gateway("rude")).sync()
