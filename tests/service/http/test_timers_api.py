"""Timers over HTTP for operators, and their changes; time is virtual."""

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.helpers import disk
from tests.service.http.doors import Doors
from tests.service.rig import Caller

TIMERS = "/v1/timers"
RICH = '{"a": "é\u2028\x07"}'


async def after(
    gateway: Caller, *keys: str, seconds: float = 3_600, **options: str
) -> None:
    """Ask for timers; on disk when this returns."""
    for key in keys:
        await gateway.send(["after", key, seconds, options])
    await gateway.sync()


async def fired(gateway: Caller, key: str) -> int:
    """Have a timer fire; the seq of its record."""
    await after(gateway, key, seconds=0.1)
    (record,) = await gateway.records(1)
    assert (record["key"], record["attempt"]) == (key, 1)
    seq: int = record["seq"]
    return seq


async def order(
    doors: Doors, what: str, gateway: str, key: str
) -> tuple[int, dict[str, Any]]:
    return await doors.change(f"{TIMERS}/{what}", gateway=gateway, key=key)


def states(doors: Doors) -> dict[tuple[str, str], str]:
    """The state of each timer on disk, by gateway and key."""
    rows = disk.rows(
        doors.rig.log_writer.timers.table.path,
        "select gateway, key, state from timers order by id",
    )
    return {(gateway, key): state for gateway, key, state in rows}


async def test_a_timer_is_shown_with_all_that_is_kept_of_it_and_nothing_else(
    doors: Doors,
) -> None:
    gateway = await doors.rig.gateway("g")
    await after(gateway, "plain")
    await after(gateway, "rich", payload=RICH, ext="user-17")
    seq = await fired(gateway, "ended")
    await gateway.apply(["done", "ended", "mailed"])
    ended, rich, plain = await doors.listed(TIMERS, gateway="g")
    assert plain.keys() == {
        "gateway", "key", "state", "due", "attempts", "created", "changed"
    }  # fmt: skip
    shown = (plain["gateway"], plain["key"], plain["state"])
    assert shown == ("g", "plain", "pending")
    assert plain["due"] - plain["created"] in (3_600_000, 3_600_001)
    assert rich.keys() - plain.keys() == {"payload", "ext"}
    assert (rich["payload"], rich["ext"]) == (RICH, "user-17")
    assert ended.keys() - plain.keys() == {"message", "seq", "fired"}
    expected = {"state": "done", "message": "mailed", "attempts": 1, "seq": seq}
    assert ended.items() >= expected.items()


async def test_of_a_key_the_newest_timer_of_each_gateway_is_shown(doors: Doors) -> None:
    for gateway in ("x", "y"):
        await after(await doors.rig.gateway(gateway), "k", "k")
    newest = json.loads((await doors.get(f"{TIMERS}/newest?key=k")).body)["timers"]
    shown = sorted((timer["gateway"], timer["state"]) for timer in newest)
    assert shown == [("x", "pending"), ("y", "pending")]
    answer = await doors.get(f"{TIMERS}/newest?key=k&gateway=nobody")
    assert json.loads(answer.body) == {"timers": []}


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("limit=0", "limit is '0' in the query; it must be a whole number, 1 to 1000"),
        ("limit=1001", "limit is '1001'"),
        ("limit=%D9%A3", "limit is '٣'"),
        ("limit=" + "9" * 5_000, "it must be a whole number"),
        ("state=gone", "state is 'gone' in the query; it must be one of pending, fi"),
        ("key=", "key is '' in the query; it must be a string of 1 to 255 bytes"),
        ("ext=%00", r"ext is '\x00'"),
        ("key=%FF", "the query cannot be read; write name=value"),
        ("key", "the query cannot be read"),
        ("state=done&state=done", "the query has state twice; give it once"),
        ("kye=1", "the query has 'kye'; it may have gateway, state, ext, key, before,"),
    ],
)
async def test_a_bad_query_is_refused_with_the_remedy(
    doors: Doors, query: str, why: str
) -> None:
    answer = await doors.get(f"{TIMERS}?{query}")
    assert answer.status == 400
    assert why in answer.error
    assert len(answer.error) < 300


