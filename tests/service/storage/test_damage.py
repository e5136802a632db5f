"""Damage on disk causes a gap in the log, or a start is refused; nothing else is lost."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from liveness.core.cursors import CursorRow
from liveness.core.records import Subscription
from liveness.errors import StartError, StateError
from liveness.service.storage.database import (
    PUT_META,
    check_structure,
    expecting_damage,
    reading,
)
from liveness.service.storage.log_pages import (
    END,
    PAGE_RECORDS,
    TRIMMED,
    LogPage,
    damaged_ranges,
    pages,
)
from liveness.service.storage.log_store import DATABASE, Batch, LogStore
from tests.helpers import disk
from tests.service.storage.journals import ALL, fill, keep, lost, of, page, trim, users


def overwrite(store: LogStore, sql: str, *values: object) -> None:
    """Change a page as a bad disk would, without its checksum."""
    assert disk.change(store.path, f"update log set {sql}", *values) == 1


def flipped(blob: bytes, at: int) -> bytes:
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


def seqs_of(store: LogStore, wanted: Subscription = ALL) -> list[int | tuple[int, int]]:
    """All that a reader gets, record by record; a gap as its first and last seq."""
    given, at, end = list[int | tuple[int, int]](), 0, store.bounds()[1] - 1
    while at < end:
        records, reached, first, lost = store.read(
            after=at, until=end, wanted=wanted, limit=100
        )
        if at < lost:  # as `TailReader.take` does
            given.append((at + 1, first - 1))
            assert first - 1 > at
            at = first - 1
            continue
        given += [record.seq for record in records if at < record.seq]
        assert reached > at
        at = reached
    return given


@contextmanager
def refused(store: LogStore, match: str) -> Iterator[None]:
    """Expect that the reads within find damage, as a start would."""
    with pytest.raises(StateError, match=match), store.expecting_damage():
        yield


@pytest.mark.parametrize("blob", [b"", bytes(900), b"\x91\x90", b"\xc1", b"\x92\x01"])
@pytest.mark.parametrize("crc", ["crc", "null"])
def test_a_damaged_page_is_a_gap(store: LogStore, blob: bytes, crc: str) -> None:
    fill(store, 5, 5, 5)
    overwrite(store, f"records = ?, crc = {crc} where last = 10", blob)
    assert seqs_of(store) == [*range(1, 6), (6, 10), *range(11, 16)]
    assert store.damaged_records(store.bounds()[0]) == 5


def test_damage_is_a_gap_to_all_readers(store: LogStore) -> None:
    """Also to a reader whose name is not in the page: its bytes may be the damaged ones."""
    for gateway in ("other", "other", "g"):
        fill(store, 2, gateway=gateway)
    ((blob,),) = disk.rows(store.path, "select records from log where last = 4")
    overwrite(store, "records = ? where last = 4", flipped(blob, 3))
    assert seqs_of(store, of("g")) == [(3, 4), 5, 6]
    assert seqs_of(store, of("g")._replace(uid="u4")) == [(3, 4)]


def test_the_oldest_page_and_the_newest_may_be_damaged(store: LogStore) -> None:
    fill(store, 5, 5, 5)
    overwrite(store, "records = x'00' where last = 5")
    overwrite(store, "records = x'00' where last = 15")
    assert seqs_of(store) == [(1, 5), *range(6, 11), (11, 15)]
    # The damaged newest page may have had more records, and no seq is given twice.
    assert store.bounds() == (1, 11 + PAGE_RECORDS)
    fill(store, 1)
    end = 11 + PAGE_RECORDS
    assert seqs_of(store) == [(1, 5), *range(6, 11), (11, end - 1), end]


def test_a_row_larger_than_memory_is_damage(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path)) as store:
        keep(store, *users(300))
    whole, said = store.path.read_bytes(), set[str]()
    for at in range(4_096, len(whole) - 64, 61):
        store.path.write_bytes(whole[:at] + b"\xff" * 64 + whole[at + 64 :])
        with reading(store.path) as db:
            try:
                check_structure(db, ["online"])
            except sqlite3.DatabaseError as error:
                said.add(str(error))
    # Newer ones see that it is damaged before they ask for the memory.
    is_older = sqlite3.sqlite_version_info < (3, 41)
    assert said
    assert "a row seems to be larger than memory" in said or not is_older


@pytest.mark.parametrize("table", ["cursors", "trimmed"])
def test_a_seq_behind_the_end_of_the_log_is_refused(
    store: LogStore, table: str
) -> None:
    store.check()  # as it is at first
    fill(store, 3)
    store.write(Batch(cursors={("gateway", "g"): CursorRow(3, 1, 7.5, 9.0)}))
    disk.change(store.path, "insert into trimmed values ('g', 1)")
    store.check()
    disk.change(store.path, f"update {table} set seq = 900")
    with refused(store, f"{table} has a seq behind the end of the log"):
        store.check()
    disk.change(store.path, f"delete from {table}")
    disk.change(store.path, PUT_META, TRIMMED, 900)
    with refused(store, "its meta has a seq behind the end of the log"):
        store.check()


def test_the_seqs_that_no_page_has_are_the_damaged_ones() -> None:
    whole = [LogPage(last, first, 0, b"") for first, last in ((2, 3), (4, 5), (8, 9))]
    assert damaged_ranges(whole, after=1, until=9) == [(6, 7)]
    assert damaged_ranges(whole, after=0, until=12) == [(1, 1), (6, 7), (10, 12)]


def test_a_disk_that_fails_is_no_damage(tmp_path: Path) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    for fault, why in (
        (error, "nothing is lost"),
        (OSError(30, "read-only"), "--state"),
    ):
        with pytest.raises(StartError, match=why), expecting_damage(tmp_path, "begin"):
            raise fault
    with (
        closing(sqlite3.connect(":memory:")) as db,
        pytest.raises(sqlite3.OperationalError, match="no such table"),
    ):
        list(pages(db, after=0, until=9))


def test_all_pages_around_a_torn_leaf_are_read_up_to_any_end(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path)) as store:
        fill(store, *[40] * 100)
    disk.tear_a_leaf(store.path, "log", 3)
    with reading(store.path) as db:
        one_by_one = [
            page.first
            for after in range(0, 4_000, 40)
            for page in pages(db, after=after, until=after + 40)
        ]
        assert 50 < len(one_by_one) < 100
        for until in (*range(1, 600), END):
            found = [page.first for page in pages(db, after=0, until=until)]
            assert found == [first for first in one_by_one if first <= until]


def test_a_torn_leaf_at_the_end_of_the_log_ends_what_is_read(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path)) as store:
        fill(store, *[40] * 100)
    disk.tear_a_leaf(store.path, "log", -1)
    with reading(store.path) as db:
        last = [page.last for page in pages(db, after=0, until=END)][-1]
        assert 3_000 < last < 4_000
        assert [*pages(db, after=last, until=4_000)] == []


def test_an_end_of_the_log_that_makes_no_sense_is_refused(store: LogStore) -> None:
    fill(store, 5)
    overwrite(store, "last = 1099511627776")
    with refused(store, r"says that it has the records 1 to"):
        store.bounds()


def test_a_log_with_a_damaged_tree_is_trimmed_past_the_damage(tmp_path: Path) -> None:
    """What SQLite cannot delete stays in the file, and is not read any more."""
    with closing(LogStore(tmp_path)) as store:
        fill(store, *[40] * 100)
    disk.tear_a_leaf(store.path, "log", 3)
    for _ in range(2):
        with closing(LogStore(tmp_path)) as store:
            store.check()
            while trim(store, most_bytes=1):
                pass
            assert store.bounds() == (3_961, 4_001)
            assert seqs_of(store) == [(1, 3_960), *range(3_961, 4_001)]
    left = disk.rows(store.path, "select last from log where last > 2000")
    assert left == [(4_000,)]


DAMAGED_BYTES = (4, 4_096)


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_to_the_file_loses_records_in_silence(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    sizes = [random.choice([1, 3, 40, 300]) for _ in range(20)]
    with closing(LogStore(tmp_path)) as store:
        disk.unsynced(store)
        fill(store, *sizes)
        keep(store, *users(19))
        path = store.path
    everything = {record.seq: record for record in disk.log(path)}
    with path.open("r+b") as file:
        count = random.choice(DAMAGED_BYTES)
        at = random.randrange(path.stat().st_size - count)
        file.seek(at - at % count)
        file.write(random.randbytes(count))
    try:
        store = LogStore(tmp_path)
    except StateError:
        return  # refused with an error: nothing is lost in silence
    with closing(store):
        try:
            with store.expecting_damage():
                store.check()
                sessions = [session for session, *_ in store.online()]
        except StateError:
            return
        given = seqs_of(store)
        records = {record.seq: record for record in page(store)}
        store.trimmer.marks = [(2**62, 0)]
        try:
            while trim(store, oldest_ms=10**15):
                pass
        except sqlite3.DatabaseError:
            pass  # the writer logs that the log was not trimmed, and tries again
        else:
            assert store.bounds()[0] > max(records, default=0) - 2 * PAGE_RECORDS
    assert len(sessions) == 19
    covered = list[int]()
    for one in given:
        covered += range(one[0], one[1] + 1) if isinstance(one, tuple) else [one]
    newest = len(everything)
    assert [seq for seq in covered if seq <= newest] == [*range(1, newest + 1)]
    assert all(everything[seq] == record for seq, record in records.items())


# --- at the start ----------------------------------------------------------------------


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 500)


def cut_short(path: Path) -> None:
    with closing(LogStore(path.parent)) as store:
        keep(store, *users(1_000))
    os.truncate(path, path.stat().st_size // 2)


def with_other_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table theirs (x)")


@pytest.mark.parametrize("damage", [no_database, cut_short, with_other_tables])
def test_a_file_that_is_not_a_log_is_refused_and_left(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / DATABASE
    damage(path)
    before = path.read_bytes()
    for _ in range(2):  # a start releases the lock
        with pytest.raises(StateError, match=r"cannot be read .*restore a backup"):
            LogStore(tmp_path)
    assert path.read_bytes() == before


def test_damage_among_the_users_online_is_reported_and_left(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path)) as store:
        keep(store, *users(1_000))
    disk.overwrite_root(store.path, "online")
    before = store.path.read_bytes()
    with closing(LogStore(tmp_path)) as store:
        with refused(store, r"cannot be read .*move it away"):
            list(store.online())
        assert store.path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        "key = 'lag' where key = 'log'",
        "value = '../../elsewhere' where key = 'log'",
        "value = '{' where key = 'parted'",
        "value = '[]' where key = 'parted'",
        """value = '{"a": "b"}' where key = 'parted'""",
    ],
)
def test_a_log_whose_meta_makes_no_sense_is_refused(
    tmp_path: Path, change: str
) -> None:
    LogStore(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        db.execute("insert or ignore into meta values ('parted', '{}')")
        assert db.execute(f"update meta set {change}").rowcount == 1
    with pytest.raises(StateError, match="its meta makes no sense"):
        LogStore(tmp_path)


def test_a_trim_takes_a_damaged_page_with_the_next_whole_one(store: LogStore) -> None:
    names = ("g", "idle")
    cursors = {("gateway", name): CursorRow(2, 50, None) for name in names}
    store.write(Batch(cursors=cursors))
    for at in (1, 2, 3, 4):
        fill(store, 5, at=at)
    overwrite(store, "records = x'00' where last = 10")
    trim(store, oldest_ms=2)
    assert store.bounds()[0] == 6
    trim(store, oldest_ms=3)
    assert store.bounds()[0] == 6  # the age of a damaged page is unknown
    trim(store, oldest_ms=4)
    assert store.bounds()[0] == 16
    assert {name: lost(store, name) for name in names} == {"g": 15, "idle": 10}
    assert store.damaged_records(store.bounds()[0]) == 0
