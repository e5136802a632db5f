"""The journal's file, on real SQLite: what is written is what is read, or nothing is."""

import io
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.frames import MAX_TEXT_BYTES
from liveness.core.records import (
    KINDS,
    SESSION_KINDS,
    TIMER,
    Logged,
    OnlineRow,
    Record,
    TimerRecord,
    Uid,
    Wanted,
)
from liveness.core.uids import is_uid
from liveness.errors import StartError, StateError
from liveness.service.database import (
    LARGER_THAN_MEMORY,
    check_structure,
    only_reading,
)
from liveness.service.logpages import END, PAGE_BYTES, PAGE_RECORDS
from liveness.service.store import (
    DATABASE,
    LIST_ROWS,
    LOCK,
    SCAN_RECORDS,
    TRIM_RECORDS,
    Batch,
    CursorRow,
    Page,
    Store,
    is_in_use,
    unsound,
)
from tests import disk
from tests.service.journals import online
from tests.strategies import BOUNDED, HARD_UIDS, conns, uids

ALL = Wanted(None, frozenset(KINDS))
UIDS = ("7", 7, "u")
NEVER_MS = 0
PLENTY_BYTES = 2**40


def offline(seq: int, uid: Uid = "u", *, gateway: str = "g") -> Record:
    return Record(seq, "offline", uid, gateway, 1, 9, "silence", 5, 4, "login", 30.012)


def moved(seq: int, *, gateway: str, origin: str) -> Record:
    return Record(seq, "moved", "u", gateway, seq, 3, "login", 6)._replace(
        from_gateway=origin, from_session=1, from_conn=2**63 - 1
    )


def row(
    session: int, uid: Uid = "u", *, gateway: str = "g", conn: int | None = None
) -> OnlineRow:
    return OnlineRow(session, uid, 1_000, conn, gateway, None)


def keep(store: Store, *rows: OnlineRow) -> None:
    store.write(Batch(online={row.session: row for row in rows}))


def users(count: int, first: int = 1) -> list[OnlineRow]:
    return [row(n, f"u{n}") for n in range(first, first + count)]


def write(store: Store, *records: Logged) -> None:
    store.write(Batch(records=list(records)))


def fill(store: Store, count: int, *, at: int = 1_000, gateway: str = "g") -> None:
    _, following = store.bounds()
    made = range(following, following + count)
    write(store, *(online(seq, gateway=gateway, at=at) for seq in made))


def page(
    store: Store, wanted: Wanted = ALL, *, after: int = 0, limit: int = 100_000
) -> list[Logged]:
    return store.read(after=after, until=10**9, wanted=wanted, limit=limit).records


def of(gateway: str | None) -> Wanted:
    return Wanted(gateway, frozenset(KINDS))


def lost(store: Store, name: str | None, *, after: int = 0) -> int:
    return store.read(after=after, until=10**9, wanted=of(name), limit=1).lost


def trim(
    store: Store,
    *,
    oldest_ms: int = NEVER_MS,
    most_bytes: int = PLENTY_BYTES,
    idle_ms: int = NEVER_MS,
    until: int = END,
) -> bool:
    return store.trim(
        oldest_ms=oldest_ms, most_bytes=most_bytes, idle_ms=idle_ms, until=until
    )


