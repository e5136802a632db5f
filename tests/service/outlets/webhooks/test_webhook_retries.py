"""Requests that wait for their next attempt: what is shown, and what ends a wait."""

import sqlite3

import pytest
import trio

from liveness.service.outlets.common.outlet_store import put_cursor
from liveness.service.outlets.webhooks import batch_store
from liveness.service.outlets.webhooks.batch_store import StoredBatch, put_batch
from liveness.service.outlets.webhooks.cloud_events import joined
from liveness.service.outlets.webhooks.webhook_outlet import (
    LOOK_S,
    MOST_ASKED_S,
)
from tests.service.outlets.outlet_rig import TEN_DAYS, OutletRig, on
from tests.service.outlets.webhooks.receiver import (
    OK,
    Received,
    Receiver,
    answering,
)
from tests.service.outlets.webhooks.webhook_rig import BUSY, outlet_to, until


def is_test(request: Received) -> bool:
    return bool(request.events[0]["type"] == "liveness.test")


async def test_after_a_restart_a_request_that_waits_says_so(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.usually = BUSY
    await trio.sleep(50)
    rig.publish(on(1, at_s=50))
    async with outlet_to(receiver.url, rig, waits_s=(600, 600, 600)) as outlet:
        await until(lambda: outlet.now().state == "retrying")
    await trio.sleep(100)
    async with outlet_to(receiver.url, rig, waits_s=(600, 600, 600)) as outlet:
        await until(lambda: outlet.now().state == "retrying")
        now = outlet.now()
        assert now.detail.startswith("attempt 1: it answered 503; the next is in ")
        assert "and 2 more may follow" in now.detail
        assert now.lag_s == pytest.approx(trio.current_time() - 50, abs=0.1)
        assert len(receiver.received) == 1


@pytest.mark.parametrize("wrong_s", [-TEN_DAYS, TEN_DAYS], ids=["behind", "ahead"])
async def test_the_age_of_a_request_is_the_same_however_the_wall_clock_is_set(
    rig: OutletRig, receiver: Receiver, wrong_s: float
) -> None:
    receiver.usually = BUSY
    rig.clock.set_wall(ahead_s=wrong_s)
    rig.publish(on(1, at_s=wrong_s))
    await trio.sleep(50)
    rig.clock.set_wall(ahead_s=0)
    async with outlet_to(receiver.url, rig, waits_s=(600, 600, 600)) as outlet:
        await until(lambda: outlet.now().state == "retrying")
        assert outlet.now().lag_s == pytest.approx(trio.current_time(), abs=0.1)
    rig.clock.set_wall(ahead_s=wrong_s)
    async with outlet_to(receiver.url, rig, waits_s=(600, 600, 600)) as outlet:
        await until(lambda: outlet.now().state == "retrying")
        assert outlet.now().lag_s == pytest.approx(trio.current_time(), abs=0.1)
        receiver.usually = OK
        await until(lambda: outlet.now().sent)
        latency_s = outlet.now().latency.sum
        assert latency_s == pytest.approx(trio.current_time(), abs=1)


async def test_an_accepted_test_ends_a_wait(rig: OutletRig, receiver: Receiver) -> None:
    receiver.next.extend([BUSY, OK, BUSY, BUSY])
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig, waits_s=(300, 600, 21600)) as outlet:
        await until(lambda: outlet.now().state == "retrying")
        assert "`liveness webhooks test mail` tries the receiver, and" in (
            outlet.now().detail
        )
        assert (await outlet.send_test()).is_accepted
        await until(lambda: "attempt 2" in outlet.now().detail, times=0.1)
        assert "and 1 more may follow" in outlet.now().detail  # the ladder goes on
        assert not (await outlet.send_test()).is_accepted
        await trio.sleep(1)
        assert len(receiver.received) == 4
        assert (await outlet.send_test()).is_accepted
        await until(lambda: outlet.now().sent, times=0.1)
    assert len({r.id for r in receiver.received if not is_test(r)}) == 1


