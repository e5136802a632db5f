"""The requests of an outlet: order, attempts, restarts, and faults of its files."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from liveness.config.outlet_settings import WAITS_S, WebhookSettings
from liveness.service.outlets.supervisor import Outlets
from liveness.service.outlets.webhooks import batch_store
from liveness.service.outlets.webhooks.batch_store import DeadLetter
from liveness.service.outlets.webhooks.webhook_outlet import (
    MOST_ASKED_S,
    REFUSED_PAUSE_S,
    WebhookOutlet,
)
from tests.helpers import disk
from tests.service.outlets.outlet_rig import OutletRig
from tests.service.outlets.webhooks.receiver import (
    OK,
    SECRET,
    SECRET_FILE,
    Received,
    Receiver,
    answering,
    hanging,
    refusing,
)
from tests.service.storage.journals import off, on

BUSY: Final = answering(503, b"later")
# Virtual seconds, longer than anything here takes, but for the whole ladder.
LONG_S: Final = 1_000.0


@asynccontextmanager
async def outlet_to(
    url: str, rig: OutletRig, **settings: Any
) -> AsyncIterator[WebhookOutlet]:
    """An outlet that runs; leaving it is a restart."""
    chosen = WebhookSettings(
        url=url, secret_file=SECRET_FILE, begin="oldest", **settings
    )
    outlet = WebhookOutlet("mail", chosen, rig.access)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Outlets([outlet], rig.store, retention_s=3_600).run)
        yield outlet
        nursery.cancel_scope.cancel()


async def letters(
    rig: OutletRig, before: int = 2**63 - 1, limit: int = 10
) -> list[DeadLetter]:
    """The dead letters, newest first."""
    found = await rig.store.run(
        lambda db: batch_store.letters(db, None, before=before, limit=limit)
    )
    return [letter for _, letter in found]


async def until(is_so: Callable[[], object], *, times: float = 1) -> None:
    """Wait until it is so, for at most *times* as long as usual."""
    with trio.fail_after(times * LONG_S):
        while not is_so():  # noqa: ASYNC110 - virtual: this is how time passes
            await trio.sleep(times * 0.5)


# --- what is sent ---------------------------------------------------------------------


async def test_records_come_in_order_in_full_batches(
    rig: OutletRig, receiver: Receiver
) -> None:
    rig.publish(*(on(seq) for seq in range(1, 6)))
    async with outlet_to(receiver.url, rig, batch=2) as outlet:
        await until(lambda: outlet.now().sent == 5)
        now = outlet.now()
    assert receiver.seqs == [[1, 2], [3, 4], [5]]
    assert (now.state, now.detail, now.lag_records) == ("following", "", 0)
    assert (now.retries, now.dead, now.dead_kept) == (0, 0, 0)
    assert len({request.id for request in receiver.received}) == 3


async def test_an_offline_whose_user_is_back_says_so(
    rig: OutletRig, receiver: Receiver
) -> None:
    back = {2}
    rig.access = rig.access._replace(
        is_superseded=lambda record, *_: record.seq in back
    )
    receiver.next.append(BUSY)
    rig.publish(off(1, "ada"), off(2, "bob"), on(3, "eve"))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: receiver.received)
        back.add(1)  # it was fixed at the first attempt
        await until(lambda: outlet.now().sent)
    first, second = receiver.received
    flags = [event.get("superseded") for event in first.events]
    assert flags == [None, True, None]
    assert (second.id, second.body) == (first.id, first.body)


# --- attempts -------------------------------------------------------------------------


async def test_a_request_is_tried_to_the_end_of_the_ladder(
    rig: OutletRig, receiver: Receiver
) -> None:
    waits = WAITS_S
    receiver.next.extend([BUSY] * (len(waits) + 1))
    rig.publish(on(1), on(2))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: receiver.received)
        await until(lambda: outlet.now().retries == 2)
        assert outlet.now().state == "retrying"
        assert outlet.now().detail.startswith("attempt 3: it answered 503; the next is")
        rig.publish(on(3))
        await until(lambda: outlet.now().sent, times=120)
        now, found = outlet.now(), await letters(rig)
    *tried, last = receiver.received
    assert {(request.id, request.body) for request in tried} == {
        (tried[0].id, tried[0].body)
    }
    steps = [later.at - earlier.at for earlier, later in pairwise(tried)]
    assert len(steps) == len(waits)
    for step, wait in zip(steps, waits, strict=True):
        assert wait - 0.01 <= step <= 1.1 * wait + 0.01
    assert last.seqs == [3]
    assert (now.sent, now.retries, now.dead, now.dead_kept) == (1, 15, 2, 2)
    assert [
        (letter.seq, letter.id, letter.attempts, letter.status, letter.answer)
        for letter in found
    ] == [(seq, tried[0].id, 16, 503, "later") for seq in (2, 1)]


async def test_after_a_restart_the_ladder_goes_on_with_the_same_request(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.extend([BUSY] * 3)
    rig.publish(on(1), on(2))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().retries == 2)
    rig.publish(on(3))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent == 3)
    first, _, third, fourth, fifth = receiver.received
    assert (fourth.id, fourth.body) == (first.id, first.body)
    assert 29.9 <= fourth.at - third.at <= 33.1
    assert fifth.seqs == [3]


# --- by hand --------------------------------------------------------------------------


async def test_a_test_is_an_event_apart_from_the_log(
    rig: OutletRig, receiver: Receiver
) -> None:
    async with outlet_to(receiver.url, rig) as outlet:
        assert (await outlet.send_test())[:2] == (204, "")
        receiver.usually = hanging
        status, answer = (await outlet.send_test())[:2]
        assert (status, answer) == (None, "no answer within 10 s")
    (event,) = receiver.received[0].events
    assert (event["type"], event["source"]) == (
        "liveness.test",
        f"/liveness/{rig.access.log_writer.store.log}",
    )


async def test_a_stopped_outlet_goes_on_once_its_secret_can_be_read(
    rig: OutletRig, receiver: Receiver, tmp_path: Path
) -> None:
    rig.publish(on(1))
    path = tmp_path / "secret"
    settings = WebhookSettings(url=receiver.url, secret_file=path, begin="oldest")
    outlet = WebhookOutlet("mail", settings, rig.access)
    assert (await outlet.send_test()).text.startswith("webhooks.mail.secret_file: ")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Outlets([outlet], rig.store, retention_s=3_600).run)
        await until(lambda: outlet.now().state == "stopped")
        path.touch(0o600)
        path.write_text(SECRET)
        await until(lambda: outlet.now().sent)
        assert (outlet.now().state, outlet.now().detail) == ("following", "")
        nursery.cancel_scope.cancel()


# --- the disk, and the start ----------------------------------------------------------


async def test_a_full_disk_is_waited_for(rig: OutletRig, receiver: Receiver) -> None:
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: disk.connection(rig.store))
        with disk.full(rig.store):
            rig.publish(*(on(seq, "u" * 200) for seq in range(1, 100)))
            await until(lambda: outlet.now().state == "retrying")
            assert outlet.now().detail.endswith("; is the disk full?")
            assert not receiver.received
        await until(lambda: outlet.now().sent == 99)
        assert outlet.now().detail == ""


# --- what waits, and what ends a wait -------------------------------------------------


def is_test(request: Received) -> bool:
    return bool(request.events[0]["type"] == "liveness.test")


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


# --- dead letters ---------------------------------------------------------------------


async def test_a_record_that_is_refused_holds_up_no_other(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.usually = refusing(poison=5)
    rig.publish(*(on(seq) for seq in range(1, 9)))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent == 7)
        (letter,) = await letters(rig)
        detail = outlet.now().detail
    assert receiver.seqs == [
        [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4], [5, 6, 7, 8], [5, 6], [5], [6], [7, 8],
    ]  # fmt: skip
    assert letter.seq == 5
    assert (letter.attempts, letter.status, letter.answer) == (1, 422, "poison")
    assert letter.id == receiver.received[4].id
    assert detail == ""
    assert len({request.id for request in receiver.received}) == 7


async def test_halves_outlive_a_restart(rig: OutletRig, receiver: Receiver) -> None:
    receiver.next.extend([answering(400), OK, answering(400), hanging])
    rig.publish(*(on(seq) for seq in range(1, 5)))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: len(receiver.received) == 4)
        cursor = await rig.store.cursor(outlet.name)
        assert cursor is None or cursor[1] == 0
    async with outlet_to(receiver.url, rig) as outlet:
        rig.publish(on(5))
        await until(lambda: receiver.seqs[-1] == [5])
        assert outlet.now().dead == 0
    assert receiver.seqs == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [3], [4], [5]]
    assert receiver.received[4].id == receiver.received[3].id


async def test_the_oldest_dead_letters_make_place(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.usually = answering(400)
    rig.publish(*(on(seq) for seq in range(1, 6)))
    async with outlet_to(receiver.url, rig, max_dead=3) as outlet:
        await until(lambda: outlet.now().dead == 5)
        assert "became dead letters (it answered 400)" in outlet.now().detail
        took_s = receiver.received[-1].at - receiver.received[0].at
        assert took_s >= 4 * REFUSED_PAUSE_S
        found = await letters(rig, limit=2)
        rest = await letters(rig, found[-1].number, 2)
        assert [letter.seq for letter in found + rest] == [5, 4, 3]
        assert (outlet.now().dead_kept, outlet.now().dead_deleted) == (3, 2)
    async with outlet_to(receiver.url, rig, max_dead=3) as outlet:
        await until(lambda: outlet.now().dead_kept == 3)


async def test_a_dead_letter_is_sent_again_by_hand(
    rig: OutletRig, receiver: Receiver
) -> None:
    back = set[int]()
    rig.access = rig.access._replace(is_superseded=lambda record, _: record.seq in back)
    receiver.next.append(answering(400))
    rig.publish(off(1, "ada/phone")._replace(user_size=3, devices=0))
    async with outlet_to(receiver.url, rig, users_only=True) as outlet:
        await until(lambda: outlet.now().dead)
        (letter,) = await letters(rig)
        assert await outlet.retry_next(letter.number) is None
        receiver.next.append(BUSY)
        failed = await outlet.retry_next(letter.number - 1)
        assert failed is not None
        assert (failed[0], *failed[1][:2]) == (letter.number, 503, "later")
        assert await letters(rig) == [letter]
        back.add(1)
        accepted = await outlet.retry_next(letter.number - 1)
        assert accepted is not None
        assert accepted[1][:2] == (204, "")
        assert await letters(rig) == []
        assert await outlet.retry_next(letter.number - 1) is None
        assert (outlet.now().sent, outlet.now().dead_kept) == (1, 0)
    (first,), (event,) = receiver.received[0].events, receiver.received[-1].events
    assert event == {**first, "superseded": True}
    assert event["subject"] == "ada"
    assert len({request.id for request in receiver.received}) == 3


async def test_no_dead_letter_has_the_number_of_an_earlier_one(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(answering(400))
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().dead == 1)
        (first,) = await letters(rig)
        assert await outlet.retry_next(0)
        receiver.next.append(answering(400))
        rig.publish(on(2))
        await until(lambda: outlet.now().dead == 2)
        (second,) = await letters(rig)
    assert second.number > first.number
