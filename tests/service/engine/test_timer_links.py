"""Timers of real links on virtual time, where the disk is in the way."""

import sqlite3
from contextlib import ExitStack, closing
from typing import Any, NoReturn

import pytest
import trio
from structlog.testing import capture_logs

from liveness.core.sessions.clearance import UNREAD
from liveness.core.timer_states import UNANSWERED
from liveness.service.timers import timer_reader
from tests.helpers import disk
from tests.service.rig import Caller, Rig, slowed

FEW = 1_000
PAYLOAD = "p" * 4_096  # so that a hundred do not find room in pages there are already
HUNDRED = [["after", f"k{n}", 100, {"payload": PAYLOAD}] for n in range(100)]


def states(rig: Rig) -> dict[str, int]:
    query = "select state, count(*) from timers group by state"
    return dict(disk.rows(rig.log_writer.timers.table.path, query))


def runs_of(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(run["key"], run["attempt"]) for run in records]


def fails(*_: object, **__: object) -> NoReturn:
    raise sqlite3.OperationalError("disk I/O error")


async def leave(rig: Rig, *timers: list[Any]) -> None:
    """Have a gateway ask for these timers and go."""
    gateway = await rig.gateway("g")
    await gateway.apply(*timers)
    gateway.close()
    await rig.until(lambda: not rig.registry.links)


async def test_other_links_go_on_while_timers_cannot_be_written(rig: Rig) -> None:
    gateway, other = await rig.gateway("g"), await rig.gateway("other")
    with rig.no_room_for_timers():
        await gateway.send(*HUNDRED, ["ping", 1])
        await rig.until(lambda: rig.log_writer.failure)
        newcomer = await rig.gateway("new", timeout=10)
        await newcomer.send(["login", "u"])
        watcher = await rig.watcher(after=0)
        (online,) = await watcher.records(1)
        (offline,) = await newcomer.records(1)
        assert (online["kind"], offline["kind"]) == ("online", "offline")
        await watcher.records(1)
        for caller in (other, watcher):
            await caller.send(["ping", 2])
            assert await caller.expect("pong") == [2]
        # The timer requests are still not durable, and not confirmed.
        assert await gateway.is_told_nothing(5)
        assert states(rig) == {}
    assert await gateway.expect("pong") == [1]
    assert states(rig) == {"pending": 100}


@pytest.mark.rig(max_pending=FEW)
async def test_an_attempt_is_not_over_while_its_link_is_not_read(rig: Rig) -> None:
    filling = [["after", f"{n}", 1_000] for n in range(1_000)]
    gateway = await rig.gateway("g", kinds=["timer"])
    await gateway.send(["after", "k", 1], ["after", "nobody answers", 1])
    runs = await gateway.records(2)
    with rig.no_room_for_timers():
        await gateway.send(*filling)
        await rig.until(lambda: rig.log_writer.failure)
        await gateway.send(["done", "k"])
        await trio.sleep(200)
        assert rig.sidecar.scheduler.results[UNANSWERED] == 0
    await gateway.sync()
    assert states(rig) == {"done": 1, "fired": 1, "pending": 1_000}
    # The other one gets all of its time from here on, and no more than that.
    await gateway.send(["ack", runs[-1]["seq"]])
    await trio.sleep(55)
    assert rig.sidecar.scheduler.results[UNANSWERED] == 0
    await trio.sleep(10)
    assert rig.sidecar.scheduler.results[UNANSWERED] == 1
    assert "fired" not in states(rig)


