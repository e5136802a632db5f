"""The requests of an outlet: order, attempts, restarts, and faults of its files."""

from itertools import pairwise
from pathlib import Path

import trio

from liveness.config.outlet_settings import WAITS_S, WebhookSettings
from liveness.service.outlets.supervisor import Outlets
from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet
from tests.helpers import disk
from tests.service.outlets.outlet_rig import OutletRig, off, on
from tests.service.outlets.webhooks.receiver import (
    SECRET,
    Receiver,
    hanging,
    resetting,
)
from tests.service.outlets.webhooks.webhook_rig import BUSY, letters, outlet_to, until

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


async def test_without_retries_a_failure_is_the_end(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(resetting)
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig, waits_s=()) as outlet:
        await until(lambda: outlet.now().dead)
        (letter,) = await letters(rig)
        assert "(Connection reset by peer)" in outlet.now().detail
    assert (letter.status, letter.answer) == (None, "Connection reset by peer")


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


async def test_a_request_without_an_answer_is_sent_again_after_a_restart(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(hanging)
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig):
        await until(lambda: receiver.received)
    rig.publish(on(2))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent == 2)
    first, again, _ = receiver.received
    assert (again.id, again.body) == (first.id, first.body)
    assert receiver.seqs == [[1], [1], [2]]


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


async def test_a_url_that_is_not_allowed_stops_the_outlet_and_fails_a_test(
    rig: OutletRig, receiver: Receiver
) -> None:
    rig.publish(on(1))
    async with outlet_to(receiver.url_of("127.1"), rig) as outlet:
        await until(lambda: outlet.now().state == "stopped")
        assert "set webhooks.mail.allow_private to true" in outlet.now().detail
        status, answer = (await outlet.send_test())[:2]
        assert (status, answer) == (None, outlet.now().detail)
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent == 1)


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
        await until(lambda: rig.store._db is not None)
        assert rig.store._db is not None
        with disk.full(rig.store._db):
            rig.publish(*(on(seq, "u" * 200) for seq in range(1, 100)))
            await until(lambda: outlet.now().state == "retrying")
            assert outlet.now().detail.endswith("; is the disk full?")
            assert not receiver.received
        await until(lambda: outlet.now().sent == 99)
        assert outlet.now().detail == ""
