"""A listing of timers gives what a plain filter gives, whichever way it looks."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.timers import LIVE, STATES
from liveness.core.uids import MAX_INTEGER
from liveness.service import timerlist, timertable

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
        patch.setattr(timerlist, "SCAN_ROWS", 6)
        patch.setattr(timerlist, "FEW_ROWS", 4)
        patch.setattr(timerlist, "PAYLOAD_CHARACTERS", 5)
        patch.setattr(
            timerlist,
            "_ALL_FIRED",
            timerlist._ALL_FIRED.replace("20000", "6").replace("2000", "4"),
        )
        yield


def table(timers: list[Row]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(timertable._TABLES)
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


@given(rows, wanted, st.integers(1, 7))
def test_all_pages_together_are_what_is_wanted_newest_first(
    timers: list[Row], wanted: dict[str, str], limit: int
) -> None:
    found, before = list[int](), MAX_INTEGER
    with closing(table(timers)) as db:
        while True:
            page = timerlist.listed(db, wanted, before=before, limit=limit)
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


@given(rows, values["key"], st.none() | values["gateway"])
def test_the_newest_of_a_key_is_one_of_each_gateway_that_has_it(
    timers: list[Row], key: str, gateway: str | None
) -> None:
    with closing(table(timers)) as db:
        told = json.loads(timerlist.newest(db, key, gateway, limit=10))
    newest = {
        timer["gateway"]: number
        for number, timer in enumerate(timers, 1)
        if timer["key"] == key and gateway in (None, timer["gateway"])
    }
    assert {timer["gateway"]: timer["created"] for timer in told} == newest


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
def test_what_an_index_holds_is_searched_by_it_and_nothing_is_scanned(
    wanted: dict[str, str], indexes: list[str]
) -> None:
    queries = [*timerlist._queries(wanted)]
    with closing(table([])) as db:
        for query, index in zip(queries, indexes, strict=True):
            plan = db.execute(f"explain query plan {query}", wanted).fetchall()
            told = [step[-1] for step in plan]
            assert any(f"INDEX {index} (" in step for step in told), told
            assert not any("SCAN timers" in step for step in told), told
