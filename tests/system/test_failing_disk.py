"""A disk that is really full, and one whose writes and syncs fail: both heal."""

import errno
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from itertools import count, repeat
from pathlib import Path
from time import perf_counter
from typing import Final

import pytest

from liveness.core.timer_states import LIVE, CancelTimer, CreateTimer, TimerState
from liveness.service.common.logs import REPEAT_LOG_S
from liveness.service.storage.database import companions, is_full
from liveness.service.storage.disk_reserve import RESERVE_BYTES, Reserve
from liveness.service.storage.log_store import LogStore
from liveness.service.timers.timer_store import (
    PAGE_BYTES,
    TimerStore,
)
from tests.helpers import disk
from tests.helpers.needs import require
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

DISK_MIB: Final = 16
# Of these a commit finds no room in the WAL that there is, nor in what the table has.
LATE: Final = 4_000
TIMERS: Final = 200
LONG: Final = "x" * 200
PAYLOAD: Final = {"payload": "x" * 4_000}


LOG_FAILS: Final = (
    "the log cannot be written; nothing is dropped, it is tried again every second: "
    "make room or repair the disk"
)
TIMERS_FAIL: Final = LOG_FAILS.replace("the log", "the timers' table")


# --- a small filesystem, full -------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk.mounted(tmp_path / "disk", DISK_MIB) as folder:
        yield folder


