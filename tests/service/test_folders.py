"""A state folder is ours alone, and so is what is in it; nothing planted is followed."""

import os
import socket
import sqlite3
import stat
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from liveness.core.wheel import Snapshot
from liveness.errors import StartError, StateError
from liveness.service import stopfile
from liveness.service.folders import check_own, identities, make_own_folder, open_own
from liveness.service.logbook import file_state
from liveness.service.store import DATABASE, LOCK, Store
from liveness.service.timertable import DATABASE as TIMERS
from liveness.service.timertable import TimerTable

OTHER: Final = 54_321
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files away: run the tests as root"
)
NOBODY: Final = Snapshot(array("q"), array("d"), array("d"), array("d"), array("b"))

Plant = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


# --- the folder -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o2775, 0o707, 0o1777, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StartError, match=r"others than its owner .* chmod go-w it"):
        Store(folder)
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o2755])
def test_one_that_others_may_only_read_is_fine(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    Store(folder).close()


@as_root
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER, -1)
    with pytest.raises(
        StartError, match=f"belongs to user {OTHER}; start as that user"
    ):
        Store(folder)
    assert [*folder.iterdir()] == []


def test_a_folder_that_anybody_may_replace_is_refused(folder: Path) -> None:
    folder.parent.chmod(0o777)
    with pytest.raises(StartError, match=f"as {folder.parent} is open to all"):
        make_own_folder(folder)
    folder.parent.chmod(0o1777)  # as /tmp is
    make_own_folder(folder)
    folder.parent.chmod(0o775)  # as a home may be
    make_own_folder(folder)


def test_a_link_to_the_folder_is_followed_and_both_ways_are_looked_at(
    tmp_path: Path,
) -> None:
    real, ways = tmp_path / "disk" / "state", tmp_path / "ways"
    ways.mkdir()
    (ways / "state").symlink_to(real)
    real.mkdir(mode=0o700, parents=True)
    make_own_folder(ways / "state")
    for open_to_all in (ways, real.parent):
        open_to_all.chmod(0o777)
        with pytest.raises(StartError, match=f"as {open_to_all} is open to all"):
            make_own_folder(ways / "state")
        open_to_all.chmod(0o755)


def test_a_folder_that_is_made_is_closed_to_others(folder: Path) -> None:
    make_own_folder(folder / "deep")
    assert stat.S_IMODE((folder / "deep").stat().st_mode) == 0o700


# --- what is in it --------------------------------------------------------------------


def link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "precious")


