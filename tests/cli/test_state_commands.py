"""The commands that read the state directory, on the state of a stopped sidecar."""

import json
import os
import re
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


# --- log and history ------------------------------------------------------------------


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


def test_log_needs_a_span_between_since_and_until(
    state: Path, command: Command
) -> None:
    code, _, told = command("log", "--state", state, "--since=1h", "--until=2h")
    assert code == 2
    assert "--since is not before --until" in told


def test_history_shows_the_newest_records_of_a_user(
    state: Path, command: Command
) -> None:
    code, shown, told = command("history", "ada", "--state", state, "--limit", 1)
    assert code == 0
    assert shown.endswith("offline  ada  g  logout  seq 3\n")
    assert "there may be more than these 1" in told


def test_history_of_an_unknown_user_says_where_the_log_begins(
    state: Path, command: Command
) -> None:
    code, shown, told = command("history", "eve", "--state", state)
    assert (code, shown) == (1, "")
    assert "no record of eve in the log" in told
    assert "which begins at 2023-11-1" in told


def test_history_goes_on_though_the_settings_are_wrong(
    state: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVENESS_SLOTS", "1")
    code, _, told = command("history", "bob", "--state", state)
    assert code == 0
    assert "so devices of users are not looked for" in told


# --- check-state and backup -----------------------------------------------------------


def test_check_state_says_which_parts_are_whole(state: Path, command: Command) -> None:
    code, shown, _ = command("check-state", "--state", state)
    assert code == 0
    assert "damaged" not in shown
    code, shown, _ = command("check-state", "--state", state, "--json")
    assert all(json.loads(line)["whole"] for line in shown.splitlines())


def test_a_damaged_state_is_exit_code_3(state: Path, command: Command) -> None:
    (state / DATABASE).write_bytes(b"cake" * 4_096)
    code, shown, told = command("check-state", "--state", state)
    assert code == 3, told
    assert "damaged: " in shown


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
    ("file", "told"),
    [
        ("state/backup.tar", "is in a state directory, with which it would be lost"),
        ("none/backup.tar", "is not a folder; make it, or name another FILE"),
        ("state", "exists and is not a file; name another FILE"),
        ("there", "already exists; name another FILE, or give --force"),
    ],
)
def test_a_backup_that_would_do_harm_is_refused(
    state: Path, command: Command, file: str, told: str
) -> None:
    (state.parent / "there").touch()
    code, _, line = command("backup", state.parent / file, "--state", state)
    assert code == 1
    assert told in line


def test_a_backup_waits_for_room_on_the_disk(
    state: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liveness.cli.backup.SPARE_BYTES", 2**62)
    code, _, line = command("backup", state.parent / "b", "--state", state)
    assert code == 1
    assert "make room, or name a FILE elsewhere" in line


def test_a_damaged_state_is_not_backed_up(state: Path, command: Command) -> None:
    (state / DATABASE).write_bytes(b"cake" * 4_096)
    code, _, line = command("backup", state.parent / "b", "--state", state)
    assert code == 1
    assert "no backup was made: keep the previous one" in line


# --- compare --------------------------------------------------------------------------


def test_compare_tells_what_only_one_of_both_reported(
    state: Path, command: Command
) -> None:
    theirs = state.parent / "theirs.jsonl"

    def compared(*offlines: tuple[str, int]) -> tuple[int, str, str]:
        lines = [{"uid": uid, "at": AT_MS + 1_000 * at} for uid, at in offlines]
        theirs.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return command("compare", theirs, "--state", state, "--within", 10)

    code, shown, told = compared(("ada", 61), ("bob", 80))
    assert code == 3
    assert re.search(r"^only there  \S+ \S+  bob  line 2  online here$", shown, re.M)
    assert f"comparing with the log in {state}" in told
    assert compared(("ada", 61))[0] == 0


def test_compare_needs_lines_and_records(state: Path, command: Command) -> None:
    empty, none = state.parent / "empty", state.parent / "none"
    empty.touch()
    assert "has no line to compare" in command("compare", empty, "--state", state)[2]
    assert "name a file of lines" in command("compare", none, "--state", state)[2]
