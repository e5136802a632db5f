"""`liveness backup` of a sidecar that is busy, and what is restored from it."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.helpers import disk
from tests.helpers.needs import needs
from tests.helpers.processes import ran
from tests.helpers.tree import ROOT
from tests.helpers.wire import packed
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

BACKUPS: Final = 3
USERS: Final = 50  # that stay online


def command(state: Path, file: Path) -> list[str]:
    return [
        sys.executable, "-m", "liveness", "backup", "--state", str(state), str(file),
    ]  # fmt: skip


def backed_up(state: Path, file: Path) -> str:
    done = ran(*command(state, file), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def unpacked(file: Path, folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    subprocess.run(["tar", "-xf", file, "-C", folder], check=True)
    return folder


@contextmanager
def busy(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway whose users come and go, and whose timers fire and are done."""
    gateway = sidecar.gateway("gw", kinds=[])
    gateway.send(
        "login", [f"user-{n}" for n in range(USERS)], {"conn": [*range(USERS)]}
    )
    is_over = threading.Event()

    def work() -> None:
        for number in count(USERS):
            if is_over.is_set():
                return
            uids = [f"guest-{number}-{one}" for one in range(20)]
            gateway.send_bytes(packed(["login", uids], ["logout", uids[:19]]))
            for one in range(20):
                gateway.send("after", f"key-{number}-{one}", 0.1 if one else 3_600)
            gateway.sync()
            for run in gateway.take(0):
                gateway.send("done", run["key"], None, {"seq": run["seq"]})
                gateway.send("ack", run["seq"])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: ("done",) in sidecar.timer_rows("select state from timers"))
        yield gateway
    finally:
        is_over.set()
        thread.join()


def test_each_backup_of_a_busy_sidecar_can_be_restored_and_its_gateways_go_on(
    start: Start, tmp_path: Path
) -> None:
    sidecar = start(timers_run_timeout_s=1, timers_retries="1,1")
    copies = []
    with busy(sidecar) as gateway:
        for number in range(BACKUPS):
            file = tmp_path / f"{number}.tar"
            told = backed_up(sidecar.state, file)
            assert told.startswith(f"backed up {sidecar.state} to {file} (")
            copies.append(unpacked(file, tmp_path / str(number)))
    copy = copies[-1]
    assert disk.runs(copy / "liveness.db"), "no timer fired at all"

    # What comes after the backup has numbers that the copy will give again.
    gateway.apply("login", "late", {"conn": 1})
    was, newest = gateway.log, sidecar.log()[-1].seq
    sidecar.kill()

    online = {
        uid for (uid,) in disk.rows(copy / "liveness.db", "select uid from online")
    }
    ((parted,),) = disk.rows(copy / "liveness.db", "select max(last) from log")
    states = dict(disk.rows(copy / "timers.db", "select key, state from timers"))
    query = "select key from timers where due < created + 1000"
    live = {
        key
        for (key,) in disk.rows(copy / "timers.db", query)
        if states[key] in ("pending", "fired")
    }
    assert len(online) >= USERS
    assert live
    assert "done" in states.values()
    assert newest > parted

    sidecar.state = copy
    sidecar.start()
    line = sidecar.line("this is a backup, restored: it begins a log of its own")
    assert (line["was"], line["seq"]) == (was, parted)
    link = sidecar.connect()
    welcome = link.hello("gw", kinds=["online"], after=newest, log=was)
    assert welcome["log"] == line["log"] != was
    assert set(link.listed()[0]) == online
    link.send("login", "late", {"conn": 1, "age": 1})
    # Every timer that was live comes, or comes again, and none that was over; no record
    # from before the place where the logs part comes again.
    link.until(lambda records: {it.get("key") for it in records} >= live)
    link.until(lambda records: any(it.get("uid") == "late" for it in records))
    assert min(record["seq"] for record in link.records) > parted
    keys = {record["key"] for record in link.records if record["kind"] == "timer"}
    assert {states[key] for key in keys} <= {"pending", "fired"}
    watcher = sidecar.watcher(after=newest, log=was)
    assert watcher.take(1)[0]["seq"] == parted + 1


# --- ended on the way ---------------------------------------------------------------------


# Besides the sync of a copy: as the folder is made, and as it is taken away again.
@pytest.mark.parametrize(
    ("number", "calls", "code", "left"),
    [
        ("INT", "fsync", 130, []),
        ("TERM", "?mkdir,mkdirat,?rmdir,unlinkat", 143, []),
        ("TERM", "?rmdir,unlinkat", 0, ["b.tar"]),
    ],
)
@needs("strace")
def test_a_signal_in_its_worst_moment_leaves_all_or_nothing(
    sidecar: Sidecar,
    tmp_path: Path,
    number: str,
    calls: str,
    code: int,
    left: list[str],
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    file = folder / "b.tar"
    calls, *options = calls.format(file=file).split()
    strace = ["strace", "-f", "-o", f"{tmp_path}/said", *options]
    strace += ["-e", f"trace={calls}", "-e", f"inject={calls}:signal={number}"]
    # Python makes folders for bytecode, which are not meant.
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = ran(*strace, *command(sidecar.state, file), cwd=ROOT, env=environ)
    assert f"SIG{number}" in (tmp_path / "said").read_text()
    assert (done.returncode, done.stderr) == (code, "")
    assert [path.name for path in folder.iterdir()] == left
    if left:
        unpacked(file, folder / "unpacked")
