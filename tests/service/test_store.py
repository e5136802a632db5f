"""The journal's file, on real SQLite: what is written is what is read, or nothing is."""

import io
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.records import KINDS, OnlineRow, Record, Uid
from liveness.errors import StartError, StateError
from liveness.service.store import (
    DATABASE,
    LIST_ROWS,
    SCAN_ROWS,
    TRIM_ROWS,
    Batch,
    CursorRow,
    Store,
    Wanted,
)
from tests.strategies import BOUNDED, HARD_UIDS, conns, uids

ALL = Wanted(None, frozenset(KINDS))
NEVER_MS = 0
PLENTY_BYTES = 2**40


def online(seq: int, uid: Uid = "u", *, gateway: str = "g", at: int = 1_000) -> Record:
    return Record(seq, "online", uid, gateway, seq, None, "login", at)


def offline(seq: int, uid: Uid = "u", *, gateway: str = "g") -> Record:
    return Record(seq, "offline", uid, gateway, 1, 9, "silence", 5, 4, "login", 30.012)


def moved(seq: int, *, gateway: str, origin: str) -> Record:
    return Record(seq, "moved", "u", gateway, seq, 3, "login", 6)._replace(
        from_gateway=origin, from_session=1, from_conn=2**63 - 1
    )


def row(session: int, gateway: str = "g", conn: int | None = None) -> OnlineRow:
    return OnlineRow(session, 1_000, conn, gateway, None)


def write(store: Store, *records: Record) -> None:
    store.write(Batch(records=list(records)))


def fill(store: Store, count: int, *, at: int = 1_000, gateway: str = "g") -> None:
    _, following = store.bounds()
    made = range(following, following + count)
    write(store, *(online(seq, f"u{seq}", gateway=gateway, at=at) for seq in made))


def page(
    store: Store, wanted: Wanted = ALL, *, after: int = 0, limit: int = 10_000
) -> list[Record]:
    records, _, _ = store.read(after=after, until=10**9, wanted=wanted, limit=limit)
    return records


def trim(
    store: Store,
    *,
    oldest_ms: int = NEVER_MS,
    most_bytes: int = PLENTY_BYTES,
    idle_ms: int = NEVER_MS,
) -> bool:
    return store.trim(oldest_ms=oldest_ms, most_bytes=most_bytes, idle_ms=idle_ms)


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
    with closing(Store(tmp_path_factory.mktemp("state"))) as store:
        records = [
            online(seq, uid)._replace(conn=conn)
            for seq, (uid, conn) in enumerate(drawn, 1)
        ]
        rows = {uid: row(1, conn=conn) for uid, conn in drawn}
        store.write(Batch(records=records, online=dict(rows)))
        kept, found = page(store), dict(store.online())
    assert kept == records
    assert [type(one.uid) for one in kept] == [type(uid) for uid, _ in drawn]
    assert found == rows


def test_hard_uids_are_each_a_user_of_their_own_and_leave_alone(store: Store) -> None:
    store.write(Batch(online={uid: row(n) for n, uid in enumerate(HARD_UIDS, 1)}))
    store.write(Batch(online={7: None, 2**63 - 1: None}))
    left = set(HARD_UIDS) - {7, 2**63 - 1}
    assert dict(store.online()).keys() == left
    assert "7" in left


def test_of_a_user_that_went_and_came_in_one_batch_the_newer_session_is_kept(
    store: Store,
) -> None:
    store.write(Batch(records=[online(1)], online={"u": row(1)}))
    store.write(Batch(records=[offline(2), online(3)], online={"u": row(3)}))
    assert dict(store.online()) == {"u": row(3)}


def test_one_batch_forgets_some_and_keeps_others(store: Store) -> None:
    store.write(Batch(online={"a": row(1), "b": row(2)}))
    store.write(Batch(online={"a": None, "c": row(3), "nobody": None}))
    assert dict(store.online()) == {"b": row(2), "c": row(3)}


def test_an_own_timeout_and_an_old_start_are_kept(store: Store) -> None:
    known = OnlineRow(1, -5, 2**63 - 1, "g", 86_400.0)
    store.write(Batch(online={"u": known}))
    assert dict(store.online()) == {"u": known}


def test_a_batch_that_fails_leaves_nothing_of_itself(store: Store) -> None:
    fill(store, 2)
    again = Batch(
        records=[online(3), online(2)],
        online={"u": row(3)},
        cursors={("gateway", "g"): CursorRow(1, 1, None)},
    )
    with pytest.raises(sqlite3.IntegrityError):
        store.write(again)
    assert store.bounds() == (1, 3)
    assert dict(store.online()) == {}
    assert store.cursors() == {}
    fill(store, 1)  # and it can still be written