@contextmanager
def made(folders: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of its own, for each example of a property."""
    with closing(Store(folders.mktemp("state"))) as store:
        yield store


# --- what is written ---------------------------------------------------------------


def test_every_kind_of_record_is_read_as_it_was_written(store: Store) -> None:
    restored = offline(3)._replace(seen=None, last=None, restored=True)
    records = [online(1), offline(2), restored, moved(4, gateway="h", origin="g")]
    write(store, *records)
    assert page(store) == records
    assert store.bounds() == (1, 5)


@BOUNDED
@given(st.lists(st.tuples(uids, conns), min_size=1, max_size=20))
def test_any_uid_and_conn_survive_the_disk_with_their_type(
    tmp_path_factory: pytest.TempPathFactory, drawn: Sequence[tuple[Uid, int | None]]
) -> None:
    records = [
        online(seq, uid)._replace(conn=conn) for seq, (uid, conn) in enumerate(drawn, 1)
    ]
    rows = [row(record.seq, record.uid, conn=record.conn) for record in records]
    with made(tmp_path_factory) as store:
        write(store, *records)
        keep(store, *rows)
        kept = [record for record in page(store) if isinstance(record, Record)]
        found = list(store.online())
    assert kept == records
    assert found == rows
    types = [type(uid) for uid, _ in drawn]
    assert [type(record.uid) for record in kept] == types
    assert [type(uid) for _, uid, *_ in found] == types


def test_hard_uids_are_each_a_user_of_their_own_and_leave_alone(store: Store) -> None:
    rows = [row(session, uid) for session, uid in enumerate(HARD_UIDS, 1)]
    keep(store, *rows)
    gone = {row.session: None for row in rows if row.uid in (7, 2**63 - 1)}
    store.write(Batch(online=dict(gone)))
    left = [row for row in rows if row.session not in gone]
    assert len(left) == len(rows) - 2
    assert list(store.online()) == left
    assert "7" in {row.uid for row in left}


def test_one_batch_forgets_sessions_keeps_others_and_changes_them(store: Store) -> None:
    keep(store, row(1, "a"), row(2, "b"), row(4, "d"))
    changed = row(2, "b", conn=5)
    # The user of session 1 went, and came back with session 3.
    store.write(Batch(online={1: None, 3: row(3, "a"), 99: None, 2: changed}))
    assert list(store.online()) == [changed, row(3, "a"), row(4, "d")]


def test_sessions_are_read_in_the_order_in_which_they_began(store: Store) -> None:
    rows = [
        OnlineRow(n, f"u{n}", -5, 2**63 - 1, "g", 86_400.0) for n in (2**62, 7, 300)
    ]
    for each in rows:
        keep(store, each)
    assert list(store.online()) == sorted(rows)


@pytest.mark.parametrize("seqs", [[2], [3], [1], [3, 4], [1, 4], [5, 4], [2, 3, 4]])
def test_a_seq_is_not_given_twice_wherever_it_lies_in_a_page(
    store: Store, seqs: list[int]
) -> None:
    fill(store, 3)
    with pytest.raises(sqlite3.IntegrityError):
        write(store, *map(online, seqs))
    assert [record.seq for record in page(store)] == [1, 2, 3]


def test_a_batch_that_fails_leaves_nothing_of_itself(store: Store) -> None:
    fill(store, 2)
    again = Batch(
        records=[online(2), online(3)],
        online={3: row(3)},
        cursors={("gateway", "g"): CursorRow(1, 1, None)},
    )
    with pytest.raises(sqlite3.IntegrityError):
        store.write(again)
    assert store.bounds() == (1, 3)
    assert list(store.online()) == []
    assert store.cursors() == {}
    fill(store, 1)  # and it can still be written


def test_cursors_are_kept_by_role_and_name(store: Store) -> None:
    cursors = {
        ("gateway", "g"): CursorRow(1, 10, None),
        ("watcher", "g"): CursorRow(2, 20, 3.5),
        ("gateway", "G"): CursorRow(3, 30, None),
    }
    store.write(Batch(cursors=cursors))
    assert store.cursors() == cursors
    changed = {("gateway", "g"): CursorRow(9, 90, 1.0)}
    store.write(Batch(cursors=changed))
    assert store.cursors() == cursors | changed


# --- pages -------------------------------------------------------------------------


def sizes(store: Store) -> list[int]:
    """Records by page of the log, as its columns tell it."""
    pages = disk.rows(store.path, "select first, last, newest from log order by last")
    records = disk.log(store.path)
    for first, last, newest in pages:
        inside = [one for one in records if first <= one.seq <= last]
        assert [one.seq for one in inside] == list(range(first, last + 1))
        assert newest == max(one.at for one in inside)
    return [last - first + 1 for first, last, _ in pages]


def test_a_commit_has_pages_of_its_own_and_as_many_as_it_needs(store: Store) -> None:
    fill(store, 3)
    fill(store, 2 * PAGE_RECORDS + 5)
    fill(store, PAGE_RECORDS)
    store.write(Batch(cursors={("gateway", "g"): CursorRow(1, 1, None)}))
    assert sizes(store) == [3, PAGE_RECORDS, PAGE_RECORDS, 5, PAGE_RECORDS]
    everything = page(store)
    assert [record.seq for record in everything] == [*range(1, 3 * PAGE_RECORDS + 9)]
    assert everything == disk.log(store.path)
    assert store.bounds() == (1, 3 * PAGE_RECORDS + 9)


def test_a_page_of_records_with_much_to_carry_has_few_of_them(store: Store) -> None:
    text = "t" * MAX_TEXT_BYTES
    seqs = [*range(1, 101)]
    write(store, *(TimerRecord(n, TIMER, "g", "k", text, None, 0, 1, 0) for n in seqs))
    query = "select first, last, length(records) from log order by last"
    pages = disk.rows(store.path, query)
    assert [seq for one, last, _ in pages for seq in range(one, last + 1)] == seqs
    assert max(size for *_, size in pages) <= PAGE_BYTES
    assert len(pages) <= 4 * 100 * MAX_TEXT_BYTES / PAGE_BYTES


names = st.sampled_from(("g", "h", "i"))
drawn_commits = st.lists(
    st.lists(
        st.tuples(st.sampled_from(SESSION_KINDS), names, names | st.none()), min_size=1
    ),
    max_size=8,
)


@BOUNDED
@given(
    drawn_commits,
    st.builds(
        Wanted,
        names | st.none(),
        st.frozensets(st.sampled_from(KINDS)),
        uid=st.sampled_from([None, None, *UIDS]),
    ),
    st.tuples(st.integers(0, 40), st.integers(0, 60), st.integers(1, 9)),
)
def test_a_reader_gets_the_same_wherever_the_pages_end(
    tmp_path_factory: pytest.TempPathFactory,
    commits: list[list[tuple[str, str, str | None]]],
    wanted: Wanted,
    asked: tuple[int, int, int],
) -> None:
    after, until, limit = asked
    seqs, records = count(1), list[Logged]()
    with made(tmp_path_factory) as store:
        for commit in commits:
            new = [
                Record(
                    seq,
                    *(kind, UIDS[seq % 3], gateway, 1, None, "login", 1),
                    from_gateway=origin,
                )
                for (kind, gateway, origin), seq in zip(commit, seqs, strict=False)
            ]
            write(store, *new)
            records += new
        got = store.read(after=after, until=until, wanted=wanted, limit=limit)
    expected: list[Logged] = [
        one
        for one in records[after:until]
        if one.kind in wanted.kinds
        and wanted.gateway in (None, one.gateway, one.from_gateway)
        and wanted.uid in (None, one.uid)
    ][:limit]
    reached = expected[-1].seq if len(expected) == limit else until
    assert got == Page(expected, reached, 1, 0)


def test_a_reader_concerned_by_few_is_taken_forward_without_an_answer(
    store: Store,
) -> None:
    fill(store, SCAN_RECORDS, gateway="h")
    write(store, online(SCAN_RECORDS + 1), online(SCAN_RECORDS + 2))
    read = partial(store.read, until=10**9, wanted=of("g"), limit=10)
    assert read(after=0) == Page([], SCAN_RECORDS, 1, 0)
    found = [record.seq for record in read(after=SCAN_RECORDS).records]
    assert found == [SCAN_RECORDS + 1, SCAN_RECORDS + 2]


# --- damage ------------------------------------------------------------------------


def overwrite(store: Store, sql: str, *values: object) -> None:
    """Change a page as a disk might, which does not change its checksum."""
    assert store._db.execute(f"update log set {sql}", values).rowcount == 1


def flipped(blob: bytes, at: int) -> bytes:
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


def seqs_of(store: Store, wanted: Wanted = ALL) -> list[int | tuple[int, int]]:
    """All that a reader is given, as its cursor goes on; a gap as its first and last."""
    given, at, end = list[int | tuple[int, int]](), 0, store.bounds()[1] - 1
    while at < end:
        records, reached, first, lost = store.read(
            after=at, until=end, wanted=wanted, limit=100
        )
        if at < lost:
            given.append((at + 1, first - 1))
            reached = first - 1
        given += [one.seq for one in records if at < one.seq]
        assert reached > at
        at = reached
    return given


@contextmanager
def refused(store: Store, match: str) -> Iterator[None]:
    """What is read meanwhile is found to be damaged, as at a start."""
    with pytest.raises(StateError, match=match), store.expecting_damage():
        yield


@pytest.mark.parametrize("blob", [b"", bytes(900), b"\x91\x90", b"\xc1", b"\x92\x01"])
@pytest.mark.parametrize("crc", ["crc", "null"])
def test_a_damaged_page_is_a_gap_and_everything_else_is_read(
    store: Store, blob: bytes, crc: str
) -> None:
    for _ in range(3):
        fill(store, 5)
    overwrite(store, f"records = ?, crc = {crc} where last = 10", blob)
    assert seqs_of(store) == [*range(1, 6), (6, 10), *range(11, 16)]
    assert store.damaged_records == 5


def test_a_page_is_damaged_where_any_bit_of_it_is_another(store: Store) -> None:
    for _ in range(3):
        fill(store, 2)
    ((blob,),) = disk.rows(store.path, "select records from log where last = 4")
    for at in range(len(blob)):
        overwrite(store, "records = ? where last = 4", flipped(blob, at))
        assert seqs_of(store) == [1, 2, (3, 4), 5, 6]
    overwrite(store, "records = ?, newest = newest + 1 where last = 4", blob)
    assert seqs_of(store) == [1, 2, (3, 4), 5, 6]


def test_damage_is_no_less_a_gap_to_who_may_not_have_been_concerned(
    store: Store,
) -> None:
    """The bytes of its name may be the ones that are damaged."""
    for gateway in ("other", "other", "g"):
        fill(store, 2, gateway=gateway)
    ((blob,),) = disk.rows(store.path, "select records from log where last = 4")
    overwrite(store, "records = ? where last = 4", flipped(blob, 3))
    assert seqs_of(store, of("g")) == [(3, 4), 5, 6]
    assert seqs_of(store, of("g")._replace(uid="u4")) == [(3, 4)]


def test_a_page_that_the_file_has_no_more_is_a_gap(store: Store) -> None:
    for _ in range(4):
        fill(store, 5)
    store._db.execute("delete from log where last in (10, 15)")
    assert seqs_of(store) == [*range(1, 6), (6, 15), *range(16, 21)]


def test_the_oldest_page_and_the_newest_may_be_damaged(store: Store) -> None:
    for _ in range(3):
        fill(store, 5)
    overwrite(store, "records = x'00' where last = 5")
    overwrite(store, "records = x'00' where last = 15")
    assert seqs_of(store) == [(1, 5), *range(6, 11), (11, 15)]
    # The newest may have had more records than it says, and no seq is given twice.
    assert store.bounds() == (1, 11 + PAGE_RECORDS)
    fill(store, 1)
    end = 11 + PAGE_RECORDS
    assert seqs_of(store) == [(1, 5), *range(6, 11), (11, end - 1), end]


def test_users_that_no_search_would_find_are_refused_at_the_start(
    tmp_path: Path,
) -> None:
    """Each row can be read and makes sense; it is only in another's place."""
    with closing(Store(tmp_path)) as store:
        keep(store, *(row(n) for n in range(1, 1_001)))
        fill(store, 1_000)
        store.check()
    data = bytearray(store.path.read_bytes())
    at, _ = disk.root_of(store.path, "online")
    one, other = (
        slice(at + cell, at + cell + 4)
        for cell in struct.unpack_from(">2H", data, at + 12)
    )
    data[one], data[other] = data[other], data[one]
    store.path.write_bytes(data)
    with closing(Store(tmp_path)) as store, refused(store, "out of order"):
        store.check()


def test_a_row_that_seems_larger_than_memory_is_damage(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        keep(store, *users(300))
    whole, said = store.path.read_bytes(), set[str]()
    for at in range(4_096, len(whole) - 64, 61):
        store.path.write_bytes(whole[:at] + b"\xff" * 64 + whole[at + 64 :])
        with only_reading(store.path) as db:
            try:
                check_structure(db, ["online"])
            except sqlite3.DatabaseError as error:
                said.add(str(error))
    assert LARGER_THAN_MEMORY in said


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("update online set session = 900", "online"),
        ("update online set gateway = ''", "online"),
        ("update online set uid = x'00'", "online"),
        ("update online set conn = -1", "online"),
        ("update online set timeout = -1", "online"),
        ("update online set timeout = 86401", "online"),
        ("update online set gateway = printf('%.*c', 65, 'x')", "online"),
        ("update cursors set role = 'watchez'", "cursors"),
        ("update cursors set seq = 900", "cursors"),
        ("update cursors set timeout = 0", "cursors"),
        ("update cursors set timeout = 9e999", "cursors"),
        ("update cursors set in_force = 9e999", "cursors"),
        ("update cursors set name = 'g' || char(7)", "cursors"),
        ("insert into trimmed values ('g' || char(7), 1)", "trimmed"),
    ],
)
def test_rows_that_make_no_sense_are_refused_at_the_start(
    store: Store, sql: str, table: str
) -> None:
    fill(store, 3)
    keep(store, row(2))
    store.write(Batch(cursors={("gateway", "g"): CursorRow(3, 1, 7.5, 9.0)}))
    store.check()
    store._db.execute(sql)
    with refused(store, f"1 rows of {table} make no sense"):
        store.check()


