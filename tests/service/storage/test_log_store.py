"""The log's database on real SQLite: a batch is read as it was written, or not at all."""

import io
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from liveness.core.cursors import CursorRow
from liveness.core.records import TIMER, Record, TimerRecord, Uid
from liveness.errors import StateError
from liveness.service.common.clock import StateTime
from liveness.service.storage.log_pages import PAGE_RECORDS
from liveness.service.storage.log_store import SCAN_RECORDS, Batch, LogRows, LogStore
from liveness.service.storage.log_trimmer import MARKS, TRIM_RECORDS
from liveness.service.storage.online_list import LIST_ROWS, write_frames
from tests.helpers import disk
from tests.helpers.record_batches import batch_of
from tests.helpers.wire import unpacked
from tests.service.storage.journals import (
    fill,
    keep,
    lost,
    of,
    online,
    page,
    row,
    trim,
    write,
)


def offline(
    seq: int, uid: Uid = "u", *, gateway: str = "g", session: int = 1
) -> Record:
    return Record(
        seq, "offline", uid, gateway, session, 9, "silence", 5, 4, "login", 30.012
    )


def moved(seq: int, *, gateway: str, origin: str) -> Record:
    return Record(seq, "moved", "u", gateway, seq, 3, "login", 6)._replace(
        from_gateway=origin, from_session=1, from_conn=2**63 - 1
    )


# --- writing -----------------------------------------------------------------------


def test_one_batch_forgets_sessions_keeps_others_and_changes_them(
    store: LogStore,
) -> None:
    keep(store, row(1, "a"), row(2, "b"), row(4, "d"))
    changed = row(2, "b", conn=5)
    # The user of session 1 logged out, and logged in again with session 3.
    records = [offline(1), offline(2, session=99), online(3, "a")]
    batch = batch_of(records, opened=[row(3, "a")])
    store.write(Batch(batch, online={2: changed, 99: row(99)}))
    assert list(store.online()) == [changed, row(3, "a"), row(4, "d")]


@pytest.mark.parametrize("seqs", [[2], [3], [1], [3, 4], [2, 3, 4]])
def test_no_seq_is_written_twice(store: LogStore, seqs: list[int]) -> None:
    fill(store, 3)
    with pytest.raises(sqlite3.IntegrityError):
        write(store, *map(online, seqs))
    assert [record.seq for record in page(store)] == [1, 2, 3]


# --- pages -------------------------------------------------------------------------


def sizes(store: LogStore) -> list[int]:
    """The records of each page of the log, by its columns."""
    pages = disk.rows(store.path, "select first, last, newest from log order by last")
    records = disk.log(store.path)
    for first, last, newest in pages:
        inside = [record for record in records if first <= record.seq <= last]
        assert [record.seq for record in inside] == list(range(first, last + 1))
        assert newest == max(record.at for record in inside)
    return [last - first + 1 for first, last, _ in pages]


def test_a_commit_has_pages_of_its_own(store: LogStore) -> None:
    fill(store, 3, 2 * PAGE_RECORDS + 5, PAGE_RECORDS)
    store.write(Batch(cursors={("gateway", "g"): CursorRow(1, 1, None)}))
    assert sizes(store) == [3, PAGE_RECORDS, PAGE_RECORDS, 5, PAGE_RECORDS]
    everything = page(store)
    assert [record.seq for record in everything] == [*range(1, 3 * PAGE_RECORDS + 9)]
    assert everything == disk.log(store.path)
    assert store.bounds() == (1, 3 * PAGE_RECORDS + 9)


def test_a_scan_that_finds_nothing_still_moves_its_reader_forward(
    store: LogStore,
) -> None:
    fill(store, SCAN_RECORDS, gateway="h")
    write(store, online(SCAN_RECORDS + 1), online(SCAN_RECORDS + 2))
    read = partial(store.read, until=10**9, wanted=of("g"), limit=10)
    assert read(after=0) == LogRows([], SCAN_RECORDS, 1, 0)
    found = [record.seq for record in read(after=SCAN_RECORDS).records]
    assert found == [SCAN_RECORDS + 1, SCAN_RECORDS + 2]


