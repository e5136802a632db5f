"""A start after a crash between the log and the table of timers.

The log has runs that the table lacks. It gets them last, after all that was said since;
it must then be as if it had got them in time, and what it has already must stay as it is.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.config.compiled import Wheel
from liveness.core.records import TIMER, Logged, TimerRecord
from liveness.core.timer_states import (
    RETRY_POLICY,
    CancelTimer,
    CompleteTimer,
    CreateTimer,
    Fire,
    RetryPolicy,
    RetryTimer,
    TimerCommand,
    TimerState,
)
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.service import app
from liveness.service.app import _catch_up
from liveness.service.storage import log_store
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.timers.timer_sql import TIMER_COLUMNS
from liveness.service.timers.timer_store import TimerStore
from tests.core.timers_rig import Rig
from tests.helpers import disk
from tests.helpers.record_batches import batch_of
from tests.helpers.strategies import BOUNDED, calls
from tests.service.storage.journals import online, pending, write

AT_MS: Final = 1_000
LATER_MS: Final = 2**42  # than all that happens here


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogStore]:
    with closing(LogStore(tmp_path)) as opened:
        yield opened


@pytest.fixture
def table(log: LogStore) -> Iterator[TimerStore]:
    with closing(TimerStore(log.folder, log=log.log)) as opened:
        yield opened


def rows(table: TimerStore) -> dict[int, TimerState]:
    """Every timer that the file has."""
    found = disk.rows(table.path, f"select {TIMER_COLUMNS} from timers")
    return {row[0]: TimerState._make(row) for row in found}


def after(number: int, key: str, *, since: int = 1) -> CreateTimer:
    timer = pending(number, key, due=AT_MS, since=since, at=AT_MS)
    return CreateTimer(timer, None)


def fire(seq: int, key: str, attempt: int = 1) -> Fire:
    return Fire("g", key, attempt, seq, AT_MS + seq)


def fail(key: str) -> CompleteTimer:
    return CompleteTimer("g", key, None, False, "no", False, AT_MS)


def as_record(order: Fire) -> TimerRecord:
    gateway, key, attempt, seq, at = order
    return TimerRecord(seq, TIMER, gateway, key, None, None, AT_MS, attempt, at)


def write_log(log: LogStore, *records: Logged) -> None:
    """Write records in their order, each as a commit of its own."""
    for record in sorted(records, key=lambda record: record.seq):
        write(log, record)


def runs(*orders: Fire) -> list[Logged]:
    """Their records in the log."""
    return [*map(as_record, orders)]


def logins(*seqs: int) -> list[Logged]:
    return [*map(online, seqs)]


# --- what the table lacks, and what it has ------------------------------------------


def replay(table: TimerStore, log: LogStore) -> None:
    """Give the table all runs, from the first on, as if it knew of none."""
    table.seq = 0
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)


def damage(log: LogStore, *, below: int) -> None:
    """Have older pages of the log be damaged."""
    with closing(sqlite3.connect(log.path)) as db, db:
        db.execute("update log set records = x'c1' where last < ?", [below])


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_only_runs_that_the_table_lacks_change_it(
    log: LogStore, table: TimerStore, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(app, "REPLAY_RECORDS", at_once)
    monkeypatch.setattr(log_store, "SCAN_RECORDS", 2 * at_once)
    keys = ("known", "second", "anew", "missed", "replaced", "cancelled", "overtaken")
    known = [fire(seq, key) for seq, key in enumerate((*keys[:3], "overtaken"), 1)]
    missed = [
        fire(5, "missed"),
        fire(6, "second", 2),
        fire(7, "replaced"),
        fire(8, "cancelled"),
        fire(9, "anew"),
        fire(10, "overtaken", 2),
        fire(12, "unheard of"),
    ]
    table.write([after(n, key) for n, key in enumerate(keys, 1)])
    table.write([*known, *map(fail, ("second", "anew", "overtaken"))])
    table.write([RetryTimer("g", "anew", AT_MS)])
    # These were said after the runs, and written before them.
    cancel = CancelTimer("g", "cancelled", None, 9, AT_MS)
    table.write([after(8, "replaced", since=11), cancel])
    table.write([RetryTimer("g", "overtaken", AT_MS)])
    write_log(log, *runs(*known, *missed), *logins(11, 13, 14, 15))

    before = rows(table)
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    new = {it.key: it for number, it in rows(table).items() if it != before[number]}
    assert {key: (it.state, it.attempts, it.seq) for key, it in new.items()} == {
        "missed": ("fired", 1, 5),
        "second": ("fired", 2, 6),
        "anew": ("fired", 1, 9),
        "cancelled": ("cancelled", 1, 8),  # and stays so, but it had come
    }
    del new["cancelled"]
    for timer in new.values():
        assert timer.seq is not None
        at = AT_MS + timer.seq
        assert (timer.fired, timer.changed, timer.next) == (
            at,
            at,
            at + RETRY_POLICY.attempt_ms,
        )
    assert table.seq == 15
    caught_up = rows(table)
    replay(table, log)
    assert rows(table) == caught_up


def states(table: TimerStore) -> list[str]:
    return [timer.state for timer in rows(table).values()]


def test_a_run_began_by_the_state_s_clock(log: LogStore, table: TimerStore) -> None:
    table.write([after(1, "a")])
    write_log(log, *runs(fire(1_001, "a")))
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=1_000)
    assert [timer.fired for timer in rows(table).values()] == [AT_MS + 1]


def test_a_run_in_the_future_began_now(log: LogStore, table: TimerStore) -> None:
    table.write([after(1, "a"), after(2, "b")])
    write_log(log, *runs(fire(1, "a"), fire(9, "b")))
    _catch_up(table, log, now_ms=AT_MS + 5, ahead_ms=0)
    assert [timer.fired for timer in rows(table).values()] == [AT_MS + 1, AT_MS + 5]


def test_the_rest_of_a_trimmed_log_is_applied(log: LogStore, table: TimerStore) -> None:
    table.write([after(1, "a"), after(2, "b")])
    write_log(log, *runs(fire(1, "a"), fire(4, "b")), *logins(2, 3))
    log.trimmer.trim(oldest_ms=2**62, most_bytes=0, idle_ms=0)
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    assert states(table) == ["pending", "fired"]
    assert table.seq == 4


def test_the_log_is_read_from_the_tables_place(
    log: LogStore, table: TimerStore
) -> None:
    table.write([after(1, "a"), after(2, "b"), fire(2, "a")], seq=2)
    write_log(log, *logins(1), *runs(fire(2, "a"), fire(3, "b")))
    damage(log, below=3)
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    assert states(table) == ["fired", "fired"]


def test_without_live_timers_the_log_is_not_read(
    log: LogStore, table: TimerStore
) -> None:
    table.write([after(1, "a"), CancelTimer("g", "a", None, 2, AT_MS)])
    write_log(log, *logins(1, 2, 3))
    damage(log, below=3)
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    assert table.seq == 3


# --- beside a log from a backup -------------------------------------------------------


def test_a_run_after_a_restored_log_is_known(log: LogStore, table: TimerStore) -> None:
    table.write([after(1, "a"), after(2, "b")])
    # What came between the last run and where the table had followed to is lost.
    table.write([fire(50, "a")], seq=100)
    write_log(log, *runs(fire(50, "a")), *logins(*range(51, 71)))
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    write_log(log, *runs(fire(71, "b")))
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    found = [(timer.state, timer.seq) for timer in rows(table).values()]
    assert found == [("fired", 50), ("fired", 71)]


def test_a_restored_log_begins_no_later_timer(log: LogStore, table: TimerStore) -> None:
    table.write([after(1, "a")])
    done = CompleteTimer("g", "a", None, True, None, False, AT_MS)
    table.write([fire(30, "a"), done], seq=30)
    table.write([after(2, "a", since=80), after(3, "b", since=80)], seq=90)
    table.write([fire(100, "b")], seq=100)
    write_log(log, *runs(fire(30, "a")), *logins(*range(31, 71)))
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    assert states(table) == ["done", "pending", "fired"]
    # Nobody has the record of the last: whatever is answered from now on counts.
    found = [(timer.seq, timer.min_seq) for timer in rows(table).values()]
    assert found[1:] == [(None, 71), (0, 71)]


# --- in any order -------------------------------------------------------------------


SHORT: Final = RetryPolicy(1_000, (500, 1_000))
keys = st.sampled_from("abc")
after_soon = calls("after", keys, st.just(0.2))
acts = st.lists(
    st.one_of(
        *(after_soon, after_soon),
        *(calls(name, keys) for name in ("cancel", "done", "fail", "try_again")),
        calls("wait", st.just(0.6)),
    ),
    max_size=40,
)


class Decided(Rig):
    """A rig that keeps every order, as it was decided."""

    def __init__(self, acts: list[Callable[[Rig], object]]) -> None:
        self.orders: list[TimerCommand] = []
        super().__init__(Wheel, retry_policy=SHORT)
        for act in acts:
            act(self)
        self.commit()

    def write(self, most: int = 10**9) -> bool:
        was_written = super().write(most)
        if was_written:
            assert self.written is not None
            self.orders += self.written[0]
        return was_written


def settled(orders: Iterable[TimerCommand]) -> dict[int, TimerState]:
    """What becomes of timers if this is said of them, in this order."""
    return {it.id: it for it in TimerTransaction(orders, [], SHORT).changed}


def left_alone(orders: list[TimerCommand], since: int) -> set[object]:
    """The keys of which, from a run on that is later than *since*, only runs follow."""
    fired, left = set[object](), set[object]((it.gateway, it.key) for it in orders)
    for order in orders:
        if isinstance(order, Fire):
            if order.seq > since:
                fired.add((order.gateway, order.key))
        elif (order.gateway, order.key) in fired:
            left.discard((order.gateway, order.key))
    return left


@BOUNDED
@given(acts, st.integers(0, 8), st.integers(1, 4))
def test_runs_applied_last_have_the_effect_they_had_in_time(
    tmp_path_factory: pytest.TempPathFactory,
    acts: list[Callable[[Rig], object]],
    known: int,
    page: int,
) -> None:
    rig = Decided(acts)
    fires = {
        it.seq: Fire(it.gateway, it.key, it.attempt, it.seq, it.at) for it in rig.log
    }
    orders = [fires[it.seq] if isinstance(it, Fire) else it for it in rig.orders]
    late = [it for seq, it in fires.items() if seq > known]
    in_time = [it for it in orders if it not in late]
    with (
        pytest.MonkeyPatch.context() as few,
        closing(LogStore(tmp_path_factory.mktemp("state"))) as log,
        closing(TimerStore(log.folder, log=log.log, retry_policy=SHORT)) as table,
    ):
        few.setattr(app, "REPLAY_RECORDS", 2)
        table.write(in_time)
        if not table.has_live:
            late = []  # of timers that have ended nothing is looked up
        for at in range(0, len(rig.log), page):
            log.write(Batch(batch_of(rig.log[at : at + page])))
        _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
        caught_up = rows(table)
        assert caught_up == settled([*in_time, *late])
        alone = left_alone(orders, known)
        for number, timer in settled(orders).items():
            if late and (timer.gateway, timer.key) in alone:
                assert caught_up[number] == timer
        assert table.seq == len(rig.log)
        replay(table, log)
        assert rows(table) == caught_up
