"""How long a request waits while the wall clock is set forward or back."""

import pytest
import trio
import trio.testing

from liveness.outlets.webhooks.attempt_wait import LOOK_S, AttemptWait
from liveness.outlets.webhooks.batch_store import StoredBatch
from liveness.service.common.clock import Clock

HOUR_MS = 3_600_000


class SetClock(Clock):
    """A wall clock that runs with virtual time, and can be set."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return 10 * HOUR_MS + self.ahead_ms + round(trio.current_time() * 1000)


@pytest.fixture
def clock(jumping: object) -> SetClock:
    return SetClock()


def waiting(clock: SetClock, wait_ms: int = HOUR_MS) -> StoredBatch:
    """A request that failed just now, with its next attempt after *wait_ms*."""
    return StoredBatch(
        0, "log", 1, "msg_1", b"[]", 1, 0,
        attempts=1, rung=1, next_ms=clock.wall_ms() + wait_ms, wait_ms=wait_ms,
    )  # fmt: skip


async def waited_s(
    clock: SetClock, batch: StoredBatch, *, set_ms: int = 0, after_s: float = 0
) -> float:
    """How long it waits if the clock is set by *set_ms* after *after_s*."""
    wait, began = AttemptWait(clock), trio.current_time()

    async def set_clock() -> None:
        await trio.sleep(after_s)
        clock.ahead_ms += set_ms

    async with trio.open_nursery() as nursery:
        nursery.start_soon(set_clock)
        await wait.until_due(batch)
        waited = trio.current_time() - began
        nursery.cancel_scope.cancel()
    return waited


async def test_a_first_attempt_waits_for_nothing(clock: SetClock) -> None:
    fresh = waiting(clock)._replace(attempts=0, rung=0, next_ms=0, wait_ms=0)
    assert await waited_s(clock, fresh) == 0


async def test_a_wait_is_as_long_as_the_clock_says(clock: SetClock) -> None:
    assert await waited_s(clock, waiting(clock)) == pytest.approx(3_600)


async def test_a_clock_that_is_set_forward_is_noticed(clock: SetClock) -> None:
    batch = waiting(clock)
    waited = await waited_s(clock, batch, set_ms=HOUR_MS, after_s=100)
    assert 100 <= waited <= 100 + LOOK_S


async def test_a_clock_that_is_set_back_makes_no_wait_longer(clock: SetClock) -> None:
    batch = waiting(clock)
    waited = await waited_s(clock, batch, set_ms=-HOUR_MS // 2, after_s=1_900)
    assert waited == pytest.approx(3_600)


async def test_a_due_time_beyond_the_wait_means_a_clock_that_was_set_back(
    clock: SetClock,
) -> None:
    batch = waiting(clock)
    clock.ahead_ms -= 1
    assert AttemptWait(clock).left_s(batch) == 0
    assert await waited_s(clock, batch) == 0


async def test_a_wait_can_be_ended_and_the_next_is_whole(clock: SetClock) -> None:
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
