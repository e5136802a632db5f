"""`explain`, `history`, `log`: asked of a sidecar that runs, was stopped, was killed."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from operator import lt
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

import pytest

from liveness.cli.main import main
from liveness.config.sources import FILE_VARIABLE
from tests.helpers.needs import as_root
from tests.helpers.tree import ROOT
from tests.system.conftest import Start
from tests.system.os_users import SOMEBODY
from tests.system.sidecar import Sidecar, eventually

Run = Callable[..., tuple[int, str, str]]
CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"  # midnight may lie between


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(sidecar: Sidecar, what: str, *arguments: str) -> tuple[int, str, str]:
        place = f"--state={sidecar.state}"
        if what == "explain":
            place = f"--socket={sidecar.socket}"
        code = main([what, place, *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """What `acted` leaves, for tests that only read it."""
    with Sidecar(tmp_path_factory.mktemp("s"), 1, flush_s=0.1) as sidecar:
        yield acted(sidecar.start())


def acted(sidecar: Sidecar) -> Sidecar:
    """eve fell silent, ada logged out, bob moved and is online, so is an integer."""
    one, two = sidecar.gateway("gw-1"), sidecar.gateway("gw-2")
    whole_h = {"timeout": 3_600}
    one.send("login", ["eve", "bob", "ada"], {"conn": [1, 2, 3], **whole_h})
    one.apply("logout", "ada", {"conn": 3})
    two.send("login", ["bob", 7], {"conn": [1, 2], **whole_h})
    two.apply("after", "order:17", 0.1, {"payload": "=1+1\x1b[31m", "ext": "eve"})
    eventually(lambda: sidecar.metric("liveness_log_seq") == 7)
    # Only behind all else, however long that took: now the sidecar's timeout holds.
    one.send("login", "eve", {"conn": 1})
    eventually(lambda: sidecar.metric("liveness_log_seq") == 8)
    return sidecar


def test_users_are_explained_by_the_sidecar(start: Start, run: Run) -> None:
    sidecar = acted(start(1, flush_s=0.1))
    code, sentence, said = run(sidecar, "explain", "eve")
    assert (code, said) == (0, "")
    found = json.loads(run(sidecar, "explain", "eve", "--json")[1])
    silence = found["records"][0]["silence"]
    assert silence >= 1
    assert re.fullmatch(
        rf"offline at {CLOCK} after {silence:.1f} s of silence; last heard: login at "
        rf"{CLOCK} through gw-1\n",
        sentence,
    )
    assert found["told"] == sentence.strip()
    for door in ("http", "admin"):
        response, body = sidecar.ask(door, "GET", "/v1/users/eve")
        assert (response.status, json.loads(body)) == (200, found)
    assert re.fullmatch(
        rf"online through gw-2 \(connection 1\); last heard: login at {CLOCK}, \S+ s ago; "
        rf"offline in 59 min \d+ s unless it is heard; connected {CLOCK}\n",
        run(sidecar, "explain", "bob")[1],
    )
    assert json.loads(run(sidecar, "explain", "int:7", "--json")[1])["uid"] == "7"
    nobody = ("explain", "8"), ("explain", "8", "--json")
    assert [run(sidecar, *words)[0] for words in nobody] == [1, 1]
    assert "never heard of" in run(sidecar, *nobody[0])[1]
    sidecar.kill()
    code, shown, said = run(sidecar, "explain", "eve")
    assert (code, shown) == (1, "")
    assert said.startswith(f"liveness: no sidecar at {sidecar.socket}: start")
    sidecar.start()
    # Its gateway is not there, and so has said nothing of bob.
    shown = run(sidecar, "explain", "bob")[1]
    assert "; not heard since the sidecar restarted; " in shown


def test_the_history_of_a_user_is_its_records_the_newest_last(
    scene: Sidecar, run: Run
) -> None:
    def kinds(*arguments: str) -> list[str]:
        code, shown, _ = run(scene, "history", *arguments, "--json")
        assert code == 0
        return [json.loads(line)["kind"] for line in shown.splitlines()]

    assert kinds("bob") == ["online", "moved"]
    assert kinds("eve", "--limit", "1") == ["offline"]
    said = run(scene, "history", "eve", "--limit=1")[2]
    assert "see them with a larger --limit" in said
    code, shown, said = run(scene, "history", "ada")
    assert (code, said) == (0, "")
    assert re.fullmatch(r".*  online   ada .*\n.*  offline  ada .*\n", shown)


def test_the_log_is_shown_by_kind_gateway_user_and_time(
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


def test_the_log_is_read_in_order_while_it_is_written(start: Start, run: Run) -> None:
    sidecar = start()
    gateway = sidecar.gateway("gw-1")
    is_over = threading.Event()

    def flood() -> None:
        while not is_over.is_set():
            gateway.send("login", ["eve", *range(50)])
            gateway.apply("logout", ["eve", *range(50)])

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        newest = 1_000
        for _ in range(5):
            # It goes on, however slow the disk is at the moment.
            sidecar.metric_until(partial(lt, newest), "liveness_log_seq")
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


# --- permission to read -----------------------------------------------------------------

# Enters no folder above those it reads: they may be private.
_AS_SOMEBODY = """
import os, sys
import liveness.cli.history
from liveness.cli.main import main
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
sys.exit(main(sys.argv[2:]))
"""


def history_as_somebody(state: Path) -> subprocess.CompletedProcess[str]:
    """bob's history, read by a user without permission to write the files."""
    arguments = [str(SOMEBODY), "history", "bob", f"--state={state}"]
    chosen = {"HOME": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
    with NamedTemporaryFile() as settings:  # the clone may be in a private folder
        Path(settings.name).chmod(0o644)
        return subprocess.run(
            [sys.executable, "-c", _AS_SOMEBODY, *arguments],
            cwd=ROOT,
            env=os.environ | chosen | {FILE_VARIABLE: settings.name},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.name: (path.stat().st_uid, path.read_bytes())
        for path in folder.iterdir()
        if not path.name.endswith("-shm")
    }


@as_root
def test_a_user_who_may_only_read_reads_any_sidecars_log_and_leaves_nothing(
    run: Run,
) -> None:
    # Not below pytest's own folder, which nobody else may look into.
    with (
        TemporaryDirectory() as folder,
        Sidecar(Path(folder), 1, flush_s=0.1) as sidecar,
    ):
        wanted = run(acted(sidecar.start()), "history", "bob")[1]
        done = history_as_somebody(sidecar.state)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"liveness: {sidecar.database} cannot be read: Permission denied; run this as "
            "the user of the sidecar, or name its state directory with --state\n"
        )
        Path(folder).chmod(0o755)

        def read() -> subprocess.CompletedProcess[str]:
            sidecar.state.chmod(0o755)
            for path in sidecar.state.iterdir():
                path.chmod(0o644)
            before = files(sidecar.state)
            done = history_as_somebody(sidecar.state)
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
        assert "only a user that may write to" in done.stderr
        sidecar.start()  # as what was read is as it was