def nowhere(path: Path) -> None:
    path.symlink_to(path.parents[1] / "missing")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def sock(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def theirs(path: Path) -> None:
    path.touch(0o600)
    os.chown(path, OTHER, -1)


PLANTS: Final = [
    pytest.param(link, "is a link", id="link"),
    pytest.param(nowhere, "is a link", id="link to nowhere"),
    pytest.param(pipe, "is no regular file", id="pipe"),
    pytest.param(sock, "is no regular file", id="socket"),
    pytest.param(Path.mkdir, "is no regular file", id="folder"),
    pytest.param(theirs, f"belongs to user {OTHER}", id="theirs", marks=as_root),
]


@pytest.mark.parametrize(("plant", "why"), PLANTS)
@pytest.mark.parametrize(
    "name",
    [LOCK, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal"],
)
def test_what_was_planted_for_the_log_is_refused_and_left_alone(
    folder: Path, name: str, plant: Plant, why: str
) -> None:
    refused(folder, name, plant, why, lambda: Store(folder).close())


@pytest.mark.parametrize(("plant", "why"), PLANTS)
@pytest.mark.parametrize("name", [TIMERS, f"{TIMERS}-wal", f"{TIMERS}-shm"])
def test_what_was_planted_for_the_timers_is_refused_and_left_alone(
    folder: Path, name: str, plant: Plant, why: str
) -> None:
    refused(folder, name, plant, why, lambda: TimerTable(folder, log="log").close())


@pytest.mark.parametrize(("plant", "why"), PLANTS[:-1])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_what_only_reads_follows_no_link_and_waits_for_no_pipe(
    folder: Path, suffix: str, plant: Plant, why: str
) -> None:
    folder.mkdir()
    path = folder / f"{DATABASE}{suffix}"
    plant(path)
    with pytest.raises(StateError, match=f"{path} {why}; it was not read"):
        file_state(folder / DATABASE)


def refused(
    folder: Path, name: str, plant: Plant, why: str, start: Callable[[], object]
) -> None:
    folder.mkdir(mode=0o700)
    precious = folder.with_name("precious")
    precious.write_text("precious")
    plant(folder / name)
    before = (folder / name).lstat()
    with pytest.raises(StartError, match=f"{folder / name} {why}; it was left alone"):
        start()
    assert (folder / name).lstat() == before
    assert precious.read_text() == "precious"
    assert not folder.with_name("missing").exists()


def test_a_link_that_is_put_there_behind_the_look_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    precious = folder.with_name("precious")
    precious.write_text("precious")
    monkeypatch.setattr(
        "liveness.service.folders.check_own",
        lambda path: path.symlink_to(precious),
    )
    with pytest.raises(OSError, match="symbolic links"):
        open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)


def test_a_file_of_ours_is_fine_and_so_is_none(folder: Path) -> None:
    check_own(folder / "none")
    folder.mkdir()
    with os.fdopen(open_own(folder / "made", os.O_WRONLY | os.O_CREAT), "w") as made:
        made.write("ours")
    assert stat.S_IMODE((folder / "made").stat().st_mode) == 0o600
    check_own(folder / "made")


def write_clocks(folder: Path) -> None:
    stopfile.write(folder, log="log", seq=7, mono=1.0, wall_ms=1, everyone=NOBODY)


def test_a_link_in_the_place_of_the_clocks_is_not_written_through(folder: Path) -> None:
    folder.mkdir()
    precious = folder.with_name("precious")
    precious.write_text("precious")
    for name in ("stopped.new", "stopped"):
        (folder / name).symlink_to(precious)
    write_clocks(folder)
    assert precious.read_text() == "precious"
    written = (folder / "stopped").lstat()
    assert stat.S_ISREG(written.st_mode)
    assert stat.S_IMODE(written.st_mode) == 0o600
    assert stopfile.stopped_at(folder, log="log", seq=7) == 1


def test_clocks_are_not_read_through_a_link(folder: Path) -> None:
    (folder / "real").mkdir(parents=True)
    write_clocks(folder / "real")
    (folder / "stopped").symlink_to("real/stopped")
    with pytest.raises(StateError, match=r"stopped cannot be read .*symbolic links"):
        stopfile.take(folder, log="log", seq=7, wall_ms=1)
    assert (folder / "real/stopped").exists()


def test_a_pipe_in_the_place_of_the_clocks_holds_up_no_start(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "stopped")
    clocks = stopfile.take(folder, log="log", seq=7, wall_ms=1)
    assert len(clocks) == 0


def test_a_link_in_the_place_of_the_reserve_is_removed_and_not_followed(
    folder: Path,
) -> None:
    folder.mkdir(mode=0o700)
    precious = folder.with_name("precious")
    precious.write_text("precious")
    (folder / "reserve").symlink_to(precious)
    Store(folder).close()
    assert not (folder / "reserve").is_symlink()
    assert precious.read_text() == "precious"


# --- which files are open -------------------------------------------------------------


def test_the_files_that_are_open_are_known(folder: Path) -> None:
    with closing(Store(folder)) as store, closing(TimerTable(folder, log="l")) as table:
        files = store.files | table.files
        assert {path.name for path in files} == {
            LOCK, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", TIMERS,
            f"{TIMERS}-wal", f"{TIMERS}-shm",
        }  # fmt: skip
        assert identities(files) == files
    with closing(Store(folder)) as store:  # after a clean end there is no WAL at first
        assert f"{DATABASE}-wal" in {path.name for path in store.files}


def test_a_database_that_is_gone_is_not_made_by_who_reads_it(folder: Path) -> None:
    with closing(Store(folder)) as store:
        store.path.unlink()
        with pytest.raises(sqlite3.OperationalError):
            store.spool_online(None, None)  # type: ignore[arg-type]  # nothing is written
        assert not store.path.exists()
