"""The table of timers, on real SQLite: what a dictionary would hold, and by which index.

What becomes of a timer is decided in the core and tested there; here every order goes to
a dictionary and to a file, and both must hold the same ever after.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgpack
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from liveness.build import Wheel
from liveness.core.records import Changes, OnlineRow, Record
from liveness.core.timers import CANCELLED, LADDER, Drop, Ladder, Order, Schedule, Timer
from liveness.core.timetable import Coming, Window
from liveness.metrics import Counts
from liveness.service import timertable
from liveness.service.clock import Clock
from liveness.service.journal import Journal
from liveness.service.store import DATABASE, Batch, CursorRow, Store
from liveness.service.timertable import EXT_STEP
from tests import disk
from tests.core.timers_rig import Rig
from tests.strategies import BOUNDED

PLENTY: Final = 2**40
ALL_MS: Final = 2**62

# Everything that a table, JSON or a shell may take for something else.
ODD: Final = (
    "'\";--\\\n\r\t\x01\x7f\u2028é\u0301👩‍🚀{}[]null $.x %s :name ?1 \ufeff\U0010ffff"
)


def timer(
    number: int,
    key: str = "k",
    *,
    gateway: str = "g",
    ext: str | None = None,
    due: int = 1_000,
    created: int = 1,
) -> Timer:
    """A timer as it is when it was just asked for."""
    return Timer(
        number, gateway, key, ext, "pending", due, due, 0, None, 1, None, created,
        None, created,
    )  # fmt: skip


def settle(store: Store, *orders: Order) -> Batch:
    batch = Batch(orders=list(orders))
    store.write(batch)
    return batch


def fill(store: Store, count: int, *, ext: str | None = None, at: int = 1) -> None:
    """So many pending timers more."""
    first = store.timers.next_id()
    made = (
        timer(n, f"k{n}", ext=ext, due=n, created=at)
        for n in range(first, first + count)
    )
    settle(store, *(Schedule(one, None) for one in made))


def end(store: Store, *keys: str, at: int) -> None:
    settle(store, *(Drop("g", key, None, 2**40, at) for key in keys))


def counted(store: Store) -> dict[str, int]:
    """How many timers there are in each state, counted one by one."""
    rows = disk.rows(store.path, "select state, count(*) from timers group by state")
    return dict(rows)


def states(store: Store) -> dict[str, int]:
    """The same, as the table keeps it."""
    return {state: number for state, number in store.timers.states().items() if number}


# --- a file and a dictionary --------------------------------------------------------------


keys = st.sampled_from(("a", "b", "c", "7", "null", ODD))
exts = st.sampled_from(("x", "7", ODD))
payloads = st.none() | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("after"), keys, st.none() | exts, payloads),
        st.tuples(st.just("cancel"), keys),
        st.tuples(st.just("cancel ext"), exts),
        st.tuples(st.just("done"), keys),
        st.tuples(st.just("fail"), keys, st.booleans()),
        st.tuples(st.just("try again"), keys),
        st.tuples(st.just("wait"), st.sampled_from((0.2, 1, 70))),
        st.tuples(st.just("write")),
    ),
    max_size=40,
)
SHORT: Final = Ladder(1_000, (500, 1_000))


class OnDisk(Rig):
    """A rig of which every transaction goes to a file as well."""

    def __init__(self, store: Store) -> None:
        super().__init__(Wheel, ladder=SHORT)
        self.store = store

    def write(self, most: int = 10**9) -> bool:
        orders = [order for lot in self.given for order in lot.orders]
        was_written = super().write(most)
        if was_written:
            batch = settle(self.store, *orders)
            assert batch.unfinished == []
            assert self.written is not None
            expected, done = self.written[1], batch.settlement
            assert done is not None
            assert (done.results, +done.states) == (expected.results, +expected.states)
            assert sorted(done.changed) == sorted(expected.changed)
            self.compare()
        return was_written

    def compare(self) -> None:
        """What the file has is what the dictionary has, and is found as there."""
        with self.store.reading() as db:
            live = timertable.due(db, [*self.table, 10**6])
            window = Window(-1, 0, int(self.ms) + 50_000, 3)
            coming = timertable.coming(db, window)
            rows = timertable.listed(
                db,
                gateway=None,
                state=None,
                ext=None,
                key=None,
                before=None,
                limit=10**6,
            )[0]
        assert {row.timer.id: row for row in live} == {
            number: row for number, row in self.table.items() if row.timer.is_live
        }
        assert {row.timer.id: tuple(row) for row in rows} == self.table
        expected = sorted(
            (it.next, it.id, it.gateway)
            for it in self.live
            if it.next is not None and it.next <= window.until
        )
        assert coming == [Coming(n, name, at) for at, n, name in expected[:3]]
        assert states(self.store) == +self.states == counted(self.store)
        assert self.store.timers.next_id() == max(self.table, default=0) + 1


@BOUNDED
@given(acts)
def test_a_file_holds_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[object, ...]]
) -> None:
    with closing(Store(tmp_path_factory.mktemp("state"), SHORT)) as store:
        rig = OnDisk(store)
        for act in acts:
            match act:
                case ("after", str(key), None | str() as ext, None | str() as payload):
                    rig.after(key, 0.5, payload, ext=ext)
                case ("cancel", str(key)):
                    rig.cancel(key)
                case ("cancel ext", str(ext)):
                    rig.cancel(ext=ext)
                case ("done", str(key)):
                    rig.done(key, ODD)
                case ("fail", str(key), bool(final)):
                    rig.fail(key, ODD, final=final)
                case ("try again", str(key)):
                    rig.try_again(key)
                case ("wait", float() | int() as seconds):
                    rig.wait(seconds)
                case _:
                    rig.commit()
        rig.commit()


def test_a_payload_of_4096_odd_bytes_is_read_as_it_was_written(store: Store) -> None:
    payload = (ODD * 100).encode()[:4_096].decode(errors="ignore")
    settle(store, Schedule(timer(1), payload))
    with store.reading() as db:
        assert [row.payload for row in timertable.due(db, [1])] == [payload]


def test_of_orders_that_fail_nothing_is_left(store: Store) -> None:
    fill(store, 1)
    before = disk.rows(store.path, "select * from timers")
    with pytest.raises(sqlite3.IntegrityError):
        settle(store, Drop("g", "k1", None, 9, 5), Schedule(timer(1, "again"), None))
    assert disk.rows(store.path, "select * from timers") == before
    assert states(store) == {"pending": 1} == counted(store)


# --- of an older version --------------------------------------------------------------------


SCHEMA_2: Final = """
pragma auto_vacuum = incremental;
pragma journal_mode = wal;
create table meta (key text primary key, value any) strict, without rowid;
create table log (
    last integer primary key, first integer not null, newest integer not null,
    records blob not null, check (first <= last)) strict;