# --- the answer to list ------------------------------------------------------------


def listed(store: LogStore, gateway: str | None) -> list[list[Any]]:
    spool = io.BytesIO()
    write_frames(store, gateway, spool.write)
    return unpacked(spool.getvalue())


@pytest.mark.parametrize(
    "rows", [[0], [1], [LIST_ROWS], [LIST_ROWS, 1], [LIST_ROWS, LIST_ROWS, 3]]
)
def test_only_the_last_frame_of_a_list_has_the_seq(
    store: LogStore, rows: list[int]
) -> None:
    users = sum(rows)
    fill(store, users + 5)
    keep(store, *(row(n + 1, n, conn=n) for n in range(users)))
    frames = listed(store, None)
    assert [frame[0] for frame in frames] == ["list"] * len(rows)
    assert [len(frame[1]) for frame in frames] == rows
    assert [frame[2:] for frame in frames] == [[]] * (len(rows) - 1) + [[users + 5]]
    assert sorted(row for frame in frames for row in frame[1]) == [
        [n, "g", n + 1, n] for n in range(users)
    ]


# --- retention ---------------------------------------------------------------------


def test_the_newest_page_is_kept_however_old_it_is(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path)) as store:
        fill(store, 4, 3)
        trim(store, oldest_ms=10**15, most_bytes=1)
        trim(store, oldest_ms=10**15, most_bytes=1)
        assert [record.seq for record in page(store)] == [5, 6, 7]
    with closing(LogStore(tmp_path)) as store:
        assert store.bounds() == (5, 8)
        fill(store, 1)
        trim(store, most_bytes=1)
        assert store.bounds() == (8, 9)


def test_a_log_over_its_bound_and_its_file_shrink_in_steps(store: LogStore) -> None:
    fill(store, 3 * TRIM_RECORDS)
    before, most = store.log_bytes(), store.log_bytes() // 2
    steps = 1
    while trim(store, most_bytes=most):
        steps += 1
        assert steps < 10
    assert steps == 3
    assert store.bounds() == (2 * TRIM_RECORDS + 1, 3 * TRIM_RECORDS + 1)
    assert store.log_bytes() <= most < before
    assert disk.rows(store.path, "pragma freelist_count") == [(0,)]


def test_nothing_above_the_permitted_seq_is_trimmed(store: LogStore) -> None:
    fill(store, PAGE_RECORDS, PAGE_RECORDS, PAGE_RECORDS, PAGE_RECORDS)
    for until, first in ((999, 1), (1_000, 1_001), (2_500, 2_001)):
        trim(store, most_bytes=1, until=until)
        assert store.bounds() == (first, 4_001)


def test_the_newest_trimmed_record_is_known_for_each_name(store: LogStore) -> None:
    fill(store, 3, gateway="g")
    # Several gateways share a page.
    write(
        store,
        online(4, gateway="done"),
        online(5, gateway="g"),
        moved(6, gateway="h", origin="loser"),
        online(7, gateway="other"),
        TimerRecord(8, TIMER, "timers", "k", None, None, 1, 1, 1),
    )
    fill(store, 3, gateway="kept")
    names = ("g", "done", "h", "loser", "timers", "kept", "idle")
    cursors = {("gateway", name): CursorRow(2, 50, 7.5) for name in names}
    cursors["watcher", "of nobody"] = CursorRow(2, 50, None)
    store.write(Batch(cursors=cursors))
    trim(store, oldest_ms=10**15, idle_ms=50)
    assert store.bounds() == (9, 12)
    newest = {"g": 5, "done": 4, "h": 6, "loser": 6, "timers": 8}
    newest |= dict.fromkeys(("kept", "idle", "of nobody"), 0)
    assert {name: lost(store, name) for name in newest} == newest
    # Nothing is noted for a name without a cursor, or for readers of all records.
    assert lost(store, "other") == lost(store, None) == 8
    assert store.cursors() == cursors


