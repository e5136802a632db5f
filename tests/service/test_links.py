"""Links over real sockets: what is told, in which order, when, and how one ends."""

import json
import re
import socket
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
import structlog
import trio
from trio.testing import MockClock

from liveness.core.records import Uid
from liveness.service import engine
from liveness.service.clock import Clock
from liveness.service.logs import SAY_AGAIN_S
from liveness.service.outbox import LINGER_S, NOTICES_PER_FRAME
from liveness.service.requests import LOSE_STEPS
from tests import disk
from tests.service.rig import WAITING_PER_S, Caller, Rig, running

ROOT: Final = Path(__file__).parents[2]
# Together more than a socket's buffer takes, so that whoever does not read them blocks.
LARGE: Final = "x" * 60_000


def crowd(size: int, prefix: str = "u") -> list[Uid]:
    """Users enough for the database to need new pages."""
    return [f"{prefix}{n:06}" for n in range(size)]


def seqs(records: list[dict[str, Any]]) -> list[int]:
    return [one["seq"] for one in records]


def told(records: list[dict[str, Any]]) -> list[tuple[Uid, str, str]]:
    return [(one["uid"], one["kind"], one["reason"]) for one in records]


async def end_of(caller: Caller) -> list[Any] | None:
    """The last frame before the end of the stream."""
    last = None
    while (frame := await caller.receive()) is not None:
        last = frame
    return last


# --- replies ---------------------------------------------------------------------------


