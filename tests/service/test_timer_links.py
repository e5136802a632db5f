"""Timers of real links on virtual time, where the disk is in the way."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from liveness.core.timers import UNANSWERED
from tests import disk
from tests.service.rig import Rig, running

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
    async with running(tmp_path, pause_reading=1_000) as rig:
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


async def test_a_timer_asked_for_again_while_the_log_is_written_is_not_late(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        writer = rig.journal._writer
        write = writer.write

        async def slow(call: Callable[[], None], *, pending: Callable[[], int]) -> None:
            await trio.sleep(0.1)
            await write(call, pending=pending)

        gateway = await rig.gateway("g")
        await gateway.send(["after", "k", 1])
        await gateway.settle()
        monkeypatch.setattr(writer, "write", slow)
        await rig.until(lambda: rig.journal.records_pending)
        await gateway.send(["after", "k", 0.1])
        first, second = await gateway.records(2)
        assert second["seq"] == first["seq"] + 1
        assert rig.counts.timer_lateness.sum < 0.3
