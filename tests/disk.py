"""The sidecar's disk as it is, read past the product."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

from liveness.core.records import TIMER, Record, TimerRecord


def rows(database: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Reads the database over a connection of its own."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return db.execute(sql, values).fetchall()


def log(database: Path) -> list[Record]:
    """Every record of the log that is about a user, in its order."""
    return [Record(*one) for one in _records(database) if one[1] != TIMER]


def runs(database: Path) -> list[TimerRecord]:
    """Every record of the log that is about a timer, in its order."""
    return [TimerRecord(*one) for one in _records(database) if one[1] == TIMER]


def _records(database: Path) -> list[tuple[Any, ...]]:
    pages = rows(database, "select records from log order by last")
    return [one for (page,) in pages for one in msgpack.unpackb(page, use_list=False)]


@contextmanager
def mounted(folder: Path, mib: int) -> Iterator[Path]:
    """A filesystem of few MiB, which is nobody else's."""
    folder.mkdir()
    options = f"size={mib}m,mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
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