async def test_a_request_that_ends_notes_the_use_of_the_outlet_by_the_clock_of_the_state(
    rig: OutletRig, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not seen in the database: the outlet soon stores its cursor again."""
    used_ms = list[int]()

    def put(db: sqlite3.Connection, outlet: str, at: tuple[str, int], ms: int) -> None:
        used_ms.append(ms)
        put_cursor(db, outlet, at, ms)

    monkeypatch.setattr(batch_store, "put_cursor", put)
    receiver.next.extend([OK, answering(422)])
    rig.clock.set_wall(ahead_s=TEN_DAYS)
    rig.publish(on(1, at_s=TEN_DAYS), on(2, at_s=TEN_DAYS))
    async with outlet_to(receiver.url, rig, batch=1) as outlet:
        await until(lambda: outlet.now().dead)
    assert len(used_ms) == 2
    assert max(used_ms) <= rig.clock.state_ms()


# --- refusals of a receiver, and of a record --------------------------------------------


async def test_a_receiver_that_refuses_all_makes_no_dead_letters(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.usually = answering(401)
    rig.publish(*(on(seq) for seq in range(1, 9)))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().state == "retrying")
        assert outlet.now().detail.startswith(
            "attempt 1: it answered 401; the next is in 1"
        )
        receiver.usually = OK
        await until(lambda: outlet.now().sent == 8)
        assert outlet.now().dead == 0
    assert len(receiver.received) == 2


async def test_a_request_from_beyond_the_end_of_a_shorter_log_moves_no_cursor(
    rig: OutletRig, receiver: Receiver
) -> None:
    rig.publish(*(on(seq, f"u{seq}") for seq in range(1, 6)))
    log = rig.log.log_writer.store.log
    begun = StoredBatch(0, log, 12, "msg_1", joined([]), 0, 0)
    await rig.store.open(keep=["webhooks.mail"], unused_s=1_000)
    await rig.store.run(lambda db: put_batch(db, "webhooks.mail", begun))
    await rig.store.run(lambda db: put_cursor(db, "webhooks.mail", (log, 9), 0))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent)
        rig.publish(*(on(seq, f"u{seq}") for seq in range(6, 16)))
        await until(lambda: outlet.now().lag_records == 0)
    assert [seq for seqs in receiver.seqs[1:] for seq in seqs] == [*range(1, 16)]


# --- what a receiver asks for -----------------------------------------------------------


@pytest.mark.parametrize(("asked_s", "waited_s"), [(100, 100), (100_000, MOST_ASKED_S)])
async def test_no_receiver_asks_for_more_than_the_longest_wait(
    rig: OutletRig, receiver: Receiver, asked_s: int, waited_s: float
) -> None:
    receiver.next.append(answering(429, Retry_After=f"{asked_s}"))
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent, times=100)
    first, second = receiver.received
    assert waited_s - 1 <= second.at - first.at <= 1.1 * waited_s + 1


# --- waits, while the wall clock is set and the host sleeps -----------------------------


@pytest.mark.parametrize("set_s", [3_600, -3_600])
async def test_a_wait_takes_its_time_however_the_clock_is_set(
    rig: OutletRig, receiver: Receiver, set_s: float
) -> None:
    receiver.next.append(BUSY)
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig, waits_s=(3_600,)) as outlet:
        await until(lambda: outlet.now().state == "retrying")
        rig.clock.set_wall(ahead_s=set_s)
        await until(lambda: outlet.now().sent, times=10)
    first, second = receiver.received
    assert 3_599 <= second.at - first.at <= 1.1 * 3_600 + 1


async def test_a_wait_that_is_over_when_the_host_wakes_up_ends(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(BUSY)
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig, waits_s=(3_600,)) as outlet:
        await until(lambda: outlet.now().state == "retrying")
        rig.clock.slept_s += 4_000
        await until(lambda: outlet.now().sent)
    first, second = receiver.received
    assert second.at - first.at <= LOOK_S + 1


async def test_a_due_time_beyond_the_wait_is_not_believed(
    rig: OutletRig, receiver: Receiver
) -> None:
    log = rig.log.log_writer.store.log
    begun = StoredBatch(
        0, log, 0, "msg_1", joined([]), 0, 0,
        attempts=1, next_ms=rig.clock.state_ms() + 20_000, wait_ms=15_000,
    )  # fmt: skip
    await rig.store.open(keep=["webhooks.mail"], unused_s=1_000)
    await rig.store.run(lambda db: put_batch(db, "webhooks.mail", begun))
    async with outlet_to(receiver.url, rig):
        await until(lambda: receiver.received, times=0.01)
    assert receiver.received[0].at < 5
