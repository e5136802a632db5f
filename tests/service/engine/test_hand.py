"""The hand: it turns when there is something to do, and hardly otherwise."""

from itertools import pairwise
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from liveness.config.settings import GuardSettings
from liveness.core.sessions.storm_guard import BY_TIME
from liveness.service.engine.engine import LAG_SHOWN_S
from tests.service.rig import IDLE_PER_S, WAITING_PER_S, Rig

GATHER_S: Final = 0.020


async def turns_a_second(rig: Rig, seconds: float) -> float:
    before = len(rig.turns)
    await trio.sleep(seconds)
    return (len(rig.turns) - before) / seconds


async def test_silent_links_and_users_far_from_due_cost_only_ticks(rig: Rig) -> None:
    await rig.gateway_of([f"u{n}" for n in range(1_000)])
    await rig.watcher()
    assert await turns_a_second(rig, 24) <= IDLE_PER_S


@pytest.mark.parametrize("links", [1, 100])
async def test_reads_are_gathered_for_twenty_milliseconds_and_no_longer(
    rig: Rig, links: int
) -> None:
    gateways = [await rig.gateway(f"g{n}") for n in range(links)]
    began = len(rig.turns)
    for n in range(1_000):  # one each millisecond
        await gateways[n % links].send(["keepalive", n % 7])
        await trio.sleep(0.001)
    await gateways[0].sync()
    made = rig.turns[began:]
    assert rig.presence.events["keepalive"] == 1_000
    assert 45 <= len(made) <= 65
    # But for the tick of each slot.
    gaps = [later - earlier for earlier, later in pairwise(made)]
    assert sum(gap < GATHER_S - 1e-6 for gap in gaps) <= 3


async def test_after_a_pause_the_first_frame_is_read_at_once(rig: Rig) -> None:
    gateway = await rig.gateway("g")
    for _ in range(10):
        await trio.sleep(0.73)
        began = trio.current_time()
        await gateway.sync()
        assert trio.current_time() - began <= GATHER_S


@pytest.mark.rig(timeout_s=2)
async def test_a_gateway_that_sends_on_does_not_stop_the_hand(rig: Rig) -> None:
    quiet, busy = await rig.gateway_of("silent", "quiet"), await rig.gateway("busy")

    async def flood() -> None:
        frame = ["keepalive", [f"u{n}" for n in range(500)]]
        while True:
            await busy.send(frame, frame, frame, frame)
            await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        (record,) = await quiet.records(1)
        nursery.cancel_scope.cancel()
    assert 2 <= record["silence"] <= 2.05


@pytest.mark.rig(timeout_s=2, pause_firing=100)
async def test_a_disk_that_fails_does_not_make_the_hand_spin(rig: Rig) -> None:
    gateway = await rig.gateway("g")
    with rig.disk_full():
        await gateway.send(["login", list(range(3_000))])
        await trio.sleep(10)
        assert rig.log_writer.failure
        assert await turns_a_second(rig, 30) <= WAITING_PER_S
    assert len(await gateway.records(3_000)) == 3_000


async def test_a_late_turn_is_shown_for_as_long_as_scrapes_are_apart(
    rig: Rig, jumping: MockClock
) -> None:
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


@pytest.mark.rig(guard=GuardSettings(enabled=True))
async def test_a_thousand_users_due_at_once_are_held_for_a_timeout(
    rig: Rig, said: list[Any]
) -> None:
    gateway = await rig.gateway_of([f"u{n}" for n in range(1_000)])
    await trio.sleep(35)
    assert await turns_a_second(rig, 20) <= WAITING_PER_S
    assert await gateway.is_told_nothing(4.9)
    records = await gateway.records(1_000)
    assert all(60 <= record["silence"] < 60.5 for record in records)
    begun, ended = (line for line in said if line["event"].startswith("storm"))
    expected = {"gateway": "g", "due": 1_000, "users": 1_000}
    expected["event"] = "storm: too many users came due at once, and are held"
    assert begun == {**begun, **expected, "log_level": "warning", "hold_s": 30.0}
    assert (ended["event"], ended["why"]) == ("storm is over", BY_TIME)
    assert (ended["log_level"], ended["due"]) == ("warning", 1_000)
    assert rig.sidecar.summaries.now().storms == 1
