"""Answers that go on: the feed, summaries and those online, as their readers see them."""

import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from starlette.types import ASGIApp
from trio.testing import MockClock

from liveness.config import HttpSettings
from liveness.core.records import TIMER, TimerRecord
from liveness.service.feed import Entry
from liveness.service.feedpages import EVENTS_BYTES, _taken
from liveness.service.livepages import MOST_RECORDS
from liveness.service.streams import QUIET_S, STOPPING
from tests.service.asgi import ask
from tests.service.reading import LONG_S, Event, Reader, reading
from tests.service.rig import Rig, running

USERS = ["7", 7, 'quo"te', 2**53 + 1, "int:7", "str:int:7", "İ\u2028\\"]
NAMES = [
    "7",
    7,
    'quo"te',
    f"int:{2**53 + 1}",
    "str:int:7",
    "str:str:int:7",
    "İ\u2028\\",
]


def door(rig: Rig) -> ASGIApp:
    return rig.sidecar._gate("http", lambda _: None)


def reached(rig: Rig, seq: int) -> bool:
    return rig.journal.durable_seq == seq


async def seqs(reader: Reader, count: int) -> list[int]:
    return [event.data["seq"] for event in await reader.events(count)]


async def begun(reader: Reader, log: str, seq: int, *, is_new: bool = False) -> None:
    """Every stream of the feed says first where it begins."""
    (event,) = await reader.events(1)
    told = {"log": log, "seq": seq, "new": is_new}
    assert event == Event("log", told, f"{log}:{seq}")


# --- the feed ---------------------------------------------------------------------------


