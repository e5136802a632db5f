"""Only the sidecar's user can write to a state folder; planted files are not followed."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

import pytest

from liveness.errors import StartError, StateError
from liveness.service.storage import private_folders
from liveness.service.storage.database import unchanged
from liveness.service.storage.log_store import DATABASE, LogStore
from liveness.service.storage.online_list import write_frames
from liveness.service.storage.private_folders import (
    LOCK,
    identity,
    make_own_folder,
    open_own,
)
from liveness.service.timers.timer_store import DATABASE as TIMERS
from liveness.service.timers.timer_store import TimerStore
from tests.helpers.needs import as_root

OTHER: Final = 54_321

Plant = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A file that nothing may write to."""
    path = tmp_path / "precious"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


# --- the folder -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o2775, 0o707, 0o1777, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StartError, match=r"other than its owner .* chmod go-w it"):
        LogStore(folder)
    assert [*folder.iterdir()] == []


@as_root
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER, -1)
    with pytest.raises(
        StartError, match=f"belongs to user {OTHER}; start as that user"
    ):
        LogStore(folder)
    assert [*folder.iterdir()] == []


def test_a_folder_that_anybody_may_replace_is_refused(folder: Path) -> None:
    folder.parent.chmod(0o777)
    with pytest.raises(StartError, match=f"as all may write to {folder.parent};"):
        make_own_folder(folder)
    folder.parent.chmod(0o1777)  # as /tmp is
    make_own_folder(folder)
    folder.parent.chmod(0o775)  # as a home may be
    make_own_folder(folder)


def test_a_link_to_the_folder_is_followed_and_checked(tmp_path: Path) -> None:
    real, ways = tmp_path / "disk" / "state", tmp_path / "ways"
    ways.mkdir()
    (ways / "state").symlink_to(real)
    real.mkdir(mode=0o700, parents=True)
    make_own_folder(ways / "state")
    for open_to_all in (ways, real.parent):
        open_to_all.chmod(0o777)
        with pytest.raises(StartError, match=f"as all may write to {open_to_all};"):
            make_own_folder(ways / "state")
        open_to_all.chmod(0o755)


# --- one owner ------------------------------------------------------------------------


IN_USE: Final = "in use by another sidecar; stop that one"


def test_a_second_owner_is_refused_and_may_follow_the_first(folder: Path) -> None:
    with closing(LogStore(folder)), pytest.raises(StartError, match=IN_USE):
        LogStore(folder)
    LogStore(folder).close()


def test_a_second_owner_is_refused_without_the_lock_file(folder: Path) -> None:
    with closing(LogStore(folder)):
        for _ in range(2):
            (folder / LOCK).unlink(missing_ok=True)
            with pytest.raises(StartError, match=IN_USE):
                LogStore(folder)
    LogStore(folder).close()


def test_a_second_owner_of_files_that_were_moved_is_refused(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    after.mkdir()
    with closing(LogStore(before)):
        for path in before.iterdir():
            path.rename(after / path.name)
        with pytest.raises(StartError, match=IN_USE):
            LogStore(after)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"file/state: it is not a folder; make it"):
        LogStore(tmp_path / "file" / "state")


# --- files in the folder --------------------------------------------------------------


def link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "precious")


def nowhere(path: Path) -> None:
    path.symlink_to(path.parents[1] / "missing")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def theirs(path: Path) -> None:
    path.touch(0o600)
    os.chown(path, OTHER, -1)


PLANTS: Final = [
    pytest.param(link, "is a link", id="link"),
    pytest.param(nowhere, "is a link", id="link to nowhere"),
    pytest.param(pipe, "is not a regular file", id="pipe"),
    pytest.param(Path.mkdir, "is not a regular file", id="folder"),
    pytest.param(theirs, f"belongs to user {OTHER}", id="theirs", marks=as_root),
]


@pytest.mark.parametrize(("plant", "why"), PLANTS)
@pytest.mark.parametrize(
    "name",
    [
        LOCK,
        *(f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")),
        *(f"{TIMERS}{suffix}" for suffix in ("", "-wal", "-shm")),
    ],
)
def test_a_planted_file_is_refused_and_left_alone(
    made: Path, precious: Path, name: str, plant: Plant, why: str
) -> None:
    plant(made / name)
    # All but the time of the last read.
    state = attrgetter("st_mode", "st_ino", "st_uid", "st_size", "st_ctime_ns")
    before = state((made / name).lstat())
    start = partial(TimerStore, log="log") if name.startswith(TIMERS) else LogStore
    with pytest.raises(StartError, match=f"{made / name} {why}; it was left alone"):
        start(made)
    assert state((made / name).lstat()) == before
    assert not made.with_name("missing").exists()


@pytest.mark.parametrize(("plant", "why"), PLANTS[:-1])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_a_reader_follows_no_link_and_waits_for_no_pipe(
    made: Path, suffix: str, plant: Plant, why: str
) -> None:
    path = made / f"{DATABASE}{suffix}"
    plant(path)
    with (
        pytest.raises(StateError, match=f"{path} {why}; it was not read"),
        unchanged(made / DATABASE),
    ):
        pass


def test_a_link_made_after_the_check_is_not_followed(
    made: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        private_folders, "check_own", lambda path: path.symlink_to(precious)
    )
    with pytest.raises(OSError, match="symbolic links"):
        open_own(made / LOCK, os.O_RDWR | os.O_CREAT)


# --- which files are open -------------------------------------------------------------


def test_open_files_are_known_and_closed_to_others(folder: Path) -> None:
    folder = folder / "deep"
    with (
        closing(LogStore(folder)) as store,
        closing(TimerStore(folder, log="l")) as table,
    ):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        files = store.files | table.files
        assert {path.name for path in files} == {
            LOCK, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", TIMERS,
            f"{TIMERS}-wal", f"{TIMERS}-shm",
        }  # fmt: skip
        assert {path: identity(path) for path in files} == files
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
        assert modes == dict.fromkeys(modes, 0o600)
    with closing(
        LogStore(folder)
    ) as store:  # after a clean end there is no WAL at first
        assert f"{DATABASE}-wal" in {path.name for path in store.files}


def test_a_reader_does_not_make_a_missing_database(folder: Path) -> None:
    with closing(LogStore(folder)) as store:
        store.path.unlink()
        with pytest.raises(sqlite3.OperationalError):
            write_frames(store, None, bytes)
        assert not store.path.exists()


def test_a_link_to_the_reserve_is_removed(made: Path, precious: Path) -> None:
    (made / "reserve").symlink_to(precious)
    LogStore(made).close()
    assert not (made / "reserve").is_symlink()
