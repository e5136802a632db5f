"""The demo: as a process, end to end, and its parts on real sockets.

Three runs go on at the same time: one as it is, with a guest who joins by TCP, one whose
gateway loses what a user says, so that there is something to find, and one in which all
that can be made to happen does.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import IO, Any

import pytest
import trio

import liveness
from liveness import cli
from liveness.demo import gateway as gateway_module
from liveness.demo.gateway import MAX_LINE_BYTES, Connection, Gateway
from liveness.demo.gauges import Gauges, read
from liveness.demo.picture import Scene, drawn
from liveness.demo.plans import MOST_REMINDERS, Behaviour, planned
from liveness.demo.referee import FAULTS, GRACE_S, SETTLING_S, Referee
from liveness.demo.screen import Plain, summary
from liveness.demo.script import ACTIONS, MOST_STEPS, ScriptError, Step, parsed
from liveness.testing import Event, ScriptedSidecar, scripted_sidecar
from tests.e2e.conftest import Start
from tests.e2e.sidecar import Sidecar, eventually
from tests.e2e.tty import GIVEN_BACK, TAKEN, Tty

Record = dict[str, Any]

SOON_S = 5  # long after everything here has happened
END_S = 60
USERS, TIMEOUT_S, SECONDS = 60, 2, 6
EVERYTHING = (
    "1.5 silence 10, 2 gateway, 4.5 stop 1, 7 restart, 9.5 kill, 12 gateway, 12 kill"
)

FAULTY_GATEWAY = """
from liveness.demo.gateway import Gateway, main

take = Gateway._take
Gateway._take = lambda room, connection, line: (
    connection.uid == "user-03" or take(room, connection, line)
)
main()
"""
FAULTY = f"""
import sys
from liveness import cli
from liveness.demo import processes

processes.GATEWAY = ("-c", {FAULTY_GATEWAY!r})
sys.exit(cli.main(sys.argv[1:]))
"""


# --- as a process -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """What a demo has printed, and its exit code."""

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


def started(*command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def demo(*options: object, **environment: str) -> subprocess.Popen[str]:
    return started("-m", "liveness", "demo", *map(str, options), **environment)


def doors(out: IO[str]) -> tuple[str, int, Path]:
    """What was printed until it said where the gateway and the sidecar are, and that."""
    text, found = "", None
    while not found and (line := out.readline()):
        text += line
        found = re.search(r"nc 127\.0\.0\.1 (\d+).*--socket (\S+)", text, re.DOTALL)
    assert found, text
    return text, int(found[1]), Path(found[2])


def ended(demo: subprocess.Popen[str], before: str = "") -> Shown:
    out, err = demo.communicate(timeout=END_S)
    return Shown(demo.returncode, before + out, err)


def visit(port: int) -> list[Record]:
    """Joins by TCP, says hi once, and stays silent; all lines that were not others'."""
    with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as guest:
        guest.sendall(b'{"login": "ada"}\n{"say": "hi"}\n')
        lines = map(json.loads, guest.makefile())
        return [line for line in lines if line.get("uid", "ada") == "ada"]


def children(pid: int) -> list[int]:
    """The processes that this one has started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def runs_still(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@dataclass(frozen=True, slots=True)
class Runs:
    """Three demos, and what a guest of the first saw.

    They run one after the other: each judges by the clock, and what starts and restarts
    for one would hold up the others.
    """

    plain: Shown
    seen: list[Record]
    faulty: Shown
    eventful: Shown


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one, as sockets are in it, also where a worker of many runs the tests."""
    return tmp_path_factory.mktemp("d")


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    options = ["--users", USERS, "--timeout", TIMEOUT_S]
    with demo(*options, "--seconds", SECONDS) as running:
        assert running.stdout
        before, port, _ = doors(running.stdout)
        seen = visit(port)
        plain = ended(running, before)
    with demo(*options, "--seconds", 16, "--script", EVERYTHING) as running:
        eventful = ended(running)
    options = ["--users", 10, "--timeout", 1, "--seconds", 5]
    with started("-c", FAULTY, "demo", *map(str, options)) as running:
        yield Runs(plain, seen, ended(running), eventful)


def test_the_demo_reports_everyone_when_due_and_ends_with_0(runs: Runs) -> None:
    assert (runs.plain.code, runs.plain.err) == (0, ""), runs.plain.out
    assert "faults: early 0, missed 0, false 0\n" in runs.plain.out


def test_reminders_come_unless_they_were_cancelled(runs: Runs) -> None:
    told = r"reminders: 12 asked, [1-9] came, [1-4] cancelled, \d open"
    assert re.search(told, runs.plain.out)
    assert re.search(
        r"  timer    remind:user-\d\d:.+  gw-1  attempt 1  ", runs.plain.out
    )


def test_the_first_silence_is_reported_within_5_s_of_the_timeout(runs: Runs) -> None:
    out = runs.plain.out
    status = re.findall(r"(\d+) s   online \d+, said \d+, silence (\d+)", out)
    assert min(int(at) for at, silent in status if int(silent)) <= TIMEOUT_S + 5
    assert re.search(r"  offline  user-\d\d  gw-1  silence  2\.\d{3} s since", out)


def test_the_account_adds_up(runs: Runs) -> None:
    table = runs.plain.table()
    everyone = table.pop("all")
    assert set(table) == {*Behaviour, "guest"}
    assert sum(table.values(), Counter()) == +everyone
    for row in (*table.values(), everyone):
        assert row["users"] == sum(row.values()) - row["users"]
    assert everyone["users"] == USERS + 1
    silent, left = table["fall silent"], table["log out"]
    assert silent["silence"] == silent["users"] == USERS * 3 // 10
    assert left["logout"] == left["users"] == USERS * 2 // 10
    for row in (table["chat"], table["keepalive"]):
        assert row["online"] == row["users"]


def test_the_lateness_of_those_who_were_silent_is_told(runs: Runs) -> None:
    found = re.search(r"p50 (\S+) s, p99 (\S+) s, max (\S+) s", runs.plain.out)
    assert found
    p50, p99, most = map(float, found.groups())
    assert 0 <= p50 <= p99 <= most


def test_who_joins_by_tcp_chats_and_is_reported_when_silent(runs: Runs) -> None:
    assert list(runs.seen[0]) == ["welcome"]
    assert runs.seen[1]["joined"] == "ada"
    assert runs.seen[2:] == [{"uid": "ada", "say": "hi"}, {"bye": "silence"}]
    assert runs.plain.table()["guest"] == Counter(users=1, silence=1)


