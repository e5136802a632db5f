"""Timers of real links on virtual time, where the disk is in the way."""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from liveness.config import TimerSettings
from liveness.core.gateways import UNREAD
from liveness.core.records import GATEWAY
from liveness.core.timers import UNANSWERED
from liveness.service.store import Page
from tests import disk
from tests.service.rig import Caller, Rig, running

FEW = TimerSettings(max_pending=1_000)
PAYLOAD = "p" * 4_096  # so that a hundred do not find room in pages there are already


def states(rig: Rig) -> dict[str, int]:
    query = "select state, count(*) from timers group by state"
    return dict(disk.rows(rig.journal.timers.table.path, query))


async def test_links_come_and_go_while_only_timers_cannot_be_written(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        with rig.no_room_for_timers():
            asked = [["after", f"k{n}", 100, {"payload": PAYLOAD}] for n in range(100)]
            await gateway.send(*asked, ["ping", 1])
            await rig.until(lambda: rig.journal.failure)
            newcomer = await rig.gateway("new", timeout=10)
            await newcomer.send(["login", "u"])
            (online,) = await (await rig.watcher(after=0)).records(1)
            (offline,) = await newcomer.records(1)
            assert (online["kind"], offline["kind"]) == ("online", "offline")
            # What was asked of timers is still not on disk, nor said to be.
            assert await gateway.is_told_nothing(5)
            assert states(rig) == {}
        assert await gateway.expect("pong") == [1]
        assert states(rig) == {"pending": 100}


async def test_a_run_is_not_over_while_its_answer_is_left_unread(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, pause_firing=500, pause_reading=1_000) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1], ["after", "nobody answers", 1])
        runs = await gateway.records(2)
        with rig.disk_full():
            await gateway.send(["login", [f"u{n}" for n in range(4_000)]])
            await rig.until(lambda: rig.journal.failure)
            await gateway.send(["done", "k"])
            await trio.sleep(200)
            assert rig.sidecar.timetable.results[UNANSWERED] == 0
        await gateway.settle()
        assert states(rig) == {"done": 1, "fired": 1}
        # The other one gets all of its time from here on, and no more than that.
        await gateway.send(["ack", runs[-1]["seq"]])
        await trio.sleep(55)
        assert states(rig)["fired"] == 1
        await trio.sleep(10)
        assert states(rig) == {"done": 1, "pending": 1}
        assert rig.sidecar.timetable.results[UNANSWERED] == 1


async def test_a_run_is_not_over_while_its_link_is_left_unread_for_what_it_asked(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timers=FEW) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1], ["after", "nobody answers", 1])
        await gateway.records(2)
        with rig.no_room_for_timers():
            await gateway.send(*(["after", f"{n}", 1_000] for n in range(1_000)))
            await rig.until(lambda: rig.journal.failure)
            await gateway.send(["done", "k"])
            await trio.sleep(200)
        await gateway.settle()
        assert states(rig) == {"done": 1, "fired": 1, "pending": 1_000}
        await trio.sleep(55)
        assert rig.sidecar.timetable.results[UNANSWERED] == 0
        await trio.sleep(10)
        assert rig.sidecar.timetable.results[UNANSWERED] == 1


async def test_the_last_run_is_not_over_that_nobody_was_told_of_when_it_is_back_fresh(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timers=TimerSettings(retries="1")) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1], ["after", "answered", 1])
        await gateway.records(2)
        await gateway.send(["fail", "k", "no"], ["fail", "answered", "no"])
        await gateway.settle()
        gateway.close()
        await trio.sleep(700)  # of which each run has been looked at several times
        gateway = await rig.gateway("g", fresh=True)
        runs = await gateway.records(2)
        assert [(run["key"], run["attempt"]) for run in runs] == [
            ("k", 2),
            ("answered", 2),
        ]
        await gateway.send(["done", "answered"])
        await gateway.settle()
        gateway.close()
        # This one was told of: it takes the attempt, whoever comes back.
        gateway = await rig.gateway("g", fresh=True)
        assert await gateway.is_told_nothing(70)
        assert states(rig) == {"failed": 1, "done": 1}


