"""The commands that read the state directory, on the state of a stopped sidecar."""

import json
import os
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from liveness.core.records import OnlineRow, Record
from liveness.service.storage.log_store import DATABASE, Batch, LogStore
from tests.cli.conftest import Command
from tests.helpers.record_batches import batch_of

AT_MS = 1_700_000_000_000
RECORDS = [
    Record(1, "online", "ada", "g", 1, None, "login", AT_MS),
    Record(2, "online", "bob", "g", 2, None, "login", AT_MS + 1_000),
    Record(3, "offline", "ada", "g", 1, None, "logout", AT_MS + 60_000),
]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "nice", lambda _: 0)  # as a command would slow the tests
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "state"
    folder.mkdir()
    bob = OnlineRow(2, "bob", AT_MS, None, "g", None)
    with closing(LogStore(folder)) as store:
        store.write(Batch(batch_of(RECORDS), online={2: bob}))
    return folder


def seqs(shown: str) -> list[int]:
    return [json.loads(line)["seq"] for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", [1, 2, 3]),
        ("--kind offline", [3]),
        ("--uid bob --gateway g", [2]),
        ("--since 2023-11-14T22:13:21Z --until 2023-11-14T22:14Z", [2]),
    ],
)
def test_log_shows_the_records_that_match(
    state: Path, command: Command, flags: str, found: list[int]
) -> None:
    code, shown, told = command("log", "--state", state, "--json", *flags.split())
    assert (code, seqs(shown), told) == (0, found, "")


def test_history_shows_the_newest_records_of_a_user(
    state: Path, command: Command
) -> None:
    code, shown, told = command("history", "ada", "--state", state, "--limit", 1)
    assert code == 0
    assert shown.endswith("offline  ada  g  logout  seq 3\n")
    assert "there may be more than these 1" in told


def test_history_goes_on_though_the_settings_are_wrong(
    state: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVENESS_SLOTS", "1")
    code, _, told = command("history", "bob", "--state", state)
    assert code == 0
    assert "so devices of users are not looked for" in told


def test_check_state_says_which_parts_are_whole(state: Path, command: Command) -> None:
    code, shown, _ = command("check-state", "--state", state)
    assert code == 0
    assert "damaged" not in shown
    code, shown, _ = command("check-state", "--state", state, "--json")
    assert all(json.loads(line)["whole"] for line in shown.splitlines())


def test_a_damaged_state_is_exit_code_3_and_is_not_backed_up(
    state: Path, command: Command
) -> None:
    (state / DATABASE).write_bytes(b"cake" * 4_096)
    code, shown, told = command("check-state", "--state", state)
    assert code == 3, told
    assert "damaged: " in shown
    code, _, told = command("backup", state.parent / "b", "--state", state)
    assert code == 1
    assert "no backup was made: keep the previous one" in told


def test_a_backup_has_the_whole_state(state: Path, command: Command) -> None:
    file = state.parent / "state.tar"
    code, shown, _ = command("backup", file, "--state", state)
    assert code == 0
    assert shown.startswith(f"backed up {state} to {file} (")
    assert shown.endswith("records up to 3\n")
    with tarfile.open(file) as archive:
        assert DATABASE in archive.getnames()
    assert [*state.parent.glob(".*")] == [], "nothing is left beside it"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("log --since=1h --until=2h", 2, "--since is not before --until"),
        ("history eve", 1, "no record of eve in the log"),
        ("backup {0}/state/b.tar", 1, "is in a state directory, with which it would"),
        ("backup {0}/none/b.tar", 1, "is not a folder; make it, or name another FILE"),
        ("backup {0}/state", 1, "exists and is not a file; name another FILE"),
        ("backup {0}/empty", 1, "already exists; name another FILE, or give --force"),
        ("compare {0}/empty", 3, "has no line to compare"),
        ("compare {0}/none", 1, "name a file of lines"),
    ],
)
def test_what_cannot_be_done_is_refused(
    state: Path, command: Command, line: str, code: int, told: str
) -> None:
    (state.parent / "empty").touch()
    found, _, said = command(*line.format(state.parent).split(), "--state", state)
    assert found == code
    assert told in said