async def test_what_a_gateway_passes_over_is_read_once_it_is_on_disk(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave(rig, ["login", "u"], ["after", "k", 3, {"payload": PAYLOAD}])
    flushed_for, full = rig.log_writer.flushed_for, ExitStack()
    callers = list[Caller]()

    async def settled_and_full(gateway: str | None) -> None:
        """Decisions from here on are not durable when the log is read."""
        await flushed_for(gateway)
        if not callers:
            full.enter_context(rig.disk_full())
            callers.append(await rig.connect())
            await trio.sleep(5)
            hello = {"protocol": 1, "name": "g", "fresh": True}
            await callers[0].send(["hello", hello])
            await trio.sleep(1)

    monkeypatch.setattr(rig.log_writer, "flushed_for", settled_and_full)
    await rig.gateway("another")
    await trio.sleep(30)
    full.close()
    await callers[0].expect("welcome")
    assert runs_of(await callers[0].records(1)) == [("k", 1)]


async def test_what_a_gateway_passes_over_is_read_when_the_disk_can_be(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave(rig, ["after", "k", 1])
    await trio.sleep(2)
    with capture_logs() as said, monkeypatch.context() as unreadable:
        unreadable.setattr(timer_reader, "attempts", fails)
        gateway = await rig.gateway("g", fresh=True)
        # Longer than the attempt has: it is not over meanwhile.
        assert await gateway.is_told_nothing(100)
    levels = {line["log_level"] for line in said if "of timers" in line["event"]}
    assert levels == {"warning"}
    assert runs_of(await gateway.records(1)) == [("k", 1)]


async def asks_without_end(rig: Rig) -> Caller:
    """A gateway with a user, that asks for more timers than may wait for the disk."""
    greedy = await rig.gateway_of("of greedy", "greedy")
    asked = [["after", f"{n}", 10_000, {"payload": PAYLOAD}] for n in range(100)]
    await greedy.send(*asked, *(["after", f"{n}", 10_000] for n in range(100, 3_100)))
    await rig.until(
        lambda: rig.log_writer.failure and rig.sidecar.parts.pressure.held_back
    )
    return greedy


@pytest.mark.rig(max_pending=FEW)
async def test_a_gateway_with_too_many_timers_holds_up_no_other(rig: Rig) -> None:
    other = await rig.gateway("other")
    await other.send(["after", "once", 1], ["after", "later", 50])
    await other.records(1)
    await other.apply(["done", "once"])
    with rig.no_room_for_timers():
        greedy = await asks_without_end(rig)
        pending = rig.log_writer.timers.pending
        await greedy.send(*(["cancel", {"key": "none"}] for _ in range(1_000)))
        # Not even one of whose orders some wait too.
        await other.send(["after", "waits as well", 1_000, {"payload": PAYLOAD}])
        await other.send(["login", ["silent", "talks"]])
        for _ in range(29):
            await trio.sleep(1)
            await other.send(["keepalive", "talks"])
        (offline,) = await other.records(1)
        assert (offline["uid"], offline["reason"]) == ("silent", "silence")
        assert offline["silence"] <= 30.1
        (run,) = await other.records(1)
        assert (run["kind"], run["key"]) == ("timer", "later")
        assert run["at"] - run["due"] <= 100
        assert rig.counts.limits_met["timers.max_pending"] == 1
        assert rig.counts.limits_met["limits.pause_reading"] == 0
        assert rig.log_writer.timers.pending_by_gateway["other"] == 1
        assert rig.log_writer.timers.pending == pending + 1


@pytest.mark.rig(max_pending=FEW, gateway_hold_s=60)
async def test_users_behind_too_many_timers_wait_for_the_hold(rig: Rig) -> None:
    with rig.no_room_for_timers():
        greedy = await asks_without_end(rig)
        await trio.sleep(85)
        assert rig.firing.held(rig.attended.now)[UNREAD] == 1
        (offline,) = await greedy.records(1)
    assert offline["reason"] == "gateway_lost"
    assert 90 <= offline["silence"] <= 90.2


@pytest.mark.rig(max_pending=FEW)
async def test_short_pauses_in_reading_a_link_renew_no_user(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = rig.log_writer.timers.writer
    monkeypatch.setattr(writer, "write", slowed(writer.write, 0.3))
    greedy = await rig.gateway("greedy")
    await greedy.send(["login", "silent"])
    for _ in range(32):
        await greedy.send(*(["cancel", {"key": "none"}] for _ in range(2_000)))
        await trio.sleep(1)
    (offline,) = await greedy.records(1)
    assert rig.counts.limits_met["timers.max_pending"] >= 25
    assert offline["reason"] == "silence"
    assert offline["silence"] <= 31


async def test_a_timer_made_again_during_a_commit_is_not_late(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = rig.log_writer.writer
    gateway = await rig.gateway("g")
    await gateway.apply(["after", "k", 1])
    monkeypatch.setattr(writer, "write", slowed(writer.write, 0.1))
    await rig.until(lambda: rig.log_writer.records_pending)
    await gateway.send(["after", "k", 0.1])
    first, second = await gateway.records(2)
    assert second["seq"] == first["seq"] + 1
    assert rig.counts.timer_lateness.sum < 0.3


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_a_timer_of_a_forgotten_name_waits_for_its_gateway(
    rig: Rig, is_fresh: bool
) -> None:
    await leave(rig, ["after", "k", 10])
    rig.engine.forget("gateway", "g")
    await trio.sleep(400)  # its attempt has a minute
    assert states(rig) == {"fired": 1}
    assert rig.sidecar.scheduler.results[UNANSWERED] == 0
    back = await rig.gateway("g", fresh=is_fresh)
    assert runs_of(await back.records(1)) == [("k", 1)]


@pytest.mark.parametrize(
    "damage",
    ["payload = cast(x'ff' as text)", "state = 'qending'", "state = 'fired'"],
    ids=["text", "state", "run"],
)
async def test_a_timer_damaged_on_disk_is_named_once_and_others_fire(
    rig: Rig, damage: str
) -> None:
    gateway, other = await rig.gateway("g"), await rig.gateway("other")
    await gateway.send(["after", "damaged", 5], ["after", "k", 5], ["ping", 1])
    await other.send(["after", "k", 5], ["ping", 1])
    await gateway.expect("pong")
    await other.expect("pong")
    path = rig.log_writer.timers.table.path
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"update timers set {damage} where id = 1")
    with capture_logs() as lines:
        (run,) = await gateway.records(1)
        await other.records(1)
        await trio.sleep(30)
    assert run["key"] == "k"
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert (line["event"].split(";")[0], line["id"]) == (
        "a timer is damaged on disk and does not fire",
        1,
    )
    assert [run.key for run in disk.runs(rig.store.path)] == ["k", "k"]
