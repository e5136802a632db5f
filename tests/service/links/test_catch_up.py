"""A start after a crash between the log and the table of timers.

The log has runs that the table lacks. It gets them last, after all that was said since;
it must then be as if it had got them in time, and what it has already must stay as it is.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from liveness.core.records import TIMER, Logged, TimerRecord
from liveness.core.timer_states import (
    RETRY_POLICY,
    CancelTimer,
    CompleteTimer,
    CreateTimer,
    Fire,
    RetryTimer,
    TimerState,
)
from liveness.service import app
from liveness.service.app import _catch_up
from liveness.service.storage import log_store
from liveness.service.storage.log_store import LogStore
from liveness.service.timers.timer_sql import TIMER_COLUMNS
from liveness.service.timers.timer_store import TimerStore
from tests.helpers import disk
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


def write_log(log: LogStore, *records: Logged) -> None:
    """Write records in their order, each as a commit of its own."""
    for record in sorted(records, key=lambda record: record.seq):
        write(log, record)


def runs(*orders: Fire) -> list[Logged]:
    """Their records in the log."""
    return [
        TimerRecord(seq, TIMER, gateway, key, None, None, AT_MS, attempt, at)
        for gateway, key, attempt, seq, at in orders
    ]


def logins(*seqs: int) -> list[Logged]:
    return [*map(online, seqs)]


# --- what the table lacks, and what it has ------------------------------------------


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
    table.seq = 0  # as if it knew of none
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    assert rows(table) == caught_up


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


# --- beside a log from a backup -------------------------------------------------------


def test_a_restored_log_begins_no_later_timer(log: LogStore, table: TimerStore) -> None:
    table.write([after(1, "a")])
    done = CompleteTimer("g", "a", None, True, None, False, AT_MS)
    table.write([fire(30, "a"), done], seq=30)
    table.write([after(2, "a", since=80), after(3, "b", since=80)], seq=90)
    table.write([fire(100, "b")], seq=100)
    write_log(log, *runs(fire(30, "a")), *logins(*range(31, 71)))
    _catch_up(table, log, now_ms=LATER_MS, ahead_ms=0)
    assert [it.state for it in rows(table).values()] == ["done", "pending", "fired"]
    # Nobody has the record of the last: whatever is answered from now on counts.
    found = [(timer.seq, timer.min_seq) for timer in rows(table).values()]
    assert found[1:] == [(None, 71), (0, 71)]
