"""Streams over HTTP: the feed, summaries and users online, as their readers see them."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from liveness.config.settings import HttpSettings
from liveness.core.records import TIMER, TimerRecord
from liveness.service.http import live_api
from liveness.service.http.event_stream import QUIET_S, STOPPING
from liveness.service.http.feed_api import EVENTS_BYTES, _take_events
from liveness.service.http.live_api import MAX_RECORDS
from liveness.service.storage.log_tail import TailEntry
from tests.service.http.asgi import LONG_S, Event, Reader, ask, reading
from tests.service.http.doors import DOCUMENT, validate
from tests.service.rig import Rig

USERS = ["7", 8, 'quo"te', 2**53 + 1, "int:7", "str:int:7", "İ\u2028\\"]
NAMES = [
    "7",
    8,
    'quo"te',
    f"int:{2**53 + 1}",
    "str:int:7",
    "str:str:int:7",
    "İ\u2028\\",
]


async def seqs(reader: Reader, count: int) -> list[int]:
    return [event.data["seq"] for event in await reader.events(count)]


@asynccontextmanager
async def feed(
    rig: Rig, seq: int, query: str = "", *, last: str = "", is_new: bool = False
) -> AsyncIterator[Reader]:
    """A stream of the feed, which says first where it begins."""
    headers = {"last-event-id": last} if last else {}
    async with reading(rig.door(), f"/v1/feed{query}", headers=headers) as reader:
        began = {"log": rig.store.log, "seq": seq, "new": is_new}
        assert await reader.event() == Event("log", began, f"{rig.store.log}:{seq}")
        yield reader


# --- the feed ---------------------------------------------------------------------------


async def test_every_record_is_an_event_as_soon_as_it_is_on_disk(rig: Rig) -> None:
    async with feed(rig, 0) as reader:
        assert reader.status == 200
        assert reader.headers["content-type"] == "text/event-stream; charset=utf-8"
        gateway = await rig.gateway("gw")
        await gateway.send(["login", USERS, {"conn": [*range(len(USERS))]}])
        events = await reader.events(len(USERS))
        assert [event.data["uid"] for event in events] == NAMES
        log = rig.store.log
        assert [event.id for event in events] == [f"{log}:{n}" for n in range(1, 8)]
        assert {event.name for event in events} == {"online"}
        await gateway.send(["logout", 7])
        (gone,) = await reader.events(1)
        assert gone.name == "offline"
        record = rig.log()[-1].as_map()
        assert gone.data == record
        assert record["reason"] == "logout"


@pytest.mark.parametrize(
    ("query", "last", "begins_at"),
    [
        ("", "0123456789abcdef:1", 0),
        ("", "{log}:5", 0),
        ("?after=5", "", 0),
        ("", "{copied}:1", 1),
        ("?after={copied}:77", "", 2),
    ],
    ids=["another log", "id", "query", "shared", "parted by query"],
)
async def test_a_reader_from_where_this_log_has_not_been_begins_anew(
    rig: Rig, query: str, last: str, begins_at: int
) -> None:
    await rig.gateway_of([*"abcd"])
    rig.store.ancestors["cccc0000cccc0000"] = 2  # the log that this one was copied from
    last, query = (
        text.format(log=rig.store.log, copied="cccc0000cccc0000")
        for text in (last, query)
    )
    async with feed(rig, begins_at, query, last=last, is_new=True) as reader:
        assert await seqs(reader, 4 - begins_at) == [*range(begins_at + 1, 5)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("&kind=offline,moved", [5, 6]),
        ("&uid=int:7", [1, 6]),
        ("&gateway=two&kind=online,offline", [4]),
        ("&users=true", [1, 2, 3, 4, 5]),
    ],
)
async def test_a_reader_gets_what_it_asks_for(
    rig: Rig, query: str, expected: list[int]
) -> None:
    one = await rig.gateway_of(["7", 8, "b"], "one")
    two = await rig.gateway_of(["c"], "two")
    await one.apply(["logout", "b"])
    await two.apply(["login", 7])
    assert [record.seq for record in rig.log()] == [*range(1, 7)]
    async with feed(rig, 0, f"?after=0{query}") as reader:
        assert await seqs(reader, len(expected)) == expected
    assert not rig.sidecar.streams.open.total()


async def test_a_quiet_stream_says_something_now_and_then(rig: Rig) -> None:
    async with feed(rig, 0) as reader:
        with trio.move_on_after(10 * QUIET_S + 1):
            await reader.event()
        assert reader.comments == 10
        await rig.gateway_of("a")
        assert await seqs(reader, 1) == [1]


@pytest.mark.rig(http=HttpSettings(max_backlog=100))
async def test_a_reader_that_falls_back_too_far_is_let_go(rig: Rig) -> None:
    gateway = await rig.gateway_of([f"early-{n}" for n in range(1_000)])
    async with (
        feed(rig, 0, "?after=0") as far,
        feed(rig, 1_000) as slow,
        feed(rig, 1_000) as fast,
    ):
        # A reader that begins far behind, and comes nearer, is not slow.
        assert await seqs(far, 1_000) == [*range(1, 1_001)]
        for n in range(3):
            await gateway.apply(["login", [f"{n}-{m}" for m in range(100)]])
            assert len(await seqs(fast, 100)) == 100
            assert len(await seqs(far, 100)) == 100
        *some, end = await slow.rest()
        assert [event.data["seq"] for event in some] == [*range(1_001, 1_101)]
        assert end.name == "end"
        assert "200 records behind" in end.data["why"]
        assert "http.max_backlog" in end.data["why"]
    assert rig.counts.limits_met["http.max_backlog"] == 1
    # A browser repeats the query of its first request: the id is what counts.
    last = some[-1].id or ""
    async with feed(rig, 1_100, "?after=333", last=last) as again:
        assert await seqs(again, 200) == [*range(1_101, 1_301)]


@pytest.mark.parametrize(
    ("target", "last", "why"),
    [
        ("/v1/feed?kind=offlien", "", "kind is 'offlien'"),
        ("/v1/feed?uid=int:" + "9" * 5_000, "", "is no uid"),
        ("/v1/feed?after=-1", "", "after is '-1'"),
        ("/v1/feed?after=" + "9" * 30, "", "after is '999"),
        ("/v1/feed?after=x:1", "", "after is 'x:1'"),
        ("/v1/feed?settle_s=600.5", "", "seconds, 0 to 600"),
        ("/v1/feed?settle_s=nan", "", "settle_s is 'nan'"),
        ("/v1/live?settle_s=5", "", "'settle_s'"),
        ("/v1/feed", "7", "Last-Event-ID is '7'"),
        ("/v1/wheel?x=1", "", "'x'"),
        ("/v1/users?after=1", "", "'after'"),
    ],
)
async def test_a_bad_query_is_refused(
    rig: Rig, target: str, last: str, why: str
) -> None:
    headers = {"last-event-id": last} if last else {}
    answer = await ask(rig.door(), "GET", target, headers=headers)
    assert answer.status == 400
    assert why in answer.error


# --- places, and the end ----------------------------------------------------------------


@pytest.mark.rig(http=HttpSettings(max_streams=3))
async def test_streams_are_bounded_and_one_more_is_refused(rig: Rig) -> None:
    async with AsyncExitStack() as stack:
        for target in ("/v1/feed", "/v1/live", "/v1/feed"):
            reader = await stack.enter_async_context(reading(rig.door(), target))
            await reader.events(1)
        for target in ("/v1/feed", "/v1/live", "/v1/users"):
            with trio.fail_after(LONG_S):
                answer = await ask(rig.door(), "GET", target)
            assert answer.status == 503
            assert "http.max_streams" in answer.error
        assert rig.counts.limits_met["http.max_streams"] == 3
        assert (await ask(rig.door(), "GET", "/healthz")).status == 200
        shown = (await ask(rig.door(), "GET", "/metrics")).body.decode()
        assert 'liveness_streams{stream="feed"} 2.0' in shown
        assert 'liveness_streams{stream="live"} 1.0' in shown
    async with reading(rig.door(), "/v1/feed") as reader:
        await reader.events(1)
    assert not rig.sidecar.streams.open.total()


async def test_a_few_read_all_users_at_a_time_and_leave_no_file(rig: Rig) -> None:
    gateway = await rig.gateway_of([f"{'long' * 50}-{n}" for n in range(3_000)])
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(reading(rig.door(), "/v1/users"))
        await rig.until(lambda: rig.sidecar.streams.open["users"] == 4)
        with trio.fail_after(LONG_S):
            answer = await ask(rig.door(), "GET", "/v1/users")
        assert answer.status == 503
        assert "all 4 streams of this kind" in answer.error
        # A gateway's own list waits for none of them.
        began = trio.current_time()
        await gateway.send(["list"])
        assert await gateway.expect("list")
        assert trio.current_time() - began < 1
    assert not rig.sidecar.streams.open.total()
    assert (await users(rig))[1]["users"] == 3_000


async def test_head_is_answered_at_once(rig: Rig) -> None:
    answer = await ask(rig.door(), "HEAD", "/v1/feed")
    assert (answer.status, answer.body) == (200, b"")
    assert not rig.sidecar.streams.open.total()


async def test_a_stop_ends_every_stream_after_its_last_record(rig: Rig) -> None:
    async with feed(rig, 0) as records, reading(rig.door(), "/v1/live") as live:
        gateway = await rig.gateway("gw")
        for uid in "ab":  # the first waits to be read, the second for that
            await gateway.apply(["login", uid])
        rig.sidecar.streams.stop()
        with trio.fail_after(LONG_S):
            *sent, end = await records.rest()
            *_, last = await live.rest()
        assert [record.data["uid"] for record in sent] == ["a", "b"]
        assert end == last == Event("end", {"why": STOPPING}, None)
        async with reading(rig.door(), "/v1/feed") as late:
            assert [event.name for event in await late.rest()] == ["log", "end"]


# --- summaries --------------------------------------------------------------------------


@pytest.mark.rig(timeout_s=5)
async def test_a_summary_comes_every_second_whatever_the_load(rig: Rig) -> None:
    async with reading(rig.door(), "/v1/live?kind=online") as reader:
        gateway = await rig.gateway("gw")
        history, first = await reader.events(2)
        assert history.name == "history"
        count = 3 * MAX_RECORDS
        began = trio.current_time()
        await gateway.apply(["login", [f"u-{n}" for n in range(count)]])
        full, *_, last = [event.data for event in await reader.events(8)]
        assert trio.current_time() - began == pytest.approx(8, abs=1.1)
        seqs = [record["seq"] for record in full["records"]]
        assert seqs == [*range(count - MAX_RECORDS + 1, count + 1)]
        assert full["left_out"] == count - MAX_RECORDS
        assert (full["users"], sum(full["slot_users"])) == (count, count)
        (shown,) = full["gateways"]
        expected = {"name": "gw", "users": count, "timeout": 5.0, "linked": True}
        assert shown.items() >= expected.items()
        # They fall silent; their records are of another kind.
        assert (last["users"], last["records"], last["left_out"]) == (0, [], 0)
        assert last["rates"]["offlines"]["silence"] > 0
        decided = last["lateness"]["decided"]
        assert decided["count"] == count
        assert 0 < decided["p99_s"] <= last["lateness"]["promise_s"]
        assert first.data["lateness"]["decided"]["p99_s"] is None
        assert last["early"] == 0
        assert last["gateways"][0]["unacked"] == count


async def opening(rig: Rig, query: str = "") -> tuple[list[int], int]:
    """The seqs of the records that a stream begins with, and where that search ended."""
    async with reading(rig.door(), f"/v1/live{query}") as reader:
        (history,) = await reader.events(1)
    found = history.data["records"]
    return [record["seq"] for record in found], history.data["records_after"]


@pytest.mark.rig(tail=1_000)
async def test_a_stream_begins_with_the_newest_records(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await rig.gateway_of(["first", "second"], kinds=[])
    assert await opening(rig) == ([1, 2], 0)
    # Most are no longer in memory.
    for start in range(0, 2_500, 500):
        uids = [f"u{number}" for number in range(start, start + 500)]
        await gateway.apply(["login", uids])
    assert await opening(rig) == ([*range(2_453, 2_503)], 2_452)
    first = rig.sidecar.feed.first
    assert first is not None
    assert first > 3
    assert await opening(rig, "?uid=u2400") == ([2_403], first - 1)
    monkeypatch.setattr(live_api, "MAX_SEARCHED", 200)
    assert await opening(rig, "?uid=u2200") == ([], 2_302)


async def test_a_slow_reader_misses_summaries_and_no_records(rig: Rig) -> None:
    async with reading(rig.door(), "/v1/live") as reader:
        gateway = await rig.gateway("gw")
        (history,) = await reader.events(1)
        assert history.name == "history"
        await gateway.send(["login", ["a", "b"]])
        await trio.sleep(60)
        stale, later = await reader.events(2)
        assert later.data["uptime_s"] - stale.data["uptime_s"] > 50
        seen = [*stale.data["records"], *later.data["records"]]
        online = [record["uid"] for record in seen if record["kind"] == "online"]
        assert online == ["a", "b"]


# --- those online -----------------------------------------------------------------------


async def users(rig: Rig) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    answer = await ask(rig.door(), "GET", "/v1/users")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    *lines, last = map(json.loads, answer.body.decode().splitlines())
    shapes = DOCUMENT["paths"]["/v1/users"]["get"]["x-lines"]
    validate(last, shapes["last"])
    for line in lines[:10]:
        validate(line, shapes["each user"])
    return lines, last


async def test_every_user_online_is_a_line(rig: Rig) -> None:
    log = rig.store.log
    assert await users(rig) == ([], {"log": log, "seq": 0, "users": 0})
    gateway = await rig.gateway("gw")
    conns = [*range(len(USERS) - 2), 2**53, 2**53 + 1]
    await gateway.send(["login", USERS, {"conn": conns}])
    await gateway.send(["login", [f"u-{n}" for n in range(2_500)]])
    await gateway.send(["logout", "u-1"])
    await gateway.sync()
    lines, last = await users(rig)
    assert last == {"log": log, "seq": 2_508, "users": 2_506}
    assert [line["uid"] for line in lines[:8]] == [*NAMES, "u-0"]
    assert [line["conn"] for line in lines[:8]] == [
        *conns[:-1],
        f"int:{2**53 + 1}",
        None,
    ]
    assert len({(line["uid"], type(line["uid"])) for line in lines}) == 2_506
    session = {"gateway": "gw", "session": 1, "conn": 0, "since": rig.log()[0].at}
    assert lines[0] == {"uid": "7", **session}


async def test_users_that_cannot_be_read_are_an_error(rig: Rig, tmp_path: Path) -> None:
    rig.store.path.rename(tmp_path / "away")
    answer = await ask(rig.door(), "GET", "/v1/users")
    assert answer.status == 503
    assert "repair the disk" in answer.error
    assert not rig.sidecar.streams.open.total()


def test_what_is_sent_at_once_is_bounded_in_bytes() -> None:
    payload = "\x01" * 4_096  # six times as long in JSON
    entries = [
        TailEntry(TimerRecord(seq, TIMER, "g", f"k{seq}", None, payload, 1, 1, 1))
        for seq in range(1, 101)
    ]
    most = EVENTS_BYTES + 2 * len(entries[0].event)
    sent = list[bytes]()
    left = [(entry.record.seq, entry) for entry in entries[::-1]]
    while left:
        sent.append(_take_events(left, b"id: log"))
    assert max(map(len, sent)) <= most
    assert b"".join(sent) == b"".join(
        b"id: log:%d\n%b" % (entry.record.seq, entry.event) for entry in entries
    )


# --- the feed with `settle_s` ---------------------------------------------------------


SETTLE_S = 5
SETTLING = f"?settle_s={SETTLE_S}"


def seqs_of(events: list[Event]) -> list[int]:
    return [event.data["seq"] for event in events]


def position_of(event: Event) -> int:
    assert event.id is not None
    return int(event.id.partition(":")[2])


async def test_an_offline_settles_though_the_log_is_still(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada", "bob"], kinds=[])
    async with feed(rig, 2, SETTLING) as reader:
        began = trio.current_time()
        await gateway.apply(["logout", ["ada", "bob"]])
        await gateway.apply(["login", ["bob"]])
        assert seqs_of(await reader.events(1)) == [3]
        assert SETTLE_S <= trio.current_time() - began < SETTLE_S + 0.2
        await gateway.apply(["logout", ["bob"]])
        await trio.sleep(1)
        await rig.stop()
        end = await reader.event()
        assert end is not None
        assert end.name == "end"


async def test_a_reader_that_reconnects_by_the_last_id_loses_nothing(rig: Rig) -> None:
    gateway = await rig.gateway_of(["ada"], kinds=[])
    async with feed(rig, 1, SETTLING) as reader:
        await gateway.apply(["logout", ["ada"]])
        await gateway.apply(["login", ["bob", "eve"]])
        events = await reader.events(2)
        assert seqs_of(events) == [3, 4]
        assert [*map(position_of, events)] == [1, 1]
    async with feed(rig, 1, SETTLING, last=events[-1].id or "") as reader:
        events = await reader.events(3)
        assert seqs_of(events) == [3, 4, 2]
        assert [*map(position_of, events)] == [1, 1, 4]
    async with feed(rig, 4, SETTLING, last=events[-1].id or "") as reader:
        await gateway.apply(["login", ["dan"]])
        (event,) = await reader.events(1)
        assert (event.data["seq"], position_of(event)) == (5, 5)


@pytest.mark.rig(max_settling=100)
async def test_an_offline_that_goes_early_is_counted(rig: Rig) -> None:
    users = [f"user-{n}" for n in range(103)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with feed(rig, 103, SETTLING) as reader:
        began = trio.current_time()
        await gateway.apply(["logout", users])
        assert seqs_of(await reader.events(3)) == [104, 105, 106]
        assert trio.current_time() - began < SETTLE_S
        assert rig.counts.limits_met["limits.max_settling"] == 3


@pytest.mark.rig(http=HttpSettings(max_backlog=100))
async def test_offlines_that_wait_are_no_backlog(rig: Rig) -> None:
    users = [f"user-{n}" for n in range(300)]
    gateway = await rig.gateway_of(users, kinds=[])
    async with feed(rig, 300, f"{SETTLING}&kind=offline") as reader:
        for n in range(0, 300, 90):
            await gateway.apply(["logout", users[n : n + 90]])
            await trio.sleep(0.1)
        assert seqs_of(await reader.events(300)) == [*range(301, 601)]
