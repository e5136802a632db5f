"""A backup is a copy as of one moment; once opened it has a log of its own."""

import io
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from liveness.cli.backup import backup
from liveness.cli.check_state import check_state
from liveness.console.admin_client import CommandError
from liveness.core.cursors import CursorRow
from liveness.core.timer_states import CreateTimer, Fire
from liveness.errors import StateError
from liveness.service.backups import snapshots as files
from liveness.service.storage.database import reading
from liveness.service.storage.log_store import DATABASE, Batch, LogStore
from liveness.service.storage.outlet_schema import DATABASE as OUTLETS
from liveness.service.timers.timer_store import DATABASE as TIMERS
from liveness.service.timers.timer_store import TimerStore
from tests.helpers import disk
from tests.service.storage.journals import add_outlets, fill, keep, pending, users


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state with ten records and three timers; two fired, as records 8 and 9."""
    folder = tmp_path / "state"
    with closing(LogStore(folder)) as store:
        fill(store, 10)
        store.write(Batch(cursors={("gateway", "g"): CursorRow(7, 1, None)}))
        with closing(TimerStore(folder, log=store.log)) as table:
            table.write([CreateTimer(pending(n, since=6), "p") for n in (1, 2, 3)])
            table.write([Fire("g", f"k{n}", 1, n + 7, 5) for n in (1, 2)], seq=9)
    return folder


def back_up(folder: Path, file: Path, *, force: bool = False) -> None:
    backup(folder, file, force=force, out=StringIO())


def unpack(file: Path, to: Path) -> None:
    """Unpack a backup with the manual's command."""
    to.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xf", file, "-C", to], check=True)


def restored(folder: Path, to: Path) -> Path:
    """Back up *folder*, and unpack the backup."""
    file = to.with_suffix(".tar")
    back_up(folder, file, force=True)
    unpack(file, to)
    file.unlink()
    return to


@contextmanager
def opened(folder: Path) -> Iterator[tuple[LogStore, TimerStore]]:
    with (
        closing(LogStore(folder)) as store,
        closing(TimerStore(folder, log=store.log, ancestors=store.ancestors)) as table,
    ):
        yield store, table


def test_a_restored_state_has_what_the_original_had(
    folder: Path, tmp_path: Path
) -> None:
    with opened(folder) as (store, _):
        add_outlets(folder, store.log, 7)
    before = disk.log(folder / DATABASE)
    tables = {
        TIMERS: ["timers"],
        OUTLETS: ["cursors", "batches", "dead"],
    }

    def rows_in(state: Path) -> list[list[Any]]:
        return [
            disk.rows(state / name, f"select * from {table}")
            for name, of_file in tables.items()
            for table in of_file
        ]

    rows = rows_in(folder)
    assert [len(before), *map(len, rows)] == [10, 3, 1, 1, 1]
    there = restored(folder, tmp_path / "a")
    assert sorted(path.name for path in there.iterdir()) == [
        "liveness.db", "liveness.db-wal", "outlets.db", "outlets.db-wal",
        "timers.db", "timers.db-wal",
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in there.iterdir()} == {0o600}
    with opened(there) as (store, table):
        assert disk.log(store.path) == before
        assert store.cursors() == {("gateway", "g"): CursorRow(7, 1, None)}
        assert rows_in(there) == rows
        assert (table.seq, table.newest) == (9, 9)


def test_a_restored_state_has_its_own_log_and_knows_earlier_ones(
    folder: Path, tmp_path: Path
) -> None:
    with opened(folder) as (store, _):
        original = store.log
    first, second = (restored(folder, tmp_path / name) for name in "ab")
    with opened(first) as (store, _), opened(second) as (other, _):
        assert len({original, store.log, other.log}) == 3
        assert store.ancestors == other.ancestors == {original: 10}
        log = store.log
    with opened(first) as (store, _):  # only its first start begins a log
        assert (store.log, store.ancestors) == (log, {original: 10})
        fill(store, 1)
    with opened(restored(first, tmp_path / "c")) as (grandchild, _):
        assert grandchild.ancestors == {original: 10, store.log: 11}


