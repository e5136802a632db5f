"""A listing of timers gives what a plain filter gives, whichever way it looks."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.timer_states import LIVE, STATES
from liveness.core.wire.uids import MAX_INTEGER
from liveness.service.timers import timer_reader, timer_sql
from tests.helpers.strategies import BOUNDED

Row = dict[str, str | None]

values = {
    "gateway": st.sampled_from(["g", "h"]),
    "state": st.sampled_from(STATES),
    "ext": st.sampled_from(["x", "y"]),
    "key": st.sampled_from(["a", "b", "c"]),
}
rows = st.lists(
    st.fixed_dictionaries({**values, "ext": st.none() | values["ext"]}), max_size=30
)
wanted = st.fixed_dictionaries({}, optional=values)


@pytest.fixture(scope="module", autouse=True)
def _small_bounds() -> Iterator[None]:
    """Bounds that a table of thirty timers meets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_reader, "SCAN_ROWS", 6)
        patch.setattr(timer_reader, "FEW_ROWS", 4)
        patch.setattr(timer_reader, "PAYLOAD_CHARACTERS", 5)
        patch.setattr(
            timer_reader,
            "_ALL_FIRED",
            timer_reader._ALL_FIRED.replace("20000", "6").replace("2000", "4"),
        )
        yield


# What a damaged file has, and no statement could write.
ANY_TYPE: Final = re.sub(
    r"(?<=text|eger) not null|\s+strict(, without rowid)?", "", timer_sql.TABLES
)


def table(timers: list[Row], *, tables: str = timer_sql.TABLES) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(tables)
    for number, timer in enumerate(timers, 1):
        following = number * 7 % 11 if timer["state"] in LIVE else None
        db.execute(
            "insert into timers values "
            "(?, ?, ?, ?, ?, ?, 0, ?, 0, null, 1, null, ?, null, 0)",
            [number, timer["gateway"], timer["key"], timer["ext"], "p" * (number % 4),
             timer["state"], following, number],
        )  # fmt: skip
        count = "update states set timers = timers + 1 where state = ?"
        db.execute(count, [timer["state"]])
    return db


@BOUNDED
@given(rows, wanted, st.integers(1, 7))
def test_all_pages_together_are_what_a_filter_gives(
    timers: list[Row], wanted: dict[str, str], limit: int
) -> None:
    found, before = list[int](), MAX_INTEGER
    with closing(table(timers)) as db:
        while True:
            page = timer_reader.list_timers(
                db, wanted, before=before, limit=limit, ahead_ms=0
            )
            given = json.loads(page.timers)
            numbers = [timer["created"] for timer in given]
            assert len(numbers) <= limit
            assert sum(len(timer["payload"]) for timer in given[:-1]) < 5
            found += numbers
            if page.next is None:
                break
            assert page.next < before
            before = page.next
    expected = [
        number
        for number, timer in enumerate(timers, 1)
        if wanted.items() <= timer.items()
    ]
    assert found == expected[::-1]


@BOUNDED
@given(rows, values["key"], st.none() | values["gateway"])
def test_the_newest_timer_of_a_key_is_listed_for_each_gateway(
    timers: list[Row], key: str, gateway: str | None
) -> None:
    with closing(table(timers)) as db:
        told = json.loads(
            timer_reader.newest_of_key(db, key, gateway, limit=10, ahead_ms=0)
        )
    newest = {
        timer["gateway"]: number
        for number, timer in enumerate(timers, 1)
        if timer["key"] == key and gateway in (None, timer["gateway"])
    }
    assert {timer["gateway"]: timer["created"] for timer in told} == newest


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((name, b"\xffa") for name in ("gateway", "key", "ext", "payload", "state")),
        ("message", b"\xe2\x82"),
        ("key", b'"\xf0\x9f\\'),
    ],
)
@pytest.mark.parametrize("is_blob", [False, True])
def test_a_damaged_text_is_shown_and_marked(
    column: str, value: bytes, is_blob: bool
) -> None:
    row: Row = {"gateway": "g", "key": "a", "ext": "x", "state": "pending"}
    with closing(table([row, row], tables=ANY_TYPE)) as db:
        to = "?" if is_blob else "cast(? as text)"
        db.execute(f"update timers set {column} = {to} where id = 2", [value])
        page = timer_reader.list_timers(db, {}, before=MAX_INTEGER, limit=9, ahead_ms=0)
        (alone,) = json.loads(
            timer_reader.list_timers(
                db, {"id": 2}, before=MAX_INTEGER, limit=9, ahead_ms=0
            ).timers
        )
        newest = json.loads(
            timer_reader.newest_of_key(db, "a", None, limit=9, ahead_ms=0)
        )
    timers = json.loads(page.timers)
    assert [timer["created"] for timer in timers] == [2, 1]
    assert [timer.get("damaged") for timer in timers] == [2, None]
    assert timers[0] == alone
    assert alone[column] == value.decode(errors="replace")
    assert alone in newest or column == "key"


@pytest.mark.parametrize(
    "change",
    [
        "state = 'qending'",
        "state = 'fired'",
        "next = null",
        "due = 'soon'",
        "due = null",
    ],
)
def test_timers_beside_a_damaged_row_are_shown(change: str) -> None:
    row: Row = {"gateway": "g", "key": "a", "ext": "x", "state": "pending"}
    with closing(table([row, {**row, "key": "b"}], tables=ANY_TYPE)) as db:
        db.execute(f"update timers set {change} where id = 2")
        timers = json.loads(
            timer_reader.newest_of_key(db, "b", "g", limit=1, ahead_ms=0)
        )
        timers += json.loads(
            timer_reader.newest_of_key(db, "a", "g", limit=1, ahead_ms=0)
        )
    is_marked = "due" not in change  # SQLite's own check finds those
    assert [it.get("damaged") for it in timers] == [2 if is_marked else None, None]
    assert {type(timer["due"]) for timer in timers} == {int}


@pytest.mark.parametrize(
    ("wanted", "indexes"),
    [
        ({"key": "k", "gateway": "g"}, ["timers_key", "timers_key"]),
        ({"key": "k"}, ["timers_key"]),
        ({"ext": "x", "gateway": "g", "state": "fired"},
         ["timers_ext", "timers_next", "timers_key"]),
        ({"ext": "x", "state": "pending"}, ["timers_ext", "timers_next"]),
        ({"state": "failed"}, ["timers_ended"]),
        ({"gateway": "g"}, ["timers_key"]),
        ({"ext": "x"}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_timers_are_listed_through_an_index(
    wanted: dict[str, str], indexes: list[str]
) -> None:
    queries = [*timer_reader._index_queries(wanted)]
    with closing(table([])) as db:
        for query, index in zip(queries, indexes, strict=True):
            plan = db.execute(f"explain query plan {query}", wanted).fetchall()
            told = [step[-1] for step in plan]
            assert any(f"INDEX {index} (" in step for step in told), told
            assert not any("SCAN timers" in step for step in told), told


def test_times_are_shown_by_the_wall_clock() -> None:
    row: Row = {"gateway": "g", "key": "a", "ext": "x", "state": "pending"}
    with closing(table([row])) as db:
        db.execute("update timers set due = 5, fired = 6, created = 1, changed = 7")
        page = timer_reader.list_timers(
            db, {}, before=MAX_INTEGER, limit=9, ahead_ms=1_000
        )
    (timer,) = json.loads(page.timers)
    shown = {name: timer[name] for name in ("due", "fired", "created", "changed")}
    assert shown == {"due": 1_005, "fired": 1_006, "created": 1_001, "changed": 1_007}
