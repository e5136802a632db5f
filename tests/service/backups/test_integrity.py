"""`check-state` reports of each part whether it is whole, and changes nothing."""

import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from liveness.cli.check_state import check_state
from liveness.console.admin_client import CommandError
from liveness.core.cursors import CursorRow
from liveness.core.timer_states import CreateTimer
from liveness.errors import StateError
from liveness.service.storage.log_store import DATABASE, Batch, LogStore
from liveness.service.storage.outlet_schema import DATABASE as OUTLETS
from liveness.service.timers.timer_store import DATABASE as TIMERS
from liveness.service.timers.timer_store import TimerStore
from tests.service.storage.journals import add_outlets, fill, keep, pending, users

WHOLE = """\
liveness.db  structure  whole
liveness.db  log        whole (40)
timers.db    structure  whole
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pages of four records, eight users online, a timer."""
    with closing(LogStore(tmp_path)) as store:
        fill(store, *[4] * 10)
        keep(store, *users(8))
        store.write(Batch(cursors={("gateway", "g"): CursorRow(7, 1, None)}))
        with closing(TimerStore(tmp_path, log=store.log)) as table:
            table.write([CreateTimer(pending(1), None)])
    return tmp_path


def ran(folder: Path) -> tuple[int, str]:
    out = io.StringIO()
    return check_state(folder, as_json=False, out=out), out.getvalue()


def change(folder: Path, sql: str, database: str = DATABASE) -> None:
    with closing(sqlite3.connect(folder / database)) as db, db:
        db.execute(sql)


def test_a_whole_state_is_reported_and_left(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert ran(folder) == (0, WHOLE)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_outlets_are_checked_if_there_are_any(folder: Path) -> None:
    add_outlets(folder, "a", 7)
    assert ran(folder) == (0, f"{WHOLE}outlets.db   structure  whole\n")


def test_outlets_that_were_lost_beside_their_wal_are_reported(folder: Path) -> None:
    (folder / f"{OUTLETS}-wal").write_bytes(b"commits")
    code, text = ran(folder)
    assert code == 3
    assert "outlets.db   structure  damaged: it is missing, and" in text


def test_the_state_of_a_sidecar_that_runs_is_read_beside_it(folder: Path) -> None:
    with closing(LogStore(folder)) as store:
        fill(store, 1)
        assert ran(folder) == (0, WHOLE.replace("(40)", "(41)"))


def test_damaged_records_are_named(folder: Path) -> None:
    change(folder, "update log set records = zeroblob(5) where last in (8, 16, 20, 40)")
    line = (
        "log        damaged: records 5 to 8, 13 to 20, 37 to 40 (16 of 40); the others"
    )
    code, text = ran(folder)
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
    folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = folder / TIMERS
    path.write_bytes(damage(path.read_bytes()))
    code, text = ran(folder)
    assert code == 3
    assert "timers.db    structure  damaged: " in text


def test_timers_that_were_emptied_are_reported(folder: Path) -> None:
    damaged = "timers.db    structure  damaged: it is"
    (folder / TIMERS).write_bytes(b"")
    code, text = ran(folder)
    assert code == 3
    assert f"{damaged} empty, and the log is not" in text
    (folder / TIMERS).unlink()
    assert ran(folder)[0] == 0, "that they are gone is somebody's doing"
    (folder / f"{TIMERS}-wal").write_bytes(b"commits")
    code, text = ran(folder)
    assert code == 3
    assert f"{damaged} missing, and timers.db-wal is" in text


def test_an_emptied_log_beside_its_timers_is_no_new_one(folder: Path) -> None:
    (folder / DATABASE).write_bytes(b"")
    told = "it is empty, and timers.db is not"
    code, text = ran(folder)
    assert code == 3
    assert f"liveness.db  structure  damaged: {told}\n" in text
    with pytest.raises(StateError, match=told):
        LogStore(folder, made_later=TIMERS)
    assert (folder / DATABASE).read_bytes() == b""
    (folder / DATABASE).unlink()
    LogStore(folder, made_later=TIMERS).close()


def test_json_is_an_object_a_line(folder: Path) -> None:
    out = io.StringIO()
    assert check_state(folder, as_json=True, out=out) == 0
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["whole"] for one in found] == [True] * 3
    assert found[1] == {
        "file": "liveness.db", "part": "log", "whole": True, "told": "40"
    }  # fmt: skip


def test_a_state_that_is_locked_is_neither_whole_nor_damaged(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as db:
        db.execute("pragma locking_mode = exclusive")
        db.execute(
            "update meta set value = value"
        )  # takes the exclusive lock, and keeps it
        with pytest.raises(CommandError, match=f"{folder} cannot be read now"):
            ran(folder)
