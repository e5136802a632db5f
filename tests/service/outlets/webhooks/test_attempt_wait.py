"""How long a request waits while the wall clock is set, and while the host sleeps."""

import pytest
import trio
import trio.testing

from liveness.service.outlets.webhooks.attempt_wait import LOOK_S, AttemptWait
from liveness.service.outlets.webhooks.batch_store import StoredBatch
from tests.service.rig import VirtualWallClock

HOUR_MS = 3_600_000


@pytest.fixture
def clock(jumping: object) -> VirtualWallClock:
    return VirtualWallClock()


def waiting(clock: VirtualWallClock, wait_ms: int = HOUR_MS) -> StoredBatch:
    """A request that failed just now, with its next attempt after *wait_ms*."""
    return StoredBatch(
        0, "log", 1, "msg_1", b"[]", 1, 0,
        attempts=1, rung=1, next_ms=clock.state_ms() + wait_ms, wait_ms=wait_ms,
    )  # fmt: skip


async def waited_s(
    clock: VirtualWallClock, batch: StoredBatch, *, set_s: float = 0, slept_s: float = 0
) -> float:
    """How long it waits if, after 100 s, the clock is set or the host sleeps."""
    wait, began = AttemptWait(clock), trio.current_time()

    async def change() -> None:
        await trio.sleep(100)
        clock.ahead_s += set_s
        clock.slept_s += slept_s

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await wait.until_due(batch)
        waited = trio.current_time() - began
        nursery.cancel_scope.cancel()
    return waited


async def test_a_first_attempt_waits_for_nothing(clock: VirtualWallClock) -> None:
    fresh = waiting(clock)._replace(attempts=0, rung=0, next_ms=0, wait_ms=0)
    assert await waited_s(clock, fresh) == 0


@pytest.mark.parametrize("set_s", [0, 3_600, -3_600])
async def test_a_wait_takes_its_time_however_the_clock_is_set(
    clock: VirtualWallClock, set_s: float
) -> None:
    waited = await waited_s(clock, waiting(clock), set_s=set_s)
    assert waited == pytest.approx(3_600, abs=0.01)


async def test_a_wait_that_is_over_when_the_host_wakes_up_ends(
    clock: VirtualWallClock,
) -> None:
    waited = await waited_s(clock, waiting(clock), slept_s=3_600)
    assert 100 <= waited <= 100 + LOOK_S


async def test_a_due_time_beyond_the_wait_is_not_believed(
    clock: VirtualWallClock,
) -> None:
    batch = waiting(clock)
    batch = batch._replace(next_ms=batch.next_ms + 100)
    assert AttemptWait(clock).left_s(batch) == 0
    assert await waited_s(clock, batch) == 0


async def test_a_wait_can_be_ended_and_the_next_is_whole(
    clock: VirtualWallClock,
) -> None:
    wait, batch = AttemptWait(clock), waiting(clock)
    wait.end()  # before it begins: nothing
    with trio.move_on_after(100) as whole:
        await wait.until_due(batch)
    assert whole.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait.until_due, batch)
        await trio.testing.wait_all_tasks_blocked()
        wait.end()
    assert trio.current_time() < 3_600