def test_a_planted_fault_is_named_and_ends_it_with_1(runs: Runs) -> None:
    assert runs.faulty.code == 1
    assert re.search(r"faults: early 0, missed \d, false [1-9]\n", runs.faulty.out)
    assert "    false: user-03 was " in runs.faulty.out


def test_whatever_is_cut_stopped_or_restarted_nobody_is_reported_falsely(
    runs: Runs,
) -> None:
    shown = runs.eventful
    assert (shown.code, shown.err) == (0, ""), shown.out
    assert "faults: early 0, missed 0, false 0\n" in shown.out
    assert "done: silence 1, gateway 2, stop 1, restart 1, kill 2\n" in shown.out
    table = shown.table()
    assert table["silenced"]["users"] == 10
    for row in (table["chat"], table["keepalive"]):
        assert row["online"] == row["users"], "everyone has come back"


def test_what_is_made_to_happen_is_told_as_it_happens(runs: Runs) -> None:
    told = re.findall(r"^ +(\d+\.\d) s   (\w+): (.+)$", runs.eventful.out, re.M)
    lines = [f"{name}: {what}" for _, name, what in told]
    assert lines[0] == "silence: 10 who talked write nothing any more"
    assert lines[1] == "gateway: kill -9 to the gateway"
    assert lines[2].startswith("gateway: the gateway is up again, after ")
    assert lines[3] == "stop: SIGSTOP to the sidecar"
    assert re.fullmatch(r"stop: SIGCONT, after 1\.\d s", lines[4])
    assert lines[5] == "restart: SIGTERM to the sidecar"
    assert "kill: kill -9 to the sidecar" in lines
    assert [float(at) for at, *_ in told] == sorted(float(at) for at, *_ in told)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_by_itself_ends_with_no_fault(action: str) -> None:
    options = ["--users", 100, "--timeout", 2, "--seconds", 11]
    shown = ended(demo(*options, "--script", f"4 {action}"))
    assert (shown.code, shown.err) == (0, ""), shown.out
    assert f"done: {action} 1\n" in shown.out


@pytest.mark.slow
def test_all_actions_under_the_load_of_the_defaults_end_with_no_fault() -> None:
    script = "5 silence, 12 gateway, 16 stop 3, 22 restart, 26 kill, 27 gateway"
    shown = ended(demo("--script", script))
    assert (shown.code, shown.err) == (0, ""), shown.out


def test_a_signal_ends_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(TMPDIR=str(tmp_path)) as first, demo(TMPDIR=str(tmp_path)) as second:
        begun = []
        for one in (first, second):
            assert one.stdout
            _, _, path = doors(one.stdout)
            assert path.is_socket()
            assert tmp_path in path.parents
            begun += children(one.pid)
        assert len(begun) == 4
        first.send_signal(signal.SIGINT)
        second.send_signal(signal.SIGTERM)
        interrupted, terminated = ended(first), ended(second)
    assert (interrupted.code, interrupted.err) == (130, "")
    assert (terminated.code, terminated.err) == (1, "liveness: ended by SIGTERM\n")
    assert list(tmp_path.iterdir()) == []
    assert not any(map(runs_still, begun))


def test_its_children_end_with_it_even_by_kill_9_and_while_they_are_stopped(
    tmp_path: Path,
) -> None:
    with demo(TMPDIR=str(tmp_path)) as killed:
        assert killed.stdout
        doors(killed.stdout)
        begun = children(killed.pid)
        assert len(begun) == 2
        os.kill(begun[0], signal.SIGSTOP)
        killed.kill()
    eventually(lambda: not any(map(runs_still, begun)))


@pytest.mark.parametrize("number", [0, 1])
def test_a_child_that_ends_by_itself_ends_it_with_its_last_lines(
    tmp_path: Path, number: int
) -> None:
    with demo(TMPDIR=str(tmp_path)) as running:
        assert running.stdout
        doors(running.stdout)
        name = ("sidecar", "gateway")[number]
        os.kill(sorted(children(running.pid))[number], signal.SIGKILL)
        shown = ended(running)
    *log, last = shown.err.splitlines()
    assert shown.code == 1
    assert last == f"liveness: the {name} has ended, exit code -9"
    said = {"sidecar": '"event": "ready"', "gateway": "listens on"}[name]
    assert any(said in line for line in log)
    assert list(tmp_path.iterdir()) == []


def test_a_sidecar_that_cannot_be_there_is_said_before_anything_starts(
    tmp_path: Path,
) -> None:
    far = tmp_path / ("too-long-for-a-socket-" * 5)
    far.mkdir()
    shown = ended(demo(TMPDIR=str(far)))
    (line,) = shown.err.splitlines()
    assert shown.code == os.EX_CONFIG
    assert "socket.path is" in line
    assert list(far.iterdir()) == []


def test_a_gateway_that_does_not_start_ends_it_with_its_last_lines() -> None:
    broken = FAULTY.replace(repr(FAULTY_GATEWAY), repr("raise SystemExit('no port')"))
    shown = ended(started("-c", broken, "demo"))
    *log, last = shown.err.splitlines()
    assert shown.code == 1
    assert log == ["    no port"]
    assert last == "liveness: the gateway did not start, exit code 1"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--seconds 12.9", "12.9 s are too short to show 200 users and a timeout of"),
        ("--seconds 5 --timeout 2.1", "use --seconds 5.1 or more"),
        ("--users 501 --timeout 1", "use --users 500 or less, or a longer --timeout"),
        ("--script lunch", "--script: 'lunch' is no step; write SECONDS ACTION"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line_with_2(
    options: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *options.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("liveness: ")
    assert told in shown.err


# --- on a terminal ------------------------------------------------------------------------

OPTIONS = ("--users", 40, "--timeout", 2, "--seconds", END_S)


def test_on_a_terminal_it_is_a_picture_with_keys() -> None:
    with Tty("-m", "liveness", "demo", *OPTIONS) as tty:
        tty.until(r"gateway up   sidecar up   \d+ online   \d+ events/s")
        tty.until("▶")
        assert TAKEN in tty.out
        assert not tty.is_as_it_was
        for key, told in (
            ("s", r"silence: \d+ who talked write nothing any more"),
            ("z", "sidecar stopped"),
            ("r", "restart: not while the sidecar is stopped"),
            ("z", "SIGCONT, after"),
            ("g", "the gateway is up again"),
            ("r", "restart: the sidecar is up again"),
            ("k", "kill: the sidecar is up again"),
        ):
            tty.type(key)
            tty.until(told)
        tty.type("xq")
        tty.until("done: silence 1, stop 1, gateway 1, restart 1, kill 1")
        tty.until("faults: early 0, missed 0, false 0")
        tty.until("ended 0")
        assert tty.is_as_it_was
        assert tty.out.count(TAKEN) == tty.out.count(GIVEN_BACK) == 1


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGINT, 130)]
)
def test_a_signal_gives_the_terminal_back(number: int, code: int) -> None:
    with Tty("-m", "liveness", "demo", *OPTIONS) as tty:
        tty.until("faults:  early 0")
        os.kill(tty.pid, number)
        tty.until(f"ended {code}")
        assert GIVEN_BACK in tty.out
        assert tty.is_as_it_was


