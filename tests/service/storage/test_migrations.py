"""An older file is migrated whole or left as it was; a newer one is left as it is."""

import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from liveness.core.cursors import CursorRow
from liveness.core.records import GATEWAY, WATCHER, OnlineRow, Record
from liveness.errors import StateError
from liveness.service.backups import integrity
from liveness.service.storage import database, log_schema, log_store
from liveness.service.storage.log_reader import open_log
from liveness.service.storage.log_store import LogStore
from liveness.service.timers import timer_store
from liveness.service.timers.timer_store import TimerStore
from tests.helpers import disk, previous_release
from tests.helpers.strategies import HARD_UIDS
from tests.service.storage.journals import online, page

MIGRATED: Final = "an older file was migrated"


def tables(path: Path) -> list[tuple[Any, ...]]:
    """The statements of a file's schema, without their layout."""
    rows = disk.rows(path, "select type, name, sql from sqlite_schema order by name")
    return [
        (kind, name, sql and sql.replace('"', "").split()) for kind, name, sql in rows
    ]


def test_all_records_sessions_and_cursors_are_migrated(tmp_path: Path) -> None:
    path = tmp_path / log_store.DATABASE
    seqs = count(7)  # the records below were trimmed
    records = [online(next(seqs), uid)._replace(conn=7) for uid in HARD_UIDS]
    first = records[0]
    silent = Record(
        next(seqs), "offline", 7, "g", 7, None, "silence", 5_000, 2_000, "message", 3.25
    )
    records += [
        silent,
        silent._replace(seq=next(seqs), seen=None, last=None, restored=True),
        Record(next(seqs), "moved", "7", "h", 9, None, "login", 3_000)._replace(
            from_gateway="g", from_session=8, from_conn=2**63 - 1
        ),
    ]
    records += [online(next(seqs)) for _ in range(2_500)]
    rows = [
        OnlineRow(seq, uid, 1_000, seq, "g", 2.5 if seq % 2 else None)
        for seq, uid in enumerate(HARD_UIDS, first.seq)
    ]
    cursors = {
        (GATEWAY, "g"): CursorRow(2_000, 99, 30.0),
        (WATCHER, "w"): CursorRow(8, 98, None),
    }
    previous_release.schema_2(path, records, rows, cursors)
    with (
        structlog.testing.capture_logs() as said,
        closing(LogStore(tmp_path)) as migrated,
    ):
        assert migrated.log == previous_release.LOG_ID
        assert migrated.bounds() == (first.seq, records[-1].seq + 1)
        kept = disk.log(path)
        assert kept == records
        for record, was in zip(kept, records, strict=True):
            assert [*map(type, record)] == [*map(type, was)]
        assert list(migrated.online()) == rows
        assert migrated.cursors() == cursors
        assert page(migrated) == records
    new = tmp_path / "new" / log_store.DATABASE
    LogStore(new.parent).close()
    assert tables(path) == tables(new)
    assert disk.rows(path, "pragma auto_vacuum") == disk.rows(new, "pragma auto_vacuum")
    assert disk.rows(path, "pragma integrity_check") == [("ok",)]
    about = {"path": str(path), "was": 2, "schema": log_schema.SCHEMA}
    assert said == [{"event": MIGRATED, "log_level": "info", **about}]
    before = path.read_bytes()
    with structlog.testing.capture_logs() as said:
        LogStore(tmp_path).close()
    assert said == []
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / log_store.DATABASE
    previous_release.schema_2(path, map(online, range(1, 4)))
    before = tables(path)
    with monkeypatch.context() as patched:
        patched.setitem(log_schema._STEPS_FROM, 3, ["no statement"])
        with pytest.raises(StateError):
            LogStore(tmp_path)
    assert tables(path) == before
    with closing(LogStore(tmp_path)) as store:
        assert store.bounds() == (1, 4)


# --- files of other versions and programs -------------------------------------------------


