"""Searching the log finds exactly what was written, whichever process has it open."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

from liveness.core.records import KINDS, Logged, LogPosition, Record, TimerRecord, Uid
from liveness.errors import StateError
from liveness.service.storage import log_reader
from liveness.service.storage.database import reading, unchanged
from liveness.service.storage.log_pages import PAGE_RECORDS, merged
from liveness.service.storage.log_reader import (
    OLDER_MS,
    LogReader,
    RecordFilter,
    SearchResult,
    open_log,
)
from liveness.service.storage.log_schema import SCHEMA
from liveness.service.storage.log_store import DATABASE, Batch, LogStore
from tests.helpers import disk
from tests.helpers.record_batches import batch_of
from tests.service.storage import journals
from tests.service.storage.journals import ALL, online

# The bytes of each occur in another uid, a kind, a gateway or a number.
UIDS: list[Uid] = [
    "7", 7, "77", 77, "int:7", "a7", 0, 127, 128, 2**63 - 1, "g", "gw", "online", "é",
    "eline", "x" * 31, "x" * 32, "x" * 255, "line\x81", "moved",
]  # fmt: skip
GATEWAYS = ["g", "gw", "7", "online"]
EVERY_MS = 1_000


def written() -> list[Logged]:
    """Records of all kinds, for every user; some users have few."""
    records: list[Logged] = []
    for seq in range(1, 2_600):
        uid, at = UIDS[seq * 7 % (len(UIDS) - 1)], seq * EVERY_MS
        gateway = GATEWAYS[seq % 3]
        if seq in (13, 2_001):
            uid = UIDS[-1]
        if seq % 5 == 0:
            records.append(
                TimerRecord(seq, "timer", gateway, "7", "online", "g", at, 1, at)
            )
        elif seq % 5 == 1:
            kind = "moved" if seq % 3 else "offline"
            made = Record(seq, kind, uid, gateway, 1, None, "login", at)
            records.append(
                made._replace(from_gateway="online" if seq == 1_301 else "g")
            )
        else:
            made = online(seq, uid, gateway=gateway, at=at)
            records.append(made._replace(conn=4))
    return records


RECORDS = written()


def write(store: LogStore, records: list[Logged], sizes: Iterator[int]) -> None:
    left = iter(records)
    while page := list(islice(left, next(sizes))):
        journals.write(store, *page)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a stopped sidecar, in pages of 1 to 1,000 records."""
    folder = tmp_path_factory.mktemp("state")
    with closing(LogStore(folder)) as store:
        write(store, RECORDS, iter([1, 1, 500, PAGE_RECORDS, 3, 1, *[60] * 30]))
    return folder