def test_cursors_are_told_apart_by_role_and_name(store: Store) -> None:
    cursors = {
        ("gateway", "g"): CursorRow(1, 10, None),
        ("watcher", "g"): CursorRow(2, 20, 3.5),
        ("gateway", "G"): CursorRow(3, 30, None),
    }
    store.write(Batch(cursors=cursors))
    assert store.cursors() == cursors
    store.write(Batch(cursors={("gateway", "g"): CursorRow(9, 90, 1.0)}))
    assert store.cursors()["gateway", "g"] == CursorRow(9, 90, 1.0)
    assert store.cursors()["watcher", "g"] == CursorRow(2, 20, 3.5)


# --- pages -------------------------------------------------------------------------


def test_a_page_goes_from_after_to_until_and_no_further_than_its_limit(
    store: Store,
) -> None:
    fill(store, 10)

    def seqs(after: int, until: int, limit: int) -> tuple[list[int], int]:
        records, reached, first = store.read(
            after=after, until=until, wanted=ALL, limit=limit
        )
        assert first == 1
        return [record.seq for record in records], reached

    assert seqs(0, 10, 4) == ([1, 2, 3, 4], 4)
    assert seqs(4, 10, 4) == ([5, 6, 7, 8], 8)
    assert seqs(8, 10, 4) == ([9, 10], 10)
    assert seqs(8, 9, 4) == ([9], 9)
    assert seqs(10, 10, 4) == ([], 10)


def test_a_gateway_gets_what_it_won_and_what_it_lost(store: Store) -> None:
    records = [
        online(1, gateway="g"),
        online(2, gateway="h"),
        moved(3, gateway="h", origin="g"),
        moved(4, gateway="g", origin="h"),
        moved(5, gateway="h", origin="i"),
        moved(6, gateway="g", origin="g"),
    ]
    write(store, *records)

    def seqs(gateway: str | None, *kinds: str) -> list[int]:
        return [one.seq for one in page(store, Wanted(gateway, frozenset(kinds)))]

    assert seqs("g", *KINDS) == [1, 3, 4, 6]
    assert seqs("h", *KINDS) == [2, 3, 4, 5]
    assert seqs("i", *KINDS) == [5]
    assert seqs("nobody", *KINDS) == []
    assert seqs(None, "online") == [1, 2]
    assert seqs("g", "moved", "gap") == [3, 4, 6]
    assert seqs(None, "gap") == []
    assert seqs(None) == []


def test_a_reader_concerned_by_few_is_taken_forward_without_an_answer(
    store: Store,
) -> None:
    write(store, online(1, gateway="h"), online(SCAN_ROWS + 1), online(SCAN_ROWS + 2))
    own = Wanted("g", frozenset(KINDS))
    looked = [store.read(after=0, until=10**9, wanted=own, limit=10)]
    looked.append(store.read(after=looked[0][1], until=10**9, wanted=own, limit=10))
    assert looked[0] == ([], SCAN_ROWS, 1)
    assert [one.seq for one in looked[1][0]] == [SCAN_ROWS + 1, SCAN_ROWS + 2]


def test_the_page_of_an_empty_log_has_nothing_and_no_gap(store: Store) -> None:
    assert store.bounds() == (1, 1)
    assert store.read(after=0, until=0, wanted=ALL, limit=10) == ([], 0, 1)


# --- the answer to list ------------------------------------------------------------


def listed(store: Store, gateway: str | None) -> list[list[Any]]:
    spool = io.BytesIO()
    store.spool_online(gateway, spool)
    spool.seek(0)
    return list(msgpack.Unpacker(spool))


@pytest.mark.parametrize(
    ("users", "rows"),
    [
        (0, [0]),
        (1, [1]),
        (LIST_ROWS, [LIST_ROWS]),
        (LIST_ROWS + 1, [LIST_ROWS, 1]),
        (2 * LIST_ROWS, [LIST_ROWS, LIST_ROWS]),
        (2 * LIST_ROWS + 3, [LIST_ROWS, LIST_ROWS, 3]),
    ],
)
def test_a_list_comes_in_frames_and_only_the_last_has_the_seq(
    store: Store, users: int, rows: list[int]
) -> None:
    everyone: dict[Uid, OnlineRow | None] = {
        n: row(n + 1, conn=n) for n in range(users)
    }
    fill(store, users + 5)
    store.write(Batch(online=everyone))
    frames = listed(store, None)
    assert [frame[0] for frame in frames] == ["list"] * len(rows)
    assert [len(frame[1]) for frame in frames] == rows
    assert [frame[2:] for frame in frames] == [[]] * (len(rows) - 1) + [[users + 5]]
    assert sorted(row for frame in frames for row in frame[1]) == [
        [n, "g", n + 1, n] for n in range(users)
    ]


def test_a_gateway_is_listed_its_own_only(store: Store) -> None:
    store.write(Batch(online={7: row(1, "g"), "7": row(2, "h"), "a": row(3, "g")}))
    ((_, rows, seq),) = listed(store, "g")
    assert sorted(rows, key=str) == [["a", "g", 3, None], [7, "g", 1, None]]
    assert seq == 0