def test_all_that_was_trimmed_before_is_lost_to_a_new_name(store: LogStore) -> None:
    fill(store, 3, at=1)
    fill(store, 3, at=2)
    fill(store, 1, at=3)
    trim(store, oldest_ms=2)
    store.write(Batch(cursors={("watcher", "asks for 1"): CursorRow(1, 9, None)}))
    trim(store, oldest_ms=3)
    assert lost(store, "asks for 1", after=1) == 3
    store.write(Batch(cursors={("watcher", "asks for 1"): None}))
    trim(store, oldest_ms=3)
    assert disk.rows(store.path, "select * from trimmed") == []


# --- opening -----------------------------------------------------------------------


def test_only_a_log_from_before_users_had_one_name_says_so(tmp_path: Path) -> None:
    said = []
    for _ in range(3):
        with closing(LogStore(tmp_path / "a")) as store:
            said.append(store.had_two_names)
            if said[1:]:  # the first start was refused
                store.begin(StateTime(1.0, "", 1.0, 1_000, 0))
    assert said == [True, True, False]


def test_every_commit_is_synced(store: LogStore) -> None:
    assert disk.connection(store).execute("pragma journal_mode").fetchone() == ("wal",)
    ((level,),) = disk.connection(store).execute("pragma synchronous")
    assert level == 2, "full"


# --- ages go by marks, not by stamps --------------------------------------------------


HOUR_MS = 3_600_000


def write_at(store: LogStore, *stamps: int) -> None:
    """Write records with these stamps, each as a page of its own."""
    _, seq = store.bounds()
    for number, at in enumerate(stamps):
        store.write(Batch(batch_of([online(seq + number, at=at)])))


def note(store: LogStore, seq: int, at_ms: int) -> None:
    """Note that the record *seq* is on disk now; retention is an hour."""
    mark, oldest_ms = (seq, at_ms), at_ms - HOUR_MS
    store.trimmer.note(mark, oldest_ms=oldest_ms, retention_ms=HOUR_MS)


def test_stamps_of_records_say_nothing_about_their_age(store: LogStore) -> None:
    store.trimmer.begin(0)
    write_at(store, 9 * HOUR_MS, 1)
    note(store, 2, 1_000)
    write_at(store, 2)
    note(store, 3, 5 * HOUR_MS)
    assert not trim(store, oldest_ms=1_000)
    assert len(page(store)) == 3
    trim(store, oldest_ms=1_001)
    assert [record.seq for record in page(store)] == [3]


@pytest.mark.parametrize("what", ["ages", "steps"])
def test_what_is_damaged_is_not_believed(tmp_path: Path, what: str) -> None:
    with closing(LogStore(tmp_path)) as store:
        path = store.path
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("insert into meta values (?, '[[1]]')", [what])
    with pytest.raises(StateError, match=what):
        LogStore(tmp_path)


def test_a_log_of_an_older_version_is_kept_for_one_more_retention(
    store: LogStore,
) -> None:
    write_at(store, 1, 2, 9_999)
    store.trimmer.begin(1_000)  # now
    trim(store, oldest_ms=1_000)
    assert [record.seq for record in page(store)] == [1, 2, 3]
    trim(store, oldest_ms=1_001)
    assert [record.seq for record in page(store)] == [3]  # the newest page stays


def test_marks_are_few_and_last_over_restarts(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path)) as store:
        store.trimmer.begin(0)
        write_at(store, *range(1, 301))
        for seq in range(1, 301):
            note(store, seq, seq * HOUR_MS // 250)
        before = [store.trimmer.written_before(HOUR_MS * at // 10) for at in range(13)]
        stored = store.trimmer.marks
    assert len(stored) <= MARKS + 2
    for at, seq in enumerate(before):
        # Never too new, and known to a hundredth.
        assert seq * HOUR_MS / 250 < HOUR_MS * at / 10 or seq == 0
        if at > 2:
            assert seq * HOUR_MS / 250 >= HOUR_MS * (at / 10 - 2 / MARKS)
    with closing(LogStore(tmp_path)) as store:
        store.trimmer.begin(9 * HOUR_MS)
        assert store.trimmer.marks == stored