@pytest.fixture(params=[20_000, 1_001, 299, 50])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search in one chunk, and in chunks that begin and end within pages."""
    chunks_of(request.param, monkeypatch)


def chunks_of(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "CHUNK_RECORDS", records)


def of(uid: Uid) -> list[Record]:
    """All records of a user, newest first."""
    sessions = [record for record in reversed(RECORDS) if isinstance(record, Record)]
    return [record for record in sessions if str(record.uid) == str(uid)]


# --- what is found --------------------------------------------------------------------


@pytest.mark.usefixtures("chunks")
def test_exactly_the_records_of_a_user_are_found(folder: Path) -> None:
    whole = LogPosition(1, EVERY_MS)
    with open_log(folder) as book:
        for uid in UIDS:
            assert book.newest_of(uid, limit=5_000) == SearchResult(
                of(uid), None, whole
            )
            newest = of(uid)[:2]
            back_to = LogPosition(newest[1].seq, newest[1].at)
            assert book.newest_of(uid, limit=2) == SearchResult(newest, back_to, None)
        assert book.newest_of("nobody", limit=1) == SearchResult([], None, whole)
        assert book.online("nobody") is None


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(
    "sought",
    [
        RecordFilter(),
        *(RecordFilter(kinds=frozenset({kind})) for kind in KINDS),
        *(RecordFilter(gateway=gateway) for gateway in (*GATEWAYS, "gone")),
        *(
            RecordFilter(uid=uid, kinds=frozenset({"moved", "timer"}))
            for uid in (7, "7")
        ),
        RecordFilter(uid=7, kinds=frozenset({"timer"})),
        RecordFilter(since=2_000 * EVERY_MS),
        RecordFilter(until=3 * EVERY_MS),
        RecordFilter(since=777_001, until=999_000, gateway="g"),
        RecordFilter(since=2**60),
    ],
)
def test_matching_records_are_found_in_order(
    folder: Path, sought: RecordFilter
) -> None:
    with open_log(folder) as book:
        found = [*book.records(sought)]
    assert found == [record for record in RECORDS if is_wanted(sought, record)]


def test_records_of_a_user_are_those_of_its_devices(store: LogStore) -> None:
    records = [
        online(1, "ada/a")._replace(user_size=3, devices=1),
        online(2, "eve/a", gateway="ada")._replace(user_size=3, devices=1),
        online(3, "ada"),  # from before devices were counted
        online(4, "ada/b"),  # too
        online(5, 7)._replace(user_size=0, devices=1),
        online(6, "7/a")._replace(user_size=1, devices=2),
    ]
    journals.write(store, *records)
    with open_log(store.folder, separator="/") as book:
        expected: dict[Uid, list[int]] = {"ada": [1, 3, 4], 7: [5, 6], "ada/a": [1]}
        for uid, seqs in expected.items():
            of_user = RecordFilter(uid, separator="/")
            assert [record.seq for record in book.records(of_user)] == seqs
        newest = [record.seq for record in book.newest_of(7, limit=9).records]
        assert newest == [6, 5]
        assert [it.seq for it in book.records(RecordFilter("ada"))] == [3]


def is_wanted(sought: RecordFilter, record: Logged) -> bool:
    """Filter by the public fields of a record, as a model of `RecordFilter`."""
    shown = record.as_map()
    since, until = sought.since or 0, sought.until or 2**63
    return (
        (sought.uid is None or str(shown.get("uid")) == str(sought.uid))
        and shown["kind"] in sought.kinds
        and since <= record.at < until
        and sought.gateway in (None, shown["gateway"], shown.get("from"))
    )


def test_records_after_the_clock_was_set_back_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks_of(1, monkeypatch)
    # One commit each, but for the last: the disk did not write for some hours.
    stamps = [1_000_000, 9_999_999_999, 1_000_001, 9_999_999_999]
    with closing(LogStore(tmp_path)) as store:
        for seq, at in enumerate(stamps, 1):
            store.write(Batch(batch_of([online(seq, at=at)])))
        late = 1_000_001 + OLDER_MS - 1
        store.write(Batch(batch_of([online(5, at=1_000_001), online(6, at=late)])))
    with open_log(tmp_path) as book:
        found = book.records(RecordFilter(since=1_000_000, until=1_000_002))
        assert [record.seq for record in found] == [1, 3, 5]


def test_a_search_ends_in_time_and_says_how_far_back_it_went(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks_of(20, monkeypatch)
    seconds = count()  # each call of the clock takes one
    monkeypatch.setattr(log_reader, "perf_counter", lambda: next(seconds))
    with open_log(folder) as book:
        look = book.newest_of("moved", limit=9, within_s=60)
    assert look.oldest is None
    assert look.back_to is not None
    assert 13 < look.back_to.seq <= 2_001
    assert look.records == [
        record for record in of("moved") if record.seq >= look.back_to.seq
    ]
    assert look.back_to.at >= look.back_to.seq * EVERY_MS


# --- a damaged log ------------------------------------------------------------------------


def small_pages(folder: Path) -> None:
    """Records in enough pages for the tree of the log to have inner pages."""
    with closing(LogStore(folder)) as store:
        disk.unsynced(store)
        write(store, RECORDS[:1_200], iter([3] * 401))


def delivered(folder: Path) -> tuple[list[Logged], list[tuple[int, int]]]:
    """The records that a link would get from the whole log, and the gaps."""
    records, gaps, reached = list[Logged](), list[tuple[int, int]](), 0
    with closing(LogStore(folder)) as store:
        end = store.bounds()[1] - 1
        while reached < end:
            page = store.read(after=reached, until=end, wanted=ALL, limit=5_000)
            if page.first > reached + 1:
                gaps = merged(gaps, (reached + 1, page.first - 1))
            records += page.records
            reached = page.reached
    return records, gaps


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(
    "damage",
    [
        partial(
            disk.change,
            sql="update log set records = zeroblob(9) where last in (300, 303)",
        ),
        partial(disk.change, sql="delete from log where last = 600"),
        lambda path: disk.tear_a_leaf(path, table="log", which=3),
    ],
    ids=["pages", "lost", "leaf"],
)
def test_records_around_damage_are_found_and_damage_is_named(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    small_pages(tmp_path)
    damage(tmp_path / DATABASE)
    records, gaps = delivered(tmp_path)
    assert len(records) < 1_200
    with open_log(tmp_path) as book:
        assert [*book.records(RecordFilter())] == records
        for first, last in gaps:
            assert any(begin <= first and last <= end for begin, end in book.damaged)
    with open_log(tmp_path) as book:
        newest = [record for record in reversed(records) if record.uid in (7, "7")]
        assert book.newest_of(7, limit=5_000).records == newest


# --- beside the sidecar ---------------------------------------------------------------


def test_a_reader_that_pauses_does_not_keep_the_wal_growing(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks_of(100, monkeypatch)
    write(store, RECORDS[:2_000], iter([100] * 21))
    book = LogReader(lambda: reading(store.path))
    found = book.records(RecordFilter())
    first = [next(found).seq for _ in range(150)]  # within the second chunk
    with closing(sqlite3.connect(store.path)) as db:
        (busy, *_) = db.execute("pragma wal_checkpoint(truncate)").fetchone()
    assert not busy
    # It goes on after the records trimmed meanwhile, and finds those written meanwhile.
    while store.trimmer.trim(oldest_ms=1_000 * EVERY_MS, most_bytes=2**40, idle_ms=0):
        pass
    write(store, RECORDS[2_000:], iter([100] * 7))
    rest = [record.seq for record in found]
    assert first == [*range(1, 151)]
    kept = store.bounds()[0]
    assert 900 < kept <= 1_000
    assert rest == [*range(151, 201), *range(kept, len(RECORDS) + 1)]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if not path.name.endswith("-shm")  # SQLite's own locks
    }


def read_all(folder: Path) -> None:
    with open_log(folder) as book:
        assert [*book.records(RecordFilter())] == RECORDS
        assert book.newest_of(7, limit=5_000).records == of(7)
        assert book.newest() == LogPosition(RECORDS[-1].seq, RECORDS[-1].at)


def test_reading_a_stopped_sidecars_log_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    read_all(folder)
    assert contents(folder) == before
    assert {path.name for path in folder.iterdir()} == {DATABASE, "lock"}


@pytest.mark.parametrize("has_index", [True, False])
def test_a_killed_sidecars_log_and_wal_are_read_and_left(
    tmp_path: Path, has_index: bool
) -> None:
    killed = tmp_path / "killed"
    with closing(LogStore(tmp_path / "live")) as store:
        write(store, RECORDS, iter([300] * 10))
        shutil.copytree(store.folder, killed)
    if not has_index:  # as after a restore of the database and its WAL only
        (killed / f"{DATABASE}-shm").unlink()
    before = contents(killed)
    assert before[f"{DATABASE}-wal"][0]
    read_all(killed)
    assert contents(killed) == before


def test_a_read_while_a_sidecar_starts_or_stops_is_no_answer(tmp_path: Path) -> None:
    def live(*records: Logged) -> None:
        with closing(LogStore(tmp_path)) as store:
            store.write(Batch(batch_of(records)))

    live(RECORDS[0])
    path = tmp_path / DATABASE
    with pytest.raises(StateError, match="ask again"), unchanged(path):
        live(RECORDS[1])  # and stops: the content of its WAL is now in the file

    def tear() -> None:
        with unchanged(path) as db:
            live(RECORDS[2])
            db.execute("torn")  # an error, as a torn file may cause

    with pytest.raises(StateError, match="ask again"):
        tear()
    # Once there is a WAL the file is read with it.
    with closing(LogStore(tmp_path)) as store, unchanged(path) as db:
        store.write(Batch(batch_of([RECORDS[3]])))
        assert db.execute("select max(last) from log").fetchone() == (4,)


# --- what cannot be read --------------------------------------------------------------


def why_unread(folder: Path) -> str:
    with pytest.raises(StateError) as told, open_log(folder) as book:
        list(book.records(RecordFilter()))
    assert str(folder) in str(told.value)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_folder_without_a_log_is_reported_and_none_is_made(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent", Path(__file__) / "below"):
        assert "name the sidecar's state directory with --state" in why_unread(folder)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / DATABASE).touch()
    assert "is empty, no sidecar has written there yet" in why_unread(tmp_path)


def test_a_log_of_another_version_is_reported_with_what_to_do(tmp_path: Path) -> None:
    for folder, schema in (("older", 1), ("newer", 99)):
        with closing(LogStore(tmp_path / folder)) as store:
            query = "update meta set value = ? where key = 'schema'"
            disk.change(store.path, query, schema)
        why = f"has schema {schema}, this version reads {SCHEMA}; use the version"
        assert why in why_unread(tmp_path / folder)


@pytest.mark.parametrize("what", ["no database", "cut short"])
def test_a_damaged_log_is_reported(folder: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / DATABASE
    shutil.copy(folder / DATABASE, path)
    whole = path.read_bytes()
    path.write_bytes(b"liveness" * 1_000 if what == "no database" else whole[:8_192])
    assert "it is damaged: see `liveness check-state`, restore a backup" in why_unread(
        tmp_path
    )