def test_of_uids_those_make_sense_that_a_login_may_name(store: Store) -> None:
    characters = [chr(code) for code in (*range(0x21), *range(0x7E, 0xA2), 0x10FFFF)]
    texts = [
        f"{before}{it}{after}"
        for it in characters
        for before in ("", "a")
        for after in ("", "b")
    ]
    uids = [*texts, "", "x" * 255, "x" * 256, "é" * 127, "é" * 128, 0, -1, 2**63 - 1]
    fill(store, 1)
    for uid in uids:
        store._db.execute(
            "insert or replace into online values (1, ?, 1, 1, 'g', null)", [uid]
        )
        assert unsound(store._db, 2)["online"] == (not is_uid(uid)), repr(uid)


def test_an_end_of_the_log_that_makes_no_sense_is_refused(store: Store) -> None:
    fill(store, 5)
    overwrite(store, "last = 1099511627776")
    with refused(store, r"says that it has the records 1 to"):
        store.bounds()


def test_a_trim_takes_a_damaged_page_with_the_next_whole_one(store: Store) -> None:
    names = ("g", "idle")
    cursors = {("gateway", name): CursorRow(2, 50, None) for name in names}
    store.write(Batch(cursors=cursors))
    for at in (1, 2, 3, 4):
        fill(store, 5, at=at)
    overwrite(store, "records = x'00' where last = 10")
    trim(store, oldest_ms=2)
    assert store.bounds()[0] == 6
    trim(store, oldest_ms=3)
    assert store.bounds()[0] == 6  # how old it is nobody knows
    trim(store, oldest_ms=4)
    assert store.bounds()[0] == 16
    assert {name: lost(store, name) for name in names} == {"g": 15, "idle": 10}
    assert store.damaged_records == 0


