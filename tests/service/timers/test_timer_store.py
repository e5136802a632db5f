"""The table of timers, on real SQLite: what a dictionary would hold, and by which index.

What becomes of a timer is decided in the core and tested there; here every order goes to
a dictionary and to a file, and both must hold the same ever after.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.config.compiled import Wheel
from liveness.core.changes import Changes
from liveness.core.timer_states import (
    CANCELLED,
    DONE,
    FIRED,
    LIVE,
    STATES,
    CancelTimer,
    CompleteTimer,
    CreateTimer,
    Fire,
    RetryPolicy,
    TimerCommand,
    TimerState,
)
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.core.timers.timer_scheduler import Coming, Due, LoadedWindow
from liveness.core.wire.uids import MAX_INTEGER
from liveness.errors import StateError
from liveness.service.storage.database import ROWS_AT_ONCE, reading
from liveness.service.storage.log_store import LogStore
from liveness.service.timers import timer_reader, timer_sql
from liveness.service.timers.timer_sql import TIMER_COLUMNS
from liveness.service.timers.timer_store import DATABASE, EXT_STEP, TimerStore
from tests.core.timers_rig import Rig
from tests.helpers import disk
from tests.helpers.strategies import BOUNDED, calls
from tests.service.storage.journals import append, counted, journal_of, pending, writing

PLENTY: Final = 2**40
ALL_MS: Final = 2**62
COLUMNS: Final = f"{TIMER_COLUMNS}, payload"

# Everything that a table, JSON or a shell may take for something else.
ODD: Final = (
    "'\";--\\\n\r\t\x01\x7f\u2028é\u0301👩‍🚀{}[]null $.x %s :name ?1 \ufeff\U0010ffff"
)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[TimerStore]:
    with closing(TimerStore(tmp_path, log="a log")) as opened:
        yield opened


def add(table: TimerStore, *timers: TimerState, payload: str | None = None) -> None:
    table.write([CreateTimer(timer, payload) for timer in timers])


def fill(table: TimerStore, count: int, *, ext: str | None = None) -> None:
    """Add this many pending timers."""
    query = "select coalesce(max(id), 0) + 1 from timers"
    ((first,),) = disk.rows(table.path, query)
    numbers = range(first, first + count)
    add(table, *(pending(number, ext=ext, due=number) for number in numbers))


def first_run(number: int, seq: int, at: int) -> Fire:
    return Fire("g", f"k{number}", 1, seq, at)


def done(key: str, attempt: int | None, at: int) -> CompleteTimer:
    return CompleteTimer("g", key, attempt, True, None, False, at)


def end(table: TimerStore, *keys: str, at: int) -> None:
    table.write([CancelTimer("g", key, None, PLENTY, at) for key in keys])


def rows(table: TimerStore) -> dict[int, Due]:
    """Every timer that the file has, read past the product."""
    found = disk.rows(table.path, f"select {COLUMNS} from timers")
    return {row[0]: Due(TimerState._make(row[:-1]), row[-1]) for row in found}


def states(table: TimerStore) -> dict[str, int]:
    """How many timers there are in each state, as the table keeps it."""
    return {state: number for state, number in table.states().items() if number}


# --- a file and a dictionary --------------------------------------------------------------


keys = st.sampled_from(("a", "b", "c", "7", "null", ODD))
exts = st.sampled_from(("x", "7", ODD))
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
)
payloads = st.none() | st.just(ODD * 40) | texts
acts = st.lists(
    st.one_of(
        calls("after", keys, st.just(0.5), payloads, ext=st.none() | exts),
        calls("cancel", keys),
        calls("cancel", ext=exts),
        calls("done", keys, st.just(ODD)),
        calls("fail", keys, st.just(ODD), final=st.booleans()),
        calls("try_again", keys),
        calls("wait", st.sampled_from((0.2, 1, 70))),
        calls("commit"),
    ),
    max_size=40,
)
SHORT: Final = RetryPolicy(1_000, (500, 1_000))


class OnDisk(Rig):
    """A rig of which every transaction goes to a file as well."""

    def __init__(self, file: TimerStore) -> None:
        super().__init__(Wheel, retry_policy=file.retry_policy)
        self.file = file

    def write(self) -> bool:
        was_written = super().write()
        if was_written:
            orders, expected = self.written
            done, unfinished = self.file.write(orders)
            assert unfinished == []
            assert (done.results, +done.states) == (expected.results, +expected.states)
            assert sorted(done.changed) == sorted(expected.changed)
            self.compare()
        return was_written

    def compare(self) -> None:
        """The file has the same timers as the dictionary, and finds the same ones."""
        with reading(self.file.path) as db:
            live, _ = timer_reader.read_due(db, [*self.table, 10**6])
            window = LoadedWindow(-1, 0, int(self.ms) + 50_000, 3)
            coming = timer_reader.read_coming(db, window)
        assert rows(self.file) == self.table
        assert {row.timer.id: row for row in live} == {
            number: row for number, row in self.table.items() if row.timer.is_live
        }
        expected = sorted(
            (it.next, it.id, it.gateway)
            for it in self.live
            if it.next is not None and it.next <= window.until
        )
        assert coming == [Coming(n, name, at) for at, n, name in expected[:3]]
        assert states(self.file) == +self.states == counted(self.file)
        assert self.file.has_live == bool(self.live)
        assert self.file.newest == max((one.seq for one in self.log), default=0)


@BOUNDED
@given(acts)
def test_a_file_holds_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Callable[[Rig], object]]
) -> None:
    folder = tmp_path_factory.mktemp("state")
    with closing(TimerStore(folder, log="a log", retry_policy=SHORT)) as table:
        rig = OnDisk(table)
        for act in acts:
            act(rig)
        rig.commit()


def test_orders_that_fail_leave_nothing(table: TimerStore) -> None:
    fill(table, 2)
    before = rows(table)
    # Enough for a statement that succeeds before the one that does not.
    new = [*map(pending, range(3, ROWS_AT_ONCE[0] + 3)), pending(2, "again")]
    with pytest.raises(sqlite3.IntegrityError):
        table.write([first_run(1, 7, 5), *(CreateTimer(timer, None) for timer in new)])
    assert rows(table) == before
    assert states(table) == {"pending": 2} == counted(table)
    assert table.seq == 0


# --- whose file it is, and how far it has followed the log --------------------------------


def test_the_place_in_the_log_is_kept_and_never_goes_back(tmp_path: Path) -> None:
    with closing(TimerStore(tmp_path, log="a log")) as table:
        fill(table, 2)
        # One before these two is not among them: it waits for its answer.
        table.write([first_run(1, 7, 5), Fire("g", "nobody", 1, 9, 5)], seq=5)
        assert (table.seq, table.newest) == (5, 9)
        table.write([first_run(2, 6, 5)], seq=9)
        table.follow(4)
        assert (table.seq, table.newest) == (9, 9)
    with closing(TimerStore(tmp_path, log="a log")) as table:
        assert (table.seq, table.newest) == (9, 9)
        table.follow(100)
    with closing(TimerStore(tmp_path, log="a log")) as table:
        assert (table.seq, table.newest) == (100, 100)


def test_beside_another_log_timers_stay_and_seqs_are_forgotten(tmp_path: Path) -> None:
    with closing(TimerStore(tmp_path, log="a log")) as table:
        timers = [pending(n, key, since=40) for n, key in enumerate("abcd", 1)]
        add(table, *timers, payload="p")
        table.write([Fire("g", key, 1, seq, 5) for seq, key in enumerate("abc", 50)])
        end(table, "c", at=6)
        before = rows(table)
    expected = {
        number: row
        if row.timer.key == "c"
        else Due(
            row.timer._replace(min_seq=0, seq=None if row.timer.key == "d" else 0), "p"
        )
        for number, row in before.items()
    }
    for _ in range(2):
        with closing(TimerStore(tmp_path, log="another")) as table:
            assert table.seq == 0
            assert rows(table) == expected
    with closing(TimerStore(tmp_path, log="another")) as table:
        failed = CompleteTimer("g", "b", None, False, "no", False, 7)
        runs = [Fire("g", "b", 2, 1, 8), Fire("g", "d", 1, 2, 8)]
        written, _ = table.write([done("a", None, 7), failed, *runs])
        states = {timer.key: timer.state for timer in written.changed}
        assert states == {"a": DONE, "b": FIRED, "d": FIRED}


def test_a_file_that_was_emptied_beside_a_log_is_no_new_one(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"")
    with pytest.raises(StateError, match="it is empty, and the log is not"):
        TimerStore(tmp_path, log="a log", next_seq=2)
    TimerStore(tmp_path, log="a log", next_seq=1).close()


@pytest.mark.parametrize("part", ["timers", "timers_key", "timers_next", "end", "all"])
def test_damage_in_the_file_is_reported_and_left(tmp_path: Path, part: str) -> None:
    with closing(TimerStore(tmp_path, log="a log")) as table:
        fill(table, 1_000)
        path = table.path
    match part:
        case "end":
            os.truncate(path, path.stat().st_size // 2)
        case "all":
            path.write_bytes(b"not a database at all" * 500)
        case _:
            disk.overwrite_root(path, part)
    before = path.read_bytes()
    why = (
        rf"{path} cannot be read \([^\n]+\); it was left as it is: [^\n]+ move it away, "
        "with its -wal and -shm, to start without timers$"
    )
    with pytest.raises(StateError, match=why):
        TimerStore(tmp_path, log="a log")
    assert path.read_bytes() == before


# --- retention ------------------------------------------------------------------------------


def trim(table: TimerStore, *, oldest_ms: int = 0, most: int = PLENTY) -> Counter[str]:
    """Delete until there is nothing to do."""
    gone: Counter[str] = Counter()
    while step := table.trim(oldest_ms=oldest_ms, most=most):
        gone.update(step)
    assert states(table) == counted(table)
    return gone


def test_only_old_timers_that_have_ended_are_trimmed(table: TimerStore) -> None:
    fill(table, 4)
    end(table, "k1", at=100)
    end(table, "k2", at=200)
    assert trim(table, oldest_ms=100) == {}
    assert trim(table, oldest_ms=200) == {CANCELLED: 1}
    assert trim(table, oldest_ms=ALL_MS) == {CANCELLED: 1}
    assert [row.timer.key for row in rows(table).values()] == ["k3", "k4"]


def test_the_oldest_of_too_many_ended_timers_are_trimmed(table: TimerStore) -> None:
    fill(table, 6)
    end(table, "k1", at=10)
    add(table, pending(7, "k2", at=20))  # replaces it at 20
    end(table, "k3", at=30)
    add(table, pending(8, "k4", at=40))
    assert trim(table, most=2) == {"cancelled": 1, "replaced": 1}
    left = disk.rows(
        table.path, "select key from timers where next is null order by id"
    )
    assert left == [("k3",), ("k4",)]
    assert trim(table, most=0) == {"cancelled": 1, "replaced": 1}


# --- a damaged timer ---------------------------------------------------------------------------

# A byte that is no UTF-8, and a letter.
NO_TEXT: Final = "cast(x'ff61' as text)"


@pytest.mark.parametrize("column", ["gateway", "key", "ext", "payload"])
def test_timers_beside_a_damaged_one_are_read(table: TimerStore, column: str) -> None:
    fill(table, 7)
    disk.change(
        table.path, f"update timers set {column} = {NO_TEXT} where id in (2, 7)"
    )
    with reading(table.path) as db:
        coming = timer_reader.read_coming(db, LoadedWindow(0, 0, 10, 10))
        rows, unreadable = timer_reader.read_due(db, [it.id for it in coming])
    assert [it.id for it in coming] == [*range(1, 8)]
    assert [row.timer.id for row in rows] == [1, 3, 4, 5, 6]
    assert unreadable == [2, 7]


@pytest.mark.parametrize(
    "sql",
    [
        "update meta set key = 'sea' where key = 'seq'",
        "update meta set value = 'x' where key = 'newest'",
        "update states set state = 'qending' where state = 'pending'",
    ],
)
def test_a_table_whose_meta_makes_no_sense_is_refused(tmp_path: Path, sql: str) -> None:
    with closing(TimerStore(tmp_path, log="a log")) as table:
        fill(table, 1)
        table.write([first_run(1, 1, 9)])
    disk.change(table.path, sql)
    with pytest.raises(StateError, match="make"):
        TimerStore(tmp_path, log="a log")


def test_orders_beside_one_about_a_damaged_timer_are_applied(table: TimerStore) -> None:
    fill(table, 3)
    disk.change(table.path, f"update timers set ext = {NO_TEXT} where id = 2")
    end(table, "k1", "k2", "k3", at=1)
    assert states(table) == {**states(table), "pending": 1, "cancelled": 2}


# --- an ext of many -----------------------------------------------------------------------------


@pytest.mark.usefixtures("jumping")
async def test_a_large_ext_is_cancelled_in_steps_before_its_mark(
    store: LogStore,
) -> None:
    many = 5 * EXT_STEP // 2
    steps: list[tuple[bool, int, int]] = []

    def settled(orders: list[TimerCommand], _: TimerTransaction) -> None:
        left = counted(table).get("pending", 0)
        steps.append((log_writer.durable_ticket >= mark, left, len(orders)))
        log_writer.notify_flushed()

    with journal_of(store, published=lambda _: None, on_applied=settled) as log_writer:
        table = log_writer.timers.table
        fill(table, many, ext="x")
        append(log_writer, Changes(commands=[CancelTimer("g", None, "x", many + 1, 5)]))
        later = CreateTimer(pending(many + 1, "later", ext="x"), None)
        append(log_writer, Changes(commands=[later]))
        mark = log_writer.flush()
        async with writing(log_writer):
            await log_writer.flushed()
        # What came behind the cancel is over first, the cancel itself in the last step.
        left = [many - EXT_STEP + 1, many - 2 * EXT_STEP + 1, 1]
        assert steps == [(False, left[0], 1), (False, left[1], 0), (True, left[2], 1)]
        assert states(table) == counted(table) == {"cancelled": many, "pending": 1}


def test_only_the_last_of_several_cancels_of_an_ext_is_given_again(
    table: TimerStore,
) -> None:
    many = 3 * EXT_STEP // 2
    fill(table, many, ext="x")
    _, left = table.write(
        [CancelTimer("g", None, "x", many + 1, at) for at in range(1, 6)]
    )
    assert [drop.at for drop in left] == [5]
    _, left = table.write(left)
    assert left == []
    assert states(table) == counted(table) == {"cancelled": many}


# --- a log that is behind ---------------------------------------------------------------


def test_a_run_ahead_of_a_restored_log_can_be_answered(table: TimerStore) -> None:
    fill(table, 1)
    # The run is known of, though what came before it was not all noted yet.
    table.write([first_run(1, 900, 2_000)], seq=5)
    table.reconcile_with_log(10)
    assert (table.seq, table.newest) == (5, 10)
    assert rows(table)[1].timer[8:10] == (0, 1)  # its record, and since
    table.write([done("k1", 11, 3_000)])
    assert rows(table)[1].timer.state == DONE


# --- lists ----------------------------------------------------------------------------


Row = dict[str, str | None]

values = {
    "gateway": st.sampled_from(["g", "h"]),
    "state": st.sampled_from(STATES),
    "ext": st.sampled_from(["x", "y"]),
    "key": st.sampled_from(["a", "b", "c"]),
}
drawn_rows = st.lists(
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


def memory_table(timers: list[Row]) -> sqlite3.Connection:
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
@given(drawn_rows, wanted, st.integers(1, 7))
def test_all_pages_together_are_what_a_filter_gives(
    timers: list[Row], wanted: dict[str, str], limit: int
) -> None:
    found, before = list[int](), MAX_INTEGER
    with closing(memory_table(timers)) as db:
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


def test_a_list_fails_at_a_damaged_timer_and_filters_list_the_others() -> None:
    row: Row = {"gateway": "g", "key": "a", "ext": "x", "state": "pending"}
    with closing(memory_table([row, {**row, "key": "b"}])) as db:
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
    with closing(memory_table([])) as db:
        for query, index in zip(queries, indexes, strict=True):
            plan = db.execute(f"explain query plan {query}", wanted).fetchall()
            told = [step[-1] for step in plan]
            assert any(f"INDEX {index} (" in step for step in told), told
            assert not any("SCAN timers" in step for step in told), told


def test_times_are_shown_by_the_wall_clock() -> None:
    row: Row = {"gateway": "g", "key": "a", "ext": "x", "state": "pending"}
    with closing(memory_table([row])) as db:
        db.execute("update timers set due = 5, fired = 6, created = 1, changed = 7")
        page = timer_reader.list_timers(
            db, {}, before=MAX_INTEGER, limit=9, ahead_ms=1_000
        )
    (timer,) = json.loads(page.timers)
    shown = {name: timer[name] for name in ("due", "fired", "created", "changed")}
    assert shown == {"due": 1_005, "fired": 1_006, "created": 1_001, "changed": 1_007}