def test_a_fault_of_ours_gives_the_terminal_back() -> None:
    planted = (
        "import sys; from liveness import cli; from liveness.demo import picture\n"
        "picture.lateness = picture.quantiles = lambda _: 1 / 0\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    with Tty("-c", planted, "demo", *OPTIONS) as tty:
        tty.until("ZeroDivisionError")
        tty.until("ended 1")
        assert GIVEN_BACK in tty.out
        assert tty.is_as_it_was


def test_while_it_is_suspended_the_terminal_is_the_shells() -> None:
    with Tty("-m", "liveness", "demo", *OPTIONS) as tty:
        tty.until("faults:  early 0")
        tty.type("\x1a")
        tty.until("stopped")
        assert GIVEN_BACK in tty.out
        assert tty.is_as_it_was
        os.kill(tty.pid, signal.SIGCONT)
        tty.until("faults:  early 0")
        assert not tty.is_as_it_was
        tty.type("q")
        tty.until("ended 0")


def test_a_terminal_that_takes_nothing_holds_up_nobody() -> None:
    with Tty("-m", "liveness", "demo", *OPTIONS[:-1], 6) as tty:
        tty.until("faults:  early 0")
        eventually(lambda: not children(tty.pid))
        tty.until("faults: early 0, missed 0, false 0")
        tty.until("ended 0")
        assert tty.is_as_it_was


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    with Tty("-m", "liveness", "demo", *OPTIONS, NO_COLOR="1") as tty:
        tty.until("faults:  early 0")
        tty.type("q")
        tty.until("ended 0")
    assert not re.search(r"\x1b\[(?:\d+;)*3\d", tty.out)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    with Tty("-m", "liveness", "demo", *OPTIONS[:-1], 6, TERM="dumb") as tty:
        tty.until("2 s   online")
        os.kill(tty.pid, signal.SIGTERM)
        tty.until("ended 1")
    assert "\x1b" not in tty.out


# --- the picture --------------------------------------------------------------------------

SCENE = Scene(
    elapsed_s=12.3,
    seconds=40,
    timeout_s=10,
    doors="nc 127.0.0.1 7000",
    states=(("gateway", "up"), ("sidecar", "stopped")),
    online=150,
    events_s=48.4,
    timers=3,
    slots=(0.0, 8.0, *[4.0] * 27, 1_234.0),
    hand=29,
    rows=(("chat", [40, 39, 0, 1, 2, 3]), ("all", [200, 150, 30, 20, 2, 3])),
    lateness="lateness: p50 0.100 s, p99 0.200 s, max 0.300 s",
    reminders="reminders: 9 asked, 6 came, 3 cancelled, 0 open",
    faults=Counter(missed=1),
    told=("  5.0 s   silence: 100 who talked write nothing any more",),
    records=tuple(f"record {number}" for number in range(50)),
    has_keys=True,
)


def shown(scene: Scene, width: int, height: int) -> list[str]:
    lines = drawn(scene, width, height)
    assert all(line.cell_len <= width for line in lines)
    assert len(lines) <= height
    return [line.plain.rstrip() for line in lines]


def test_a_wide_terminal_shows_the_ring_with_its_hand_beside_the_users() -> None:
    lines = shown(SCENE, 110, 30)
    assert lines[0].startswith(
        "liveness demo   12 s of 40   whoever is silent for 10 s"
    )
    assert (
        lines[1] == "gateway up   sidecar stopped   150 online   48 events/s   3 timers"
    )
    assert lines[2] == "nc 127.0.0.1 7000"
    top, *sides, bottom = lines[4:10]
    assert top.startswith(" 0  ▁8  ▁4  ")
    assert [side[:4] for side in sides] == ["▶1k ", "▁4  ", "▁4  ", "▁4  "]
    assert bottom == "▁4  " * 10 + "▁4"
    assert top.endswith("users online silence logout lost")
    assert lines[5].endswith("40     39       0      1    3")
    assert SCENE.reminders in lines
    assert "faults:  early 0  missed 1  false 0" in lines


def test_a_usual_terminal_shows_the_slots_as_a_strip_with_the_hand_below() -> None:
    lines = shown(SCENE, 80, 24)
    assert len(lines) == 24
    bars, hand = [line[:30] for line in lines[4:8]], lines[8]
    assert [bar[29] for bar in bars] == ["█"] * 4
    assert bars[3][:3] == " ▁▁"
    assert hand[:30] == " " * 29 + "▲"
    assert lines[-1] == "record 49"


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (40, 12), (300, 100)])
def test_a_picture_never_outgrows_its_terminal(size: tuple[int, int]) -> None:
    shown(SCENE, *size)
    shown(replace(SCENE, slots=(), hand=0, told=(), records=()), *size)


def test_what_is_not_known_is_not_invented() -> None:
    lines = shown(replace(SCENE, events_s=None, timers=None, has_keys=False), 110, 30)
    assert "150 online   ? events/s   ? timers" in lines[1]
    assert lines[3] == "no keys, as stdin is not this terminal"


def test_every_key_is_named_within_80_columns() -> None:
    line = shown(SCENE, 80, 24)[3]
    for action in ACTIONS.values():
        assert f"{action.key} {action.what}" in line
    assert line.endswith("q end")


METRICS = """
# TYPE liveness_events_total counter
liveness_events_total{event="login"} 3.0
liveness_events_total{event="keepalive"} 40.0
liveness_wheel_slot_users{slot="0"} 5.0
liveness_wheel_slot_users{slot="2"} 7.0
liveness_wheel_slot_users{slot="1"} 6.0
liveness_unattended_seconds_total 1.5
liveness_timers{state="pending"} 4.0
liveness_timers{state="done"} 9.0
liveness_timers_loaded 4.0
liveness_log_seq 9.0
"""