async def test_the_newest_timer_of_no_key_is_refused(doors: Doors) -> None:
    answer = await doors.get(f"{TIMERS}/newest")
    assert (answer.status, answer.error[:20]) == (400, "the query has no key")


async def test_a_cancelled_timer_is_so_on_disk_does_not_fire_and_is_counted(
    doors: Doors,
) -> None:
    gateway, other = await doors.rig.gateway("g"), await doors.rig.gateway("other")
    for link in (gateway, other):
        await after(link, "never", seconds=1.5)
    status, timer = await order(doors, "cancel", "g", "never")
    assert (status, timer["state"]) == (200, "cancelled")
    both = {("g", "never"): "cancelled", ("other", "never"): "pending"}
    assert states(doors) == both
    await after(gateway, "later", seconds=2)
    assert [record["key"] for record in await gateway.records(1)] == ["later"]
    metrics = (await doors.get("/metrics")).body
    assert b'liveness_timers{state="cancelled"} 1.0\n' in metrics


async def test_a_failed_timer_that_is_retried_begins_anew_and_can_be_done(
    doors: Doors,
) -> None:
    gateway = await doors.rig.gateway("g")
    await fired(gateway, "again")
    await gateway.apply(["fail", "again", "no route", {"final": True}])
    assert (await order(doors, "retry", "g", "again"))[0] == 200
    (record,) = await gateway.records(1)
    assert (record["key"], record["attempt"]) == ("again", 1)
    await gateway.apply(["done", "again"])
    await doors.rig.until(lambda: states(doors) == {("g", "again"): "done"})


@pytest.mark.parametrize(
    ("what", "can"),
    [
        ("cancel", "pending or fired can be cancelled"),
        ("retry", "pending or failed can be tried again"),
    ],
)
async def test_a_timer_that_has_ended_is_refused_and_stays_as_it_is(
    doors: Doors, what: str, can: str
) -> None:
    gateway = await doors.rig.gateway("g")
    await after(gateway, "k")
    await gateway.apply(["cancel", {"key": "k"}])
    error = f"the timer 'k' of 'g' is cancelled; only one that is {can}"
    assert await order(doors, what, "g", "k") == (409, {"error": error})
    assert states(doors) == {("g", "k"): "cancelled"}


@pytest.mark.parametrize("what", ["cancel", "retry"])
async def test_a_timer_that_is_not_there_is_not_found(doors: Doors, what: str) -> None:
    error = "'nobody' has no timer 'nothing': `liveness timers list` shows those that "
    answer = {"error": f"{error}there are"}
    assert await order(doors, what, "nobody", "nothing") == (404, answer)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 16_000,
        b'{"gateway": "g"}',
        b'{"gateway": "g", "key": "k", "state": "done"}',
        b'{"gateway": "g", "key": 7}',
        b'{"gateway": "g", "key": "\\ud800"}',
    ],
)
async def test_a_body_that_names_no_timer_is_refused(doors: Doors, body: bytes) -> None:
    answer = await doors.ask("admin", "POST", f"{TIMERS}/cancel", body)
    assert answer.status == 400
    assert "must be" in answer.error


async def test_a_change_that_the_disk_does_not_take_is_made_once_it_does(
    doors: Doors,
) -> None:
    await after(await doors.rig.gateway("g"), "k")
    path = doors.rig.log_writer.timers.table.path
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        status, answer = await order(doors, "cancel", "g", "k")
        assert status == 503
        expected = "the timers' table cannot be written: database is locked"
        assert expected in answer["error"]
        expected = "the timer 'k' of 'g' will be cancelled once the disk writes"
        assert expected in answer["error"]
        # Reading needs no writer.
        (timer,) = await doors.listed(TIMERS)
        assert timer["state"] == "pending"
        status, answer = await order(doors, "cancel", "g", "k")
        assert status == 503
        assert answer["error"].endswith("nothing was changed, ask again")
    await doors.rig.until(lambda: states(doors) == {("g", "k"): "cancelled"})