async def test_every_record_is_an_event_as_soon_as_it_is_on_disk(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig, reading(door(rig), "/v1/feed") as reader:
        log = rig.store.log
        await begun(reader, log, 0)
        assert reader.status == 200
        assert reader.headers["content-type"] == "text/event-stream; charset=utf-8"
        gateway = await rig.gateway("gw")
        await gateway.send(["login", USERS, {"conn": [*range(len(USERS))]}])
        events = await reader.events(len(USERS))
        assert [event.data["uid"] for event in events] == NAMES
        assert [event.id for event in events] == [f"{log}:{n}" for n in range(1, 8)]
        assert {event.name for event in events} == {"online"}
        await gateway.send(["logout", 7])
        (gone,) = await reader.events(1)
        assert gone.name == "offline"
        record = rig.log()[-1].as_map()
        assert gone.data == record
        assert record["reason"] == "logout"


@pytest.mark.parametrize("tail", [1_000, 100_000])  # from the disk, and from memory
@pytest.mark.parametrize("seen", [0, 1, 1_250, 2_499, 2_500])
async def test_whoever_comes_again_misses_nothing_and_sees_nothing_twice(
    tmp_path: Path, jumping: MockClock, tail: int, seen: int
) -> None:
    async with running(tmp_path, tail=tail) as rig:
        gateway = await rig.gateway("gw")
        for first in range(0, 2_500, 500):
            await gateway.send(["login", [*range(first, first + 500)]])
            await gateway.settle()
        # A browser repeats the query of its first request: the id is what counts.
        last = {"last-event-id": f"{rig.store.log}:{seen}"}
        async with (
            reading(door(rig), "/v1/feed?after=333", headers=last) as again,
            reading(door(rig), f"/v1/feed?after={seen}") as asked,
        ):
            for reader in (again, asked):
                await begun(reader, rig.store.log, seen)
                assert await seqs(reader, 2_500 - seen) == [*range(seen + 1, 2_501)]
            await gateway.send(["login", "one more"])
            for reader in (again, asked):
                assert await seqs(reader, 1) == [2_501]


async def test_a_reader_of_another_log_begins_with_the_oldest_record_kept(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(["login", ["a", "b"]])
        await gateway.settle()
        headers = {"last-event-id": "0123456789abcdef:1"}
        async with reading(door(rig), "/v1/feed", headers=headers) as reader:
            await begun(reader, rig.store.log, 0, is_new=True)
            assert await seqs(reader, 2) == [1, 2]


async def test_a_reader_beyond_the_end_begins_with_the_oldest_record_kept(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(["login", ["a", "b"]])
        await gateway.settle()
        headers = {"last-event-id": f"{rig.store.log}:3"}
        async with (
            reading(door(rig), "/v1/feed", headers=headers) as again,
            reading(door(rig), "/v1/feed?after=3") as asked,
        ):
            for reader in (again, asked):
                await begun(reader, rig.store.log, 0, is_new=True)
                assert await seqs(reader, 2) == [1, 2]


async def test_a_reader_of_the_log_that_was_copied_goes_on_where_they_part(
    tmp_path: Path, jumping: MockClock
) -> None:
    former = "0123456789abcdef"
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(["login", [*"abcd"]])
        await gateway.settle()
        rig.store.parted[former] = 2
        for seen, place in ((1, 1), (2, 2), (77, 2)):
            headers = {"last-event-id": f"{former}:{seen}"}
            async with reading(door(rig), "/v1/feed", headers=headers) as reader:
                await begun(reader, rig.store.log, place, is_new=True)
                assert await seqs(reader, 4 - place) == [*range(place + 1, 5)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [1, 2, 3, 4, 5, 6]),
        ("kind=offline", [5]),
        ("kind=offline,moved", [5, 6]),
        ("uid=7", [1, 6]),
        ("uid=int:7", [2]),
        ("gateway=one", [1, 2, 3, 5, 6]),
        ("gateway=two&kind=online,offline", [4]),
        ("uid=7&kind=moved&gateway=two", [6]),
    ],
)
async def test_a_reader_gets_what_it_wants(
    tmp_path: Path, jumping: MockClock, query: str, expected: list[int]
) -> None:
    async with running(tmp_path) as rig:
        one, two = await rig.gateway("one"), await rig.gateway("two")
        for seq, gateway, frame in (
            (3, one, ["login", ["7", 7, "b"]]),
            (4, two, ["login", "c"]),
            (5, one, ["logout", "b"]),
            (6, two, ["login", "7"]),
        ):
            await gateway.send(frame)
            await rig.until(partial(reached, rig, seq))
        assert [record.seq for record in rig.log()] == [*range(1, 7)]
        async with reading(
            door(rig), f"/v1/feed?after=0&{query}".rstrip("&")
        ) as reader:
            await begun(reader, rig.store.log, 0)
            assert await seqs(reader, len(expected)) == expected
        assert not rig.sidecar.streams.open.total()


async def test_a_quiet_stream_says_something_now_and_then(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig, reading(door(rig), "/v1/feed") as reader:
        await begun(reader, rig.store.log, 0)
        with trio.move_on_after(10 * QUIET_S + 1):
            await reader.event()
        assert reader.comments == 10
        gateway = await rig.gateway("gw")
        await gateway.send(["login", "a"])
        assert await seqs(reader, 1) == [1]


async def test_who_falls_back_too_far_is_told_and_let_go(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, http=HttpSettings(max_backlog=100)) as rig:
        gateway = await rig.gateway("gw")
        await gateway.send(["login", [f"early-{n}" for n in range(1_000)]])
        await gateway.settle()
        async with (
            reading(door(rig), "/v1/feed?after=0") as far,
            reading(door(rig), "/v1/feed") as slow,
            reading(door(rig), "/v1/feed") as fast,
        ):
            # Who begins far behind, and comes nearer, is not slow.
            await begun(far, rig.store.log, 0)
            await begun(slow, rig.store.log, 1_000)
            await begun(fast, rig.store.log, 1_000)
            assert await seqs(far, 1_000) == [*range(1, 1_001)]
            for n in range(3):
                await gateway.send(["login", [f"{n}-{m}" for m in range(100)]])
                await gateway.settle()
                assert len(await seqs(fast, 100)) == 100
                assert len(await seqs(far, 100)) == 100
            *some, end = await slow.rest()
            assert [event.data["seq"] for event in some] == [*range(1_001, 1_101)]
            assert end.name == "end"
            assert "200 records behind" in end.data["why"]
            assert "http.max_backlog" in end.data["why"]
        assert rig.counts.limits_met["http.max_backlog"] == 1
        last = {"last-event-id": some[-1].id or ""}
        async with reading(door(rig), "/v1/feed", headers=last) as again:
            await begun(again, rig.store.log, 1_100)
            assert await seqs(again, 200) == [*range(1_101, 1_301)]


@pytest.mark.parametrize(
    ("target", "headers", "told"),
    [
        ("/v1/feed?kind=offlien", {}, "kind is 'offlien'"),
        ("/v1/feed?kind=", {}, "kind is ''"),
        ("/v1/feed?uid=", {}, "'' is no uid"),
        ("/v1/feed?uid=int:9223372036854775808", {}, "9223372036854775808' is no uid"),
        ("/v1/feed?uid=int:" + "9" * 5_000, {}, "is no uid"),
        ("/v1/feed?uid=a%00", {}, "is no uid"),
        ("/v1/feed?after=-1", {}, "after is '-1'"),
        ("/v1/feed?after=" + "9" * 30, {}, "after is '999"),
        ("/v1/feed?gateway=", {}, "gateway is ''"),
        ("/v1/feed?since=1", {}, "'since'"),
        ("/v1/feed", {"last-event-id": "7"}, "Last-Event-ID is '7'"),
        ("/v1/feed", {"last-event-id": "x:y"}, "Last-Event-ID is 'x:y'"),
        ("/v1/live?after=1", {}, "'after'"),
        ("/v1/live?kind=all", {}, "kind is 'all'"),
        ("/v1/wheel?x=1", {}, "'x'"),
        ("/v1/users?after=1", {}, "'after'"),
    ],
)
async def test_what_cannot_be_asked_is_told(
    tmp_path: Path,
    jumping: MockClock,
    target: str,
    headers: dict[str, str],
    told: str,
) -> None:
    async with running(tmp_path) as rig:
        answer = await ask(door(rig), "GET", target, headers=headers)
        assert answer.status == 400
        assert told in answer.error


# --- places, and the end ----------------------------------------------------------------


async def test_there_are_so_many_streams_and_one_more_is_told_so(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, http=HttpSettings(max_streams=3)) as rig:
        async with AsyncExitStack() as stack:
            for target in ("/v1/feed", "/v1/live", "/v1/feed"):
                reader = await stack.enter_async_context(reading(door(rig), target))
                await reader.events(1)
            for target in ("/v1/feed", "/v1/live", "/v1/users"):
                with trio.fail_after(LONG_S):
                    answer = await ask(door(rig), "GET", target)
                assert answer.status == 503
                assert "http.max_streams" in answer.error
            assert rig.counts.limits_met["http.max_streams"] == 3
            assert (await ask(door(rig), "GET", "/healthz")).status == 200
            shown = (await ask(door(rig), "GET", "/metrics")).body.decode()
            assert 'liveness_streams{stream="feed"} 2.0' in shown
            assert 'liveness_streams{stream="live"} 1.0' in shown
        async with reading(door(rig), "/v1/feed") as reader:
            await reader.events(1)
        assert not rig.sidecar.streams.open.total()


async def test_of_many_that_come_at_once_no_more_get_a_place(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with (
        running(tmp_path, http=HttpSettings(max_streams=3)) as rig,
        AsyncExitStack() as stack,
    ):
        readers = [
            await stack.enter_async_context(reading(door(rig), "/v1/live"))
            for _ in range(10)
        ]
        await rig.until(lambda: rig.counts.limits_met["http.max_streams"] == 7)
        assert rig.sidecar.streams.open["live"] == 3
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(reader.status for reader in readers) == [200] * 3 + [503] * 7


async def test_a_few_read_everyone_at_a_time_and_leave_no_file(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig, AsyncExitStack() as stack:
        gateway = await rig.gateway("gw")
        await gateway.send(["login", [f"{'long' * 50}-{n}" for n in range(3_000)]])
        await gateway.settle()
        for _ in range(4):
            await stack.enter_async_context(reading(door(rig), "/v1/users"))
        await rig.until(lambda: rig.sidecar.streams.open["users"] == 4)
        with trio.fail_after(LONG_S):
            answer = await ask(door(rig), "GET", "/v1/users")
        assert answer.status == 503
        assert "4 others" in answer.error
        # A gateway's own list waits for none of them.
        began = trio.current_time()
        await gateway.send(["list"])
        assert await gateway.expect("list")
        assert trio.current_time() - began < 1
        await stack.aclose()
        assert not rig.sidecar.streams.open.total()
        assert (await users(rig))[1]["users"] == 3_000


def test_streams_leave_half_of_a_door_to_those_who_ask() -> None:
    assert HttpSettings().streams == 32
    assert HttpSettings(max_connections=10).streams == 5
    assert HttpSettings(max_connections=1).streams == 1


@pytest.mark.parametrize("target", ["/v1/feed", "/v1/live", "/v1/users"])
async def test_head_is_answered_at_once(
    tmp_path: Path, jumping: MockClock, target: str
) -> None:
    async with running(tmp_path) as rig:
        answer = await ask(door(rig), "HEAD", target)
        assert (answer.status, answer.body) == (200, b"")
        assert not rig.sidecar.streams.open.total()


async def test_a_stop_ends_every_stream_once_all_was_told(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with (
        running(tmp_path) as rig,
        reading(door(rig), "/v1/feed") as feed,
        reading(door(rig), "/v1/live") as live,
    ):
        await begun(feed, rig.store.log, 0)
        gateway = await rig.gateway("gw")
        for uid in "ab":  # the first waits to be read, the second for that
            await gateway.send(["login", uid])
            await gateway.settle()
        rig.sidecar.streams.stop()
        with trio.fail_after(LONG_S):
            *records, end = await feed.rest()
            others = await live.rest()
        assert [record.data["uid"] for record in records] == ["a", "b"]
        assert end == Event("end", {"why": STOPPING}, None)
        assert others[-1] == end
        async with reading(door(rig), "/v1/feed") as late:
            assert [event.name for event in await late.rest()] == ["log", "end"]


# --- summaries --------------------------------------------------------------------------


async def test_a_summary_a_second_whatever_the_load(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with (
        running(tmp_path, timeout_s=5) as rig,
        reading(door(rig), "/v1/live?kind=online") as reader,
    ):
        gateway = await rig.gateway("gw")
        history, first = await reader.events(2)
        assert history.name == "history"
        count = 3 * MOST_RECORDS
        began = trio.current_time()
        await gateway.send(["login", [f"u-{n}" for n in range(count)]])
        await gateway.settle()
        summaries = [one.data for one in await reader.events(8)]
        assert trio.current_time() - began == pytest.approx(8, abs=1.1)
        full = summaries[0]
        assert [it["seq"] for it in full["records"]] == [
            *range(count - MOST_RECORDS + 1, count + 1)
        ]
        assert full["left_out"] == count - MOST_RECORDS
        assert (full["users"], sum(full["slot_users"])) == (count, count)
        assert full["gateways"] == [
            {
                "name": "gw",
                "users": count,
                "linked": True,
                "unacked": 0,
                "due": 0,
                "timeout": 5.0,
                "interval": None,
                "ping": None,
                "mutes": 0,
            }
        ]
        # They fall silent; their records are of another kind.
        last = summaries[-1]
        assert (last["users"], last["records"], last["left_out"]) == (0, [], 0)
        assert last["rates"]["offlines"]["silence"] > 0
        assert last["lateness"]["decided"]["count"] == count
        assert 0 < last["lateness"]["decided"]["p99_s"] <= last["lateness"]["promise_s"]
        assert first.data["lateness"]["decided"] == {
            "count": 0,
            "p50_s": None,
            "p99_s": None,
        }
        assert last["early"] == 0
        assert last["gateways"][0]["unacked"] == count


async def test_a_second_in_which_nothing_could_be_told_is_in_the_next(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with (
        running(tmp_path) as rig,
        reading(door(rig), "/v1/live") as reader,
    ):
        await reader.events(3)
        gateway = await rig.gateway("gw")
        await gateway.send(["login", [*range(100)]])
        await gateway.settle()
        jumping.jump(4)  # as after a stop
        (summary,) = await reader.events(1)
        second = summary.data["second"]
        assert second["over_s"] >= 4
        assert second["events"]["login"] * second["over_s"] == pytest.approx(100, 0.01)


async def test_the_hand_moves_and_stands_with_attended_time(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with (
        running(tmp_path, timeout_s=30) as rig,
        reading(door(rig), "/v1/live") as reader,
    ):
        _, one, two = await reader.events(3)
        assert (two.data["hand"] - one.data["hand"]) % 30 == pytest.approx(1, abs=0.1)
        assert (one.data["slots"], one.data["slot_s"]) == (30, 1)
        assert not two.data["stands"]
        rig.engine._attended.stand(trio.current_time())
        assert (await reader.events(1))[0].data["stands"]


async def test_the_last_minutes_are_told_in_columns(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path, timeout_s=5) as rig:
        gateway = await rig.gateway("gw")
        await trio.sleep(3.5)
        await gateway.send(["login", [*"abcdefghij"]])
        await trio.sleep(400)
        async with reading(door(rig), "/v1/live") as reader:
            (history,) = await reader.events(1)
        columns: dict[str, Any] = history.data
        assert columns["every_s"] == 1
        assert {len(it) for it in flat(columns)} == {300}
        assert set(columns["users"]) == {0}
        await gateway.send(["login", [*"abcdefghij"]])
        await trio.sleep(20)
        async with reading(door(rig), "/v1/live") as reader:
            (history,) = await reader.events(1)
        columns = history.data
        assert {len(it) for it in flat(columns)} == {300}
        assert max(columns["users"]) == 10
        assert sum(columns["events"]["login"]) == pytest.approx(10, abs=0.1)
        assert sum(columns["offlines"]["silence"]) == pytest.approx(10, abs=0.1)


def flat(columns: dict[str, Any]) -> list[list[float]]:
    return [
        column
        for found in columns.values()
        for column in (found.values() if isinstance(found, dict) else [found])
        if isinstance(column, list)
    ]


async def test_a_reader_that_is_slow_misses_seconds_and_no_more(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig, reading(door(rig), "/v1/live") as reader:
        gateway = await rig.gateway("gw")
        (history,) = await reader.events(1)
        await gateway.send(["login", ["a", "b"]])
        await trio.sleep(60)
        stale, fresh = await reader.events(2)
        assert fresh.data["uptime_s"] - stale.data["uptime_s"] > 50
        seen = [*stale.data["records"], *fresh.data["records"]]
        assert [record["uid"] for record in seen if record["kind"] == "online"] == [
            "a",
            "b",
        ]
        assert history.name == "history"


async def test_one_look_is_the_same_as_a_summary(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig, reading(door(rig), "/v1/live") as reader:
        _, summary = await reader.events(2)
        wheel = json.loads((await ask(door(rig), "GET", "/v1/wheel")).body)
        assert wheel.keys() == summary.data.keys() - {"records", "left_out"}
        assert wheel["log"] == rig.store.log
        assert wheel["ready"] is True


# --- those online -----------------------------------------------------------------------


async def users(rig: Rig) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    answer = await ask(door(rig), "GET", "/v1/users")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    *lines, last = map(json.loads, answer.body.decode().removesuffix("\n").split("\n"))
    return lines, last


async def test_everyone_online_is_told_a_line_each(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        log = rig.store.log
        assert await users(rig) == ([], {"log": log, "seq": 0, "users": 0})
        gateway = await rig.gateway("gw")
        await gateway.send(["login", USERS, {"conn": [*range(len(USERS))]}])
        await gateway.send(["login", [f"u-{n}" for n in range(2_500)]])
        await gateway.send(["logout", "u-1"])
        await gateway.settle()
        lines, last = await users(rig)
        assert last == {"log": log, "seq": 2_508, "users": 2_506}
        assert [line["uid"] for line in lines[:8]] == [*NAMES, "u-0"]
        assert [line["conn"] for line in lines[:8]] == [*range(7), None]
        assert (
            len({str(line["uid"]) + str(type(line["uid"])) for line in lines}) == 2_506
        )
        first = rig.log()[0]
        assert lines[0] == {
            "uid": "7",
            "gateway": "gw",
            "session": 1,
            "conn": 0,
            "since": first.at,
        }


async def test_what_cannot_be_read_is_told(tmp_path: Path, jumping: MockClock) -> None:
    async with running(tmp_path) as rig:
        rig.store.path.rename(tmp_path / "away")
        answer = await ask(door(rig), "GET", "/v1/users")
        assert answer.status == 503
        assert "mend the disk" in answer.error
        assert not rig.sidecar.streams.open.total()


def test_what_is_told_at_once_is_bounded_in_bytes() -> None:
    payload = "\x01" * 4_096  # six times as long in JSON
    entries = [
        Entry(TimerRecord(seq, TIMER, "g", f"k{seq}", None, payload, 1, 1, 1))
        for seq in range(1, 101)
    ]
    most = EVENTS_BYTES + 2 * len(entries[0].event)
    told = list[bytes]()
    left = entries[::-1]
    while left:
        told.append(_taken(left, b"id: log"))
    assert max(map(len, told)) <= most
    assert b"".join(told) == b"".join(b"id: log" + one.event for one in entries)
