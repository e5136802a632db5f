"""A log keeps its id where it continues what was shown, and takes another one elsewhere."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from liveness.service.storage.high_water_mark import mark_of
from liveness.service.storage.log_store import DATABASE, LogStore
from tests.helpers import disk
from tests.helpers.needs import as_root
from tests.service.storage.journals import fill
from tests.service.storage.test_private_folders import OTHER

BOOT: Final = "0f6e1a52-7c3b-4d24-9a0e-000000000000"
MAY_LACK: Final = "the log may lack records that were shown"
LACKS: Final = "the log lacks records that were shown"


class Host:
    """A host with one sidecar's state, and a runtime folder beside it."""

    def __init__(self, folder: Path) -> None:
        self.state, self.runtime = folder / "state", folder / "run"
        self.runtime.mkdir()

    @contextmanager
    def start(self, state: Path | None = None) -> Iterator[LogStore]:
        with closing(LogStore(state or self.state, self.runtime)) as store:
            yield store

    def run(self, *counts: int) -> str:
        """Start, write commits of these numbers of records, stop; return the log's id."""
        with self.start() as store:
            fill(store, *counts)
            return store.log

    def killed_after(self, *counts: int) -> str:
        """The same, but killed, so that its WAL is left as it is."""
        left = self.state.with_name("left")
        with self.start() as store:
            fill(store, *counts)
            shutil.copytree(self.state, left)
        self.put_back(left)
        return store.log

    def copied(self) -> Path:
        return Path(shutil.copytree(self.state, self.state.with_name("copy")))

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.state)
        copy.rename(self.state)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# --- it goes on -----------------------------------------------------------------------


@pytest.mark.parametrize("run", [Host.run, Host.killed_after])
def test_a_log_that_was_stopped_or_killed_keeps_its_id(
    host: Host, run: Callable[..., str]
) -> None:
    log = run(host, 3, 1)
    assert [run(host), run(host, 2), host.run()] == [log] * 3


def test_records_that_were_not_shown_yet_keep_the_id(host: Host) -> None:
    """The sidecar was killed behind the commit, and before it moved the mark."""
    with host.start() as store:
        fill(store, 3)
        before = mark_of(host.runtime, store.log).read_bytes()
        fill(store, 2)
    mark_of(host.runtime, store.log).write_bytes(before)
    with host.start() as again:
        assert (again.log, again.bounds()) == (store.log, (1, 6))


# --- it has lost records --------------------------------------------------------------


def damage_the_last_frame(host: Host) -> None:
    path = host.state / f"{DATABASE}-wal"
    wal = bytearray(path.read_bytes())
    wal[-1] ^= 1
    path.write_bytes(wal)


def test_a_log_whose_last_commit_is_damaged_begins_another_one(
    host: Host, said: list[Any]
) -> None:
    was = host.killed_after(3, 2)
    damage_the_last_frame(host)
    with host.start() as store:
        assert store.bounds() == (1, 4)
        assert store.log != was
        assert store.ancestors == {was: 3}
        fill(store, 4)
    (line,) = [it for it in said if LACKS in it["event"]]
    found = [line[key] for key in ("log_level", "lost", "log", "was", "seq")]
    assert found == ["warning", 2, store.log, was, 3]
    assert host.run() == store.log  # only the start that finds it takes another id


def test_of_two_copies_one_continues_the_log(host: Host, said: list[Any]) -> None:
    was = host.run(3)
    copy = host.copied()
    with host.start() as store, host.start(copy) as other:
        assert store.log == was
        assert other.log != was
        assert other.ancestors == {was: 3}
        assert "another sidecar writes a copy of this log" in {
            line.get("error") for line in said
        }
        fill(store, 2)
    with host.start() as store:
        assert store.log == was


# --- nobody knows whether it has ------------------------------------------------------


def other_boot(mark: Path) -> None:
    mark.write_bytes(BOOT.encode() + mark.read_bytes()[len(BOOT) :])


def cut(mark: Path) -> None:
    os.truncate(mark, 40)


@pytest.mark.parametrize("happens", [other_boot, Path.unlink, cut])
def test_after_a_start_of_the_host_a_log_has_another_id_and_all_records(
    host: Host, said: list[Any], happens: Callable[[Path], object]
) -> None:
    was = host.run(3)
    happens(mark_of(host.runtime, was))
    with host.start() as store:
        assert store.log != was
        assert store.ancestors == {was: 3}
        assert store.bounds() == (1, 4)
    (line,) = [it for it in said if MAY_LACK in it["event"]]
    assert line["log_level"] == "info"
    assert host.run() == store.log
    # No start leaves a file that none removes.
    assert [*host.runtime.iterdir()] == [mark_of(host.runtime, store.log)]


# --- the file -------------------------------------------------------------------------


def link(mark: Path, precious: Path) -> None:
    mark.symlink_to(precious)


def pipe(mark: Path, _precious: Path) -> None:
    os.mkfifo(mark)


def of_another_user(mark: Path, precious: Path) -> None:
    mark.write_bytes(precious.read_bytes())
    os.chown(mark, OTHER, -1)


@pytest.mark.parametrize(
    "plant", [link, pipe, pytest.param(of_another_user, marks=as_root)]
)
def test_what_another_user_planted_vouches_for_nothing_and_is_not_written(
    host: Host, tmp_path: Path, said: list[Any], plant: Callable[[Path, Path], object]
) -> None:
    was = host.run(3)
    mark = mark_of(host.runtime, was)
    precious = mark.rename(tmp_path / "precious")
    before = precious.read_bytes()
    plant(mark, precious)
    with host.start() as store:
        fill(store, 2)
        assert store.log != was
    assert precious.read_bytes() == before
    assert any("it was left alone" in str(it.get("error")) for it in said)


def test_without_a_runtime_folder_each_start_has_another_id(
    host: Host, said: list[Any]
) -> None:
    host.runtime.rmdir()
    logs = [host.run(1), host.run(1), host.run(1)]
    assert len({*logs}) == 3
    with host.start() as store:
        assert store.ancestors == dict(zip(logs, (1, 2, 3), strict=True))
    assert any("No such file" in line.get("error", "") for line in said)


def test_a_mark_that_cannot_be_written_is_removed(host: Host, said: list[Any]) -> None:
    was = host.run(1)
    with host.start() as store:
        assert store._mark is not None
        assert store._mark._file is not None
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, store._mark._file)
        os.close(full)
        fill(store, 1, 1)
    assert [*host.runtime.iterdir()] == []
    assert len([it for it in said if "No space left" in it.get("error", "")]) == 1
    with host.start() as store:
        assert store.ancestors == {was: 3}


def test_a_restored_backup_takes_one_id_and_leaves_the_mark_of_the_original(
    host: Host,
) -> None:
    was = host.run(3)
    copy = host.copied()
    with closing(LogStore(copy)) as store:
        disk.change(store.path, "insert into meta values ('copied', 1)")
    with host.start(copy) as store:
        assert store.ancestors == {was: 3}
        own = store.log
    with host.start(copy) as store:
        assert store.log == own
    assert host.run() == was
