"""What an outlet makes of answers: order, attempts, halves, dead letters, restarts."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from liveness.config.outlet_settings import RETRY, WebhookSettings
from liveness.config.settings import (
    Config,
    PresenceSettings,
    SocketSettings,
    StateSettings,
)
from liveness.errors import StartError, StateError
from liveness.outlets.supervisor import Outlets
from liveness.outlets.webhooks.webhook_outlet import WebhookOutlet, make_webhooks
from tests.helpers import disk
from tests.outlets.outlet_rig import OutletRig, off, on, outlet_rig
from tests.outlets.webhooks.receiver import (
    OK,
    SECRET,
    Receiver,
    answering,
    hanging,
    receiving,
    refusing,
    resetting,
)
from tests.service.rig import running

BUSY: Final = answering(503, b"later")
# Virtual seconds, longer than anything here takes, but for the whole ladder.
LONG_S: Final = 1_000.0


@pytest.fixture
def rig(tmp_path: Path, jumping: MockClock) -> Iterator[OutletRig]:
    with outlet_rig(tmp_path) as rig:
        yield rig


@pytest.fixture
async def receiver(jumping: MockClock) -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@asynccontextmanager
async def outlet_to(
    url: str, rig: OutletRig, **settings: Any
) -> AsyncIterator[WebhookOutlet]:
    """An outlet that runs; leaving it is a restart."""
    chosen = WebhookSettings(url=url, secret=SECRET, begin="oldest", **settings)
    outlet = WebhookOutlet("mail", chosen, rig.access)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Outlets([outlet], rig.store, retention_s=3_600).run)
        yield outlet
        nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], object], *, times: float = 1) -> None:
    """Wait until it is so, that many times as long as usual."""
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
    rig.access = rig.access._replace(is_back=lambda record, _: record.seq in back)
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


async def test_a_user_without_devices_is_back_too(
    tmp_path: Path, receiver: Receiver
) -> None:
    settings = WebhookSettings(url=receiver.url, secret=SECRET, users_only=True)
    devices = PresenceSettings(device_separator="/")
    async with running(tmp_path, webhooks={"mail": settings}, presence=devices) as rig:
        gateway = await rig.gateway_of("ada")
        await gateway.send(["logout", "ada"], ["login", "ada"])
        await rig.until(lambda: receiver.received)
    kinds = [event["type"] for event in receiver.received[0].events]
    flags = [event.get("superseded") for event in receiver.received[0].events]
    assert kinds == ["liveness.online", "liveness.offline", "liveness.online"]
    assert flags == [None, True, None]


# --- attempts -------------------------------------------------------------------------


async def test_a_request_is_tried_to_the_end_of_the_ladder(
    rig: OutletRig, receiver: Receiver
) -> None:
    waits = [float(wait) for wait in RETRY.split(",")]
    receiver.next.extend([BUSY] * (len(waits) + 1))
    rig.publish(on(1), on(2))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: receiver.received)
        await until(lambda: outlet.now().retries == 2)
        assert outlet.now().state == "retrying"
        assert outlet.now().detail.startswith("attempt 3: it answered 503; the next is")
        rig.publish(on(3))
        await until(lambda: outlet.now().sent, times=120)
        now, found = outlet.now(), await outlet.dead_letters(None, 10)
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


async def test_the_receiver_is_given_the_time_that_it_asks_for(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(answering(429, Retry_After="100"))
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent)
    first, second = receiver.received
    assert 99.9 <= second.at - first.at <= 110.1


async def test_without_retries_a_failure_is_the_end(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(resetting)
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig, retry="") as outlet:
        await until(lambda: outlet.now().dead)
        (letter,) = await outlet.dead_letters(None, 10)
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


# --- dead letters ---------------------------------------------------------------------


async def test_a_record_that_is_refused_holds_up_no_other(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.usually = refusing(poison=5)
    rig.publish(*(on(seq) for seq in range(1, 9)))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent == 7)
        (letter,) = await outlet.dead_letters(None, 10)
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
        assert cursor is None or cursor.seq == 0
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
        found = await outlet.dead_letters(None, 2)
        rest = await outlet.dead_letters(found[-1].number, 2)
        assert [letter.seq for letter in found + rest] == [5, 4, 3]
        assert (outlet.now().dead_kept, outlet.now().dead_deleted) == (3, 2)
    async with outlet_to(receiver.url, rig, max_dead=3) as outlet:
        await until(lambda: outlet.now().dead_kept == 3)


async def test_users_only_has_users_as_subjects_by_hand_too(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(answering(400))
    rig.publish(on(1, "ada/phone")._replace(user_size=3, devices=1))
    async with outlet_to(receiver.url, rig, users_only=True) as outlet:
        await until(lambda: outlet.now().dead)
        (letter,) = await outlet.dead_letters(None, 10)
        await outlet.retry(letter.number)
    subjects = [request.events[0]["subject"] for request in receiver.received]
    assert subjects == ["ada", "ada"]


async def test_a_dead_letter_is_sent_again_by_hand(
    rig: OutletRig, receiver: Receiver
) -> None:
    back = set[int]()
    rig.access = rig.access._replace(is_back=lambda record, _: record.seq in back)
    receiver.next.append(answering(400))
    rig.publish(off(1))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().dead)
        (letter,) = await outlet.dead_letters(None, 10)
        assert await outlet.retry(letter.number + 1) is None
        receiver.next.append(BUSY)
        failed = await outlet.retry(letter.number)
        assert failed is not None
        assert failed[:3] == (False, 503, "later")
        assert await outlet.dead_letters(None, 10) == [letter]
        back.add(1)
        accepted = await outlet.retry(letter.number)
        assert accepted is not None
        assert accepted[:3] == (True, 204, "")
        assert await outlet.dead_letters(None, 10) == []
        assert await outlet.retry(letter.number) is None
        assert (outlet.now().sent, outlet.now().dead_kept) == (1, 0)
    (first,), (event,) = receiver.received[0].events, receiver.received[-1].events
    assert event == {**first, "superseded": True}
    assert len({request.id for request in receiver.received}) == 3


async def test_no_dead_letter_has_the_number_of_an_earlier_one(
    rig: OutletRig, receiver: Receiver
) -> None:
    receiver.next.append(answering(400))
    rig.publish(on(1))
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().dead == 1)
        (first,) = await outlet.dead_letters(None, 10)
        assert await outlet.retry(first.number)
        receiver.next.append(answering(400))
        rig.publish(on(2))
        await until(lambda: outlet.now().dead == 2)
        (second,) = await outlet.dead_letters(None, 10)
    assert second.number > first.number


# --- by hand --------------------------------------------------------------------------


async def test_a_test_is_an_event_apart_from_the_log(
    rig: OutletRig, receiver: Receiver
) -> None:
    async with outlet_to(receiver.url, rig) as outlet:
        assert (await outlet.send_test())[:3] == (True, 204, "")
        receiver.usually = hanging
        is_accepted, status, answer, _ = await outlet.send_test()
        assert (is_accepted, status, answer) == (False, None, "no answer within 10 s")
    (event,) = receiver.received[0].events
    assert (event["type"], event["source"]) == (
        "liveness.test",
        f"/liveness/{rig.access.log_writer.store.log}",
    )


async def test_a_url_that_is_not_allowed_stops_the_outlet_and_fails_a_test(
    rig: OutletRig, receiver: Receiver
) -> None:
    rig.publish(on(1))
    async with outlet_to(receiver.url_of("127.1"), rig, allow_http=True) as outlet:
        await until(lambda: outlet.now().state == "stopped")
        assert "set webhooks.mail.allow_private to true" in outlet.now().detail
        is_accepted, status, answer, _ = await outlet.send_test()
        assert (is_accepted, status, answer) == (False, None, outlet.now().detail)
    async with outlet_to(receiver.url, rig) as outlet:
        await until(lambda: outlet.now().sent == 1)


def no_secret(folder: Path) -> dict[str, Any]:
    return {"secret_file": folder / "none"}


def open_secret(folder: Path) -> dict[str, Any]:
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o644)
    return {"secret_file": folder / "secret"}


def malformed_secret(folder: Path) -> dict[str, Any]:
    (folder / "secret").touch(0o600)
    (folder / "secret").write_text("secret")
    return {"secret_file": folder / "secret"}


def wrong_ca_file(folder: Path) -> dict[str, Any]:
    (folder / "ca.crt").write_text("none")
    return {"secret": SECRET, "ca_file": folder / "ca.crt"}


@pytest.mark.parametrize(
    ("faulty", "why"),
    [
        (no_secret, "secret_file: "),
        (open_secret, "secret_file: "),
        (malformed_secret, "has no secret in line 1"),
        (wrong_ca_file, "mail.ca_file: "),
    ],
    ids=lambda it: it.__name__ if callable(it) else "",
)
async def test_a_file_that_is_wrong_stops_the_outlet_alone(
    rig: OutletRig,
    receiver: Receiver,
    tmp_path: Path,
    faulty: Callable[[Path], dict[str, Any]],
    why: str,
) -> None:
    rig.publish(on(1))
    bad = WebhookSettings(url="https://127.0.0.1:9/", **faulty(tmp_path))
    good = WebhookSettings(url=receiver.url, secret=SECRET, begin="oldest")
    outlets = [
        WebhookOutlet("mail", bad, rig.access),
        WebhookOutlet("chat", good, rig.access),
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Outlets(outlets, rig.store, retention_s=3_600).run)
        await until(lambda: outlets[1].now().sent)
        assert outlets[0].now().state == "stopped"
        assert why in outlets[0].now().detail
        result = await outlets[0].send_test()
        assert result[:3] == (False, None, outlets[0].now().detail)
        nursery.cancel_scope.cancel()


async def test_a_stopped_outlet_goes_on_once_its_secret_can_be_read(
    rig: OutletRig, receiver: Receiver, tmp_path: Path
) -> None:
    rig.publish(on(1))
    path = tmp_path / "secret"
    settings = WebhookSettings(url=receiver.url, secret_file=path, begin="oldest")
    outlet = WebhookOutlet("mail", settings, rig.access)
    assert (await outlet.send_test()).answer.startswith("webhooks.mail.secret_file: ")
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
        await until(lambda: rig.store.is_open)
        assert rig.store._db is not None
        with disk.full(rig.store._db):
            rig.publish(*(on(seq, "u" * 200) for seq in range(1, 100)))
            await until(lambda: outlet.now().state == "retrying")
            assert outlet.now().detail.endswith("; is the disk full?")
            assert not receiver.received
        await until(lambda: outlet.now().sent == 99)
        assert outlet.now().detail == ""


async def test_without_a_database_there_are_no_dead_letters_to_see(
    rig: OutletRig, receiver: Receiver
) -> None:
    settings = WebhookSettings(url=receiver.url, secret=SECRET)
    outlet = WebhookOutlet("mail", settings, rig.access)
    with pytest.raises(
        StateError, match=r"is not open; see the state of webhooks\.mail"
    ):
        await outlet.dead_letters(None, 10)


async def test_a_missing_package_is_named(
    rig: OutletRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(
        socket=SocketSettings(path=tmp_path / "g.sock"),
        state=StateSettings(dir=tmp_path),
        webhooks={"mail": WebhookSettings(url="https://a.example/", secret=SECRET)},
    )
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(StartError, match="package httpx2, which is not installed: pip"):
        make_webhooks(config, rig.access)


# --- nobody else waits ----------------------------------------------------------------


async def test_a_receiver_that_hangs_delays_no_gateway(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.usually = hanging
    settings = WebhookSettings(url=receiver.url, secret=SECRET, linger_s=0)
    async with running(tmp_path, webhooks={"mail": settings}) as rig:
        watcher = await rig.watcher()
        gateway = await rig.gateway_of("ada")
        await rig.until(lambda: receiver.received)
        began = trio.current_time()
        await gateway.send(["login", "bob"], ["logout", "ada"])
        await gateway.sync()
        await watcher.records(3)
        # All of that was in less time than the receiver is given.
        assert trio.current_time() - began < settings.timeout_s
        assert len(receiver.received) == 1
        # It holds no thread, and no other outlet waits for the database.
        limiter = trio.to_thread.current_default_thread_limiter()
        assert limiter.borrowed_tokens == 0