async def test_of_many_that_come_back_fresh_in_a_row_the_last_is_told_of_every_run(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(*(["after", f"k{n}", 1.05 + n / 10] for n in range(50)))
        await gateway.settle()
        gateway.close()
        settled_of = rig.journal.settled_of

        async def slowly(gateway: str | None) -> None:
            await settled_of(gateway)
            await trio.sleep(0.35)

        monkeypatch.setattr(rig.journal, "settled_of", slowly)
        for _ in range(30):
            await trio.sleep(0.2)
            caller = await rig.connect()
            await caller.send(["hello", {"protocol": 1, "name": "g", "fresh": True}])
            caller.close()
        gateway = await rig.gateway("g", fresh=True)
        told = await gateway.records(50)
        assert {run["key"] for run in told} == {f"k{n}" for n in range(50)}
        assert {run["attempt"] for run in told} == {1}


async def test_a_run_that_was_told_stays_so_over_a_link_that_ends_at_once(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timers=TimerSettings(retries="1")) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1])
        (run,) = await gateway.records(1)
        gateway.close()
        await rig.until(lambda: not rig.engine.book.links)
        rig.journal.note_written("g", 0)
        gateway = await rig.gateway("g", fresh=True)
        (again,) = await gateway.records(1)
        assert (run["attempt"], again["attempt"]) == (1, 2)


async def test_what_a_gateway_passes_over_is_read_once_it_is_on_disk(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        large = {"payload": PAYLOAD}
        await gateway.send(["login", "u"], ["after", "k", 3, large])
        await gateway.settle()
        gateway.close()
        settled_of, full = rig.journal.settled_of, ExitStack()
        callers = list[Caller]()

        async def settled_and_full(gateway: str | None) -> None:
            """What is decided from here on is not on disk when the log is read."""
            await settled_of(gateway)
            if not callers:
                full.enter_context(rig.disk_full())
                callers.append(await rig.connect())
                await trio.sleep(5)
                hello = {"protocol": 1, "name": "g", "fresh": True}
                await callers[0].send(["hello", hello])
                await trio.sleep(1)

        monkeypatch.setattr(rig.journal, "settled_of", settled_and_full)
        await rig.gateway("another")
        await trio.sleep(30)
        full.close()
        await callers[0].expect("welcome")
        (run,) = await callers[0].records(1)
        assert (run["key"], run["attempt"]) == ("k", 1)


async def test_one_that_reads_on_from_a_place_and_is_lost_begins_there_again(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, window=1) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1], ["after", "l", 1])
        await gateway.settle()
        gateway.close()
        await trio.sleep(2)
        gateway = await rig.gateway("g", fresh=True, after=0)
        (first,) = await gateway.records(1)
        await gateway.send(["ack", first["seq"]])
        gateway.close()
        gateway = await rig.gateway("g")
        (second,) = await gateway.records(1)
        assert [(it["key"], it["attempt"]) for it in (first, second)] == [
            ("k", 1),
            ("l", 1),
        ]


async def test_what_a_gateway_passes_over_is_read_when_the_disk_can_be(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1])
        await gateway.settle()
        gateway.close()
        await trio.sleep(2)
        read = rig.store.read

        def fails(**told: Any) -> Page:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(rig.store, "read", fails)
        with capture_logs() as said:
            gateway = await rig.gateway("g", fresh=True)
            # Longer than the run has: it is not over meanwhile.
            assert await gateway.is_told_nothing(100)
        assert {it["log_level"] for it in said if "for timers" in it["event"]} == {
            "warning"
        }
        monkeypatch.setattr(rig.store, "read", read)
        (run,) = await gateway.records(1)
        assert run["attempt"] == 1