# --- retention ---------------------------------------------------------------------


def test_old_records_go_and_newer_ones_stay(store: Store) -> None:
    fill(store, 5, at=1_000)
    fill(store, 5, at=2_000)
    assert trim(store, oldest_ms=2_000) is False
    assert [record.seq for record in page(store)] == [6, 7, 8, 9, 10]
    assert store.bounds() == (6, 11)


def test_the_newest_record_is_kept_however_old_so_that_no_seq_is_given_twice(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        fill(store, 3)
        trim(store, oldest_ms=10**15, most_bytes=1)
        trim(store, oldest_ms=10**15, most_bytes=1)
        assert [record.seq for record in page(store)] == [3]
    with closing(Store(tmp_path)) as store:
        assert store.bounds() == (3, 4)


def test_a_log_that_is_too_large_shrinks_in_steps_and_the_file_with_it(
    store: Store,
) -> None:
    fill(store, 3 * TRIM_ROWS)
    before, most = store.log_bytes(), store.log_bytes() // 2
    steps = 1
    while trim(store, most_bytes=most):
        steps += 1
        assert steps < 10
    assert steps == 3
    assert store.bounds() == (2 * TRIM_ROWS + 1, 3 * TRIM_ROWS + 1)
    assert store.log_bytes() <= most < before
    with closing(sqlite3.connect(store.path)) as db:
        (free,) = db.execute("pragma freelist_count").fetchone()
    assert free == 0


def test_one_step_of_a_trim_is_small(store: Store) -> None:
    fill(store, TRIM_ROWS + 10, at=1)
    assert trim(store, oldest_ms=2) is True
    assert store.bounds()[0] == TRIM_ROWS + 1


def test_a_read_tells_what_is_no_longer_kept(store: Store) -> None:
    fill(store, 5, at=1_000)
    fill(store, 5, at=2_000)
    trim(store, oldest_ms=2_000)
    records, reached, first = store.read(after=2, until=7, wanted=ALL, limit=10)
    assert ([record.seq for record in records], reached, first) == ([6, 7], 7, 6)


def test_a_cursor_follows_a_trim_of_what_did_not_concern_it_and_no_other_does(
    store: Store,
) -> None:
    fill(store, 4, gateway="g")
    write(store, moved(5, gateway="h", origin="loser"))
    fill(store, 4, gateway="g")
    names = ("g", "h", "loser", "idle", "ahead")
    cursors = {("gateway", name): CursorRow(2, 50, 7.5) for name in names}
    cursors["gateway", "ahead"] = CursorRow(9, 50, None)
    cursors["gateway", "g"] = CursorRow(4, 50, None)  # all of its own so far
    cursors["watcher", "idle"] = CursorRow(2, 50, None)  # a watcher of who knows what
    store.write(Batch(cursors=cursors))
    trim(store, oldest_ms=10**15, idle_ms=50)
    assert store.bounds() == (9, 10)
    moved_on = {key: row.seq for key, row in store.cursors().items()}
    assert moved_on == {
        ("gateway", "g"): 4,
        ("gateway", "h"): 2,
        ("gateway", "loser"): 2,
        ("gateway", "idle"): 8,
        ("gateway", "ahead"): 9,
        ("watcher", "idle"): 2,
    }
    assert store.cursors()["gateway", "idle"] == CursorRow(8, 50, 7.5)


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


def test_nobody_else_may_look_into_the_state(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "made" / "state")) as store:
        modes = [
            stat.S_IMODE(path.stat().st_mode) for path in (store.folder, store.path)
        ]
    assert modes == [0o700, 0o600]


def test_a_second_owner_is_refused_and_may_follow_the_first(tmp_path: Path) -> None:
    with (
        closing(Store(tmp_path)),
        pytest.raises(StartError, match="in use by another sidecar; stop that one"),
    ):
        Store(tmp_path)
    Store(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"file/state: .*; make it writable"):
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


def test_a_newer_schema_is_refused_by_number(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("update meta set value = 99 where key = 'schema'")
        db.commit()
    left_as_it_was(tmp_path / DATABASE, "has schema 99, this version reads 1")


def test_damage_among_the_users_online_is_told_and_left(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        store.write(Batch(online={f"u{n}": row(n) for n in range(1_000)}))
        path = store.path
    with closing(sqlite3.connect(path)) as db:
        (size,) = db.execute("pragma page_size").fetchone()
        query = "select rootpage from sqlite_schema where name = 'online'"
        (root,) = db.execute(query).fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    before = path.read_bytes()
    with closing(Store(tmp_path)) as store:
        refused = pytest.raises(StateError, match=r"cannot be read .*move it away")
        with refused, store.expecting_damage():
            list(store.online())
        assert store.path.read_bytes() == before
