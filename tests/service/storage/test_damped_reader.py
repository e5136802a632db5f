"""The position of a damped reader, and the records that it returns."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from liveness.core.changes import Changes
from liveness.core.records import Gap, Logged, Subscription
from liveness.core.sessions.damping import STEPS, DampingCounts
from liveness.service.storage.damped_reader import DampedReader
from tests.helpers import disk
from tests.helpers.record_batches import batch_of
from tests.service.storage.journals import (
    ALL,
    Log,
    VirtualClock,
    append,
    forget_tail,
    log_of,
    off,
    on,
    publish,
    writing,
)

SETTLE_S = 10.0


@pytest.fixture
def clock(jumping: MockClock) -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def log(tmp_path: Path, clock: VirtualClock) -> Iterator[Log]:
    with log_of([], tmp_path, keep=1_000, clock=clock) as log:
        yield log


def reader(log: Log, wanted: Subscription = ALL, **options: object) -> DampedReader:
    defaults: dict[str, object] = {"settle_s": SETTLE_S, "counts": DampingCounts(100)}
    return DampedReader(
        log.log_writer, log.feed, wanted, 0, clock=log.clock, **(defaults | options)  # type: ignore[arg-type]  # a test's own words
    )  # fmt: skip


async def take(
    damped: DampedReader, at_s: float, limit: int = 100
) -> list[Logged | Gap]:
    await trio.sleep_until(at_s)
    return [entry.record for entry in await damped.take(limit)]


async def test_the_position_stays_before_an_offline_that_waits(log: Log) -> None:
    damped = reader(log)
    publish(log, on(1), off(2), on(3, "bob"))
    assert [r.seq for r in await take(damped, 0)] == [1, 3]
    assert (damped.position, damped.tail.position, damped.waiting) == (1, 3, 1)
    assert damped.next_in_s == SETTLE_S
    assert [r.seq for r in await take(damped, SETTLE_S)] == [2]
    assert (damped.position, damped.waiting) == (3, 0)


async def test_nothing_more_is_read_before_what_was_read_is_taken(log: Log) -> None:
    damped = reader(log, Subscription("g", ALL.kinds - {"moved"}))
    publish(log, off(1), on(2, gateway="h", at_s=1), on(3, "bob", at_s=2))
    assert await take(damped, 2, limit=1) == []  # the offline waits
    for taken in ([1], []):
        assert [r.seq for r in await take(damped, 2, limit=1)] == taken
        assert (damped.tail.position, damped.waiting) == (2, 0)
    assert [r.seq for r in await take(damped, 2, limit=1)] == [3]


async def test_what_does_not_concern_the_reader_is_passed_in_bounded_steps(
    log: Log,
) -> None:
    damped = reader(log, ALL._replace(gateway="other"))
    publish(log, *(off(seq, f"u{seq}") for seq in range(1, 10)))
    calls = 0
    while damped.is_behind or damped.waiting:
        assert await take(damped, SETTLE_S, limit=1) == []
        calls += 1
    assert calls > 9 / STEPS
    assert damped.position == 9


async def test_before_a_gap_all_that_waits_is_returned(log: Log) -> None:
    damped = reader(log)
    publish(log, off(1))
    assert await take(damped, 0) == []
    publish(log, on(2, "bob"))
    publish(log, on(3, "bob"))
    forget_tail(log.feed, keep=1_000)
    disk.change(log.log_writer.store.path, "delete from log where last = 2")
    taken = await take(damped, 0)
    assert [r.kind for r in taken] == ["offline", "gap"]
    assert [r.seq for r in await take(damped, 0)] == [3]


def decide(log: Log, *records: Logged) -> None:
    """Records that wait for the disk."""
    append(log.log_writer, Changes(batch_of(records)))


async def test_no_offline_is_returned_while_what_was_decided_meanwhile_is_not_on_disk(
    log: Log,
) -> None:
    damped = reader(log)
    publish(log, off(1), off(2, "bob"), off(3, "eve", at_s=1))
    assert await take(damped, 1) == []
    back = [on(4, at_s=9), on(5, "eve", at_s=12)]
    decide(log, back[0])
    assert damped.next_in_s == SETTLE_S - 1
    assert await take(damped, 12) == []
    decide(log, back[1])
    assert await take(damped, 15) == []
    assert damped.next_in_s == float("inf")  # the next commit wakes it
    log.log_writer._queue.popleft()
    publish(log, back[0])
    assert [r.seq for r in await take(damped, 15)] == [2, 3]  # as of the twelfth second
    log.log_writer._queue.popleft()
    publish(log, back[1])
    assert [r.seq for r in await take(damped, 15)] == [5]


async def write(log: Log, record: Logged) -> None:
    async with writing(log.log_writer):
        append(log.log_writer, Changes(records=batch_of([record])))
        await log.log_writer.flushed()


@pytest.mark.parametrize("step_s", [-3_600, 3_600], ids=["back", "ahead"])
async def test_what_was_decided_before_a_step_of_the_clock_and_a_restart_has_its_age(
    tmp_path: Path, clock: VirtualClock, step_s: float
) -> None:
    await trio.sleep(10_000)
    clock.resume_state(None)
    records = off(1, at_s=10_000), off(2, at_s=10_004 + step_s)
    with log_of([], tmp_path, keep=1_000, clock=clock) as log:
        await write(log, records[0])
        await trio.sleep(4)
        clock.set_wall(ahead_s=step_s)
        await write(log, records[1])
        log.log_writer.store.store_clock(clock.state_time())
    await trio.sleep(5)
    with log_of([], tmp_path, keep=1_000, clock=clock) as log:
        decided = [log.log_writer.decided_ms(it) for it in records]
    assert decided == [10_000_000, 10_004_000]


async def test_a_user_who_is_back_elsewhere_has_moved_for_readers_of_both_gateways(
    log: Log,
) -> None:
    wanted = [ALL._replace(gateway=name) for name in ("g", "h", "other")]
    readers = [reader(log, subscription) for subscription in wanted]
    publish(log, off(1, gateway="g"), on(2, gateway="h", at_s=1))
    taken = [[r.kind for r in await take(damped, 100)] for damped in readers]
    assert taken == [["moved"], ["moved"], []]