def test_the_hand_is_where_attended_time_has_got_to() -> None:
    found = read(METRICS, at=100.0)
    assert found == Gauges(
        at=100.0, events=43, slots=(5, 6, 7), unattended_s=1.5, timers=4
    )
    assert found.hand(up_at=98.0, timeout_s=3) == 0
    assert found.hand(up_at=97.4, timeout_s=3) == 1
    assert found.hand(up_at=94.5, timeout_s=3) == 1
    assert read("", at=100.0) is None


# --- the script ---------------------------------------------------------------------------


def test_a_script_is_followed_in_order_of_time() -> None:
    assert parsed("10 gateway, 5 silence,7.5  stop 2 , 8 silence 20", seconds=40) == [
        Step(5, "silence", 100),
        Step(7.5, "stop", 2),
        Step(8, "silence", 20),
        Step(10, "gateway", 0),
    ]
    assert parsed("", seconds=40) == []


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("5 dance", "'5 dance' has no action; use silence, gateway, stop, restart or"),
        ("5", "'5' is no step; write SECONDS ACTION, as in 5 silence"),
        ("5 stop 2 now", "'5 stop 2 now' is no step"),
        ("5 silence,,6 stop", "'' is no step"),
        ("soon silence", "'soon silence' begins with no number of seconds"),
        ("-1 silence", "begins with no number"),
        ("nan silence", "begins with no number"),
        ("inf silence", "comes when the demo is over"),
        (
            "40 silence",
            "comes when the demo is over, after 40 s; let it be earlier, or",
        ),
        ("5 gateway 2", "has one word too many; gateway takes no number"),
        ("5 silence 0", "silence takes 1 to 10000"),
        ("5 stop 61", "stop takes 0.1 to 60"),
        ("5 stop nan", "stop takes 0.1 to 60"),
        ("5 stop long", "stop takes 0.1 to 60"),
        (
            ", ".join(["5 silence"] * (MOST_STEPS + 1)),
            "has 101 steps; use 100 or fewer",
        ),
    ],
)
def test_a_bad_script_says_what_where_and_what_to_do(script: str, told: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(told)):
        parsed(script, seconds=40)


# --- the referee --------------------------------------------------------------------------


def referee(**plans: Behaviour) -> Referee:
    """One with a timeout of 10 s and a flush of 0.3 s, who looked at 100 s.

    By then everyone has come, and has written at 100 s.
    """
    referee = Referee(plans, timeout_s=10, flush_s=0.3)
    for uid, behaviour in plans.items():
        come(referee, uid, at=100.0)
        if behaviour is Behaviour.SILENT:
            referee.falls_silent(uid)
    referee.look(at=100)
    return referee


def come(judge: Referee, uid: str, at: float) -> None:
    judge.calls(uid, at=at)
    judge.wrote(uid, at=at)
    judge.joined(uid, at=at)
    judge.told(record("online", uid, "login"), decided=at, at=at)


def record(kind: str, uid: str, reason: str, **more: Any) -> Record:
    return {"kind": kind, "uid": uid, "reason": reason, **more}


def report(
    judge: Referee, uid: str, reason: str, *, at: float, decided: float | None = None
) -> None:
    decided = at if decided is None else decided
    judge.told(record("offline", uid, reason), decided=decided, at=at)


def look_until(
    judge: Referee, at: float, *, since: float = 100, talking: str = ""
) -> None:
    """Looks ten times a second, while this one talks."""
    for tenth in range(int(since * 10), int(at * 10) + 1):
        if talking:
            judge.wrote(talking, at=tenth / 10)
        judge.look(at=tenth / 10)


def kinds(judge: Referee) -> list[tuple[str, str]]:
    assert judge.faults_of == Counter(fault.kind for fault in judge.faults)
    assert judge.faults_of.keys() <= set(FAULTS)
    return [(fault.kind, fault.uid) for fault in judge.faults]


def test_a_silence_reported_at_its_timeout_is_no_fault_and_no_lateness() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 110)
    report(judge, "ann", "silence", at=110.0)
    assert kinds(judge) == []
    assert list(judge.lateness_s) == [0.0]
    assert judge.online == 0


def test_lateness_is_counted_to_the_arrival_and_earliness_to_the_decision() -> None:
    judge = referee(ann=Behaviour.SILENT, bob=Behaviour.SILENT)
    look_until(judge, 110.2)
    report(judge, "ann", "silence", decided=110.1, at=110.25)
    assert list(judge.lateness_s) == [0.25]
    report(judge, "bob", "silence", decided=109.9, at=110.25)
    assert kinds(judge) == [("early", "bob")]


@pytest.mark.parametrize("is_disturbed", [False, True])
def test_a_silence_reported_before_its_timeout_is_early_at_all_times(
    is_disturbed: bool,
) -> None:
    judge = referee(ann=Behaviour.SILENT)
    if is_disturbed:
        judge.disturbed()
    look_until(judge, 109.9)
    report(judge, "ann", "silence", at=109.999)
    assert kinds(judge) == [("early", "ann")]
    assert "after 9.999 s" in judge.faults[0].what


@pytest.mark.parametrize("at", [100.2, 109.9, 110.2])
@pytest.mark.parametrize("behaviour", [Behaviour.CHAT, Behaviour.KEEPALIVE])
def test_a_user_who_talks_and_is_reported_silent_is_false(
    behaviour: Behaviour, at: float
) -> None:
    judge = referee(bob=behaviour)
    look_until(judge, at)
    report(judge, "bob", "silence", at=at)
    assert kinds(judge) == [("false", "bob")]


def test_what_is_written_after_a_decision_does_not_speak_against_it() -> None:
    judge = referee(ann=Behaviour.KEEPALIVE)
    judge.falls_silent("ann")
    look_until(judge, 110.1)
    judge.wrote("ann", at=110.15)
    report(judge, "ann", "silence", decided=110.1, at=110.2)
    assert kinds(judge) == []


def test_a_silence_not_reported_a_second_after_deadline_and_flush_is_missed() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 111.3)
    assert kinds(judge) == []
    look_until(judge, 112)
    assert kinds(judge) == [("missed", "ann")]
    report(judge, "ann", "silence", at=112.0)
    assert kinds(judge) == [("missed", "ann")], "late is missed, and missed once"
    assert list(judge.lateness_s) == [2.0]


def test_a_silence_that_was_reported_too_late_is_missed() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 111.3)
    report(judge, "ann", "silence", at=111.4)
    assert kinds(judge) == [("missed", "ann")]


