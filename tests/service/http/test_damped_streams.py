"""Streams with `settle_s`: the feed and summaries, in virtual time."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from liveness.config.settings import HttpSettings
from liveness.service.http import live_api
from tests.service.http.reading import Event, Reader, reading
from tests.service.rig import Caller, Rig, VirtualWallClock, slowed

SETTLE_S = 5
virtual = pytest.mark.rig(clock=VirtualWallClock)


def feed(rig: Rig, query: str = "", last: str | None = None) -> Any:
    headers = {} if last is None else {"last-event-id": last}
    target = f"/v1/feed?settle_s={SETTLE_S}{query}"
    return reading(rig.door(), target, headers=headers)


async def does(gateway: Caller, name: str, *uids: str) -> None:
    await gateway.apply([name, [*uids]])


def seqs_of(events: list[Event]) -> list[int]:
    return [event.data["seq"] for event in events]


def position_of(event: Event) -> int:
    assert event.id is not None
    return int(event.id.partition(":")[2])


@virtual
async def test_an_offline_settles_though_the_log_is_still(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    async with feed(rig) as reader:
        await reader.event()
        began = trio.current_time()
        await does(gateway, "logout", "ada", "bob")
        await does(gateway, "login", "bob")
        assert seqs_of(await reader.events(1)) == [3]
        assert SETTLE_S <= trio.current_time() - began < SETTLE_S + 0.2
        await does(gateway, "logout", "bob")
        await trio.sleep(1)
        await rig.stop()
        end = await reader.event()
        assert end is not None
        assert end.name == "end"


@virtual
async def test_a_disk_that_writes_late_makes_no_short_absence_a_long_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    writer = rig.log_writer.writer
    async with feed(rig) as reader:
        await reader.event()
        await does(gateway, "logout", "ada", "bob")
        monkeypatch.setattr(writer, "write", slowed(writer.write, 2 * SETTLE_S))
        await gateway.send(["login", ["ada"]])
        assert seqs_of(await reader.events(1)) == [4]


@virtual
async def test_a_reader_that_reconnects_by_the_last_id_loses_nothing(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    async with feed(rig) as reader:
        await reader.event()
        await does(gateway, "logout", "ada")
        await does(gateway, "login", "bob", "eve")
        events = await reader.events(2)
        assert seqs_of(events) == [3, 4]
        assert [*map(position_of, events)] == [1, 1]
    async with feed(rig, last=events[-1].id) as reader:
        _, *events = await reader.events(4)
        assert seqs_of(events) == [3, 4, 2]
        assert [*map(position_of, events)] == [1, 1, 4]
    async with feed(rig, last=events[-1].id) as reader:
        await reader.event()
        await does(gateway, "login", "dan")
        (event,) = await reader.events(1)
        assert (event.data["seq"], position_of(event)) == (5, 5)


@virtual
async def test_an_offline_that_may_have_been_passed_on_is_followed_by_an_online(
    rig: Rig,
) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    await does(gateway, "logout", "ada")
    await does(gateway, "login", "ada")
    async with feed(rig, "&after=1") as reader:
        _, online = await reader.events(2)
        assert (online.name, online.data["seq"]) == ("online", 3)


@virtual
async def test_a_user_who_is_back_through_another_gateway_has_moved(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    other = await rig.gateway("h", kinds=[])
    async with feed(rig, "&gateway=h&kind=moved") as reader:
        await reader.event()
        await does(gateway, "logout", "ada")
        await does(other, "login", "ada")
        (moved,) = await reader.events(1)
        assert (moved.name, moved.data["seq"]) == ("moved", 3)
        assert (moved.data["from"], moved.data["gateway"]) == ("g", "h")


@pytest.mark.rig(clock=VirtualWallClock, max_settling=100)
async def test_an_offline_that_goes_early_is_counted(rig: Rig) -> None:
    users = [f"user-{n}" for n in range(103)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with feed(rig) as reader:
        await reader.event()
        began = trio.current_time()
        await does(gateway, "logout", *users)
        assert seqs_of(await reader.events(3)) == [104, 105, 106]
        assert trio.current_time() - began < SETTLE_S
        assert rig.counts.limits_met["limits.max_settling"] == 3


@pytest.mark.parametrize("page", ["feed", "live"])
@pytest.mark.rig(clock=VirtualWallClock, max_settling=100)
async def test_a_stream_that_ends_gives_back_the_room_of_what_waits(
    rig: Rig, page: str
) -> None:
    users = [f"user-{n}" for n in range(100)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with reading(rig.door(), f"/v1/{page}?settle_s={SETTLE_S}") as reader:
        await reader.event()
        await does(gateway, "logout", *users)
        await trio.sleep(2)
    await does(gateway, "login", *users)
    async with feed(rig) as reader:
        await reader.event()
        await does(gateway, "logout", *users)
        assert len(await reader.events(100)) == 100
    assert rig.counts.limits_met["limits.max_settling"] == 0


@pytest.mark.rig(clock=VirtualWallClock, http=HttpSettings(max_backlog=100))
async def test_offlines_that_wait_are_no_backlog(rig: Rig) -> None:
    users = [f"user-{n}" for n in range(300)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with feed(rig, "&kind=offline") as reader:
        await reader.event()
        for n in range(0, 300, 90):
            await does(gateway, "logout", *users[n : n + 90])
            await trio.sleep(0.1)
        assert seqs_of(await reader.events(300)) == [*range(301, 601)]


# --- summaries --------------------------------------------------------------------------


async def shown(reader: Reader, summaries: int) -> list[int]:
    """The seqs of the records in the next *count* summaries."""
    events = await reader.events(summaries)
    assert {event.name for event in events} == {"summary"}
    return [it["seq"] for event in events for it in event.data["records"]]


@virtual
async def test_summaries_leave_out_short_absences(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    await does(gateway, "logout", "ada")
    await does(gateway, "login", "ada")
    async with reading(rig.door(), f"/v1/live?settle_s={SETTLE_S}") as reader:
        (history,) = await reader.events(1)
        assert [it["seq"] for it in history.data["records"]] == [1, 2]
        assert history.data["records_after"] == 0
        await does(gateway, "logout", "ada", "bob")
        assert await shown(reader, 3) == []
        await does(gateway, "login", "ada")
        assert await shown(reader, SETTLE_S) == [6]


@virtual
async def test_what_a_stream_begins_with_is_all_above_what_did_not_fit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_api, "MAX_RECORDS", 4)
    gateway = await rig.gateway_of(["ada"], kinds=[])
    await does(gateway, "logout", "ada")
    await does(gateway, "login", *[f"late-{n}" for n in range(10)])
    await trio.sleep(SETTLE_S)
    async with reading(rig.door(), f"/v1/live?settle_s={SETTLE_S}") as reader:
        (history,) = await reader.events(1)
        assert [it["seq"] for it in history.data["records"]] == [10, 11, 12, 2]
        assert history.data["records_after"] == 9


@virtual
async def test_a_search_for_what_settles_is_bounded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_api, "MAX_SEARCHED", 10)
    monkeypatch.setattr(live_api, "MAX_RECORDS", 4)
    gateway = await rig.gateway_of([f"early-{n}" for n in range(20)], kinds=[])
    async with reading(rig.door(), f"/v1/live?settle_s={SETTLE_S}") as reader:
        (history,) = await reader.events(1)
        assert [it["seq"] for it in history.data["records"]] == [17, 18, 19, 20]
        assert history.data["records_after"] == 16
        await does(gateway, "logout", "early-0")
        assert await shown(reader, 2) == []
        await does(gateway, "login", *[f"late-{n}" for n in range(30)])
        (summary,) = await reader.events(1)
        records = [it["seq"] for it in summary.data["records"]]
        # Twenty were not searched, six did not fit, and the offline waited.
        assert (records, summary.data["left_out"]) == ([48, 49, 50, 51], 27)


@virtual
async def test_what_cannot_be_read_is_left_out_and_counted(
    rig: Rig, tmp_path: Path
) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    rig.sidecar.feed._tail.clear()
    rig.store.path.rename(tmp_path / "away")
    with capture_logs() as lines:
        async with reading(rig.door(), f"/v1/live?settle_s={SETTLE_S}") as reader:
            (history,) = await reader.events(1)
            assert (history.data["records"], history.data["records_after"]) == ([], 2)
            await does(gateway, "logout", "ada")
            assert await shown(reader, 2) == []
            await does(gateway, "login", "eve", "dan")
            rig.sidecar.feed._tail.clear()
            (summary,) = await reader.events(1)
            # Two cannot be read, and the offline waited.
            assert (summary.data["records"], summary.data["left_out"]) == ([], 3)
            await does(gateway, "login", "kim")
            assert await shown(reader, 1) == [6]
    assert [line["event"] for line in lines if "cannot be read" in line["event"]] == [
        "the log cannot be read: a stream leaves records out"
    ]


@pytest.mark.parametrize("query", ["", f"?settle_s={SETTLE_S}"])
@virtual
async def test_damaged_records_are_left_out_of_summaries(rig: Rig, query: str) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    await does(gateway, "login", "bob")
    await does(gateway, "login", "eve")
    with closing(sqlite3.connect(rig.store.path)) as db, db:
        db.execute("update log set crc = crc + 1 where last = 2")
    rig.sidecar.feed._tail.clear()
    async with reading(rig.door(), f"/v1/live{query}") as reader:
        (history,) = await reader.events(1)
        assert [it["seq"] for it in history.data["records"]] == [1, 3]