@pytest.fixture
def disk_with_room(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for the reserve."""
    with disk.mounted(tmp_path / "disk", 4 * RESERVE_BYTES // 2**20) as folder:
        yield folder


@contextmanager
def filled(folder: Path, *, but: int = 0) -> Iterator[Callable[[], None]]:
    """A file takes all the room that is left, but for some bytes; and again, if called."""
    other = folder / "other"

    def fill() -> None:
        with other.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4_096))

    fill()
    os.truncate(other, other.stat().st_size - but)
    assert shutil.disk_usage(folder).free == but
    try:
        yield fill
    finally:
        other.unlink()


# --- a disk that fails --------------------------------------------------------------------


def control(sidecar: Sidecar, order: str) -> None:
    fiu = ["fiu-ctrl", "-f", str(sidecar.folder / "fiu"), "-c", order]
    told = subprocess.run(
        [*fiu, str(sidecar.pid)], capture_output=True, text=True, check=True
    )
    assert "rror" not in told.stdout + told.stderr


@contextmanager
def failing(sidecar: Sidecar, point: str) -> Iterator[Callable[[], None]]:
    """One system call fails with EIO for a while, always."""
    chance = f"probability=1,failinfo={errno.EIO}"
    control(sidecar, f"enable_random name={point},{chance}")
    try:
        yield lambda: None
    finally:
        control(sidecar, f"disable name={point}")


# --- processes on both --------------------------------------------------------------------


def crowd(prefix: str, size: int) -> list[str]:
    return [f"{prefix}{n}{LONG}" for n in range(size)]


def readiness_until(sidecar: Sidecar, wanted: int) -> list[str]:
    """Waits until `/readyz` answers this; why it is not ready."""
    answer = (0, "")

    def is_so() -> bool:
        nonlocal answer
        answer = sidecar.get("/readyz")
        return answer[0] == wanted

    eventually(is_so, lambda: str(answer))
    why: list[str] = json.loads(answer[1])["why"]
    return why


def is_survived(
    sidecar: Sidecar, trouble: AbstractContextManager[Callable[[], None]]
) -> None:
    """Checks that a trouble is said and counted, loses nothing, and is over by itself.

    The trouble is there again whenever what it gives is called: the first trim, which may
    come only then, halves the reserve where no room is left beside it.
    """
    gateway, watcher = sidecar.gateway("g"), sidecar.watcher()
    early, late = crowd("early", 100), crowd("late", LATE)
    gateway.send("login", early)
    gateway.apply("after", "early", 86_400)
    watcher.take(100)
    began = perf_counter()
    with trouble as again:

        def is_lasting(what: str) -> bool:
            again()
            return sidecar.metric("liveness_write_failures_total", what=what) >= 3

        for number in range(TIMERS):
            gateway.send("after", f"late-{number}", 86_400, PAYLOAD)
        gateway.send("login", late)
        gateway.send("ping", "after all that")
        assert "cannot be written: " in readiness_until(sidecar, 503)[0]
        for what, path, event in (
            ("log", sidecar.database, LOG_FAILS),
            ("timers", sidecar.timers, TIMERS_FAIL),
        ):
            eventually(partial(is_lasting, what))
            line = sidecar.line(event)
            assert line.items() >= {"level": "error", "path": str(path)}.items()
        assert sidecar.get("/healthz")[0] == 200
        pending = sidecar.metric("liveness_log_pending")
        assert pending >= LATE + TIMERS - 1  # a cursor may go alone
        assert sidecar.metric("liveness_log_seq") == 100
        # A refusal needs no disk, and shows that nothing else was sent before it.
        watcher.send("nonsense")
        watcher.refusal()
        assert not watcher.records
    assert readiness_until(sidecar, 200) == []
    # Said once a minute, however often it was tried; and anew after one write that found
    # the room which a trim has made.
    most = 2 + (perf_counter() - began) // REPEAT_LOG_S
    for event in (LOG_FAILS, TIMERS_FAIL):
        assert len([line for line in sidecar.lines if line["event"] == event]) <= most
    assert gateway.expect("pong") == ["after all that"]
    sidecar.line("the log is written again")
    sidecar.line("the timers' table is written again")
    told = watcher.take(LATE)
    assert [record["seq"] for record in told] == [*range(101, 101 + LATE)]
    assert [record["uid"] for record in told] == late
    sidecar.kill()
    is_all_there(sidecar, early + late, timers=TIMERS + 1)


def is_all_there(sidecar: Sidecar, users: list[str], *, timers: int) -> None:
    """Checks that all is on disk after a crash."""
    sidecar.under = []
    sidecar.start()
    log = sidecar.log()
    assert [record.seq for record in log] == [*range(1, len(users) + 1)]
    assert [record.uid for record in log] == users
    assert sidecar.line("ready")["users"] == len(users)
    assert sidecar.timer_rows("select count(*) from timers") == [(timers,)]
    assert sidecar.timer_rows("pragma integrity_check") == [("ok",)]
    assert sidecar.rows("pragma integrity_check") == [("ok",)]


def test_a_full_filesystem_is_said_loses_nothing_and_heals_by_itself(
    small_disk: Path,
) -> None:
    with Sidecar(small_disk) as sidecar:
        sidecar.start()
        is_survived(sidecar, filled(small_disk))


@pytest.mark.parametrize("point", ["posix/io/rw/pwrite", "posix/io/sync/fdatasync"])
def test_a_disk_that_fails_is_said_loses_nothing_and_heals_by_itself(
    make: Start, point: str
) -> None:
    require("fiu-run", "fiu-utils")
    sidecar = make()
    sidecar.under = ["fiu-run", "-x", "-f", str(sidecar.folder / "fiu")]
    is_survived(sidecar.start(), failing(sidecar, point))


# --- the reserve, on a small filesystem ----------------------------------------------------


def ended(table: TimerStore) -> int:
    return sum(it for state, it in table.states().items() if state not in LIVE)


def timers(table: TimerStore, count: int) -> None:
    """One transaction of new timers with payloads, all of which are cancelled at once."""
    query = "select coalesce(max(id), 0) + 1 from timers"
    ((first,),) = disk.rows(table.path, query)
    new = [a_timer(number) for number in range(first, first + count)]
    drops = [CancelTimer("g", it.timer.key, None, it.timer.id + 1, 1) for it in new]
    table.write([*new, *drops])


def a_timer(number: int) -> CreateTimer:
    timer = TimerState(
        number, "g", f"k{number}", None, "pending", 1, 1, 0, None, 1, None, 1, None, 1
    )  # fmt: skip
    return CreateTimer(timer, "x" * 3_000)


@pytest.fixture
def full_table(disk_with_room: Path) -> Iterator[TimerStore]:
    """The timers of a disk that they have filled; the first of them is live."""
    state = disk_with_room / "state"
    with (
        closing(LogStore(state)) as store,
        closing(TimerStore(state, log="a", reserve=store.reserve)) as table,
    ):
        store.reserve.make()
        table.write([a_timer(1)])
        with pytest.raises(sqlite3.OperationalError, match="full"):
            any(map(partial(timers, table), repeat(500)))
        yield table


def test_on_a_full_filesystem_the_reserve_lets_ended_timers_be_deleted(
    disk_with_room: Path, full_table: TimerStore
) -> None:
    with filled(disk_with_room):
        full_table.writer.write_back()
        while full_table.trim(oldest_ms=0, most=100):
            pass
        assert ended(full_table) == 100
        timers(full_table, 100)
        assert reserved(full_table.path.parent) > RESERVE_BYTES / 2


def test_a_disk_without_room_for_the_index_of_a_wal_is_full(
    disk_with_room: Path,
) -> None:
    state = disk_with_room / "state"
    with closing(LogStore(state)), closing(TimerStore(state, log="a")) as table:
        log, index, _ = companions(table.path)
        seqs = count(1)
        # The first part of the index is for 4,062 frames.
        while log.stat().st_size < 4_050 * (24 + PAGE_BYTES):
            table.follow(next(seqs))
        before = index.stat().st_size
        with filled(disk_with_room, but=before - 4_096):
            with pytest.raises(sqlite3.OperationalError) as caught:
                any(map(table.follow, seqs))
            assert is_full(caught.value)
        assert log.stat().st_size > 4_062 * (24 + PAGE_BYTES)


def reserved(state: Path) -> int:
    path = Reserve(state).path
    return path.stat().st_size if path.exists() else 0