def opened(path: Path) -> None:
    if path.name == log_store.DATABASE:
        LogStore(path.parent).close()
    else:
        TimerStore(path.parent, log="a log").close()


@pytest.fixture(params=[log_store.DATABASE, timer_store.DATABASE])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of this version."""
    path: Path = tmp_path / request.param
    opened(path)
    return path


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of a database and its WAL. The WAL's index has no data of its own."""
    return {
        one.name: one.read_bytes()
        for one in sorted(folder.glob("*.db*"))
        if not one.name.endswith("-shm") and one.stat().st_size
    }


def crashed_with(path: Path, *statements: str) -> None:
    """Leave the files of a process that ends without closing them."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        left = {it: it.read_bytes() for it in path.parent.glob(f"{path.name}*")}
    for file, data in left.items():
        file.write_bytes(data)
    assert any(
        left.get(path.with_name(f"{path.name}{it}")) for it in ("-wal", "-journal")
    )


def is_refused_and_left(path: Path, match: str) -> None:
    before = files(path.parent)
    for _ in range(2):
        with pytest.raises(StateError, match=match):
            opened(path)
    assert files(path.parent) == before


@pytest.mark.parametrize(
    "change",
    [
        "delete from meta",
        *(f"update meta set value = {value}" for value in ("99", "0", "'1'", "1.5")),
    ],
    ids=["none", "newer", "older", "text", "fraction"],
)
def test_a_file_of_no_known_schema_and_its_wal_are_left_byte_for_byte(
    path: Path, change: str
) -> None:
    crashed_with(path, f"{change} where key = 'schema'")
    is_refused_and_left(path, f"{path} has schema .*, this version reads")


# --- a WAL beside no file, or an empty one -----------------------------------------------


def with_commits(path: Path, commits: int) -> None:
    insert = "insert into meta values ('k{}', randomblob(500))"
    crashed_with(path, *(insert.format(n) for n in range(commits)))


def test_no_command_opens_an_empty_file_beside_a_wal(tmp_path: Path) -> None:
    LogStore(tmp_path).close()
    path = tmp_path / log_store.DATABASE
    with_commits(path, 20)
    log = path.with_name(f"{path.name}-wal")
    path.write_bytes(b"")
    before = log.read_bytes()
    told = f"it is empty, and {log.name} is not"
    with pytest.raises(StateError, match="is empty"), open_log(tmp_path):
        pass
    (found,) = integrity.check(tmp_path)
    assert found[2:] == (False, told)
    for opened_by in (database.connect, lambda path: database.opened(path, "mode=ro")):
        with pytest.raises(sqlite3.DatabaseError, match=told):
            opened_by(path)
    assert (path.read_bytes(), log.read_bytes()) == (b"", before)


def test_a_file_that_was_moved_away_from_its_wal_is_not_made_anew(path: Path) -> None:
    with_commits(path, 3)
    moved = path.rename(path.with_name("moved"))
    is_refused_and_left(path, "it is missing, and ")
    assert not path.exists()
    moved.rename(path)
    opened(path)
    assert disk.rows(path, "select key from meta where key = 'k2'")


def test_a_start_that_fails_removes_the_empty_file_that_it_made(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with pytest.raises(sqlite3.OperationalError), database.created_private(path):
        raise sqlite3.OperationalError
    assert not path.exists()
    path.touch()
    with pytest.raises(sqlite3.OperationalError), database.created_private(path):
        raise sqlite3.OperationalError
    assert path.exists(), "it was there before"


def test_a_start_after_one_killed_as_it_made_the_file_succeeds(path: Path) -> None:
    path.unlink()
    crashed_with(
        path,
        "pragma cache_size = 1",
        "begin immediate",
        "create table half (made)",
        *["insert into half values (hex(zeroblob(2000)))"] * 50,
    )
    assert path.with_name(f"{path.name}-journal").stat().st_size
    opened(path)
    assert ("half",) not in tables(path)
    opened(path)