def test_who_was_silenced_is_judged_like_one_who_had_planned_it() -> None:
    judge = referee(ann=Behaviour.CHAT, bob=Behaviour.CHAT)
    assert judge.talkers() == ["ann", "bob"]
    for uid in ("ann", "bob"):
        judge.silenced(uid)
    assert judge.talkers() == []
    look_until(judge, 110.1)
    report(judge, "ann", "silence", at=110.1)
    look_until(judge, 112, since=110.2)
    assert kinds(judge) == [("missed", "bob")]
    assert judge.ends["silenced", "silence"] == 1


def test_a_logout_is_to_be_reported_within_a_second() -> None:
    judge = referee(bob=Behaviour.LOGOUT, eve=Behaviour.LOGOUT)
    for uid in ("bob", "eve"):
        judge.leaves(uid, at=100.0)
        judge.hung_up(uid, "logout", at=100.1)
    report(judge, "bob", "logout", at=100.1)
    look_until(judge, 101.0)
    assert kinds(judge) == []
    look_until(judge, 101.1)
    assert kinds(judge) == [("missed", "eve")]


@pytest.mark.parametrize("reason", ["logout", "gateway_lost"])
def test_an_end_that_nobody_asked_for_is_false(reason: str) -> None:
    judge = referee(bob=Behaviour.KEEPALIVE)
    report(judge, "bob", reason, at=100.2)
    assert kinds(judge) == [("false", "bob")]


def test_who_was_cut_off_with_its_gateway_is_truly_lost_and_online_again_later() -> (
    None
):
    judge = referee(bob=Behaviour.KEEPALIVE, eve=Behaviour.KEEPALIVE)
    judge.disturbed()
    judge.cut(at=100.5)
    for uid in ("bob", "eve"):
        judge.hung_up(uid, "", at=100.6)
    report(judge, "bob", "gateway_lost", at=100.9)
    come(judge, "bob", at=101.0)
    judge.calls("eve", at=101.0)
    judge.joined("eve", at=101.0)
    report(judge, "eve", "gateway_lost", decided=101.1, at=101.2)
    judge.settles(at=101.0)
    assert kinds(judge) == [], "the session was that of the connection before"
    missed_at = 101 + SETTLING_S + 0.3 + GRACE_S
    look_until(judge, missed_at - 0.1, since=101, talking="eve")
    assert kinds(judge) == []
    look_until(judge, missed_at + 0.2, since=missed_at, talking="eve")
    assert kinds(judge) == [("missed", "eve")], "has come back and is not online"


def test_who_is_cut_off_by_a_gateway_that_is_there_is_false() -> None:
    judge = referee(ann=Behaviour.CHAT, bob=Behaviour.CHAT, eve=Behaviour.SILENT)
    judge.hung_up("ann", "", at=100.2)
    judge.hung_up("bob", "silence", at=100.2)  # by a record, which is judged
    judge.hung_up("eve", "", at=100.2)
    assert kinds(judge) == [("false", "ann")]


def test_a_user_who_is_reported_twice_is_false() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 110.1)
    report(judge, "ann", "silence", at=110.1)
    report(judge, "ann", "silence", at=110.1)
    assert kinds(judge) == [("false", "ann")]


def test_a_guest_is_judged_by_what_its_records_say() -> None:
    judge = referee()
    for uid in ("ada", "bea"):
        judge.told(record("online", uid, "login"), decided=100.0, at=100.0)
    assert judge.online == 2
    for uid, silence_s in (("ada", 10.0), ("bea", 9.999)):
        over = record("offline", uid, "silence", silence=silence_s)
        judge.told(over, decided=100.1, at=100.1)
    assert kinds(judge) == [("early", "bea")]
    assert judge.ends["guest", "silence"] == 2
    assert judge.online == 0


def test_what_was_due_while_the_process_stood_still_is_not_measured() -> None:
    judge = referee(ann=Behaviour.SILENT, bob=Behaviour.CHAT)
    judge.look(at=120.0)
    report(judge, "ann", "silence", at=120.1)
    report(judge, "bob", "silence", at=120.1)
    judge.hung_up("bob", "", at=120.2)
    assert kinds(judge) == []
    assert (judge.not_measured, list(judge.lateness_s)) == (2, [])


def test_after_a_disturbance_silence_has_a_timeout_again_to_be_reported() -> None:
    judge = referee(ann=Behaviour.SILENT, bob=Behaviour.SILENT)
    judge.disturbed()
    look_until(judge, 115)
    assert kinds(judge) == []
    judge.settles(at=115.0)
    look_until(judge, 125, since=115)
    report(judge, "ann", "silence", at=125.0)
    missed_at = 115 + SETTLING_S + 10 + 0.3 + GRACE_S
    look_until(judge, missed_at - 0.1, since=125)
    assert kinds(judge) == []
    look_until(judge, missed_at + 0.2, since=missed_at)
    assert kinds(judge) == [("missed", "bob")]
    assert (judge.not_measured, list(judge.lateness_s)) == (1, [])


def test_the_summary_names_whoever_was_wronged_and_escapes_the_name() -> None:
    judge = referee(bob=Behaviour.CHAT, **{"e\x1bve": Behaviour.SILENT})
    judge.told(record("online", "ada", "login"), decided=100.0, at=100.0)
    look_until(judge, 105)
    report(judge, "e\x1bve", "silence", at=105.0)
    lines = list(summary(judge, {"silence": 2, "kill": 1}))
    assert lines[-2] == "faults: early 1, missed 0, false 0"
    assert lines[-1] == r"    early: e\x1bve was reported after 5.000 s of silence"
    assert "lateness: none was measured" in lines
    assert "done: silence 2, kill 1" in lines
    assert next(line.split() for line in lines if line.startswith("all")) == [
        "all", "3", "2", "1", "0", "0", "0",
    ]  # fmt: skip


def test_the_lines_show_a_few_records_and_count_the_others() -> None:
    lines = Plain()
    for seq in range(9):
        over = record("offline", "ann", "logout", gateway="gw-1", at=0, seq=seq)
        lines.add(over)
    assert [line.split()[-1] for line in lines.records()] == [
        "0",
        "1",
        "2",
        "3",
        "more",
    ]
    assert lines.records() == []


def test_the_first_silence_does_not_wait_its_turn() -> None:
    lines = Plain()
    for seq in range(2):
        more = {"gateway": "gw-1", "at": 0, "seq": seq, "silence": 2, "last": "login"}
        lines.add(record("offline", "ann", "silence", **more))
    assert [line.split()[-1] for line in lines.records()] == ["1"]


# --- reminders


