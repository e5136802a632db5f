"""The parts of the simulation that decide how hard it is: plans, crashes, shortening."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.promises.checker import broken_promises
from tests.promises.histories import quiet_plan
from tests.simulation.machine import Files, files, torn
from tests.simulation.plan import (
    Fault,
    Step,
    Visit,
)
from tests.simulation.run import run
from tests.simulation.search import reduced


def write(db: sqlite3.Connection, row: int) -> None:
    db.execute("begin immediate")
    db.executemany("insert into rows values (?, ?)", [(row, "x" * 900)] * 20)
    db.execute("commit")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "a.db", isolation_level=None)) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("pragma wal_autocheckpoint = 15")
        db.execute("create table rows (row, text)")
        yield db


def rows_in(image: Files, folder: Path) -> list[tuple[int, int]]:
    """The rows that a start finds on a disk in this state."""
    folder.mkdir()
    for name, data in image.items():
        (folder / name).write_bytes(data)
    with closing(sqlite3.connect(folder / "a.db")) as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        return db.execute("select row, count(*) from rows group by row").fetchall()


def test_a_torn_write_leaves_all_of_a_transaction_or_nothing(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    random, folder = Random(1), tmp_path / "disk"
    kept = {False: 0, True: 0}
    for row in range(12):
        before = files(folder)
        write(database, row)
        after = files(folder)
        for number in range(8):
            image = torn(before, after, random)
            found = rows_in(image, tmp_path / f"image-{row}-{number}")
            assert found[:row] == [(it, 20) for it in range(row)]
            assert found[row:] in ([], [(row, 20)])
            kept[len(found) > row] += 1
    assert min(kept.values()) > 10


def test_a_gateway_that_hangs_dies_with_its_host() -> None:
    visit = Visit(1.0, 0, "ann", 0.5, 0.5, False, None)
    hang, boot = Fault(1.6, "gateway hangs", 0, 20.0), Fault(5.0, "host boots", 0, 1.0)
    plan = replace(quiet_plan(), steps=(visit, hang, boot))
    history = run(plan)
    assert broken_promises(plan, history) == []
    ((_, _, ended_at),) = history.hangs
    assert ended_at < 6.0


def test_what_breaks_is_shortened_to_the_steps_that_it_takes() -> None:
    steps: tuple[Step, ...] = tuple(Fault(n, f"step {n}", 0, 0.0) for n in range(100))
    asked = 0

    def breaks(some: tuple[Step, ...]) -> bool:
        nonlocal asked
        asked += 1
        return {steps[17], steps[18], steps[80]} <= {*some}

    assert reduced(steps, breaks, most=1_000) == (steps[17], steps[18], steps[80])
    assert asked < 200
