"""The hand: it turns when there is something to do, and hardly otherwise."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from liveness.service.engine import LAG_SHOWN_S
from tests.service.rig import IDLE_PER_S, WAITING_PER_S, Rig, running

GATHER_S: Final = 0.020


async def turns_a_second(rig: Rig, seconds: float) -> float:
    before = len(rig.turns)
    await trio.sleep(seconds)
    return (len(rig.turns) - before) / seconds


def gaps(turns: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(turns)]


async def test_with_nobody_there_it_looks_up_ten_times_a_second(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        assert await turns_a_second(rig, 600) <= 11.1


async def test_links_that_say_nothing_cost_nothing(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        await rig.gateway("g")
        await rig.watcher()
        await trio.sleep(10)  # cursors are stored meanwhile
        assert await turns_a_second(rig, 600) <= IDLE_PER_S


@pytest.mark.parametrize("timeout_s", [30.0, 600.0, 86_400.0])
async def test_users_far_from_due_cost_no_more_than_their_ticks(
    tmp_path: Path, jumping: MockClock, timeout_s: float
) -> None:
    async with running(tmp_path, timeout_s=timeout_s) as rig:
        gateway = await rig.gateway("g")
        await gateway.send(["login", [f"u{n}" for n in range(1_000)]])
        await gateway.settle()
        assert await turns_a_second(rig, min(timeout_s * 0.8, 600)) <= IDLE_PER_S


async def test_each_silent_user_is_decided_at_once_and_one_turn_does_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=10) as rig:
        gateway = await rig.gateway("g")
        for n in range(5):
            await gateway.send(["login", n])
            await trio.sleep(1)
        began = len(rig.turns)
        records = await gateway.records(5)
        await trio.sleep(10)
        assert [one["uid"] for one in records] == [0, 1, 2, 3, 4]
        assert all(10 <= one["silence"] <= 10.05 for one in records), records
        assert len(rig.turns) - began <= 5 * 4 + 17 * IDLE_PER_S


async def test_reads_are_gathered_for_twenty_milliseconds_and_no_longer(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        began = len(rig.turns)
        for n in range(1_000):  # one each millisecond
            await gateway.send(["keepalive", n % 7])
            await trio.sleep(0.001)
        await gateway.settle()
        made = rig.turns[began:]
        assert rig.presence.events["keepalive"] == 1_000
        assert 45 <= len(made) <= 65
        # But for the tick of each slot.
        assert sum(gap < GATHER_S - 1e-6 for gap in gaps(made)) <= 3


async def test_many_links_that_speak_seldom_are_read_together(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateways = [await rig.gateway(f"g{n}") for n in range(100)]
        began = len(rig.turns)
        for n in range(1_000):
            await gateways[n % 100].send(["keepalive", n % 100])
            await trio.sleep(0.001)
        await gateways[0].settle()
        assert rig.presence.events["keepalive"] == 1_000
        assert len(rig.turns) - began <= 65


async def test_after_a_pause_the_first_frame_is_read_at_once(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g")
        for _ in range(10):
            await trio.sleep(0.73)
            began = trio.current_time()
            await gateway.settle()
            assert trio.current_time() - began <= GATHER_S


async def test_a_gateway_that_never_stops_sending_does_not_stop_the_hand(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=2) as rig:
        quiet, busy = await rig.gateway("quiet"), await rig.gateway("busy")
        await quiet.send(["login", "silent"])
        await quiet.settle()
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                frame = ["keepalive", [f"u{n}" for n in range(500)]]
                while True:
                    await busy.send(frame, frame, frame, frame)
                    await trio.sleep(0.005)

            nursery.start_soon(flood)
            (record,) = await quiet.records(1)
            nursery.cancel_scope.cancel()
    assert 2 <= record["silence"] <= 2.05


async def test_users_of_a_mute_gateway_are_looked_at_some_times_a_second(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=2, gateway_hold_s=600) as rig:
        gateway = await rig.gateway("g", ping=1)
        await gateway.send(["login", list(range(100))])
        await trio.sleep(5)
        assert rig.presence.held(rig.engine.attended)["mute"] == 100
        assert await turns_a_second(rig, 100) <= WAITING_PER_S


async def test_a_disk_that_fails_does_not_make_the_hand_spin(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=2, pause_firing=100) as rig:
        gateway = await rig.gateway("g")
        with rig.disk_full():
            await gateway.send(["login", list(range(3_000))])
            await trio.sleep(10)
            assert rig.journal.failure
            assert await turns_a_second(rig, 30) <= WAITING_PER_S
        assert len(await gateway.records(3_000)) == 3_000


async def test_replies_that_nobody_reads_do_not_make_the_hand_spin(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, max_replies=10) as rig:
        gateway = await rig.gateway("g")
        with rig.disk_full():
            await gateway.send(["login", [f"u{n}" * 9 for n in range(4_000)]])
            await gateway.send(*(["ping", n] for n in range(30)))
            await gateway.send(*(["ping", n] for n in range(30, 60)))
            await trio.sleep(1)
            assert await turns_a_second(rig, 30) <= WAITING_PER_S
        assert [await gateway.expect("pong") for _ in range(60)] == [
            [n] for n in range(60)
        ]


async def test_a_turn_that_came_late_is_shown_for_as_long_as_scrapes_are_apart(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        await rig.gateway("g")
        await trio.sleep(3 * LAG_SHOWN_S)
        assert rig.engine.hand_lag == pytest.approx(0, abs=1e-6)
        jumping.jump(4)  # it slept for a second at most
        await trio.sleep(0.1)
        assert 3 <= rig.engine.hand_lag <= 4
        await trio.sleep(LAG_SHOWN_S - 0.2)
        assert rig.engine.hand_lag >= 3
        await trio.sleep(LAG_SHOWN_S + 0.2)
        assert rig.engine.hand_lag == pytest.approx(0, abs=1e-6)
