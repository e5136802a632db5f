"""Each limit: what is at it is served, one more is told so, by name, and counted."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from liveness.config import SETTINGS
from liveness.core.link import HELLO_BYTES
from liveness.core.wire import BATCHES_OF_VALUES, encode
from liveness.metrics import LIMITS
from liveness.service import engine
from liveness.service.links import PIECE_BYTES
from tests.service.rig import Caller, Rig, running

N: Final = 8
# Bounds at which nothing is refused: they choose a pace, or what is kept in memory.
# Bounds of other sections at which something is refused, and counted by its name.
ELSEWHERE: Final = {
    "timers.max_live",
    "timers.max_pending",
    "http.max_streams",
    "http.max_backlog",
}
PACES: Final = {
    "limits.gateway_hold_s",
    "limits.window",
    "limits.tail",
}


async def refusal(caller: Caller) -> dict[str, Any]:
    """The next frame, which must be an error."""
    (told,) = await caller.expect("error")
    answer: dict[str, Any] = told
    return answer


async def is_over(caller: Caller) -> bool:
    """Whether nothing more comes."""
    return await caller.receive() is None


def met(rig: Rig) -> dict[str, int]:
    """Which limits were met by now, and how often."""
    return {name: count for name, count in rig.counts.limits_met.items() if count}


def test_every_limit_is_a_setting_and_every_such_setting_is_counted() -> None:
    settings = {setting.name for setting in SETTINGS if setting.section == "limits"}
    assert {*LIMITS} == (settings - PACES) | ELSEWHERE
    assert settings >= PACES


def can_go(rig: Rig, name: str) -> bool:
    """Whether a gateway can be forgotten."""
    return rig.engine.why_kept("gateway", name) is None


# --- links --------------------------------------------------------------------


async def test_links_that_say_no_hello_are_at_most_so_many_and_the_oldest_go(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_handshakes=N) as rig:
        strangers = [await rig.connect() for _ in range(N)]
        assert await strangers[0].is_told_nothing(1)
        strangers.append(await rig.connect())
        gone, stayed = strangers[:3], strangers[3:]  # a quarter of them, and the one
        for one in gone:
            told = await refusal(one)
            assert (told["code"], told["fatal"], told["n"]) == ("overloaded", True, 0)
            assert f"{N} links" in told["message"]
            assert "limits.max_handshakes" in told["message"]
            assert await is_over(one)
        assert met(rig) == {"limits.max_handshakes": 3}
        for number, one in enumerate(stayed):
            await one.hello(f"gw-{number}")


async def test_whoever_has_said_hello_is_not_one_of_the_oldest(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_handshakes=2) as rig:
        eager = await rig.connect()
        await eager.send(["hello", {"protocol": 1, "name": "eager"}])
        # Its hello lies unread, and others have come by the time it would be.
        for _ in range(20):
            await rig.connect()
        await eager.expect("welcome")
        assert await eager.is_told_nothing(1)


async def test_a_crowd_that_says_nothing_keeps_nobody_out(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_links=50, max_handshakes=10) as rig:
        before = await rig.gateway("before")
        for number in range(500):
            await rig.connect()
            if number % 100 == 0:
                await (await rig.gateway(f"gw-{number}")).settle()
        await before.settle()
        await (await rig.gateway("behind")).settle()
        assert len(rig.engine.book.links) <= 7 + 10
        assert "limits.max_links" not in met(rig)


async def test_of_a_crowd_no_more_is_read_than_where_a_hello_is(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a pass whose time for reading is used up.
    monkeypatch.setattr(engine, "OTHERS_S", -1.0)
    async with running(tmp_path, max_handshakes=2) as rig:
        talker = await rig.connect()
        await talker.send(["hello", {"protocol": 1, "name": "talker"}])
        await talker.send(*[["ping", number] for number in range(4 * PIECE_BYTES)])
        (link,) = rig.engine.book.links.values()
        sent = link.unread()
        assert sent > 4 * PIECE_BYTES
        for _ in range(3):
            await rig.connect()
        await talker.expect("welcome")
        assert link.unread() == sent - PIECE_BYTES


async def test_newcomers_are_read_behind_those_who_have_waited_for_longer(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        await (await rig.gateway("before")).settle()
        await trio.sleep(1)
        await rig.connect()
        await rig.until(lambda: len(rig.engine.book.links) == 2)
        before, newcomer = rig.engine.book.links.values()
        assert before.read_at < newcomer.read_at


async def test_watchers_take_no_time_from_gateways(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if those before them had used up all their time.
    monkeypatch.setattr(engine, "OTHERS_S", -1.0)
    async with running(tmp_path) as rig:
        gateway = await rig.connect()
        await gateway.send(["hello", {"protocol": 1, "name": "gw", "ping": 1}])
        assert await gateway.is_told_nothing(1)
        monkeypatch.setattr(engine, "OTHERS_S", 0.001)
        await gateway.expect("welcome")
        watcher = await rig.watcher()
        monkeypatch.setattr(engine, "OTHERS_S", -1.0)
        await watcher.send(["ping", 1])
        await gateway.settle()
        assert await watcher.is_told_nothing(1)
        monkeypatch.setattr(engine, "OTHERS_S", 0.001)
        await watcher.expect("pong")


async def test_a_late_hello_is_counted_with_its_limit(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, hello_s=3) as rig:
        slow = await rig.connect()
        assert await slow.is_told_nothing(2.9)
        told = await refusal(slow)
        assert told["code"] == "too-slow"
        assert "limits.hello_s" in told["message"]
        assert met(rig) == {"limits.hello_s": 1}


async def test_gateways_are_at_most_so_many_and_watchers_are_none_of_them(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_gateways=N) as rig:
        gateways = [await rig.gateway(f"gw-{number}") for number in range(N)]
        await rig.watcher()
        one_more = await rig.connect()
        await one_more.send(["hello", {"protocol": 1, "name": "gw-more"}])
        told = await refusal(one_more)
        assert (told["code"], told["fatal"]) == ("overloaded", True)
        assert f"{N} gateways" in told["message"]
        assert "limits.max_gateways" in told["message"]
        assert met(rig) == {"limits.max_gateways": 1}
        # One that comes back under its name is not one more.
        await rig.gateway("gw-0")
        gateways[1].close()
        await rig.until(lambda: rig.engine.book.linked("gateway") == N - 1)
        await (await rig.gateway("gw-more")).settle()


async def test_names_are_at_most_so_many_and_one_that_is_forgotten_makes_room(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_names=2) as rig:
        (await rig.gateway("a")).close()
        await rig.watcher("b", ack=True)
        await rig.watcher("unkept")
        one_more = await rig.connect()
        await one_more.send(["hello", {"protocol": 1, "name": "c"}])
        told = await refusal(one_more)
        assert told["code"] == "overloaded"
        assert "limits.max_names" in told["message"]
        assert "gateways forget" in told["message"]
        assert met(rig) == {"limits.max_names": 1}
        await rig.until(partial(can_go, rig, "a"))
        assert rig.engine.why_kept("watcher", "b") == "is connected; stop it first"
        rig.engine.forget("gateway", "a")
        await (await rig.gateway("c")).settle()
        rows = rig.store._db.execute("select role, name from cursors order by role")
        assert rows.fetchall() == [("gateway", "c"), ("watcher", "b")]


async def test_a_gateway_that_is_forgotten_leaves_nothing_in_memory(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=5) as rig:
        for number in range(30):
            gateway = await rig.gateway("gw", timeout=5 + number)
            other = await rig.gateway(f"gw-{number}", timeout=7)
            await other.send(["login", [f"u-{number}"]], ["ping", 1])
            await other.expect("pong")
            await other.send(["logout", [f"u-{number}"]])
            await other.settle()
            other.close()
            name = f"gw-{number}"
            await rig.until(partial(can_go, rig, name))
            rig.engine.forget("gateway", name)
            await rig.until(lambda: len(rig.presence.gateways) == 1)
        assert rig.presence.gateway("one more").number <= 2
        # Whoever gets a number that was another's has none of its ways.
        newcomer = await rig.gateway("newcomer")
        await newcomer.send(["login", ["silent"]])
        (record,) = await newcomer.records(1)
        assert (record["uid"], record["reason"]) == ("silent", "silence")
        assert 5 <= record["silence"] < 5.1
        gateway.close()


async def test_a_name_with_users_is_kept_until_they_are_gone(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=5) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(["login", ["u"]])
        await gateway.settle()
        gateway.close()
        await rig.until(lambda: not rig.engine.book.named)
        assert "1 users online" in (rig.engine.why_kept("gateway", "gw") or "")
        await rig.until(partial(can_go, rig, "gw"))


# --- users --------------------------------------------------------------------


async def test_users_of_a_gateway_are_at_most_so_many(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_gateway_users=3, max_refused=1) as rig:
        gateway, other = await rig.gateway("full"), await rig.gateway("other")
        await gateway.send(["login", ["a", "b", "c"]])
        await gateway.settle()
        for _ in range(3):  # it is no fault, so it ends no link
            await gateway.send(["login", ["a", "d", "b", "e"]])
            told = await refusal(gateway)
            assert (told["code"], told["fatal"]) == ("too-many-users", False)
            assert (told["frame"], told["index"], told["n"]) == ("login", 1, told["n"])
            assert "2 of these users" in told["message"]
            assert "limits.max_gateway_users" in told["message"]
        assert met(rig) == {"limits.max_gateway_users": 3}
        assert rig.presence.ignored["no_room"] == 6
        # One of another gateway's cannot be moved here either, and stays where it is.
        await other.send(["login", ["x"]])
        await other.settle()
        await gateway.send(["login", "x"])
        assert (await refusal(gateway))["index"] == 0
        assert rig.presence.where(["x"])[0][1] == "other"
        # A sign of life opens no session beyond the bound; as soon as there is room it does.
        await gateway.send(["keepalive", "d"])
        await gateway.settle()
        assert rig.presence.where(["d"]) == []
        await gateway.send(["logout", "a"], ["keepalive", "d"])
        await gateway.settle()
        assert [row[0] for row in rig.presence.where(["a", "d"])] == ["d"]


async def test_users_of_all_gateways_are_at_most_so_many_and_may_still_move(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_users=2) as rig:
        one, two = await rig.gateway("one"), await rig.gateway("two")
        await one.send(["login", ["a", "b"]])
        await one.settle()
        await two.send(["login", ["c", "b"]])
        told = await refusal(two)
        assert (told["code"], told["index"]) == ("too-many-users", 0)
        assert "limits.max_users" in told["message"]
        assert [record["kind"] for record in await two.records(1)] == ["moved"]
        assert met(rig) == {"limits.max_users": 1}
        found = {row[0]: row[1] for row in rig.presence.where(["a", "b", "c"])}
        assert found == {"a": "one", "b": "two"}


# --- frames -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "frame", "code"),
    [
        (
            "max_batch",
            lambda n: ["login", [f"u{one}" for one in range(n)]],
            "bad-frame",
        ),
        # Around the text are 10 bytes of msgpack.
        ("max_frame_bytes", lambda n: ["ping", "x" * (n - 9)], "too-large"),
    ],
)
async def test_a_frame_is_at_most_so_large(
    tmp_path: Path, jumping: MockClock, limit: str, frame: Any, code: str
) -> None:
    most: Any = 9_000 if limit == "max_frame_bytes" else N
    bounds: dict[str, Any] = {limit: most}
    async with running(tmp_path, **bounds) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(frame(most))
        if limit == "max_frame_bytes":
            await gateway.expect("pong")
        await gateway.settle()
        assert met(rig) == {}
        await gateway.send(frame(most + 1))
        told = await refusal(gateway)
        assert told["code"] == code
        assert str(most) in told["message"]
        assert met(rig) == {f"limits.{limit}": 1}


def held(rig: Rig) -> int:
    """Bytes of frames that are not whole, as they are counted and as they are."""
    book = rig.engine.book
    links = book.links.values()
    assert book.unfinished.bytes == sum(
        it.conversation.unfinished_bytes for it in links
    )
    return book.unfinished.bytes


async def test_frames_that_are_not_whole_have_at_most_so_many_bytes_in_all(
    tmp_path: Path, jumping: MockClock
) -> None:
    most = 20_000
    half = encode(["ping", "x" * 8_000])[:6_000]
    async with running(
        tmp_path, max_frame_bytes=8_192, max_unfinished_bytes=most
    ) as rig:
        busy, *drip = [await rig.watcher(f"w{n}") for n in range(4)]
        await busy.send_bytes(half)
        for caller in drip[:2]:
            await caller.send_bytes(half)
        await rig.until(lambda: held(rig) == 18_000)
        # One that finishes its frame, and begins another, has no old one.
        await busy.send_bytes(encode(["ping", "x" * 8_000])[6_000:] + half)
        assert await busy.expect("pong") == ["x" * 8_000]
        await drip[2].send_bytes(half)
        told = await refusal(drip[0])
        assert (told["code"], told["fatal"]) == ("overloaded", True)
        assert f"{most} bytes" in told["message"]
        assert met(rig) == {"limits.max_unfinished_bytes": 1}
        assert await is_over(drip[0])
        assert held(rig) == 18_000
        for caller in busy, *drip[1:]:
            caller.close()
        await rig.until(lambda: not rig.engine.book.links)
        assert held(rig) == 0


async def test_who_has_not_said_hello_sends_no_more_than_a_hello_takes(
    tmp_path: Path, jumping: MockClock
) -> None:
    hello = {"protocol": 1, "name": "later", "since": "x" * (HELLO_BYTES - 50)}
    async with running(tmp_path) as rig:
        stranger = await rig.connect()
        await stranger.send_bytes(
            encode(["hello", "x" * 2 * HELLO_BYTES])[:HELLO_BYTES]
        )
        await rig.until(lambda: held(rig) == HELLO_BYTES)
        await stranger.send_bytes(b"x")
        told = await refusal(stranger)
        assert (told["code"], told["fatal"]) == ("too-large", True)
        assert f"hello, of at most {HELLO_BYTES} bytes" in told["message"]
        assert met(rig) == {}  # it is no setting's bound
        # One that fits is taken, and what comes behind it may be larger.
        caller = await rig.connect()
        await caller.send(["hello", hello], ["ping", "x" * 2 * HELLO_BYTES])
        await caller.expect("welcome")
        await caller.expect("pong")
        assert held(rig) == 0


async def test_a_frame_holds_at_most_the_values_of_so_many_batches(
    tmp_path: Path, jumping: MockClock
) -> None:
    most = BATCHES_OF_VALUES * 100
    async with running(tmp_path, max_batch=100) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(["ping", [0] * (most - 2)])
        await gateway.expect("pong")
        assert met(rig) == {}
        await gateway.send(["ping", [0] * (most - 1)])
        told = await refusal(gateway)
        assert (told["code"], told["fatal"]) == ("too-large", True)
        assert f"more than {most} values" in told["message"]
        assert met(rig) == {"limits.max_batch": 1}


async def test_refused_frames_are_at_most_so_many(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_refused=N) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(*[["nonsense"]] * N)
        for _ in range(N):
            assert (await refusal(gateway))["code"] == "unknown-frame"
        await gateway.settle()
        assert met(rig) == {}
        await gateway.send(["nonsense"])
        told = await refusal(gateway)
        assert told["code"] == "overloaded"
        assert "limits.max_refused" in told["message"]
        assert met(rig) == {"limits.max_refused": 1}
        assert await is_over(gateway)


@pytest.mark.parametrize("limit", ["max_replies", "max_reply_bytes"])
async def test_replies_that_are_left_unread_are_at_most_so_many(
    tmp_path: Path, jumping: MockClock, limit: str
) -> None:
    asked: dict[str, Any] = {"max_replies": 10, "max_reply_bytes": 1 << 30}
    if limit == "max_reply_bytes":
        asked = {"max_replies": 100_000, "max_reply_bytes": 1 << 16}
    async with running(tmp_path, **asked) as rig:
        gateway = await rig.gateway("gw")
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                # Until the sidecar hangs up, which is what the test is about.
                while True:
                    await gateway.send(["ping", "x" * 60_000])

            async def end() -> None:
                await rig.until(lambda: not rig.engine.book.named)
                nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            try:
                await flood()
            except trio.BrokenResourceError:
                nursery.cancel_scope.cancel()
        assert met(rig) == {f"limits.{limit}": 1}
        await (await rig.gateway("gw")).settle()
