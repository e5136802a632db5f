"""`explain`, `history`, `log`: asked of a sidecar that runs, was stopped, was killed."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from liveness.cli import main
from tests.e2e.conftest import Start
from tests.e2e.persons import SOMEBODY, Person, as_root, runs_as
from tests.e2e.sidecar import ROOT, Sidecar, eventually

Run = Callable[..., tuple[int, str, str]]
CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"  # midnight may lie between


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(sidecar: Sidecar, what: str, *arguments: str) -> tuple[int, str, str]:
        place = [f"--state={sidecar.state}"]
        if what == "explain":
            place.append(f"--socket={sidecar.socket}")
        code = main([what, *place, *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def scene(start: Start) -> Sidecar:
    """eve fell silent, ada logged out, bob moved and is online, so is an integer."""
    return acted(start(1, flush_s=0.1))


def acted(sidecar: Sidecar) -> Sidecar:
    one, two = sidecar.gateway("gw-1"), sidecar.gateway("gw-2")
    whole_h = {"timeout": 3_600}
    one.send("login", ["eve", "bob", "ada"], {"conn": [1, 2, 3], **whole_h})
    one.send("logout", "ada", {"conn": 3})
    one.settle()
    two.send("login", ["bob", 7], {"conn": [1, 2], **whole_h})
    two.send("after", "order:17", 0.1, {"payload": "=1+1\x1b[31m", "ext": "eve"})
    two.settle()
    eventually(lambda: sidecar.metric("liveness_log_seq") == 7)
    # Not before all else is told, however long that took: now the sidecar's timeout holds.
    one.send("login", "eve", {"conn": 1})
    eventually(lambda: sidecar.metric("liveness_log_seq") == 8)
    return sidecar


def test_an_offline_user_is_explained_alike_with_a_sidecar_and_without(
    scene: Sidecar, run: Run
) -> None:
    code, sentence, told = run(scene, "explain", "eve")
    assert (code, told) == (0, "")
    found = json.loads(run(scene, "explain", "eve", "--json")[1])
    silence = found["records"][0]["silence"]
    assert silence >= 1
    assert re.fullmatch(
        rf"offline at {CLOCK} after {silence:.1f} s of silence; last heard: login at "
        rf"{CLOCK} through gw-1; logged in {CLOCK}\n",
        sentence,
    )
    assert found["told"] == sentence.strip()
    for door in ("http", "admin"):
        response, body = scene.ask(door, "GET", "/v1/users/eve")
        assert (response.status, json.loads(body)) == (200, found)
    for end in (scene.stop, scene.kill):
        end()
        assert run(scene, "explain", "eve")[:2] == (0, sentence)
        code, shown, told = run(scene, "explain", "eve", "--json")
        from_log = json.loads(shown)
        ends = from_log.pop("log_ends")
        assert (ends["seq"], from_log) == (8, found)
        no_sidecar, source = told.splitlines()
        assert no_sidecar.startswith(f"liveness: no sidecar at {scene.socket}: start")
        assert re.fullmatch(
            rf"liveness: this is from the log in {scene.state}, which ends at .* \(seq 8\)",
            source,
        )
        if end == scene.stop:
            scene.start()


def test_a_user_who_is_online_is_explained_as_far_as_is_known(
    scene: Sidecar, run: Run
) -> None:
    moved = rf"moved from gw-1 at {CLOCK}, by a login through gw-2\n"
    assert re.fullmatch(
        rf"online through gw-2 \(connection 1\); last heard: login at {CLOCK}, \S+ s ago; "
        rf"offline in 59 min \d+ s unless it is heard; {moved}",
        run(scene, "explain", "bob")[1],
    )
    assert json.loads(run(scene, "explain", "int:7", "--json")[1])["uid"] == 7
    assert "never heard of" in run(scene, "explain", "7")[1]
    scene.kill()
    code, sentence, _ = run(scene, "explain", "bob")
    assert code == 0
    assert re.fullmatch(f"online through gw-2 when the log ended; {moved}", sentence)
    # Nobody was heard since; and the gateway is not there.
    scene.start()
    sentence = run(scene, "explain", "bob")[1]
    assert "; not heard since the sidecar was started again; " in sentence


def test_the_history_of_a_user_is_its_records_the_newest_last(
    scene: Sidecar, run: Run
) -> None:
    def kinds(*arguments: str) -> list[str]:
        code, shown, _ = run(scene, "history", *arguments, "--json")
        assert code == 0
        return [json.loads(line)["kind"] for line in shown.splitlines()]

    assert kinds("bob") == ["online", "moved"]
    assert kinds("eve", "--limit", "1") == ["offline"]
    assert (
        "see them with a larger --limit" in run(scene, "history", "eve", "--limit=1")[2]
    )
    code, shown, told = run(scene, "history", "ada")
    assert (code, told) == (0, "")
    assert re.fullmatch(r".*  online   ada .*\n.*  offline  ada .*\n", shown)
    scene.kill()
    assert run(scene, "history", "ada")[1] == shown
    code, shown, told = run(scene, "history", "7")
    assert (code, shown) == (1, "")
    assert told.startswith(
        f"liveness: no record of 7 in the log of {scene.state}, which"
    )


def test_the_log_is_shown_by_kind_gateway_user_and_time_in_three_forms(
    scene: Sidecar, run: Run
) -> None:
    def seqs(*arguments: str) -> list[int]:
        code, shown, _ = run(scene, "log", *arguments, "--json")
        assert code == 0
        return [json.loads(line)["seq"] for line in shown.splitlines()]

    assert seqs() == [*range(1, 9)]
    assert seqs("--kind", "offline", "--kind", "moved") == [4, 5, 8]
    assert seqs("--gateway", "gw-1") == [1, 2, 3, 4, 5, 8]  # and from there
    assert seqs("--uid", "int:7") == [6]
    assert seqs("--since", "-15min", "--until", "2999-01-01T00:00Z") == [*range(1, 9)]
    assert seqs("--since", "2999-01-01") == seqs("--until", "1h") == []
    assert seqs("--kind", "timer", "--uid", "eve") == []
    shown = run(scene, "log")[1]
    assert len(shown.splitlines()) == 8
    assert "\x1b" not in shown
    rows = [*csv.DictReader(io.StringIO(run(scene, "log", "--csv")[1]))]
    assert [int(row["seq"]) for row in rows] == [*range(1, 9)]
    assert [row["uid"] for row in rows] == [
        *["eve", "bob", "ada", "ada", "bob", "int:7"],
        "",
        "eve",
    ]
    (timer,) = (row for row in rows if row["kind"] == "timer")
    assert timer["payload"] == r"'=1+1\x1b[31m"
    (moved,) = (row for row in rows if row["kind"] == "moved")
    assert (moved["from"], moved["from_conn"], moved["silence"]) == ("gw-1", "2", "")
    keys = {key for record in scene_records(scene) for key in record}
    assert {*rows[0]} == keys | {"restored"}  # which none of these has


def scene_records(sidecar: Sidecar) -> list[dict[str, Any]]:
    watcher = sidecar.watcher(after=0, kinds=["online", "offline", "moved", "timer"])
    return watcher.take(8)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("log --since yesterday", "'yesterday' is no time: write 2026-11-21T14:03, "),
        ("log --since 25:00", "'25:00' is no time"),
        ("log --since 999999999d", "'999999999d' is no time"),
        ("log --since 5min --until 10min", "--since is not before --until"),
        ("log --json --csv", "--json and --csv are two forms: choose one"),
        ("log --uid a\nb", "is no uid"),
        ("history", "parameter UID requires an argument"),
        ("history a --limit 0", "'0' is not 1 to 100000"),
        ("explain \udcff", "is no uid: a string of 1 to 255 bytes of UTF-8"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_2(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split(" ")) == 2
    shown, line = capsys.readouterr()
    assert shown == ""
    assert told in line
    assert re.fullmatch(r"liveness: .*; see `liveness \w+ --help`\n", line)


def test_without_a_sidecar_and_without_a_log_both_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [f"--socket={tmp_path}/g.sock", f"--state={tmp_path}/state"]
    assert main(["explain", "eve", *places]) == 1
    shown, line = capsys.readouterr()
    assert (shown, line.count("\n")) == ("", 1)
    assert f"no sidecar at {tmp_path}/g.sock: " in line
    assert f"; nor can the log tell: there is no log in {tmp_path}/state: " in line
    assert [*tmp_path.iterdir()] == []


def has_gone_on(sidecar: Sidecar, seq: int) -> bool:
    return sidecar.metric("liveness_log_seq") > seq


def test_the_log_is_read_in_order_while_it_is_written(start: Start, run: Run) -> None:
    sidecar = start()
    gateway = sidecar.gateway("gw-1")
    is_over = threading.Event()

    def flood() -> None:
        while not is_over.is_set():
            gateway.send("login", ["eve", *range(50)])
            gateway.send("logout", ["eve", *range(50)])
            gateway.settle()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        eventually(lambda: sidecar.metric("liveness_log_seq") > 1_000)
        newest = 0
        for _ in range(5):
            # It goes on, however slow the disk is at the moment.
            eventually(partial(has_gone_on, sidecar, newest))
            shown = run(sidecar, "log", "--json")[1]
            seqs = [json.loads(line)["seq"] for line in shown.splitlines()]
            assert seqs == [*range(1, len(seqs) + 1)]
            assert len(seqs) > newest
            newest = len(seqs)
            assert run(sidecar, "explain", "eve")[0] == 0
    finally:
        is_over.set()
        thread.join()
    assert sidecar.metric("liveness_write_failures_total", what="log") == 0


# --- who may read, and who may not ------------------------------------------------------


def as_person(person: Person, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of somebody's, who may write nothing of what is read."""
    return subprocess.run(
        [*runs_as(person), sys.executable, "-m", "liveness", *arguments],
        cwd=ROOT,
        env={"HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.name: (path.stat().st_uid, path.read_bytes())
        for path in folder.iterdir()
        if not path.name.endswith("-shm")
    }


@as_root
def test_who_may_only_read_reads_it_of_any_sidecar_and_leaves_nothing(
    run: Run,
) -> None:
    somebody = Person(SOMEBODY, SOMEBODY)
    # Not below pytest's own folder, which nobody else may look into.
    with (
        TemporaryDirectory() as folder,
        Sidecar(Path(folder), 1, flush_s=0.1) as sidecar,
    ):
        Path(folder).chmod(0o755)
        wanted = run(acted(sidecar.start()), "history", "bob")[1]

        def read() -> subprocess.CompletedProcess[str]:
            sidecar.state.chmod(0o755)
            for path in sidecar.state.iterdir():
                path.chmod(0o644)
            before = files(sidecar.state)
            done = as_person(somebody, "history", "bob", f"--state={sidecar.state}")
            after = files(sidecar.state)
            assert after == before or is_running
            assert after.keys() == before.keys()
            return done

        is_running = True
        assert (read().stdout, read().stderr) == (wanted, "")
        is_running = False
        sidecar.stop()
        assert (read().stdout, read().stderr) == (wanted, "")
        sidecar.start()
        sidecar.kill()
        assert (read().stdout, read().stderr) == (wanted, "")
        sidecar.database.with_name("liveness.db-shm").unlink()
        done = read()
        assert (done.returncode, done.stdout) == (1, "")
        assert "only who may write to" in done.stderr
        sidecar.start()  # as what was read is as it was


_AS_SOMEBODY = """
import os, sys
import liveness.commands.log
from liveness.cli import main
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
sys.exit(main(sys.argv[2:]))
"""


@as_root
def test_who_may_not_read_is_told_whom_to_be(scene: Sidecar) -> None:
    arguments = ["history", "bob", f"--state={scene.state}"]
    done = subprocess.run(
        [sys.executable, "-c", _AS_SOMEBODY, str(SOMEBODY), *arguments],
        cwd=ROOT,
        env=os.environ | {"HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"liveness: not allowed to read {scene.database}: be the user that the sidecar "
        "runs as\n"
    )