async def test_what_was_told_between_two_fresh_hellos_was_not_passed_over(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "passed over", 1])
        await gateway.settle()
        gateway.close()
        await trio.sleep(2)
        with monkeypatch.context() as unreadable:

            def fails(**told: Any) -> Page:
                raise sqlite3.OperationalError("disk I/O error")

            unreadable.setattr(rig.store, "read", fails)
            gateway = await rig.gateway("g", fresh=True)
            await gateway.send(["after", "told", 1], ["after", "also", 3])
            (told,) = await gateway.records(1)
            gateway.close()
            await trio.sleep(5)
            gateway = await rig.gateway("g", fresh=True)
        runs = [(run["key"], run["attempt"]) for run in await gateway.records(2)]
        assert told["key"] == "told"
        assert sorted(runs) == [("also", 1), ("passed over", 1)]
        assert await gateway.is_told_nothing(50)


async def test_what_waits_to_be_read_by_its_gateway_takes_no_attempt(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        asked = [["after", f"k{n}", 1, {"payload": PAYLOAD}] for n in range(400)]
        await gateway.send(*asked)
        await trio.sleep(100)
        link = rig.engine.book.named[GATEWAY, "g"]
        written = gateway.received()
        notices = [frame[1] for frame in written if frame[0] == "notices"]
        assert notices[-1][-1]["seq"] == link.outbox.position
        assert rig.sidecar.timetable.results[UNANSWERED] == sum(map(len, notices))


async def asks_without_end(rig: Rig) -> Caller:
    """A gateway with a user, that asks for more timers than may wait for the disk."""
    greedy = await rig.gateway("greedy")
    await greedy.send(["login", "of greedy"])
    await greedy.settle()
    asked = [["after", f"{n}", 10_000, {"payload": PAYLOAD}] for n in range(100)]
    await greedy.send(*asked, *(["after", f"{n}", 10_000] for n in range(100, 3_100)))
    await rig.until(lambda: rig.journal.failure and rig.engine._held_back)
    return greedy


async def test_who_asks_too_much_of_timers_holds_up_no_other_gateway(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timers=FEW) as rig:
        other = await rig.gateway("other")
        await other.send(["after", "once", 1], ["after", "later", 50])
        await other.records(1)
        await other.send(["done", "once"])
        await other.settle()
        with rig.no_room_for_timers():
            greedy = await asks_without_end(rig)
            pending = rig.journal.timers.pending
            await greedy.send(*(["cancel", {"key": "none"}] for _ in range(1_000)))
            # Not even one of whose orders some wait too.
            await other.send(["after", "waits as well", 1_000, {"payload": PAYLOAD}])
            await other.send(["login", ["silent", "talks"]])
            for _ in range(29):
                await trio.sleep(1)
                await other.send(["keepalive", "talks"])
            (offline,) = await other.records(1)
            assert (offline["uid"], offline["reason"]) == ("silent", "silence")
            assert offline["silence"] <= 30.1
            (run,) = await other.records(1)
            assert (run["kind"], run["key"]) == ("timer", "later")
            assert run["at"] - run["due"] <= 100
            assert rig.counts.limits_met["timers.max_pending"] == 1
            assert rig.counts.limits_met["limits.pause_reading"] == 0
            # Its own order, which counts for more by its payload, and the run.
            assert rig.journal.timers.pending_of["other"] >= 5
            assert rig.journal.timers.pending <= pending + 5 + 1


async def test_users_of_one_that_asks_too_much_of_timers_wait_no_longer_than_the_hold(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timers=FEW, gateway_hold_s=60) as rig:
        with rig.no_room_for_timers():
            greedy = await asks_without_end(rig)
            await trio.sleep(85)
            assert rig.presence.held(rig.engine.attended)[UNREAD] == 1
            (offline,) = await greedy.records(1)
        assert offline["reason"] == "gateway_lost"
        assert 90 <= offline["silence"] <= 90.2


def slowed(write: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The same, but each transaction takes so long."""

    async def slow(call: Callable[[], Any], **told: Any) -> Any:
        await trio.sleep(seconds)
        return await write(call, **told)

    return slow


async def test_short_pauses_in_which_a_link_is_not_read_renew_nobody(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, timers=FEW) as rig:
        writer = rig.journal.timers.writer
        monkeypatch.setattr(writer, "write", slowed(writer.write, 0.3))
        greedy = await rig.gateway("greedy")
        await greedy.send(["login", "silent"])
        for _ in range(32):
            await greedy.send(*(["cancel", {"key": "none"}] for _ in range(2_000)))
            await trio.sleep(1)
        (offline,) = await greedy.records(1)
        assert rig.counts.limits_met["timers.max_pending"] >= 25
        assert offline["reason"] == "silence"
        assert offline["silence"] <= 31


async def test_a_pong_waits_for_no_timers_of_another_gateway(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        one, other, watcher = (
            await rig.gateway("one"),
            await rig.gateway("other"),
            await rig.watcher(),
        )
        with rig.no_room_for_timers():
            asked = [["after", f"k{n}", 100, {"payload": PAYLOAD}] for n in range(100)]
            await one.send(*asked, ["ping", 1])
            await rig.until(lambda: rig.journal.failure)
            for caller in (other, watcher):
                await caller.send(["ping", 2])
                assert await caller.expect("pong") == [2]
            assert await one.is_told_nothing(5)
        assert await one.expect("pong") == [1]


async def test_a_timer_asked_for_again_while_the_log_is_written_is_not_late(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        writer = rig.journal._writer
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1])
        await gateway.settle()
        monkeypatch.setattr(writer, "write", slowed(writer.write, 0.1))
        await rig.until(lambda: rig.journal.records_pending)
        await gateway.send(["after", "k", 0.1])
        first, second = await gateway.records(2)
        assert second["seq"] == first["seq"] + 1
        assert rig.counts.timer_lateness.sum < 0.3


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_a_timer_of_a_forgotten_name_waits_until_its_gateway_is_back(
    tmp_path: Path, jumping: MockClock, is_fresh: bool
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 10])
        await gateway.settle()
        gateway.close()
        await rig.until(lambda: not rig.engine.book.links)
        rig.engine.forget("gateway", "g")
        await trio.sleep(2_000)  # its run has a minute
        assert states(rig) == {"fired": 1}
        assert rig.sidecar.timetable.results[UNANSWERED] == 0
        back = await rig.gateway("g", fresh=is_fresh)
        (record,) = await back.records(1)
        assert (record["key"], record["attempt"]) == ("k", 1)


@pytest.mark.parametrize(
    "damage",
    ["payload = cast(x'ff' as text)", "state = 'qending'", "state = 'fired'"],
    ids=["text", "state", "run"],
)
async def test_a_timer_that_is_damaged_on_disk_is_named_once_and_the_others_fire(
    tmp_path: Path, jumping: MockClock, damage: str
) -> None:
    async with running(tmp_path) as rig:
        gateway, other = await rig.gateway("g"), await rig.gateway("other")
        await gateway.send(["after", "damaged", 5], ["after", "k", 5], ["ping", 1])
        await other.send(["after", "k", 5], ["ping", 1])
        await gateway.expect("pong")
        await other.expect("pong")
        path = rig.journal.timers.table.path
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"update timers set {damage} where id = 1")
        with capture_logs() as lines:
            (run,) = await gateway.records(1)
            await other.records(1)
            await trio.sleep(30)
        assert run["key"] == "k"
        (line,) = [line for line in lines if line["log_level"] == "error"]
        assert (line["timer"], line["gateway"], line["key"]) == (1, "g", "damaged")
        assert [run.key for run in disk.runs(rig.store.path)] == ["k", "k"]