def test_no_backup_has_a_cursor_or_an_attempt_beyond_its_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each statement a record is written, and outlets and timers follow it."""
    with ExitStack() as stack:
        store, table = stack.enter_context(opened(folder))
        add_outlets(folder, store.log, 10)
        outlets = stack.enter_context(closing(sqlite3.connect(folder / OUTLETS)))

        def disturb() -> None:
            fill(store, 1)
            newest = store.bounds()[1] - 1
            table.follow(newest)
            with outlets:
                outlets.execute("update cursors set seq = ?", [newest])

        @contextmanager
        def disturbed(path: Path) -> Iterator[sqlite3.Connection]:
            with reading(path) as db:
                db.set_trace_callback(lambda _statement: disturb())
                yield db

        monkeypatch.setattr(files, "reading", disturbed)
        with files.opened(folder) as state:
            monkeypatch.undo()
            for path in state.paths:
                state.copy(path, tmp_path / path.name, made_ms=1)
    ((newest,), (reached,), (cursor,)) = (
        disk.rows(tmp_path / name, query)[0]
        for name, query in {
            DATABASE: "select max(last) from log",
            TIMERS: "select value from meta where key = 'seq'",
            OUTLETS: "select seq from cursors",
        }.items()
    )
    assert 10 <= reached <= newest
    assert 10 <= cursor <= newest


def test_no_commit_of_an_older_state_comes_back(folder: Path, tmp_path: Path) -> None:
    """SQLite would read a WAL left in the folder as that of the restored file."""
    older = tmp_path / "older"
    wal = older / "liveness.db-wal"
    with closing(LogStore(older)) as store:
        fill(store, 29)
        left = wal.read_bytes()
    wal.write_bytes(left)
    with opened(restored(folder, older)) as (store, _):
        assert store.bounds() == (1, 11)


def test_a_backup_lacks_records_written_meanwhile(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it make the copy begin again."""
    steps = list[int]()
    with files.opened(folder) as state, opened(folder) as (store, _):
        (path, _) = state.paths

        def busy(step: int) -> None:
            steps.append(step)
            fill(store, 1)

        monkeypatch.setattr(files, "sync", busy)
        fill(store, 1)
        state.copy(path, tmp_path / "copy", made_ms=1)
        assert store.bounds() == (1, 12 + len(steps))
    assert steps
    assert [record.seq for record in disk.log(tmp_path / "copy")] == [*range(1, 11)]


def test_a_file_is_replaced_only_if_asked_for(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    file.write_text("precious")
    with pytest.raises(CommandError, match="already exists"):
        back_up(folder, file)
    assert file.read_text() == "precious"
    back_up(folder, file, force=True)
    assert tarfile.is_tarfile(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"b.tar", "state"}


def state_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["liveness.db", "timers.db-shm", "stopped"])
@pytest.mark.parametrize("whose", ["state", "other", "link", "to/../state"])
def test_no_file_of_a_state_is_replaced_or_added(
    folder: Path, tmp_path: Path, whose: str, name: str
) -> None:
    LogStore(tmp_path / "other").close()
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to(folder)
    there = tmp_path / whose
    with opened(folder):
        before = state_files(there)
        for force in (True, False):
            with pytest.raises(CommandError, match="is in a state directory"):
                back_up(folder, there / name, force=force)
        assert state_files(there) == before


def test_no_backup_is_made_of_a_damaged_page(folder: Path, tmp_path: Path) -> None:
    """The damage is within a page that is copied without being parsed."""
    disk.overwrite_root(folder / DATABASE, "cursors", 64)
    why = r"is damaged .*; no backup was made: keep the previous one"
    with pytest.raises(StateError, match=why):
        back_up(folder, tmp_path / "b.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (
            lambda path: path.rename(f"{path}-wal"),
            r"missing, and timers\.db-wal is not",
        ),
        (lambda path: path.write_bytes(b""), "empty, and the log is not"),
    ],
    ids=["missing", "emptied"],
)
def test_no_backup_is_made_without_timers_that_there_were(
    folder: Path, tmp_path: Path, lose: Callable[[Path], object], why: str
) -> None:
    lose(folder / TIMERS)
    with pytest.raises(StateError, match=f"it is {why}"):
        back_up(folder, tmp_path / "b.tar", force=True)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (None, r"records 1 to 10 \(10 of 2,399\); the others can be read"),
        (partial(disk.tear_a_leaf, table="log", which=3), ".*records .*"),
        (disk.misname_a_free_page, ".*"),
    ],
    ids=["page", "leaf", "free-page"],
)
def test_no_backup_of_a_damaged_log_takes_the_place_of_a_whole_one(
    folder: Path, tmp_path: Path, damage: Callable[[Path], None] | None, why: str
) -> None:
    path = folder / DATABASE
    with closing(LogStore(folder)) as store:
        disk.unsynced(store)
        fill(store, 1_989)
        fill(store, *[1] * 400)
        if damage is None:
            disk.change(path, "update log set records = zeroblob(9) where last = 10")
        else:
            disk.change(path, "delete from log where last <= 1010")
    if damage is not None:
        damage(path)
    file = tmp_path / "b.tar"
    file.write_text("the one before")
    with pytest.raises(StateError, match=rf"damaged \({why}\); no backup was made"):
        back_up(folder, file, force=True)
    assert file.read_text() == "the one before"