def test_a_full_log_with_a_damaged_page_is_trimmed(store: Store) -> None:
    for _ in range(3):
        fill(store, 5)
    overwrite(store, "records = x'00' where last = 5")
    trim(store, most_bytes=1)
    assert store.bounds() == (11, 16)


DAMAGED_BYTES = (4, 4_096)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_overwritten_in_the_file_nothing_is_lost_in_silence(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    sizes = [random.choice([1, 3, 40, 300]) for _ in range(20)]
    with closing(Store(tmp_path)) as store:
        store._db.execute("pragma synchronous = off")
        for size in sizes:
            fill(store, size)
        keep(store, *users(19))
        path = store.path
    everything = {one.seq: one for one in disk.log(path)}
    with path.open("r+b") as file:
        count = random.choice(DAMAGED_BYTES)
        at = random.randrange(path.stat().st_size - count)
        file.seek(at - at % count)
        file.write(random.randbytes(count))
    try:
        store = Store(tmp_path)
    except StateError:
        return  # it is refused, by one line
    with closing(store):
        try:
            with store.expecting_damage():
                store.check()
                sessions = [session for session, *_ in store.online()]
        except StateError:
            return
        given = seqs_of(store)
        records = {one.seq: one for one in page(store)}
        while trim(store, oldest_ms=10**15):
            pass
        first, following = store.bounds()
        assert first > following - 2 * PAGE_RECORDS
    assert len(sessions) == 19
    covered = list[int]()
    for one in given:
        covered += range(one[0], one[1] + 1) if isinstance(one, tuple) else [one]
    newest = len(everything)
    assert [seq for seq in covered if seq <= newest] == [*range(1, newest + 1)]
    assert all(everything[seq] == record for seq, record in records.items())


# --- the answer to list ------------------------------------------------------------


def listed(store: Store, gateway: str | None) -> list[list[Any]]:
    spool = io.BytesIO()
    store.spool_online(gateway, spool.write)
    spool.seek(0)
    return list(msgpack.Unpacker(spool))


@pytest.mark.parametrize(
    "rows", [[0], [1], [LIST_ROWS], [LIST_ROWS, 1], [LIST_ROWS, LIST_ROWS, 3]]
)
def test_a_list_comes_in_frames_and_only_the_last_has_the_seq(
    store: Store, rows: list[int]
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


def test_a_gateway_is_listed_its_own_only(store: Store) -> None:
    keep(store, row(1, 7), row(2, "7", gateway="h"), row(3, "a"))
    ((_, rows, seq),) = listed(store, "g")
    assert sorted(rows, key=str) == [["a", "g", 3, None], [7, "g", 1, None]]
    assert seq == 0


# --- retention ---------------------------------------------------------------------


stamps = st.integers(0, 5)


@BOUNDED
@given(st.lists(st.lists(stamps, min_size=1, max_size=5), max_size=8), stamps)
def test_pages_go_from_the_oldest_up_to_the_first_with_a_record_that_is_young_enough(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[int]], oldest_ms: int
) -> None:
    seqs = count(1)
    with made(tmp_path_factory) as store:
        for commit in commits:
            write(store, *(online(next(seqs), at=at) for at in commit))
        everything = page(store)
        assert trim(store, oldest_ms=oldest_ms) is False
        kept, bounds = page(store), store.bounds()
    gone = 0
    for commit, end in zip(commits[:-1], accumulate(map(len, commits)), strict=False):
        if max(commit) >= oldest_ms:
            break
        gone = end
    assert kept == everything[gone:]
    assert {one for one in everything if one.at >= oldest_ms} <= set(kept)
    assert bounds == (gone + 1, len(everything) + 1)


def test_the_newest_page_is_kept_however_old_so_that_no_seq_is_given_twice(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        fill(store, 4)
        fill(store, 3)
        trim(store, oldest_ms=10**15, most_bytes=1)
        trim(store, oldest_ms=10**15, most_bytes=1)
        assert [record.seq for record in page(store)] == [5, 6, 7]
    with closing(Store(tmp_path)) as store:
        assert store.bounds() == (5, 8)
        fill(store, 1)
        trim(store, most_bytes=1)
        assert store.bounds() == (8, 9)


def test_a_log_that_is_too_large_shrinks_in_steps_and_the_file_with_it(
    store: Store,
) -> None:
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


@pytest.mark.parametrize("why", [{"oldest_ms": 2}, {"most_bytes": 1}])
@pytest.mark.parametrize("size", [PAGE_RECORDS, PAGE_RECORDS - 1, PAGE_RECORDS // 7])
def test_one_step_of_a_trim_takes_no_more_than_its_records_and_a_page(
    store: Store, size: int, why: dict[str, int]
) -> None:
    pages = -(-TRIM_RECORDS // size)
    for _ in range(pages + 2):
        fill(store, size, at=1)
    assert trim(store, **why) is True
    assert store.bounds()[0] == pages * size + 1
    assert TRIM_RECORDS <= pages * size < TRIM_RECORDS + PAGE_RECORDS
    assert trim(store, **why) is False
    assert sizes(store) == [size]


def test_a_commit_to_a_full_log_sheds_twice_what_it_added(store: Store) -> None:
    for _ in range(8):
        fill(store, TRIM_RECORDS)
    most = store.log_bytes() // 2
    for _ in range(4):
        before = store.log_bytes()
        fill(store, 2 * TRIM_RECORDS)
        added = store.log_bytes() - before
        store.keep_bound(most_bytes=most, before=before, until=END)
        assert store.log_bytes() <= max(most, before - added)
    assert store.log_bytes() <= most


def test_a_log_is_left_alone_above_the_seq_up_to_which_it_may_go(store: Store) -> None:
    for _ in range(4):
        fill(store, PAGE_RECORDS)
    for until, first in ((999, 1), (1_000, 1_001), (2_500, 2_001)):
        store.keep_bound(most_bytes=1, before=1, until=until)
        trim(store, most_bytes=1, until=until)
        assert store.bounds() == (first, 4_001)


def test_what_else_fills_the_file_costs_the_log_all_but_its_newest_page(
    store: Store,
) -> None:
    keep(store, *users(5_000))
    fill(store, 5_000)
    store.keep_bound(most_bytes=1, before=0, until=END)
    assert store.bounds() == (4_001, 5_001)
    store.keep_bound(most_bytes=1, before=0, until=END)


def test_a_read_begins_with_what_is_still_kept(store: Store) -> None:
    fill(store, 5, at=1_000)
    fill(store, 5, at=2_000)
    assert trim(store, oldest_ms=2_000) is False
    records, reached, first, lost = store.read(after=2, until=7, wanted=ALL, limit=10)
    assert [record.seq for record in records] == [6, 7]
    assert (reached, first, lost) == (7, 6, 5)


def test_each_name_keeps_which_record_of_its_own_was_the_newest_to_be_trimmed(
    store: Store,
) -> None:
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
    # Nobody keeps account for a name without a cursor, or for those who read everything.
    assert lost(store, "other") == lost(store, None) == 8
    assert store.cursors() == cursors


gateways = st.sampled_from("ghi")


@BOUNDED
@given(
    st.lists(st.tuples(gateways, gateways, stamps), min_size=1, max_size=12),
    st.fixed_dictionaries({name: st.integers(0, 12) for name in "ghi"}),
    st.lists(stamps, min_size=1, max_size=4),
)
def test_a_reader_has_lost_something_only_if_a_trim_took_a_record_it_had_not_read(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[str, str, int]],
    seqs: dict[str, int],
    steps: list[int],
) -> None:
    with made(tmp_path_factory) as store:
        cursors = {("gateway", name): CursorRow(seqs[name], 1, None) for name in seqs}
        store.write(Batch(cursors=cursors))
        for seq, (gateway, origin, at) in enumerate(records, 1):
            record = moved(seq, gateway=gateway, origin=origin)
            write(store, record._replace(at=at))
        for oldest_ms in steps:
            trim(store, oldest_ms=oldest_ms)
        first, _ = store.bounds()
        for name, seq in seqs.items():
            gone = [
                of
                for of, (gateway, origin, _) in enumerate(records[: first - 1], 1)
                if of > seq and name in (gateway, origin)
            ]
            assert (lost(store, name, after=seq) > seq) is bool(gone)


def test_to_a_name_that_is_new_all_that_was_trimmed_before_counts_as_lost(
    store: Store,
) -> None:
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


def test_names_that_were_not_used_for_long_are_forgotten(store: Store) -> None:
    cursors = {("gateway", f"g{used}"): CursorRow(0, used, None) for used in (49, 50)}
    store.write(Batch(cursors=cursors))
    trim(store, idle_ms=50)
    assert list(store.cursors()) == [("gateway", "g50")]


# --- opening -----------------------------------------------------------------------


def test_the_log_keeps_its_id_and_another_folder_has_another(tmp_path: Path) -> None:
    ids = []
    for folder in ("a", "a", "b"):
        with closing(Store(tmp_path / folder)) as store:
            ids.append(store.log)
    assert ids[0] == ids[1] != ids[2]


def test_every_commit_is_synced(store: Store) -> None:
    assert store._db.execute("pragma journal_mode").fetchone() == ("wal",)
    assert store._db.execute("pragma synchronous").fetchone() == (2,)  # full


def test_a_second_owner_is_refused_and_may_follow_the_first(tmp_path: Path) -> None:
    with (
        closing(Store(tmp_path)),
        pytest.raises(StartError, match="in use by another sidecar; stop that one"),
    ):
        Store(tmp_path)
    Store(tmp_path).close()


def test_a_second_owner_is_refused_though_the_lock_file_was_removed(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)):
        for _ in range(2):
            (tmp_path / LOCK).unlink(missing_ok=True)
            with pytest.raises(StartError, match="in use by another sidecar"):
                Store(tmp_path)
            assert is_in_use(tmp_path)
    assert not is_in_use(tmp_path)
    Store(tmp_path).close()


def test_a_second_owner_of_files_that_were_moved_is_refused(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    after.mkdir()
    with closing(Store(before)):
        for path in before.iterdir():
            path.rename(after / path.name)
        with pytest.raises(StartError, match="in use by another sidecar"):
            Store(after)
        assert is_in_use(after)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"file/state: it is no folder; make it"):
        Store(tmp_path / "file" / "state")


def left_as_it_was(path: Path, match: str) -> None:
    """Check that a start refuses this file, touches nothing, and lets the lock go."""
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StateError, match=match):
            Store(path.parent)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database at all" * 500)
    left_as_it_was(tmp_path / DATABASE, "cannot be read .*restore a backup")


def test_a_database_without_our_tables_is_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table theirs (x)")
    left_as_it_was(tmp_path / DATABASE, "cannot be read .*no such table")


def test_a_file_whose_own_words_are_damaged_is_refused_by_one_line(
    store: Store,
) -> None:
    with refused(store, r"cannot be read .*restore a backup"):
        b"malformed schema (\xec)".decode()


def test_damage_among_the_users_online_is_reported_and_left(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        keep(store, *users(1_000))
    disk.overwrite_root(store.path, "online")
    before = store.path.read_bytes()
    with closing(Store(tmp_path)) as store:
        with refused(store, r"cannot be read .*move it away"):
            list(store.online())
        assert store.path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        "key = 'lag' where key = 'log'",
        "value = '{' where key = 'parted'",
        "value = '[]' where key = 'parted'",
        """value = '{"a": "b"}' where key = 'parted'""",
    ],
)
def test_what_the_log_says_of_itself_is_refused_if_it_makes_no_sense(
    tmp_path: Path, change: str
) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db, db:
        db.execute("insert or ignore into meta values ('parted', '{}')")
        assert db.execute(f"update meta set {change}").rowcount == 1
    with pytest.raises(StateError, match="its meta makes no sense"):
        Store(tmp_path)