def judge_of(asked: float) -> Referee:
    """One of ann, who has asked at that moment for a reminder in 5 s."""
    judge = referee(ann=Behaviour.CHAT)
    look_until(judge, asked, talking="ann")
    judge.asks("ann", {"remind": "tea", "in": 5}, asked)
    return judge


def came(judge: Referee, at: float, attempt: int = 1) -> None:
    judge.look(at)
    fired = {"kind": "timer", "key": "remind:ann:tea", "attempt": attempt}
    judge.told(fired, decided=at, at=at)


TEA = "remind:ann:tea"


def test_a_reminder_that_comes_when_due_and_is_heard_is_no_fault() -> None:
    judge = judge_of(asked=100)
    look_until(judge, 105, talking="ann")
    came(judge, at=105.25)
    judge.heard("ann", "tea")
    look_until(judge, 120, since=105, talking="ann")
    assert kinds(judge) == []
    assert judge.reminders.came == 1
    assert judge.reminders.lateness_s == [0.25]


def test_a_reminder_that_comes_before_its_time_is_early() -> None:
    judge = judge_of(asked=100)
    came(judge, at=104.999)
    assert kinds(judge) == [("early", TEA)]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_reminder_that_comes_twice_is_false(attempt: int) -> None:
    judge = judge_of(asked=100)
    look_until(judge, 105, talking="ann")
    came(judge, at=105)
    came(judge, at=105.3, attempt=attempt)
    assert kinds(judge) == [("false", TEA)]


def test_a_reminder_that_does_not_come_or_is_not_heard_is_missed() -> None:
    judge = judge_of(asked=100)
    look_until(judge, 106.2, talking="ann")
    assert kinds(judge) == []
    look_until(judge, 107, since=106, talking="ann")
    assert kinds(judge) == [("missed", TEA)]
    silent = judge_of(asked=100)
    came(silent, at=105)
    look_until(silent, 107, since=105, talking="ann")
    assert kinds(silent) == [("missed", TEA)]
    assert silent.faults[0].what == "came, and nobody in the room has heard it"


def test_a_cancelled_reminder_that_comes_all_the_same_is_false() -> None:
    judge = judge_of(asked=100)
    judge.asks("ann", {"forget": "tea"}, 102)
    look_until(judge, 105, talking="ann")
    assert judge.reminders.cancelled == 1
    came(judge, at=105)
    assert kinds(judge) == [("false", TEA)]


def test_a_reminder_that_was_cancelled_at_the_last_moment_may_come_or_not() -> None:
    for comes in (True, False):
        judge = judge_of(asked=100)
        judge.asks("ann", {"forget": "tea"}, 104.9)
        look_until(judge, 105, talking="ann")
        if comes:
            came(judge, at=105)
            judge.heard("ann", "tea")
        look_until(judge, 120, since=105, talking="ann")
        assert kinds(judge) == []


@pytest.mark.parametrize("cut_at", [100.5, 103.0])
def test_only_what_a_killed_gateway_had_passed_on_must_come(cut_at: float) -> None:
    judge = judge_of(asked=100)
    look_until(judge, cut_at, talking="ann")
    judge.disturbed()
    judge.cut(at=float("inf"))
    come(judge, "ann", at=cut_at + 1)
    judge.cut(at=cut_at + 1)
    judge.settles(at=cut_at + 1)
    look_until(judge, 120, since=cut_at + 1, talking="ann")
    assert kinds(judge) == ([] if cut_at == 100.5 else [("missed", TEA)])


def test_a_reminder_of_which_a_killed_gateway_was_not_told_comes_as_the_same_attempt() -> (
    None
):
    judge = judge_of(asked=100)
    look_until(judge, 104, talking="ann")
    judge.disturbed()
    judge.cut(at=104)
    came(judge, at=105)
    judge.settles(at=106)
    look_until(judge, 108, since=106, talking="ann")
    came(judge, at=108)
    assert ("false", TEA) not in kinds(judge)


def test_a_reminder_comes_again_only_if_something_was_cut_or_stopped() -> None:
    judge = judge_of(asked=100)
    look_until(judge, 105, talking="ann")
    came(judge, at=105)
    judge.disturbed()
    judge.settles(at=106)
    came(judge, at=108, attempt=2)
    assert kinds(judge) == []


def test_a_reminder_that_finds_the_room_empty_may_come_again() -> None:
    judge = judge_of(asked=100)
    look_until(judge, 104, talking="ann")
    report(judge, "ann", "logout", at=104)
    look_until(judge, 105, since=104)
    came(judge, at=105)
    look_until(judge, 110, since=105)
    come(judge, "ann", at=110)
    look_until(judge, 110.3, since=110, talking="ann")
    came(judge, at=110.3, attempt=2)
    judge.heard("ann", "tea")
    assert ("false", TEA) not in kinds(judge)
    came(judge, at=110.6, attempt=3)
    assert kinds(judge)[-1] == ("false", TEA)


# --- the plans ----------------------------------------------------------------------------


def test_silence_is_spread_over_the_run_and_ends_where_it_can_still_be_seen() -> None:
    plans = list(planned(200, seconds=40, timeout_s=10, flush_s=1 / 3))
    assert len({plan.uid for plan in plans}) == 200
    assert Counter(plan.behaviour for plan in plans) == {
        Behaviour.SILENT: 60,
        Behaviour.KEEPALIVE: 60,
        Behaviour.CHAT: 40,
        Behaviour.LOGOUT: 40,
    }
    moments = [plan.moment_s for plan in plans if plan.behaviour is Behaviour.SILENT]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert 25 < moments[-1] < 40 - 10 - 1 / 3 - 1
    assert max(plan.joins_s for plan in plans) < 1


def test_some_who_talk_want_a_reminder_in_time_and_every_third_cancels_it() -> None:
    plans = planned(200, seconds=40, timeout_s=10, flush_s=1 / 3)
    asked = [plan.reminder for plan in plans if plan.reminder]
    assert len(asked) == MOST_REMINDERS
    assert sum(one.forgets_s < inf for one in asked) == MOST_REMINDERS // 3
    for one in asked:
        assert 0 < one.asks_s < one.asks_s + one.in_s < 40 - 1
        assert one.asks_s < one.forgets_s


def test_there_is_no_reminder_where_there_is_no_time_for_one() -> None:
    plans = planned(500, seconds=2.5, timeout_s=1, flush_s=0)
    assert not any(plan.reminder for plan in plans if plan.joins_s > 1)


def test_a_room_of_many_users_has_few_who_talk() -> None:
    plans = planned(5_000, seconds=60, timeout_s=10, flush_s=1)
    talkers = [plan for plan in plans if plan.behaviour is Behaviour.CHAT]
    assert len(talkers) == 2


