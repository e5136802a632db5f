"""The demo as processes: whole runs, signals, and its terminal."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from liveness.cli import main
from liveness.lab.demo import demo_host
from tests.helpers.needs import needs
from tests.system.tty import GIVEN_BACK, TAKEN, Tty

END_S = 300
USERS, TIMEOUT_S, SECONDS = 60, 2, 6
SMALL = ("--users", USERS, "--timeout", TIMEOUT_S, "--seconds")
EVERYTHING = (
    "1.5 silence 10, 2 gateway, 4.5 stop 3, 9 restart, 11.5 kill, 14 gateway, 14 kill"
)
NO_FAULT = "faults: early 0, missed 0, false 0"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*3\d")
# A gateway that loses what user-03 says.
FAULTY = """
from liveness.lab.demo.gateway import Gateway, main

take = Gateway._take
Gateway._take = lambda room, connection, line: (
    connection.uid == "user-03" or take(room, connection, line)
)
main()
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """The output of a demo, and its exit code."""

    code: int
    out: str
    err: str

    def table(self) -> dict[str, Counter[str]]:
        """The account: by behaviour, how many there were and what became of them."""
        lines = self.out.split("\n\n")[1].splitlines()
        columns = lines[0].split()
        rows = (re.fullmatch(r"(\D+?)((?: +\d+)+)", line) for line in lines[1:])
        return {
            row[1].strip(): Counter(
                dict(zip(columns, map(int, row[2].split()), strict=True))
            )
            for row in rows
            if row
        }


def demo(*options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "liveness", "demo", *map(str, options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(demo: subprocess.Popen[str]) -> Shown:
    out, err = demo.communicate(timeout=END_S)
    return Shown(demo.returncode, out, err)


def parent(pid: int | str) -> int:
    """The parent of this process; 0 if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    state, parent = stat.rpartition(")")[2].split()[:2]
    return int(parent) if state != "Z" else 0


def children(pid: int) -> list[int]:
    """The processes that this one has started and that still run."""
    pids = [path.name for path in Path("/proc").glob("[0-9]*")]
    return sorted(int(child) for child in pids if parent(child) == pid)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one, as sockets are in it, also where a worker of many runs the tests."""
    return tmp_path_factory.mktemp("d")


# --- with one host ------------------------------------------------------------------------


def test_the_demo_shows_silences_and_its_account_adds_up() -> None:
    shown = ended(demo(*SMALL, SECONDS))
    assert (shown.code, shown.err) == (0, ""), shown.out
    assert f"{NO_FAULT}\n" in shown.out
    assert re.search(r"  offline  user-\d\d  gw-1  silence  \d\.\d{3} s s", shown.out)
    table = shown.table()
    everyone = table.pop("all")
    assert sum(table.values(), Counter()) == +everyone
    for row in (*table.values(), everyone):
        assert row["users"] == sum(row.values()) - row["users"]
    silent, left = table["fall silent"], table["log out"]
    assert silent["silence"] == silent["users"] == USERS * 3 // 10
    assert left["logout"] == left["users"] == USERS * 2 // 10
    for row in (table["chat"], table["keepalive"]):
        assert row["online"] == row["users"]


def test_a_fault_of_the_gateway_is_named_and_ends_the_demo_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        demo_host, "GATEWAY", (sys.executable, "-c", FAULTY, *demo_host.GATEWAY[3:])
    )
    assert main.main(["demo", "--users", "10", "--timeout", "1", "--seconds", "5"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"faults: early 0, missed \d, false [1-9]\n", out)
    assert "    false: user-03 was " in out


def test_nobody_is_reported_falsely_whatever_is_killed_stopped_or_restarted() -> None:
    shown = ended(demo(*SMALL, 22, "--script", EVERYTHING))
    assert (shown.code, shown.err) == (0, ""), shown.out
    assert f"{NO_FAULT}\n" in shown.out
    assert "done: silence 1, gateway 2, stop 1, restart 1, kill 2\n" in shown.out
    table = shown.table()
    assert table["silenced"]["users"] == 10
    for row in (table["chat"], table["keepalive"]):
        assert row["online"] == row["users"], "everyone has come back"
    assert "gateway: the gateway is up again, after " in shown.out


# --- with several hosts -------------------------------------------------------------------

HOSTS_OPTIONS = ("--hosts", 3, "--users", 30, "--timeout", 3, "--seconds")


@needs("redis-server")
def test_nobody_is_offline_that_is_on_another_host_whatever_is_killed() -> None:
    script = "3 host 2, 5 silence 3, 7 redis, 8 redis, 10 host 2"
    shown = ended(demo(*HOSTS_OPTIONS, 15, "--script", script))
    assert (shown.code, shown.err) == (0, ""), shown.out
    assert f"{NO_FAULT}\nfaults anywhere: false 0\n" in shown.out
    assert "done: host 2, silence 1, redis 2\n" in shown.out
    assert re.search(r"^hops: [1-9]", shown.out, re.M)
    assert re.search(
        r"^[\d:.]{12}  moved    user-\d\d  gw-\d on host-\d from", shown.out, re.M
    )


# --- on a terminal ------------------------------------------------------------------------

OPTIONS = ("--users", 40, "--timeout", 2, "--seconds")


def test_on_a_terminal_it_is_a_picture_with_keys() -> None:
    with Tty("-m", "liveness", "demo", *OPTIONS, END_S) as tty:
        tty.until(r"gateway up   sidecar up   \d+ online")
        assert TAKEN in tty.out
        assert COLOUR.search(tty.out)
        assert not tty.is_as_it_was
        for key, said in (
            ("s", r"silence: \d+ active users stop writing"),
            ("z", "sidecar stopped"),
            ("r", "restart: not while the sidecar is stopped"),
            ("", "SIGCONT, after"),
            ("g", "the gateway is up again"),
            ("r", "restart: the sidecar is up again"),
            ("k", "kill: the sidecar is up again"),
        ):
            tty.type(key)
            tty.until(said)
        tty.type("xq")
        tty.until("done: silence 1, stop 1, gateway 1, restart 1, kill 1")
        tty.until(NO_FAULT)
        tty.until("ended 0")
        assert tty.is_as_it_was
        assert tty.out.count(TAKEN) == tty.out.count(GIVEN_BACK) == 1


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGTERM, "liveness: ended by SIGTERM\r\nended 1\r\n"),
        (signal.SIGINT, "ended 130\r\n"),
    ],
    ids=["SIGTERM", "SIGINT"],
)
def test_a_signal_gives_the_terminal_back_and_leaves_nothing_behind(
    tmp_path: Path, number: int, said: str
) -> None:
    places = {"TMPDIR": str(tmp_path), "NO_COLOR": "1"}
    with Tty("-m", "liveness", "demo", *OPTIONS, END_S, **places) as tty:
        tty.until("faults: early 0")
        begun = children(tty.pid)
        assert len(begun) == 2
        os.kill(tty.pid, number)
        tty.until(r"ended \d+\r\n")
        assert tty.is_as_it_was
        assert tty.out.endswith(GIVEN_BACK + said)
    assert not COLOUR.search(tty.out)
    assert list(tmp_path.iterdir()) == []
    assert not any(map(parent, begun))
