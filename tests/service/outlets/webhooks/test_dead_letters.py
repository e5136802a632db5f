"""Records that a receiver refuses become dead letters, and are sent again by hand."""

from liveness.service.outlets.webhooks.webhook_outlet import REFUSED_PAUSE_S
from tests.service.outlets.outlet_rig import OutletRig, off, on
from tests.service.outlets.webhooks.receiver import (
    OK,
    Receiver,
    answering,
    hanging,
    refusing,
)
from tests.service.outlets.webhooks.webhook_rig import BUSY, letters, outlet_to, until


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


async def test_a_receiver_that_refuses_all_is_not_sent_all_at_once(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.usually = answering(400)
    rig.publish(*(on(seq, f"u{seq}") for seq in range(1, 51)))
    async with outlet_to(receiver.url, rig, batch=1) as outlet:
        await until(lambda: outlet.now().dead == 50)
    assert receiver.received[-1].at - receiver.received[0].at >= 49 * REFUSED_PAUSE_S