# --- the gateway by itself ----------------------------------------------------------------


@contextmanager
def gateway_file(path: Path, sidecar: Path, name: str = "own") -> Iterator[Any]:
    """That file, run as it is; gives the process, and where it listens."""
    options = ["--sidecar", str(sidecar), "--name", name, "--port", "0"]
    with started(str(path), *options) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            found = re.fullmatch(rf"{name} listens on 127\.0\.0\.1:(\d+)\n", line)
            assert found, line
            yield process, int(found[1])
        finally:
            process.terminate()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copy(gateway_module.__file__, tmp_path / "my_gateway.py"))


def test_a_copy_of_the_gateway_is_one_and_closes_who_is_silent(
    copied: Path, start: Start
) -> None:
    sidecar = start(timeout_s=1)
    with gateway_file(copied, sidecar.socket) as (_, port):
        assert visit(port)[1:] == [
            {"joined": "ada", "users": 1},
            {"uid": "ada", "say": "hi"},
            {"bye": "silence"},
        ]


def test_the_gateway_serves_without_a_sidecar_and_reports_when_there_is_one(
    copied: Path, make: Callable[..., Sidecar]
) -> None:
    sidecar = make(timeout_s=1)
    with (
        gateway_file(copied, sidecar.socket) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=END_S) as guest,
    ):
        guest.sendall(b'{"login": "ada"}\n{"say": "hi"}\n')
        lines = map(json.loads, guest.makefile())
        assert [min(next(lines)) for _ in range(3)] == ["welcome", "joined", "say"]
        sidecar.start()
        assert list(lines) == [{"bye": "silence"}]


def test_a_gateway_whose_name_another_takes_ends_and_says_why(
    copied: Path, start: Start
) -> None:
    sidecar = start()
    with gateway_file(copied, sidecar.socket) as (first, _):
        with gateway_file(copied, sidecar.socket):
            _, err = first.communicate(timeout=END_S)
        assert first.returncode == 1
        assert err.startswith("own: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--name", "x" * 65], "name is"),
        (["--sidecar", "x" * 108], "107"),
        (["--port", "TAKEN"], "gw-1: "),
    ],
)
def test_a_gateway_that_cannot_be_says_why_in_one_line(
    copied: Path, tmp_path: Path, option: list[str], told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flag, value = option
        value = value.replace("TAKEN", str(taken.getsockname()[1]))
        options = ["--sidecar", str(tmp_path / "none"), flag, value]
        shown = ended(started(str(copied), *options))
    assert (shown.code, shown.out) == (1, "")
    (line,) = [line for line in shown.err.splitlines() if "no link" not in line]
    assert told in line


# --- its room -----------------------------------------------------------------------------


class Client:
    """A person at a terminal, one line at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._unread = b""

    async def type(self, *lines: str) -> None:
        await self.stream.send_all("".join(f"{line}\n" for line in lines).encode())

    async def line(self) -> Any:
        """The next line, or None when the gateway has closed the connection."""
        with trio.fail_after(SOON_S):
            while b"\n" not in self._unread:
                try:
                    data = await self.stream.receive_some()
                except trio.BrokenResourceError:  # it did not read our last line
                    return None
                if not data:
                    return None
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)


class Room:
    """A gateway that serves, and the sidecar that it reports to."""

    def __init__(self, script: ScriptedSidecar, most: int = 10) -> None:
        self.script = script
        self._most = most
        self._clients = AsyncExitStack()
        self._seen = 0

    @asynccontextmanager
    async def open(self) -> "AsyncIterator[Room]":
        """Serves, and closes in the end what clients have left open."""
        async with (
            liveness.connect(self.script.path, name="chat") as self._sidecar,
            trio.open_nursery() as nursery,
        ):
            await self._sidecar.connected()
            self.gateway = Gateway(self._sidecar, most=self._most)
            nursery.start_soon(self.gateway.close_ended)
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self._port = listener.socket.getsockname()[1]
            await nursery.start(trio.serve_listeners, self.gateway.serve, [listener])
            async with self._clients:
                yield self
            nursery.cancel_scope.cancel()

    async def connect(self) -> Client:
        """Connects; the greeting is not read yet."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        return Client(await self._clients.enter_async_context(stream))

    async def come(self) -> Client:
        """Connects, and reads the greeting."""
        client = await self.connect()
        assert "welcome" in await client.line()
        return client

    async def enter(self, uid: str) -> tuple[Client, int]:
        """Logs in; the client, and its conn."""
        client = await self.come()
        await client.type(json.dumps({"login": uid}))
        assert (await client.line())["joined"] == uid
        return client, max(self.gateway.room)

    async def reported(self) -> list[tuple[str, Any, int | None]]:
        """What the sidecar was told since the last call: event, uid and conn."""
        with trio.fail_after(SOON_S):
            await self._sidecar.flush()
        events: list[Event] = self.script.events[self._seen :]
        self._seen = len(self.script.events)
        return [(event.event, event.uid, event.conn) for event in events]


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with scripted_sidecar() as script, Room(script).open() as room:
        yield room


async def test_what_one_wants_to_be_reminded_of_everyone_in_the_room_hears(
    room: Room,
) -> None:
    ann, _ = await room.enter("ann")
    bob, _ = await room.enter("bob")
    await ann.type('{"remind": "tea", "in": 5}', '{"remind": "lunch", "in": 5}')
    assert [await ann.line(), await ann.line()] == [
        {"reminding": "tea"}, {"reminding": "lunch"},
    ]  # fmt: skip
    await ann.type('{"forget": "lunch"}')
    assert await ann.line() == {"forgotten": "lunch"}
    await room.reported()
    await room.script.pass_time(5)
    said = {"uid": "ann", "reminder": "tea"}
    assert [await ann.line(), await bob.line()] == [said, said]
    await room.script.timer("chat", "remind:ann:tea", "done")
    await room.script.timer("chat", "remind:ann:lunch", "cancelled")


async def test_a_reminder_waits_until_somebody_is_in_the_room(room: Room) -> None:
    ann, _ = await room.enter("ann")
    await ann.type('{"remind": "tea", "in": 60}', '{"logout": 1}')
    for _ in range(3):
        await ann.line()
    await room.reported()
    await room.script.pass_time(60)
    timer = await room.script.timer("chat", "remind:ann:tea", "pending")
    assert timer.message == "nobody is in the room"
    bob, _ = await room.enter("bob")
    await bob.type('{"ping": 1}')
    await bob.line()
    await room.script.pass_time(15)
    assert await bob.line() == {"uid": "ann", "reminder": "tea"}


@pytest.mark.parametrize(
    "line",
    [
        {"remind": "tea", "in": 0}, {"remind": "", "in": True},
        {"remind": "x" * 300, "in": 5}, {"remind": "\n", "in": float("nan")},
        {"forget": "x" * 300},
    ],
)  # fmt: skip
async def test_a_reminder_that_cannot_be_is_answered(
    room: Room, line: dict[str, Any]
) -> None:
    ann, _ = await room.enter("ann")
    await ann.type(json.dumps(line))
    assert list(await ann.line()) == ["error"]
    assert await room.reported()
    assert room.script.timers == {}


async def test_what_one_says_everyone_in_the_room_hears(room: Room) -> None:
    ann, a = await room.enter("ann")
    bob, b = await room.enter("bob")
    assert a < b
    assert await room.reported() == [("login", "ann", a), ("login", "bob", b)]
    await ann.type('{"say": "\x1b hi"}'.replace("\x1b", "\\u001b"))
    heard = {"uid": "ann", "say": "\x1b hi"}
    assert [await ann.line(), await bob.line()] == [heard, heard]
    assert await room.reported() == [("message", "ann", a)]


async def test_who_has_not_logged_in_neither_speaks_nor_lives(room: Room) -> None:
    client = await room.come()
    await client.type('{"say": "hi"}', '{"ping": 1}')
    assert [list(await client.line()) for _ in range(2)] == [["error"], ["pong"]]
    assert await room.reported() == []


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "",
        "[" * 4_000,
        '{"say": 7}',
        '{"login": "ann again"}',
        '{"shout": "hi"}',
        "9" * 4_000,
        "\x00",
    ],
)
async def test_a_bad_line_is_answered_and_a_sign_of_life(room: Room, line: str) -> None:
    ann, conn = await room.enter("ann")
    await room.reported()
    await ann.type(line)
    assert list(await ann.line()) == ["error"]
    assert await room.reported() == [("keepalive", "ann", conn)]


