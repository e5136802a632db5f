"""`liveness backup` of a sidecar that is busy, and what is restored from it."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final

import pytest

from liveness.build import environment
from tests import disk
from tests.e2e.client import Client, packed
from tests.e2e.conftest import Start
from tests.e2e.sidecar import ROOT, SOON_S, Sidecar, eventually

BACKUPS: Final = 3
USERS: Final = 50  # that stay online
# Under it each step of a backup is on disk a second later: it is ended in the middle.
SLOWLY: Final = [
    *("strace", "-D", "-o", "/dev/null", "-e", "trace=fsync"),
    *("-e", "inject=fsync:delay_enter=1s"),
]


def command(state: Path, file: Path) -> list[str]:
    return [
        sys.executable, "-m", "liveness", "backup", "--state", str(state), str(file),
    ]  # fmt: skip


def run(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment() | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def backed_up(state: Path, file: Path) -> str:
    done = run(command(state, file))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def unpacked(file: Path, folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    subprocess.run(["tar", "-xf", file, "-C", folder], check=True)
    return folder


@contextmanager
def busy(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway whose users come and go, and whose timers fire and are done by now."""
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
            gateway.settle()
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


def as_a_crash_could_have_left_it(state: Path) -> None:
    """Who is online by the log is so by its table; and the timers are behind the log, by
    no more than runs."""
    database, timers = state / "liveness.db", state / "timers.db"
    online = dict[str | int, int]()
    for record in disk.log(database):
        if record.kind == "online":
            online[record.uid] = record.session
        else:
            del online[record.uid]
    assert dict(disk.rows(database, "select uid, session from online")) == online
    runs = {run.key: run for run in disk.runs(database)}
    keys = dict(disk.rows(timers, "select key, seq from timers"))
    assert runs.keys() <= keys.keys(), "a run of a timer that was not asked for yet"
    for key, seq in keys.items():
        assert seq is None or runs[key].seq == seq
    ((seen,),) = disk.rows(timers, "select value from meta where key = 'seq'")
    assert all(keys[key] for key, run in runs.items() if run.seq <= seen)


def test_each_backup_of_a_busy_sidecar_is_what_a_crash_could_have_left(
    start: Start, tmp_path: Path
) -> None:
    sidecar = start()
    with busy(sidecar):
        for number in range(BACKUPS):
            file = tmp_path / f"{number}.tar"
            told = backed_up(sidecar.state, file)
            assert told.startswith(f"backed up {sidecar.state} to {file} (")
    for number in range(BACKUPS):
        state = unpacked(tmp_path / f"{number}.tar", tmp_path / str(number))
        as_a_crash_could_have_left_it(state)
    assert disk.runs(state / "liveness.db"), "no timer fired at all"


def test_what_is_restored_goes_on_and_its_gateways_go_on_with_it(
    start: Start, tmp_path: Path
) -> None:
    sidecar = start(timers_run_timeout_s=1, timers_retries="1,1")
    file = tmp_path / "b.tar"
    with busy(sidecar) as gateway:
        backed_up(sidecar.state, file)
    # What comes after the backup has numbers that the copy will give again.
    gateway.send("login", "late", {"conn": 1})
    gateway.settle()
    was, newest = gateway.log, sidecar.log()[-1].seq
    sidecar.kill()

    copy = unpacked(file, tmp_path / "restored")
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
    # Every timer that was live comes, or comes again, and none that was over; nothing
    # that lies before the place where the logs part is told once more.
    link.until(lambda told: {one.get("key") for one in told} >= live)
    link.until(lambda told: any(one.get("uid") == "late" for one in told))
    assert min(one["seq"] for one in link.records) > parted
    keys = {one["key"] for one in link.records if one["kind"] == "timer"}
    assert {states[key] for key in keys} <= {"pending", "fired"}
    watcher = sidecar.watcher(after=newest, log=was)
    assert watcher.take(1)[0]["seq"] == parted + 1


# --- ended on the way ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_one_that_is_ended_leaves_nothing_behind(
    sidecar: Sidecar, tmp_path: Path, number: int, code: int
) -> None:
    with subprocess.Popen(
        SLOWLY + command(sidecar.state, tmp_path / "b.tar"),
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
    ) as process:
        until = perf_counter() + SOON_S
        while not any(tmp_path.iterdir()):
            assert perf_counter() < until
        process.send_signal(number)
        assert process.wait(SOON_S) == code
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert [*tmp_path.iterdir()] == []


# As the folder is made, as it is taken away again, as FILE is claimed and as it is named.
@pytest.mark.parametrize(
    ("calls", "code", "left"),
    [
        ("?mkdir,mkdirat", 143, []),
        ("?mkdir,mkdirat,?rmdir,unlinkat", 143, []),
        ("?rmdir,unlinkat", 0, ["b.tar"]),
        ("openat -P {file}", 0, ["b.tar"]),
        ("?rename,?renameat,renameat2", 0, ["b.tar"]),
    ],
)
def test_a_signal_in_its_worst_moment_leaves_all_or_nothing(
    start: Start, tmp_path: Path, calls: str, code: int, left: list[str]
) -> None:
    sidecar = start()
    folder = tmp_path / "backups"
    folder.mkdir()
    file = folder / "b.tar"
    calls, *options = calls.format(file=file).split()
    strace = ["strace", "-f", "-o", f"{tmp_path}/said", *options]
    strace += ["-e", f"trace={calls}", "-e", f"inject={calls}:signal=TERM"]
    # Or it is Python, which makes a folder for bytecode, that a signal comes amid.
    done = run(strace + command(sidecar.state, file), PYTHONDONTWRITEBYTECODE="1")
    assert "SIGTERM" in (tmp_path / "said").read_text()
    assert (done.returncode, done.stderr) == (code, "")
    assert [path.name for path in folder.iterdir()] == left
    if left:
        unpacked(file, folder / "unpacked")
