"""A listing of timers gives what a plain filter gives, whichever way it looks."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

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
        patch.setattr(
            timer_reader,
            "_ALL_FIRED",
            timer_reader._ALL_FIRED.replace("20000", "6").replace("2000", "4"),
        )
        yield


def table(timers: list[Row]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(timer_sql.TABLES)
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


def test_a_list_fails_at_a_damaged_timer_and_filters_list_the_others() -> None:
    row: Row = {"gateway": "g", "key": "a", "ext": "x", "state": "pending"}
    with closing(table([row, {**row, "key": "b"}])) as db:
        db.execute("update timers set payload = cast(x'ff' as text) where id = 2")
        page = timer_reader.list_timers(
            db, {"key": "a"}, before=MAX_INTEGER, limit=9, ahead_ms=0
        )
        assert [timer["created"] for timer in json.loads(page.timers)] == [1]
        with pytest.raises(sqlite3.OperationalError, match="UTF-8"):
            timer_reader.list_timers(db, {}, before=MAX_INTEGER, limit=9, ahead_ms=0)


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