def test_a_copy_that_is_too_slow_is_given_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it reads, the WALs only grow."""
    monkeypatch.setattr(files, "MOST_WAL_BYTES", 4_096)
    with files.opened(folder) as state, opened(folder) as (store, _):
        (path, _) = state.paths
        fill(store, 489)
        with pytest.raises(StateError, match="too slow"):
            state.copy(path, tmp_path / "copy", made_ms=1)


WHOLE = """\
liveness.db  structure  whole
liveness.db  log        whole (40)
timers.db    structure  whole
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Ten pages of four records, eight users online, a timer."""
    with closing(LogStore(tmp_path)) as store:
        fill(store, *[4] * 10)
        keep(store, *users(8))
        store.write(Batch(cursors={("gateway", "g"): CursorRow(7, 1, None)}))
        with closing(TimerStore(tmp_path, log=store.log)) as table:
            table.write([CreateTimer(pending(1), None)])
    return tmp_path


def ran(state: Path) -> tuple[int, str]:
    out = io.StringIO()
    return check_state(state, as_json=False, out=out), out.getvalue()


def test_a_whole_state_is_reported_and_left(state: Path) -> None:
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    assert ran(state) == (0, WHOLE)
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before


def test_outlets_are_checked_if_there_are_any(state: Path) -> None:
    add_outlets(state, "a", 7)
    assert ran(state) == (0, f"{WHOLE}outlets.db   structure  whole\n")


def test_outlets_that_were_lost_beside_their_wal_are_reported(state: Path) -> None:
    (state / f"{OUTLETS}-wal").write_bytes(b"commits")
    code, text = ran(state)
    assert code == 3
    assert "outlets.db   structure  damaged: it is missing, and" in text


def test_damaged_records_are_named(state: Path) -> None:
    disk.change(
        state / DATABASE,
        "update log set records = zeroblob(5) where last in (8, 16, 20, 40)",
    )
    line = (
        "log        damaged: records 5 to 8, 13 to 20, 37 to 40 (16 of 40); the others"
    )
    code, text = ran(state)
    assert code == 3
    assert line in text
    assert text.count("damaged") == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:2_048] + b"\xff" * 512 + data[2_560:],
        lambda data: data.replace(b"CREATE TABLE states", b"CREATE TABL\xff states"),
    ],
    ids=["page", "text"],
)
def test_damage_to_the_structure_of_a_file_is_reported_as_sqlite_has_it(
    state: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = state / TIMERS
    path.write_bytes(damage(path.read_bytes()))
    code, text = ran(state)
    assert code == 3
    assert "timers.db    structure  damaged: " in text


def test_timers_that_were_emptied_are_reported(state: Path) -> None:
    damaged = "timers.db    structure  damaged: it is"
    (state / TIMERS).write_bytes(b"")
    code, text = ran(state)
    assert code == 3
    assert f"{damaged} empty, and the log is not" in text
    (state / TIMERS).unlink()
    assert ran(state)[0] == 0, "that they are gone is somebody's doing"
    (state / f"{TIMERS}-wal").write_bytes(b"commits")
    code, text = ran(state)
    assert code == 3
    assert f"{damaged} missing, and timers.db-wal is" in text


def test_an_emptied_log_beside_its_timers_is_no_new_one(state: Path) -> None:
    (state / DATABASE).write_bytes(b"")
    told = "it is empty, and timers.db is not"
    code, text = ran(state)
    assert code == 3
    assert f"liveness.db  structure  damaged: {told}\n" in text
    with pytest.raises(StateError, match=told):
        LogStore(state, made_later=TIMERS)
    assert (state / DATABASE).read_bytes() == b""
    (state / DATABASE).unlink()
    LogStore(state, made_later=TIMERS).close()


def test_a_state_that_is_locked_is_neither_whole_nor_damaged(state: Path) -> None:
    with closing(sqlite3.connect(state / DATABASE, isolation_level=None)) as db:
        db.execute("pragma locking_mode = exclusive")
        db.execute(
            "update meta set value = value"
        )  # takes the exclusive lock, and keeps it
        with pytest.raises(CommandError, match=f"{state} cannot be read now"):
            ran(state)