async def test_a_pong_waits_for_what_came_before_it_to_be_on_disk(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        with rig.disk_full():
            await gateway.send(["login", crowd(3_000)], ["ping", "after"])
            assert await gateway.is_told_nothing(20)
            assert len(rig.presence) == 3_000
        assert await gateway.expect("pong") == ["after"]
        assert len(rig.log()) == 3_000


@pytest.mark.parametrize("asked", [["where", ["u000001"]], ["list"]])
async def test_no_answer_shows_a_session_that_is_not_on_disk(
    tmp_path: Path, jumping: MockClock, asked: list[Any]
) -> None:
    async with running(tmp_path) as rig:
        gateway, other = await rig.gateway("g"), await rig.watcher()
        with rig.disk_full():
            await gateway.send(["login", crowd(3_000)])
            await rig.until(lambda: len(rig.presence))
            await other.send(asked)
            assert await other.is_told_nothing(5)
        while (frame := await other.receive()) is not None and frame[0] == "notices":
            pass
        assert frame is not None
        assert frame[0] == asked[0]
        assert ["u000001", "g", 2, None] in frame[1]


async def test_a_pong_with_nothing_before_it_waits_for_no_disk(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["keepalive", "u"])
        await gateway.settle()
        await trio.sleep(5)  # by then its cursor is stored too
        before = rig.journal.mark
        await gateway.send(["keepalive", "u"])
        await gateway.settle()
        assert rig.journal.mark == before


async def test_a_session_keeps_its_timeout_over_a_crash_whatever_is_set_since(
    tmp_path: Path, jumping: MockClock
) -> None:
    def in_force() -> tuple[float | None, ...]:
        found = [rig.engine.standing(uid) for uid in ("of the server", "of a hello")]
        return tuple(None if it is None else it.timeout for it in found)

    async with running(tmp_path, timeout_s=40) as rig:
        first, second = await rig.gateway("first"), await rig.gateway("g", timeout=60)
        for gateway, uid in ((first, "of the server"), (second, "of a hello")):
            await gateway.send(["login", uid])
            await gateway.settle()
        await rig.gateway("g", timeout=2)
    for _ in range(2):
        async with running(tmp_path, timeout_s=5) as rig:
            assert in_force() == (40, 60)
            await rig.gateway("g", timeout=2)
    async with running(tmp_path, timeout_s=5) as rig:
        await rig.gateway("g", timeout=2)
        await trio.sleep(58)
        assert rig.store.cursors()["gateway", "g"].in_force == 60
        await trio.sleep(15)
        assert in_force() == (None, None)
        assert rig.store.cursors()["gateway", "g"].in_force == 2


async def test_welcome_waits_until_the_position_of_a_new_name_is_on_disk(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, newcomer = await rig.gateway("g"), await rig.connect()
        with rig.disk_full():
            await gateway.send(["login", crowd(3_000)])
            await rig.until(lambda: len(rig.presence))
            await newcomer.send(["hello", {"protocol": 1, "name": "new"}])
            assert await newcomer.is_told_nothing(5)
        (welcome,) = await newcomer.expect("welcome")
        assert welcome["next"] == 3_001
        assert rig.store.cursors()["gateway", "new"].seq == 3_000


async def test_answers_come_in_the_order_of_the_questions_a_list_among_them(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(
            ["login", crowd(2_500)],
            ["ping", 1],
            ["list"],
            ["where", ["u000000"]],
            ["nonsense"],
            ["list"],
            ["ping", 2],
        )
        frames = [await gateway.receive() for _ in range(10)]
    names = [frame and frame[0] for frame in frames]
    assert names == ["pong", *["list"] * 3, "where", "error", *["list"] * 3, "pong"]
    assert [len(frame) for frame in frames if frame and frame[0] == "list"] == [
        2,
        2,
        3,
    ] * 2


async def test_a_fatal_error_comes_after_the_answers_to_what_was_asked_before_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    no_frame: Any = 7
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["login", "u"], ["ping", 1], ["list"], no_frame)
        assert await gateway.expect("pong") == [1]
        assert await gateway.expect("list") == [[["u", "g", 1, None]], 1]
        (error,) = await gateway.expect("error")
        assert (error["code"], error["n"]) == ("bad-frame", 5)
        assert await gateway.receive() is None


async def test_who_leaves_its_replies_unread_is_told_so_and_sent_away(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_replies=20) as rig:
        rude, other = await rig.gateway("rude"), await rig.gateway("other")
        await other.send(["login", "u"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rude.send, *(["ping", LARGE] for _ in range(60)))
            await rig.until(lambda: rig.counts.refused["overloaded"], 5)
            last = await end_of(rude)
        assert last is not None
        assert (last[0], last[1]["code"]) == ("error", "overloaded")
        assert last[1]["fatal"] is True
        await other.settle()


async def test_who_never_reads_at_all_does_not_keep_its_place(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_replies=20) as rig:
        rude = await rig.gateway("rude")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rude.send, *(["ping", LARGE] for _ in range(60)))
            await rig.until(lambda: rig.counts.refused["overloaded"], 5)
            took = await rig.until(lambda: not rig.engine.book.links)
            nursery.cancel_scope.cancel()
        assert took <= 2 * LINGER_S + 0.1


async def test_any_number_of_replies_is_sent_to_one_who_reads(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_replies=20) as rig:
        gateway = await rig.gateway("g")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.send, *(["ping", n] for n in range(5_000)))
            for n in range(5_000):
                assert await gateway.expect("pong") == [n]


# --- records ---------------------------------------------------------------------------


async def test_nobody_is_told_a_record_before_it_is_on_disk(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, watcher = await rig.gateway("g"), await rig.watcher()
        with rig.disk_full():
            await gateway.send(["login", crowd(3_000)])
            assert await watcher.is_told_nothing(5)
        assert seqs(await watcher.records(3_000)) == list(range(1, 3_001))


async def test_no_record_comes_before_welcome(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, other = await rig.gateway("g"), await rig.gateway("other")
        await gateway.send(["login", "u"], ["logout", "u"])
        await gateway.records(1)  # and not acknowledged
        gateway.close()
        await rig.until(lambda: rig.engine.book.linked("gateway") == 1)
        again = await rig.connect()
        with rig.disk_full():
            await other.send(["login", crowd(3_000)])
            await rig.until(lambda: rig.journal.failure)
            await again.send(["hello", {"protocol": 1, "name": "g"}])
            assert await again.is_told_nothing(5)
        await again.expect("welcome")
        assert seqs(await again.records(1)) == [2]


async def test_records_come_in_frames_of_at_most_a_thousand(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["login", crowd(3_500)])
        await gateway.settle()
        watcher = await rig.watcher(after=0)
        sizes = list[int]()
        while sum(sizes) < 3_500:
            sizes.append(len((await watcher.expect("notices"))[0]))
    assert max(sizes) == NOTICES_PER_FRAME


async def test_no_more_is_in_flight_than_the_window_and_each_ack_makes_room(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, window=10) as rig:
        gateway = await rig.gateway("g", kinds=["online"])
        await gateway.send(["login", crowd(25)])
        assert seqs(await gateway.records(10)) == list(range(1, 11))
        assert await gateway.is_told_nothing(10)
        assert rig.engine.book.unacked("g") == 10
        await gateway.send(["ack", 4])
        assert seqs(await gateway.records(4)) == [11, 12, 13, 14]
        await gateway.send(["ack", 3], ["ack", 4], ["ack", 0])
        assert await gateway.is_told_nothing(10)
        await gateway.send(["ack", 14])
        assert seqs(await gateway.records(10)) == list(range(15, 25))
        assert (rig.counts.notices_sent, rig.counts.notices_acked) == (24, 14)


async def test_without_acks_there_is_no_window(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, window=10) as rig:
        gateway = await rig.gateway("g", kinds=["online"], ack=False)
        await gateway.send(["login", crowd(25)])
        assert seqs(await gateway.records(25)) == list(range(1, 26))
        assert rig.engine.book.unacked("g") == 0


async def test_what_was_not_acknowledged_comes_again_to_the_next_link(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g", kinds=["online"])
        await gateway.send(["login", crowd(10)])
        await gateway.records(10)
        await gateway.send(["ack", 6])
        await gateway.settle()
        gateway.close()
        again = await rig.gateway("g", kinds=["online"])
        assert seqs(await again.records(4)) == [7, 8, 9, 10]
        assert await again.is_told_nothing(10)


async def test_with_nothing_outstanding_a_cursor_follows_what_did_not_concern_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        await rig.gateway("bystander")
        gateway = await rig.gateway("g")
        await gateway.send(["login", crowd(10)])
        await rig.until(lambda: len(rig.store.cursors()) == 2)
        await rig.until(
            lambda: rig.store.cursors()["gateway", "bystander"].seq == 10, 15
        )


async def test_an_ack_of_all_that_is_outstanding_takes_the_cursor_to_the_newest(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, other = await rig.gateway("g"), await rig.gateway("other")
        await gateway.send(["login", "u"], ["logout", "u"])
        await gateway.records(1)
        await other.send(["login", crowd(10)])
        await other.settle()
        await trio.sleep(5)
        assert rig.store.cursors()["gateway", "g"].seq < 2
        await gateway.send(["ack", 2])
        await rig.until(lambda: rig.store.cursors()["gateway", "g"].seq == 12, 3)


async def test_an_ack_of_what_was_not_given_yet_is_refused_and_moves_nothing(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g", kinds=["online"])
        await gateway.send(["login", crowd(3)])
        await gateway.records(3)
        await gateway.send(["ack", 4])
        (error,) = await gateway.expect("error")
        assert (error["code"], error["frame"], error["n"]) == ("bad-option", "ack", 3)
        assert rig.engine.book.unacked("g") == 3
        await gateway.send(["ack", 3])
        await gateway.settle()
        assert rig.engine.book.unacked("g") == 0


async def test_a_watcher_without_acks_leaves_no_cursor(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        await rig.watcher("leaves none")
        await rig.watcher("leaves one", ack=True)
        await trio.sleep(5)
        assert list(rig.store.cursors()) == [("watcher", "leaves one")]


async def test_welcome_is_as_the_protocols_page_shows_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    page = (ROOT / "proto" / "README.md").read_text()
    (shown,) = re.findall(r'^\["welcome", (.*)\]$', page, re.MULTILINE)
    async with running(tmp_path) as rig:
        welcome = await (await rig.connect()).hello("edge-1")
    same_log = {"log": "b7c2f0a9"}
    assert repr(welcome | same_log) == repr(json.loads(shown))


# --- endings ---------------------------------------------------------------------------


async def test_the_same_name_replaces_and_what_the_older_link_had_sent_still_counts(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        older = await rig.gateway("g")
        newer = await rig.connect()
        # Both are there to be read when the hand turns, and for the older one there is no
        # time any more: other gateways took it.
        monkeypatch.setattr(engine, "READING_S", -1.0)
        await newer.send(["hello", {"protocol": 1, "name": "g"}])
        await older.send(["login", "u", {"conn": 1}], ["ping", 1])
        (welcome,) = await newer.expect("welcome")
        monkeypatch.undo()
        assert await newer.is_told_nothing(1)
        last = await end_of(older)
        assert last is not None
        assert (last[1]["code"], last[1]["fatal"]) == ("replaced", True)
        assert welcome["next"] == 2
        await newer.send(["where", ["u"]])
        assert await newer.expect("where") == [[["u", "g", 1, 1]]]
        assert rig.engine.book.linked("gateway") == 1


async def test_all_that_a_replaced_link_had_sent_counts_also_while_the_disk_is_behind(
    tmp_path: Path, jumping: MockClock
) -> None:
    # By then a link is read a small piece a pass, of which this is more than ten.
    sent = [f"{n}{'x' * 200}" for n in range(300)]
    async with running(tmp_path, pause_reading=1_200) as rig:
        older, other = await rig.gateway("g"), await rig.gateway("other")
        with rig.disk_full():
            await other.send(["login", crowd(800)])
            await rig.until(lambda: rig.journal.failure)
            newer = await rig.connect()
            await older.send(*(["login", uid] for uid in sent))
            await newer.send(["hello", {"protocol": 1, "name": "g"}])
            await end_of(older)
            assert len(rig.presence) == 800 + len(sent)


async def test_a_gateway_and_a_watcher_of_one_name_do_not_replace_each_other(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, watcher = await rig.gateway("g"), await rig.watcher("g")
        await gateway.settle()
        await watcher.settle()
        assert (
            rig.engine.book.linked("gateway"),
            rig.engine.book.linked("watcher"),
        ) == (1, 1)


async def test_a_link_that_ends_while_nobody_reads_is_closed_within_the_linger(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        stuck = await rig.gateway("g")
        await stuck.send(*(["ping", LARGE] for _ in range(10)))
        await rig.until(lambda: rig.engine.book.links[1].outbox._is_blocked)
        await rig.gateway("g")
        took = await rig.until(lambda: 1 not in rig.engine.book.links)
        assert took <= 2 * LINGER_S + 0.1


async def test_whoever_waits_for_the_disk_is_still_told_why_this_is_the_end(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, watcher = await rig.gateway("g"), await rig.watcher()
        with rig.disk_full():
            await gateway.send(["login", crowd(3_000)], ["ping", "not answered"])
            await rig.until(lambda: rig.journal.failure)
            await watcher.send(["where", ["u000001"]])
            await trio.sleep(1)
            second = await rig.connect()
            await second.send(["hello", {"protocol": 1, "name": "g"}])
            await rig.until(lambda: not rig.engine.book.links[1].is_open)
            rig.engine.book.bid_farewell("testing")
            (error,) = await gateway.expect("error")
            assert error["code"] == "replaced"
            assert await gateway.receive() is None
            assert await watcher.expect("bye") == [{"reason": "testing"}]
            assert await watcher.receive() is None


async def test_one_who_keeps_sending_after_the_end_is_closed_within_the_linger(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        caller = await rig.connect()
        async with trio.open_nursery() as nursery:

            async def send_on() -> None:
                try:
                    for _ in count():
                        await caller.send(["keepalive", "u"])
                        await trio.sleep(0.01)
                except trio.BrokenResourceError:
                    pass

            nursery.start_soon(send_on)
            assert await rig.until(lambda: not rig.engine.book.links) <= LINGER_S + 0.2
        last = await end_of(caller)
        assert last is not None
        assert last[1]["code"] == "not-hello"
        assert len(rig.presence) == 0


async def test_whoever_says_no_hello_is_told_why_and_closed(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, hello_s=5) as rig:
        began = trio.current_time()
        silent = await rig.connect()
        last = await end_of(silent)
        assert last is not None
        assert last[1]["code"] == "too-slow"
        assert 5 <= trio.current_time() - began <= 6.1


async def test_that_the_log_cannot_be_read_is_said_once_a_minute_however_many_want_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=3_600, tail=1_000) as rig:
        gateway = await rig.gateway("g")
        for part in range(3):
            await gateway.send(["login", [f"u{part}-{n}" for n in range(1_000)]])
            await gateway.settle()
        rig.store._db.execute("alter table log rename to gone")
        with structlog.testing.capture_logs() as said:
            for number in range(5):
                await rig.watcher(f"w{number}", after=0)
            await trio.sleep(2.5 * SAY_AGAIN_S)
            await gateway.settle()
    lines = [one for one in said if one["event"].startswith("the log cannot be read")]
    assert len(lines) == 3
    # A try a second of each.
    assert 5 * 50 <= lines[1]["suppressed"] <= 5 * 61


async def test_a_gateway_that_dies_with_many_answers_unread_is_away(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=3) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["login", "u"])
        await gateway.settle()
        await gateway.send(*(["ping", n] for n in range(5_000)))
        gateway.close()
        await rig.until(lambda: not rig.engine.book.links, 10)
        await rig.until(lambda: not len(rig.presence), 10)
    assert [one.reason for one in disk.log(rig.store.path)] == ["login", "gateway_lost"]


async def test_over_the_limit_every_link_is_told_so_and_none_is_kept(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_links=2) as rig:
        first, second = await rig.gateway("a"), await rig.gateway("b")
        refused = [await rig.connect() for _ in range(100)]
        for one in refused:
            frame = await end_of(one)
            assert frame is not None
            assert frame[1]["code"] == "overloaded"
            assert "limits.max_links" in frame[1]["message"]
        assert rig.counts.limits_met["limits.max_links"] == 100
        # Although none of them has closed its end.
        assert len(rig.engine.book.links) == 2
        await first.settle()
        await second.settle()
        second.close()
        await rig.until(lambda: len(rig.engine.book.links) == 1)
        await (await rig.gateway("c")).settle()


async def test_a_fault_of_ours_ends_its_link_and_no_other(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(uids: object) -> None:
        raise ZeroDivisionError("planted")

    async with running(tmp_path) as rig:
        unlucky, other = await rig.gateway("unlucky"), await rig.gateway("other")
        await other.send(["login", "u"])
        await other.settle()
        with structlog.testing.capture_logs() as said, monkeypatch.context() as patch:
            patch.setattr(rig.presence, "where", broken)
            await unlucky.send(["login", "v"], ["where", ["u"]], ["login", "w"])
            last = await end_of(unlucky)
        assert last is not None
        assert (last[1]["code"], last[1]["fatal"], last[1]["n"]) == (
            "internal",
            True,
            3,
        )
        assert "planted" not in str(last)
        assert [line for line in said if line["event"] == "a fault of the sidecar"]
        assert rig.counts.refused["internal"] == 1
        await other.settle()
        again = await rig.gateway("unlucky")
        await again.send(["where", ["u", "v", "w"]])
        ((rows,),) = [await again.expect("where")]
        assert [uid for uid, *_ in rows] == ["u", "v"]


async def test_a_fault_while_writing_ends_its_link_and_no_other(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(gateway: object, out: object) -> None:
        raise ValueError("planted")

    async with running(tmp_path) as rig:
        unlucky, other = await rig.gateway("unlucky"), await rig.gateway("other")
        with monkeypatch.context() as patch:
            patch.setattr(rig.store, "spool_online", broken)
            await unlucky.send(["ping", 1], ["list"])
            assert await unlucky.expect("pong") == [1]
            last = await end_of(unlucky)
        assert last is not None
        assert (last[1]["code"], last[1]["fatal"]) == ("internal", True)
        assert rig.engine.book.linked("gateway") == 1
        assert not rig.presence.gateways["unlucky"].is_linked
        await other.send(["list"])
        assert await other.expect("list") == [[], 0]
        await (await rig.gateway("unlucky")).settle()


async def test_a_farewell_answers_first_says_bye_and_takes_nobody_in(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, watcher = await rig.gateway("g"), await rig.watcher()
        stranger = await rig.connect()
        await rig.until(lambda: len(rig.engine.book.links) == 3)
        await gateway.send(["login", "u"], ["ping", 1], ["where", ["u"]])
        while not rig.engine.drain():
            await trio.lowlevel.checkpoint()
        await rig.journal.settled()
        rig.engine.book.bid_farewell("testing")
        assert await gateway.expect("pong") == [1]
        assert await gateway.expect("where") == [[["u", "g", 1, None]]]
        assert await gateway.receive() == ["bye", {"reason": "testing"}]
        assert await gateway.receive() is None
        assert await end_of(watcher) == ["bye", {"reason": "testing"}]
        assert await stranger.receive() is None
        for caller in (gateway, watcher, stranger):
            caller.close()
        with trio.fail_after(3):
            await rig.engine.book.all_closed.wait()
        # Whoever comes now waits for the next process, if the socket is kept.
        assert await (await rig.connect()).is_told_nothing(10)


# --- gateways that come back fresh -------------------------------------------------------


async def test_old_sessions_of_a_fresh_gateway_end_before_anything_else_happens(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g", kinds=["online"])
        await gateway.send(["login", ["u", "v"], {"conn": [1, 2]}])
        await gateway.records(2)  # and not acknowledged
        gateway.close()
        fresh = await rig.connect()
        await fresh.send(
            ["hello", {"protocol": 1, "name": "g", "fresh": True}],
            ["login", "u", {"conn": 3}],
            ["logout", "v"],
            ["ping", 1],
        )
        (welcome,) = await fresh.expect("welcome")
        assert await fresh.expect("pong") == [1]
        assert await fresh.is_told_nothing(10)  # its cursor moved to now
        shown = [one.as_map() for one in rig.log()[2:]]
        assert told(shown) == [
            ("u", "offline", "gateway_lost"),
            ("v", "offline", "gateway_lost"),
            ("u", "online", "login"),
        ]
        assert welcome["next"] == 5
        assert rig.presence.ignored["offline"] == 1  # the logout came too late
        assert rig.journal.cursors["gateway", "g"].seq >= 4


async def test_a_fresh_gateway_with_many_old_sessions_keeps_its_frames_in_order(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_firing=1_000) as rig:
        old = await rig.gateway("g")
        users = crowd(8_000)
        await old.send(["login", users[:4_000]], ["login", users[4_000:]])
        await old.settle()
        fresh = await rig.connect()
        await fresh.send(
            ["hello", {"protocol": 1, "name": "g", "fresh": True}],
            ["keepalive", users[0]],
            ["where", [users[0], users[1]]],
        )
        (welcome,) = await fresh.expect("welcome")
        assert welcome["next"] == 16_001
        assert await fresh.expect("where") == [[[users[0], "g", 16_001, None]]]


async def test_a_second_link_of_a_fresh_gateway_goes_on_ending_what_the_first_began(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_firing=100) as rig:
        old, other = await rig.gateway("g"), await rig.gateway("other")
        await old.send(["login", crowd(3_000)])
        await other.send(["login", crowd(3_000, "other")])
        await old.settle()
        await other.settle()
        with rig.disk_full():
            # So much waits for the disk that nothing is ended yet.
            await other.send(["logout", crowd(3_000, "other")])
            await rig.until(lambda: rig.journal.failure)
            first, second = await rig.connect(), await rig.connect()
            await first.send(["hello", {"protocol": 1, "name": "g", "fresh": True}])
            await first.send(["login", "lost with the first"])
            await trio.sleep(1)
            await second.send(["hello", {"protocol": 1, "name": "g"}])
            await second.send(["login", "kept"])
            assert await second.is_told_nothing(5)
        await second.expect("welcome")
        ended = await second.records(3_000)
        assert {one["gateway"] for one in ended} == {"g"}
        assert {one["reason"] for one in ended} == {"gateway_lost"}
        await second.send(["list"])
        rows, _ = await second.expect("list")
        # It came online after all of them had ended, not before.
        assert rows == [["kept", "g", ended[-1]["seq"] + 1, None]]


async def test_fresh_gateways_are_looked_for_together_in_one_walk_over_the_table(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"g{n}" for n in range(30)]
    looked: Counter[int] = Counter()  # places of the table, by turn
    async with running(tmp_path) as rig:
        lose = rig.presence.lose

        def noted(*args: Any, limit: int) -> int:
            looked[len(rig.turns)] += limit
            return lose(*args, limit=limit)

        monkeypatch.setattr(rig.presence, "lose", noted)
        for name in names:
            gateway = await rig.gateway(name)
            await gateway.send(["login", crowd(200, name)])
            await gateway.settle()
        again = [await rig.connect() for _ in names]
        for name, one in zip(names, again, strict=True):
            await one.send(["hello", {"protocol": 1, "name": name, "fresh": True}])
            await one.send(["login", f"new {name}"], ["ping", 1])
        for one in again:
            await one.expect("welcome")
            assert await one.expect("pong") == [1]
        assert len(rig.presence) == len(names)
    assert max(looked.values()) == LOSE_STEPS
    # Who comes while one walk is under way may need the next.
    assert len(looked) <= 2 * (200 * len(names) / LOSE_STEPS + 1)


# --- what waits for the disk ---------------------------------------------------------------


async def silent_while_full(rig: Rig, gateway: Caller, users: int) -> None:
    await gateway.send(["login", crowd(users)])
    await gateway.settle()
    with rig.disk_full():
        await trio.sleep(60)
        assert rig.journal.failure
        # It went on as far as its bound, and not further.
        assert 0 < rig.journal.pending < 500 + 2_000
        assert len(rig.presence) >= users - rig.journal.pending
        assert await gateway.is_told_nothing(1)


async def test_firing_pauses_when_too_much_waits_for_the_disk_and_goes_on_after(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_firing=500) as rig:
        gateway = await rig.gateway("g")
        await silent_while_full(rig, gateway, 4_000)
        records = await gateway.records(4_000)
        assert {one["reason"] for one in records} == {"silence"}
        assert len({one["uid"] for one in records}) == 4_000
        assert min(one["silence"] for one in records) >= 30
        assert rig.presence.early == 0


async def test_a_disk_that_keeps_up_holds_no_mass_offline_up(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_firing=500) as rig:
        gateway = await rig.gateway("g", ack=False)
        for n in range(3):
            await gateway.send(["login", crowd(4_000, f"{n}u")])
        await gateway.settle()
        silences = [one["silence"] for one in await gateway.records(12_000)]
    # A thousand a pass, a pass every 10 ms, and no waiting for the next tick.
    assert max(silences) - min(silences) <= 0.2


async def test_time_in_which_the_disk_kept_us_from_reading_is_nobodys_silence(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_firing=500, pause_reading=1_000) as rig:
        gateway, other = await rig.gateway("g"), await rig.gateway("other")
        await other.send(["login", "still there"])
        await other.settle()
        with rig.disk_full():
            await gateway.send(["login", crowd(4_000)])
            await rig.until(lambda: rig.journal.failure)
            before, turns = rig.engine.attended, len(rig.turns)
            for _ in range(60):
                await other.send(["keepalive", "still there"])
                await trio.sleep(1)
            assert len(rig.turns) - turns <= 60 * WAITING_PER_S
            assert rig.presence.events["keepalive"] == 0
            assert rig.engine.attended - before <= 1.1
            assert rig.engine.unattended >= 55
        await other.settle()
        assert rig.presence.events["keepalive"] == 60
        assert rig.presence.ended == {"silence": 0, "logout": 0, "gateway_lost": 0}


async def test_a_socket_that_was_read_in_part_is_not_empty(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_reading=4_000) as rig:
        gateway, other = await rig.gateway("g"), await rig.gateway("other")
        await gateway.send(["login", ["still there", "silent"]])
        await gateway.settle()
        with rig.disk_full():
            await other.send(["login", crowd(3_000)])
            await rig.until(lambda: rig.journal.failure)
            await trio.sleep(29.8)
            # So much waits for the disk that a link is read a piece a pass: this lasts
            # until both have been due for long, and only its end speaks for one of them.
            await gateway.send(*[["keepalive", "x" * 250]] * 400)
            await gateway.send(["keepalive", "still there"])
            await rig.until(lambda: rig.presence.ended["silence"])
        (record,) = await gateway.records(1)
        assert record["uid"] == "silent"
        assert record["silence"] > 30.2  # it was held until all was read


async def test_a_hello_that_lay_unread_during_a_long_computation_is_not_too_late(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_s = 0.0
    monkeypatch.setattr(Clock, "cpu", lambda _clock: computed_s)
    async with running(tmp_path) as rig:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(rig.sidecar.config.socket.path))
            await rig.until(lambda: rig.engine.book.links)
            sock.sendall(msgpack.packb(["hello", {"protocol": 1, "name": "g"}]))
            computed_s = 6.0
            jumping.jump(computed_s)
            rig.engine.turn()
            await rig.until(lambda: rig.engine.book.named)
    assert rig.counts.refused["too-slow"] == 0


# --- gateways that are not there -----------------------------------------------------------


async def test_users_of_a_gateway_whose_link_closed_are_given_up_with_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, watcher = await rig.gateway("g"), await rig.watcher(kinds=["offline"])
        await gateway.send(["login", "u"])
        await gateway.settle()
        gateway.close()
        (record,) = await watcher.records(1)
    assert record["reason"] == "gateway_lost"
    assert 30 <= record["silence"] <= 33


async def test_a_gateway_that_reconnects_saves_its_users(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway, watcher = await rig.gateway("g"), await rig.watcher(kinds=["offline"])
        await gateway.send(["login", ["u", "v"]])
        await gateway.settle()
        await trio.sleep(29.5)
        gateway.close()
        await trio.sleep(0.9)  # past the deadline of both
        again = await rig.gateway("g")
        await trio.sleep(0.5)
        await again.send(["keepalive", "u"])
        (record,) = await watcher.records(1)
        assert (record["uid"], record["reason"]) == ("v", "silence")
        assert await watcher.is_told_nothing(25)


# --- after a restart ----------------------------------------------------------------------


async def test_after_a_crash_a_silent_user_is_told_one_timeout_later_and_no_more(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["login", ["u", "v"], {"conn": [1, 2]}])
        await gateway.settle()
    async with running(tmp_path) as rig:
        began = trio.current_time()
        gateway = await rig.gateway("g")
        await gateway.send(["keepalive", "v", {"conn": 2}])
        (record,) = await gateway.records(1)
        took = trio.current_time() - began
        assert (record["uid"], record["restored"]) == ("u", True)
        assert 30.0 <= took < 30.1
        assert rig.presence.early == 0


async def test_after_a_restart_who_is_due_waits_for_its_gateway_to_come_back(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=1.0) as rig:
        gateway = await rig.gateway("g", timeout=1.0)
        await gateway.send(["login", ["u", "v"], {"conn": [1, 2]}])
        await gateway.settle()
    async with running(tmp_path, timeout_s=1.0) as rig:
        # Its second, in which both come due.
        assert await rig.until(lambda: rig.presence.held(rig.engine.attended)["away"])
        gateway = await rig.gateway("g", timeout=1.0)
        for _ in range(8):
            await gateway.send(["keepalive", "v", {"conn": 2}])
            await trio.sleep(0.5)
        (record,) = await gateway.records(1)
        assert (record["uid"], record["reason"]) == ("u", "silence")
        assert rig.presence.where(["v"])