@pytest.mark.parametrize(
    "name", ["", "x" * 33, "a\u0007b", "\ud800", 7, None, ["ann"], {"a": 1}]
)
async def test_a_login_without_a_good_name_is_answered(room: Room, name: Any) -> None:
    client = await room.come()
    await client.type(json.dumps({"login": name}))
    assert list(await client.line()) == ["error"]
    assert await room.reported() == []


@pytest.mark.parametrize("end", ["\n", ""])
async def test_a_line_that_is_too_long_ends_the_connection(
    room: Room, end: str
) -> None:
    ann, conn = await room.enter("ann")
    await room.reported()
    await ann.stream.send_all(("x" * (MAX_LINE_BYTES + 1) + end).encode())
    assert await ann.line() == {"bye": f"a line has at most {MAX_LINE_BYTES} bytes"}
    assert await ann.line() is None
    assert await room.reported() == [("logout", "ann", conn)]


async def test_logout_and_a_closed_connection_are_both_reported(room: Room) -> None:
    ann, a = await room.enter("ann")
    bob, b = await room.enter("bob")
    await room.reported()
    await ann.type('{"logout": 1}')
    assert [await ann.line(), await ann.line()] == [{"bye": "logout"}, None]
    await bob.stream.send_eof()
    assert await bob.line() is None
    assert await room.reported() == [("logout", "ann", a), ("logout", "bob", b)]


async def test_who_is_silent_is_told_and_closed_and_the_others_stay(room: Room) -> None:
    ann, _ = await room.enter("ann")
    bob, conn = await room.enter("bob")
    await room.reported()
    await room.script.pass_time(29)
    await bob.type('{"ping": 1}')
    assert await bob.line() == {"pong": 1}
    await room.reported()
    await room.script.pass_time(2)
    assert [await ann.line(), await ann.line()] == [{"bye": "silence"}, None]
    await bob.type('{"ping": 1}')
    assert await bob.line() == {"pong": 1}
    assert list(room.gateway.room) == [conn]


async def test_who_comes_again_stays_on_the_newer_connection(room: Room) -> None:
    old, _ = await room.enter("ann")
    await room.reported()
    new, conn = await room.enter("ann")
    assert [await old.line(), await old.line()] == [{"bye": "moved"}, None]
    await new.type('{"ping": 1}')
    assert await new.line() == {"pong": 1}
    assert list(room.gateway.room) == [conn]


async def test_a_record_for_another_gateway_closes_nothing_here(room: Room) -> None:
    ann, conn = await room.enter("ann")
    await room.reported()
    async with liveness.connect(room.script.path, name="other") as other:
        other.login("bob", conn=conn)
        await other.flush()
        other.logout("bob", conn=conn)
        await other.flush()
    await ann.type('{"ping": 1}')
    assert await ann.line() == {"pong": 1}


async def test_a_full_gateway_says_so_until_somebody_leaves() -> None:
    async with scripted_sidecar() as script, Room(script, most=1).open() as room:
        ann, _ = await room.enter("ann")
        more = await room.connect()
        assert await more.line() == {"bye": "the gateway is full, come back later"}
        assert await more.line() is None
        await ann.stream.send_eof()
        assert await ann.line() is None
        await room.enter("bob")


async def test_a_connection_that_reads_too_slowly_is_told_to_end() -> None:
    outbox, unsent = trio.open_memory_channel[bytes](1)
    connection = Connection(7, outbox, trio.CancelScope())
    connection.send(b"one")
    assert not connection.reading.cancel_called
    connection.send(b"two")
    assert connection.reading.cancel_called
    assert unsent.receive_nowait() == b"one"


async def test_who_does_not_read_is_cut_off_and_the_others_go_on(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LINE_PAUSE_S", 0.0)
    monkeypatch.setattr(gateway_module, "LAST_LINES_S", 0.01)
    _, conn = await room.enter("slow")
    ann, _ = await room.enter("ann")
    await room.reported()
    line = json.dumps({"say": "x" * 4_000})
    with trio.fail_after(END_S):
        while conn in room.gateway.room:
            await ann.type(line)
            assert (await ann.line())["uid"] == "ann"
    assert ("logout", "slow", conn) in await room.reported()
    await ann.type('{"ping": 1}')
    assert await ann.line() == {"pong": 1}


async def test_who_does_not_log_in_in_time_is_told_so(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LOGIN_S", 0.05)
    client = await room.come()
    assert await client.line() == {"bye": "no login within 0.05 s"}
    assert await client.line() is None