create trigger log_goes_on before insert on log
    when new.first <= (select max(last) from log)
    begin select raise(abort, 'a seq is given twice'); end;
create table online (
    session integer primary key, uid any not null, start integer not null,
    conn integer, gateway text not null, timeout real) strict;
create table cursors (
    role text not null, name text not null, seq integer not null,
    used integer not null, timeout real, primary key (role, name)
    ) strict, without rowid;
insert into meta values ('schema', 2), ('log', '0123456789abcdef');
insert into online values (1, 7, 1000, null, 'g', 2.5), (2, '7', 1000, 5, 'g', null);
insert into cursors values ('gateway', 'g', 2, 99, 30.0), ('watcher', 'w', 1, 98, null);
"""


@pytest.mark.parametrize("pages", [0, 3])
def test_a_database_of_schema_2_is_taken_over_whole(tmp_path: Path, pages: int) -> None:
    records = [
        Record(seq, "online", seq, "g", seq, None, "login", 1_000)
        for seq in range(1, 2 * pages + 1)
    ]
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        db.executescript(SCHEMA_2)
        for first in range(0, len(records), 2):
            page = msgpack.packb(records[first : first + 2])
            db.execute(
                "insert into log values (?, ?, 1000, ?)", [first + 2, first + 1, page]
            )
    for _ in range(2):  # what was migrated is opened as it is
        with closing(Store(tmp_path)) as store:
            assert store.log == "0123456789abcdef"
            assert disk.log(store.path) == records
            assert list(store.online()) == [
                OnlineRow(1, 7, 1_000, None, "g", 2.5),
                OnlineRow(2, "7", 1_000, 5, "g", None),
            ]
            assert store.cursors() == {
                ("gateway", "g"): CursorRow(2, 99, 30.0),
                ("watcher", "w"): CursorRow(1, 98, None),
            }
            assert store.recorded_bytes() == len(
                b"".join(
                    msgpack.packb(records[at : at + 2])
                    for at in range(0, len(records), 2)
                )
            )
            assert states(store) == {}
    with closing(Store(tmp_path)) as store:
        fill(store, 1)
        made = disk.rows(
            store.path, "select name, sql from sqlite_schema where sql like '%timer%'"
        )
    with closing(Store(tmp_path / "new")) as new:
        assert sorted(made) == sorted(
            disk.rows(
                new.path, "select name, sql from sqlite_schema where sql like '%timer%'"
            )
        ), "as a new one has it"


# --- retention ------------------------------------------------------------------------------


def trim(store: Store, *, oldest_ms: int = 0, most: int = PLENTY) -> Counter[str]:
    """Take small steps until there is nothing to do."""
    gone: Counter[str] = Counter()
    while step := store.trim_timers(oldest_ms=oldest_ms, most=most):
        gone.update(step)
    assert states(store) == counted(store)
    return gone


def test_ended_timers_go_once_they_are_old_and_live_ones_stay(store: Store) -> None:
    fill(store, 4)
    end(store, "k1", at=100)
    end(store, "k2", at=200)
    assert trim(store, oldest_ms=100) == {}
    assert trim(store, oldest_ms=200) == {CANCELLED: 1}
    assert trim(store, oldest_ms=ALL_MS) == {CANCELLED: 1}
    assert [key for (key,) in disk.rows(store.path, "select key from timers")] == [
        "k3",
        "k4",
    ]


def test_of_too_many_ended_timers_the_oldest_go_whatever_their_state(
    store: Store,
) -> None:
    fill(store, 6)
    end(store, "k1", at=10)
    settle(store, Schedule(timer(7, "k2", created=20), None))  # replaces it at 20
    end(store, "k3", at=30)
    settle(store, Schedule(timer(8, "k4", created=40), None))
    assert trim(store, most=2) == {"cancelled": 1, "replaced": 1}
    left = disk.rows(
        store.path, "select key from timers where next is null order by id"
    )
    assert left == [("k3",), ("k4",)]
    assert trim(store, most=0) == {"cancelled": 1, "replaced": 1}


def test_many_ended_timers_go_in_small_steps(store: Store) -> None:
    fill(store, 4_500)
    end(store, *(f"k{n}" for n in range(1, 4_501)), at=10)
    first = store.trim_timers(oldest_ms=ALL_MS, most=PLENTY)
    assert 0 < first[CANCELLED] < 4_500
    trim(store, oldest_ms=ALL_MS)
    assert states(store) == {}


def test_timers_take_nothing_from_the_bytes_that_the_log_may_have(store: Store) -> None:
    store.write(Batch(records=[Record(1, "online", "u", "g", 1, None, "login", 1)]))
    store.write(Batch(records=[Record(2, "online", "v", "g", 2, None, "login", 1)]))
    size = store.recorded_bytes()
    settle(store, *(Schedule(timer(n, f"k{n}"), "x" * 4_096) for n in range(1, 501)))
    assert store.recorded_bytes() == size
    store.trim(oldest_ms=0, most_bytes=size, idle_ms=0)
    assert len(disk.log(store.path)) == 2
    store.trim(oldest_ms=0, most_bytes=size - 1, idle_ms=0)
    assert [one.seq for one in disk.log(store.path)] == [2]
    (kept,) = disk.rows(store.path, "select sum(length(records)) from log")
    assert store.recorded_bytes() == kept[0]


# --- by which index ---------------------------------------------------------------------------


@contextmanager
def statements(db: sqlite3.Connection) -> Iterator[list[str]]:
    """What is asked of the database meanwhile."""
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    yield asked
    db.set_trace_callback(None)


def plans(db: sqlite3.Connection, asked: list[str]) -> list[str]:
    """How SQLite finds the rows of timers that are asked for."""
    return [
        detail
        for query in asked
        if query.lstrip().startswith(("select", "insert", "update", "delete", "with"))
        for *_, detail in db.execute(f"explain query plan {query}")
        if " timers" in detail
    ]


def test_timers_are_found_by_key_and_ext_through_their_indexes(store: Store) -> None:
    fill(store, 1_000, ext="x")
    by_key, by_ext = Drop("g", "k7", None, PLENTY, 5), Drop("g", None, "x", PLENTY, 5)
    for order, index in ((by_key, "timers_key"), (by_ext, "timers_ext")):
        with statements(store._db) as asked:
            settle(store, order)
        found = plans(store._db, asked)
        assert any(f"INDEX {index} " in plan for plan in found), found
        assert not any(plan.startswith("SCAN timers") for plan in found), found
        assert any("INTEGER PRIMARY KEY" in plan for plan in found), (
            "as they are changed"
        )


def test_who_is_due_and_who_comes_is_found_through_an_index(store: Store) -> None:
    fill(store, 1_000)
    with store.reading() as db:
        with statements(db) as asked:
            timertable.due(db, [1, 2, 3])
        assert [plan.split(" USING ")[1] for plan in plans(db, asked)] == [
            "INTEGER PRIMARY KEY (rowid=?)"
        ]
        with statements(db) as asked:
            timertable.coming(db, Window(3, 3, 500, 10))
        (plan,) = plans(db, asked)
        assert "INDEX timers_next (next>? AND next<?)" in plan
        steps = [
            row[-1]
            for query in asked
            for row in db.execute(f"explain query plan {query}")
        ]
        assert not any("TEMP B-TREE" in step for step in steps), "nothing is sorted"


def test_what_is_too_old_is_found_through_an_index(store: Store) -> None:
    fill(store, 10)
    end(store, "k1", at=5)
    with statements(store._db) as asked:
        assert store.trim_timers(oldest_ms=ALL_MS, most=PLENTY)
    assert not any(plan.startswith("SCAN timers") for plan in plans(store._db, asked))


# --- an ext of many -----------------------------------------------------------------------------


async def test_an_ext_of_many_goes_in_steps_and_no_mark_is_reached_before_its_end(
    store: Store, jumping: MockClock
) -> None:
    many = 5 * EXT_STEP // 2
    fill(store, many, ext="x")
    steps: list[tuple[bool, int]] = []

    def published(batch: Batch) -> None:
        left = counted(store).get("pending", 0)
        steps.append((journal.durable_mark >= mark, left))
        assert (left == 1) == (not batch.unfinished)

    journal = Journal(store, clock=Clock(), counts=Counts(), published=published)
    journal.append(Changes(orders=[Drop("g", None, "x", many + 1, 5)]))
    later = Schedule(timer(many + 1, "later", ext="x"), None)
    journal.append(Changes(orders=[later]))
    mark = journal.flush()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        await journal.settled()
        nursery.cancel_scope.cancel()
    left = [many - EXT_STEP + 1, many - 2 * EXT_STEP + 1, 1]
    assert steps == [(False, left[0]), (False, left[1]), (True, left[2])]
    assert states(store) == counted(store) == {"cancelled": many, "pending": 1}


def test_the_ladder_is_the_defaults_unless_another_is_told(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        assert store.ladder == LADDER
