"""The sidecar's disk as it is, read past the product."""

import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from liveness.core.records import TIMER, Record, TimerRecord
from tests.helpers.needs import require


def rows(database: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return db.execute(sql, values).fetchall()


def change(database: Path, sql: str, *values: object) -> int:
    """Change a file beside the product, as a bad disk might; how many rows changed."""
    with closing(sqlite3.connect(database)) as db, db:
        return db.execute(sql, values).rowcount


def connection(store: Any) -> sqlite3.Connection:
    """The connection over which the product has a file open."""
    db: sqlite3.Connection = store._db
    return db


def unsynced(store: Any) -> None:
    """Have it wait for no sync, for tests with many commits."""
    connection(store).execute("pragma synchronous = off")


@contextmanager
def full(store: Any) -> Iterator[None]:
    """SQLite itself finds no room for another page of the file that is open there."""
    db = connection(store)
    (pages,) = db.execute("pragma page_count").fetchone()
    (most,) = db.execute("pragma max_page_count").fetchone()
    db.execute(f"pragma max_page_count = {pages}")
    try:
        yield
    finally:
        db.execute(f"pragma max_page_count = {most}")


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process holds the file, as a backup does: a commit has to wait."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.execute("begin immediate")
        yield
        db.execute("rollback")


def root_of(database: Path, part: str) -> tuple[int, int]:
    """Where the first page of a table or an index is in the file, and its size."""
    query = "select rootpage from sqlite_schema where name = ?"
    ((page,),) = rows(database, query, part)
    ((size,),) = rows(database, "pragma page_size")
    return (page - 1) * size, size


def overwrite_root(database: Path, part: str, count: int | None = None) -> None:
    """Writes nonsense over the first page of a table or an index, or where it begins."""
    at, size = root_of(database, part)
    with database.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * (count or size))


def tear_a_leaf(database: Path, table: str, which: int) -> None:
    """Zeroes a page of a table's tree that has rows, by its number under the root.

    -1 is the last one, which has no cell in the root.
    """
    at, size = root_of(database, table)
    data = bytearray(database.read_bytes())
    assert data[at] == 5, "the root has pages under it"
    cell = 8
    if which >= 0:
        (cell,) = struct.unpack_from(">H", data, at + 12 + 2 * which)
    (page,) = struct.unpack_from(">I", data, at + cell)
    data[(page - 1) * size : page * size] = bytes(size)
    database.write_bytes(data)


def misname_a_free_page(database: Path) -> None:
    """Has the list of free pages begin with one that is not there."""
    ((free,),) = rows(database, "pragma freelist_count")
    assert free, "there is one"
    data = bytearray(database.read_bytes())
    data[32:36] = struct.pack(">I", 2**31)
    database.write_bytes(data)


def log(database: Path) -> list[Record]:
    return [Record(*one) for one in _records(database) if one[1] != TIMER]


def runs(database: Path) -> list[TimerRecord]:
    return [TimerRecord(*one) for one in _records(database) if one[1] == TIMER]


def _records(database: Path) -> list[tuple[Any, ...]]:
    pages = rows(database, "select records from log order by last")
    return [one for (page,) in pages for one in msgpack.unpackb(page, use_list=False)]


@contextmanager
def mounted(folder: Path, mib: int) -> Iterator[Path]:
    """A filesystem of few MiB, which is nobody else's."""
    mount = require("mount")
    folder.mkdir()
    options = f"size={mib}m,mode=0700"
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no filesystem can be mounted here: {mounted.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
