"""The ages of records go by marks, not by stamps."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from liveness.errors import StateError
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.log_trimmer import MARKS
from tests.helpers.record_batches import batch_of
from tests.service.storage.journals import online, page, trim

HOUR_MS = 3_600_000


def write(store: LogStore, *stamps: int) -> None:
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
    write(store, 9 * HOUR_MS, 1)
    note(store, 2, 1_000)
    write(store, 2)
    note(store, 3, 5 * HOUR_MS)
    assert not trim(store, oldest_ms=1_000)
    assert len(page(store)) == 3
    trim(store, oldest_ms=1_001)
    assert [record.seq for record in page(store)] == [3]


def test_marks_are_few_and_last_over_restarts(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path)) as store:
        store.trimmer.begin(0)
        write(store, *range(1, 301))
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


def test_a_log_of_an_older_version_is_kept_for_one_more_retention(
    store: LogStore,
) -> None:
    write(store, 1, 2, 9_999)
    store.trimmer.begin(1_000)  # now
    trim(store, oldest_ms=1_000)
    assert [record.seq for record in page(store)] == [1, 2, 3]
    trim(store, oldest_ms=1_001)
    assert [record.seq for record in page(store)] == [3]  # the newest page stays


@pytest.mark.parametrize("what", ["ages", "steps"])
def test_what_is_damaged_is_not_believed(tmp_path: Path, what: str) -> None:
    with closing(LogStore(tmp_path)) as store:
        path = store.path
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("insert into meta values (?, '[[1]]')", [what])
    with pytest.raises(StateError, match=what):
        LogStore(tmp_path)
