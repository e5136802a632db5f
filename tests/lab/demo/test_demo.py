"""The demo's parts, in process: its plans, script, referee and picture, and what it refuses."""

import os
import re
import tempfile
from collections import Counter
from dataclasses import replace
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any, Final

import pytest

from liveness.cli import main
from liveness.lab.demo.picture import Scene, drawn
from liveness.lab.demo.plain_lines import PlainLines, summary
from liveness.lab.demo.plans import MOST_REMINDERS, Behaviour, planned
from liveness.lab.demo.referee import FAULTS, Referee
from liveness.lab.demo.script import (
    ACTIONS,
    MOST_STEPS,
    ScriptError,
    Step,
    parsed_script,
)
from liveness.lab.demo.wheel_metrics import WheelMetrics, parsed_metrics

# --- what it refuses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seconds 12.9", "12.9 s are too short to show 200 users and a timeout of"),
        ("--seconds 5 --timeout 2.1", "use --seconds 5.1 or more"),
        ("--users 501 --timeout 1", "use --users 500 or less, or a longer --timeout"),
        ("--script lunch", "--script: 'lunch' is not a step; write SECONDS ACTION"),
    ],
)
def test_options_that_cannot_be_shown_are_refused_in_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["demo", *options.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("liveness: ")
    assert message in shown.err


def test_a_folder_too_long_for_a_socket_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    far = tmp_path / ("too-long-for-a-socket-" * 5)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    assert main.main(["demo"]) == os.EX_CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert "socket.path is" in line
    assert list(far.iterdir()) == []


def test_a_script_is_followed_in_order_of_time() -> None:
    assert parsed_script(
        "10 gateway, 5 silence,7.5  stop 2 , 8 silence 20", seconds=40
    ) == [
        Step(5, "silence", 100),
        Step(7.5, "stop", 2),
        Step(8, "silence", 20),
        Step(10, "gateway", 0),
    ]
    assert parsed_script("", seconds=40) == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "5 dance",
            "'5 dance' has an unknown action; use silence, gateway, stop, restart or",
        ),
        ("5", "'5' is not a step; write SECONDS ACTION, as in 5 silence"),
        ("5 stop 2 now", "'5 stop 2 now' is not a step"),
        ("5 silence,,6 stop", "'' is not a step"),
        ("soon silence", "'soon silence' does not begin with a number of seconds"),
        ("-1 silence", "does not begin with a number"),
        ("nan silence", "does not begin with a number"),
        ("inf silence", "is after the end of the demo"),
        (
            "40 silence",
            "is after the end of the demo (40 s); make it earlier, or",
        ),
        ("5 gateway 2", "has one word too many; gateway takes no number"),
        ("5 silence 0", "silence takes 1 to 10000"),
        ("5 stop 61", "stop takes 0.1 to 60"),
        ("5 stop nan", "stop takes 0.1 to 60"),
        ("5 stop long", "stop takes 0.1 to 60"),
        ("5 silence," * MOST_STEPS + "5 silence", "has 101 steps; use 100 or fewer"),
    ],
)
def test_a_bad_script_says_what_where_and_what_to_do(script: str, message: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(message)):
        parsed_script(script, seconds=40)


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


def test_some_talkers_want_a_reminder_in_time_and_every_third_cancels_it() -> None:
    plans = planned(200, seconds=40, timeout_s=10, flush_s=1 / 3)
    asked = [plan.reminder for plan in plans if plan.reminder]
    assert len(asked) == MOST_REMINDERS
    assert sum(plan.forgets_s < inf for plan in asked) == MOST_REMINDERS // 3
    for plan in asked:
        assert 0 < plan.asks_s < plan.asks_s + plan.in_s < 40 - 1
        assert plan.asks_s < plan.forgets_s


def test_there_is_no_reminder_where_there_is_no_time_for_one() -> None:
    plans = planned(500, seconds=2.5, timeout_s=1, flush_s=0)
    assert not any(plan.reminder for plan in plans if plan.joins_s > 1)


def test_a_room_of_many_users_has_few_talkers() -> None:
    plans = planned(5_000, seconds=60, timeout_s=10, flush_s=1)
    assert sum(plan.behaviour is Behaviour.CHAT for plan in plans) == 2


# --- the referee --------------------------------------------------------------------------


def record(kind: str, uid: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "uid": uid, "reason": reason, **more}


class Play:
    """A referee with a timeout of 10 s and a flush of 0.3 s, and the world that it judges.

    All users come, and write, at 100 s. After that a script such as
    "110.1 offline ann silence, 112" says what happens at which moment; a method below
    does it, or one of the referee. Meanwhile that looks ten times a second.

    Args:
        users: Uids with what each is to do, as in "ann chat, bob silent".
        talking: The user that writes a line before each look.
    """

    def __init__(self, users: str, talking: str = "") -> None:
        pairs = [user.split() for user in users.split(", ") if user]
        plans = {uid: Behaviour[plan.upper()] for uid, plan in pairs}
        self.referee = Referee(plans, timeout_s=10, flush_s=0.3)
        self._talking = talking
        self._next_tenth = 1_000
        self._seq, self._sessions, self._online = 0, dict[str, int](), set[str]()
        for uid, plan in plans.items():
            self.comes(100, uid)
            if plan is Behaviour.SILENT:
                self.referee.falls_silent(uid)

    def run(self, script: str) -> list[str]:
        """Play this; return the faults that the referee has found so far."""
        for step in script.split(", "):
            at, *words = step.split()
            self._look_until(float(at))
            if words:
                self._act(float(at), *words)
        faults = self.referee.faults
        assert self.referee.faults_of == Counter(fault.kind for fault in faults)
        assert self.referee.faults_of.keys() <= set(FAULTS)
        return [f"{fault.kind} {fault.uid}" for fault in faults]

    def _act(self, at: float, what: str, *args: str) -> None:
        if hasattr(self, what):
            getattr(self, what)(at, *args)
            return
        act = getattr(self.referee, what)
        act(*args, **({"at": at} if "at" in signature(act).parameters else {}))

    def _look_until(self, at: float) -> None:
        while self._next_tenth <= int(at * 10):
            now = self._next_tenth / 10
            if self._talking:
                self.referee.wrote(self._talking, at=now)
            self.referee.check_overdue(at=now)
            self._next_tenth += 1

    def joins(self, at: float, uid: str) -> None:
        self.referee.connects(uid, at=at)
        self.referee.joined(uid, at=at)

    def comes(self, at: float, uid: str) -> None:
        self.joins(at, uid)
        self.referee.wrote(uid, at=at)
        self._seq += 1
        more = {"seq": self._seq, "session": self._seq}
        began = record("online", uid, "login", **more)
        if uid in self._online:
            began |= {"kind": "moved", "from_session": self._sessions[uid]}
        self._sessions[uid] = self._seq
        self._online.add(uid)
        self.referee.check(began, decided=at, at=at)

    def offline(self, at: float, uid: str, reason: str, decided: str = "") -> None:
        self._seq += 1
        self._online.discard(uid)
        over = record(
            "offline", uid, reason, seq=self._seq, session=self._sessions[uid]
        )
        self.referee.check(over, decided=float(decided or at), at=at)

    def hung_up(self, at: float, uid: str, reason: str = "") -> None:
        self.referee.hung_up(uid, reason, at=at)

    def killed(self, _at: float) -> None:
        """The gateway is, until `restarted`."""
        self.referee.disruption_begins()
        self.referee.gateway_killed(at=inf)

    def restarted(self, at: float) -> None:
        self.referee.gateway_killed(at=at)
        self.referee.disruption_ends(at=at)

    def asks(self, at: float) -> None:
        """Ann wants to be reminded of the tea in 5 s."""
        self.referee.asks("ann", {"remind": "tea", "in": 5}, at)

    def forgets(self, at: float) -> None:
        self.referee.asks("ann", {"forget": "tea"}, at)

    def fires(self, at: float, attempt: str = "1") -> None:
        fired = {"kind": "timer", "key": "remind:ann:tea", "attempt": int(attempt)}
        self.referee.check(fired, decided=at, at=at)


CUT: Final = (
    "100.5 killed, 100.6 hung_up bob, 100.6 hung_up eve, "
    "100.9 offline bob gateway_lost, 101 restarted, 101 comes bob, 101 joins eve, "
    "101.2 offline eve gateway_lost 101.1, "
)
LEFT: Final = (
    "100 leaves bob, 100 leaves eve, 100.1 hung_up bob logout, "
    "100.1 hung_up eve logout, 100.1 offline bob logout, "
)
# Who there is, what happens, which faults there are, and how late silences were reported:
# None where it was not to be measured.
JUDGED: Final[dict[str, tuple[str, str, list[str], list[float | None]]]] = {
    "silent, when due": ("ann silent", "110 offline ann silence", [], [0.0]),
    "silent, late to the arrival, early to the decision": (
        "ann silent, bob silent",
        "110.25 offline ann silence 110.1, 110.25 offline bob silence 109.9",
        ["early bob"],
        [0.25],
    ),
    "silent, early": ("ann silent", "109.999 offline ann silence", ["early ann"], []),
    "silent, early, disturbed": (
        "ann silent", "100 disruption_begins, 109.999 offline ann silence", ["early ann"], [],
    ),
    **{
        f"talks, silent at {at} s": (
            "bob chat, eve keepalive",
            f"{at} offline bob silence, {at} offline eve silence",
            ["false bob", "false eve"],
            [],
        )
        for at in (100.2, 109.9, 110.2)
    },
    "silent, wrote after the decision": (
        "ann keepalive",
        "100 falls_silent ann, 110.15 wrote ann, 110.2 offline ann silence 110.1",
        [],
        [0.2],
    ),
    "silent, to be reported yet": ("ann silent", "111.3", [], []),
    "silent, missed once": (
        "ann silent", "112 offline ann silence", ["missed ann"], [2.0],
    ),
    "silent, missed by the record": (
        "ann silent", "111.35 offline ann silence", ["missed ann"], [1.35],
    ),
    "silent, twice": (
        "ann silent",
        "110.1 offline ann silence, 110.1 offline ann silence",
        ["false ann"],
        [0.1],
    ),
    "logout, to be reported yet": ("bob logout, eve logout", f"{LEFT} 101", [], []),
    "logout, missed": ("bob logout, eve logout", f"{LEFT} 101.1", ["missed eve"], []),
    "talks, logged out": (
        "bob keepalive", "100.2 offline bob logout", ["false bob"], [],
    ),
    "talks, lost": (
        "bob keepalive", "100.2 offline bob gateway_lost", ["false bob"], [],
    ),
    "back after the gateway's kill": (
        "bob keepalive, eve keepalive", f"{CUT} 105.2", [], [],
    ),
    "lost before its connection is seen to end": (
        "bob keepalive, eve keepalive",
        "100.5 killed, 100.6 offline bob gateway_lost, 100.7 hung_up bob, 101 restarted, "
        "101 offline eve gateway_lost, 101.1 hung_up eve",
        [],
        [],
    ),
    "back, and not online": (
        "bob keepalive, eve keepalive", f"{CUT} 105.5", ["missed eve"], [],
    ),
    "hung up by a gateway that runs": (
        "ann chat, bob chat, eve silent",
        "100.2 hung_up ann, 100.2 hung_up bob silence, 100.2 hung_up eve",
        ["false ann"],
        [],
    ),
    "silent after a disturbance": (
        "ann silent, bob silent",
        "100 disruption_begins, 115 disruption_ends, 125 offline ann silence, 129.2",
        [],
        [None],
    ),
    "silent after a disturbance, missed": (
        "ann silent, bob silent",
        "100 disruption_begins, 115 disruption_ends, 125 offline ann silence, 129.5",
        ["missed bob"],
        [None],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_the_referee_finds_these_faults_and_no_others(case: str) -> None:
    users, script, faults, lateness_s = JUDGED[case]
    play = Play(users, talking="eve" if CUT in script else "")
    assert play.run(script) == faults
    referee = play.referee
    measured = [round(late_s, 3) for late_s in referee.lateness_s]
    assert measured + [None] * referee.not_measured == lateness_s


def test_a_user_silenced_on_purpose_is_judged_like_one_that_planned_it() -> None:
    play = Play("ann chat, bob chat")
    assert play.referee.active_users() == ["ann", "bob"]
    play.run("100 silenced ann, 100 silenced bob")
    assert play.referee.active_users() == []
    assert play.run("110.1 offline ann silence, 112") == ["missed bob"]
    assert play.referee.ends["silenced", "silence"] == 1


def test_a_guest_is_judged_by_what_its_records_say() -> None:
    play = Play("")
    for seq, uid in enumerate(("ada", "bea"), 1):
        began = record("online", uid, "login", seq=seq, session=seq)
        play.referee.check(began, decided=100, at=100)
    assert play.referee.online == 2
    for seq, uid, silence_s in ((1, "ada", 10.0), (2, "bea", 9.999)):
        over = record(
            "offline", uid, "silence", seq=2 + seq, session=seq, silence=silence_s
        )
        play.referee.check(over, decided=100.1, at=100.1)
    assert play.run("100.1") == ["early bea"]
    assert play.referee.ends["guest", "silence"] == 2
    assert play.referee.online == 0


def test_what_was_due_while_the_process_stood_still_is_not_measured() -> None:
    play = Play("ann silent, bob chat")
    play.run("100")
    play.referee.check_overdue(at=120.0)
    play.offline(120.1, "ann", "silence")
    play.offline(120.1, "bob", "silence")
    play.hung_up(120.2, "bob")
    assert play.referee.faults == []
    assert (play.referee.not_measured, [*play.referee.lateness_s]) == (2, [])


EMPTY_ROOM: Final = (
    "104 offline ann logout, 105 fires, 110 comes ann, 110.3 fires 2, "
    "110.3 heard ann tea"
)
TAKEN: Final = "105 fires, 105 killed, 105.1 hung_up ann, 106 restarted, 106 comes ann"
# After ann, who talks, has asked at 100 s to be reminded at 105 s.
REMINDED: Final = {
    "when due, and heard": ("105.25 fires, 105.25 heard ann tea, 120", []),
    "before its time": ("104.999 fires", ["early tea"]),
    "twice": ("105 fires, 105.3 fires", ["false tea"]),
    "again": ("105 fires, 105.3 fires 2", ["false tea"]),
    "not yet": ("106.2", []),
    "never": ("107", ["missed tea"]),
    "not heard": ("105 fires, 107", ["missed tea"]),
    "though cancelled": ("102 forgets, 105 fires", ["false tea"]),
    "cancelled just before": ("104.9 forgets, 105 fires, 105 heard ann tea, 120", []),
    "not, cancelled just before": ("104.9 forgets, 120", []),
    "not, gateway killed before it had passed it on": (
        "100.5 killed, 101.5 comes ann, 101.5 restarted, 120",
        [],
    ),
    "not, gateway killed after it had passed it on": (
        "103 killed, 104 comes ann, 104 restarted, 120",
        ["missed tea"],
    ),
    "not yet, asked while the sidecar was away": (
        "100.1 disruption_begins, 106 disruption_ends, 115.2",
        [],
    ),
    "never, asked while the sidecar was away": (
        "100.1 disruption_begins, 106 disruption_ends, 115.5",
        ["missed tea"],
    ),
    "twice, to a gateway that was killed": (
        "104 killed, 105 fires, 106 restarted, 108 fires",
        [],
    ),
    "again after a disturbance": (
        "105 fires, 105 disruption_begins, 106 disruption_ends, 108 fires 2",
        [],
    ),
    "heard by the attempt after that of a killed gateway": (
        f"{TAKEN}, 112.5 fires 2, 112.7 heard ann tea, 120",
        [],
    ),
    "not heard after that of a killed gateway": (f"{TAKEN}, 113.5", ["missed tea"]),
    "again after the room was empty": (
        EMPTY_ROOM,
        ["false ann", "missed ann"],
    ),
    "a third time": (
        f"{EMPTY_ROOM}, 110.6 fires 3",
        ["false ann", "missed ann", "false tea"],
    ),
}


@pytest.mark.parametrize("case", REMINDED)
def test_the_referee_finds_these_faults_of_reminders(case: str) -> None:
    script, faults = REMINDED[case]
    found = Play("ann chat", talking="ann").run(f"100 asks, {script}")
    assert [fault.replace("remind:ann:", "") for fault in found] == faults


def test_reminders_are_counted_with_their_lateness() -> None:
    play = Play("ann chat", talking="ann")
    play.run("100 asks, 105.25 fires")
    assert (play.referee.reminders.fired, play.referee.reminders.cancelled) == (1, 0)
    assert play.referee.reminders.lateness_s == [0.25]
    play.run("106 asks, 107 forgets")
    assert (play.referee.reminders.fired, play.referee.reminders.cancelled) == (0, 1)


# --- lines --------------------------------------------------------------------------------


def test_the_summary_names_wronged_users_and_escapes_their_names() -> None:
    play = Play("bob chat, e\x1bve silent")
    began = record("online", "ada", "login", seq=1, session=1)
    play.referee.check(began, decided=100.0, at=100.0)
    play.run("105 offline e\x1bve silence")
    lines = list(summary(play.referee, {"silence": 2, "kill": 1}))
    assert lines[-2] == "faults: early 1, missed 0, false 0"
    assert (
        lines[-1]
        == r"    early: e\x1bve was reported after 5.000 s of silence (promise 1)"
    )
    assert "lateness: none was measured" in lines
    assert "done: silence 2, kill 1" in lines
    totals = next(line for line in lines if line.startswith("all"))
    assert totals.split()[1:] == ["3", "2", "1", "0", "0", "0"]


def test_the_lines_show_a_few_records_and_count_the_others() -> None:
    lines = PlainLines()
    for seq in range(9):
        lines.add(record("offline", f"{seq}", "logout", gateway="gw-1", at=0, seq=seq))
    shown = [line.split()[2] for line in lines.records()]
    assert shown == ["0", "1", "2", "3", "more"]
    assert lines.records() == []


def test_the_first_silence_is_shown_before_the_records_of_its_tick() -> None:
    lines = PlainLines()
    for seq, uid in enumerate(("ann", "bob")):
        more = {"gateway": "gw-1", "at": 0, "seq": seq, "silence": 2, "last": "login"}
        lines.add(record("offline", uid, "silence", **more))
    (line,) = lines.records()
    assert re.fullmatch(
        r"[\d:.]{12}  offline  bob  gw-1  silence  2.000 s since login", line
    )


# --- the picture --------------------------------------------------------------------------

SCENE: Final = Scene(
    elapsed_s=12.3,
    seconds=40,
    timeout_s=10,
    places=(
        "http://127.0.0.1:34759/   nc 127.0.0.1 33253",
        ".venv/bin/liveness watch --socket /tmp/liveness-demo-fc0k6293/gateway.sock",
    ),
    states=(("gateway", "up"), ("sidecar", "stopped")),
    online=150,
    events_s=48.4,
    timers=3,
    slots=(0.0, 8.0, *[4.0] * 27, 1_234.0),
    hand=29,
    rows=(("chat", [40, 39, 0, 1, 2, 3]), ("all", [200, 150, 30, 20, 2, 3])),
    lateness="lateness: p50 0.100 s, p99 0.200 s, max 0.300 s",
    reminders="reminders: 30 asked, 20 came, 10 cancelled, 0 open; at most 0.311 s late",
    faults=Counter(missed=1),
    logged=("  5.0 s   silence: 100 active users stop writing",),
    records=tuple(f"record {number}" for number in range(50)),
    has_keys=True,
)


def shown(scene: Scene, width: int, height: int) -> list[str]:
    lines = drawn(scene, width, height)
    assert all(line.cell_len <= width for line in lines)
    assert len(lines) <= height
    return [line.plain.rstrip() for line in lines]


def test_a_wide_terminal_shows_the_ring_with_its_hand_beside_the_users() -> None:
    head, states, *places, _keys, top = shown(SCENE, 110, 30)[:6]
    *sides, bottom = shown(SCENE, 110, 30)[6:11]
    assert head.startswith("liveness demo   12 s of 40   a user silent for 10 s")
    assert (
        states == "gateway up   sidecar stopped   150 online   48 events/s   3 timers"
    )
    assert tuple(places) == SCENE.places
    assert top.startswith(" 0  ▁8  ▁4  ")
    assert [side[:4] for side in sides] == ["▶1k ", "▁4  ", "▁4  ", "▁4  "]
    assert bottom == "▁4  " * 10 + "▁4"
    assert top.endswith("users online silence logout lost")
    assert sides[0].endswith("40     39       0      1    3")
    assert {SCENE.reminders, "faults:  early 0  missed 1  false 0"} <= {
        *shown(SCENE, 110, 30)
    }


def test_a_usual_terminal_shows_the_slots_as_a_strip_with_the_hand_below() -> None:
    lines = shown(SCENE, 80, 24)
    assert len(lines) == 24
    assert not any(line.endswith("…") for line in lines)
    bars, hand = [line[:30] for line in lines[5:9]], lines[9]
    assert [bar[29] for bar in bars] == ["█"] * 4
    assert bars[3][:3] == " ▁▁"
    assert hand[:30] == " " * 29 + "▲"
    assert lines[-1] == "record 49"


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (40, 12), (300, 100)])
def test_a_picture_never_outgrows_its_terminal(size: tuple[int, int]) -> None:
    shown(SCENE, *size)
    shown(replace(SCENE, slots=(), hand=0, logged=(), records=()), *size)


def test_unknown_numbers_are_question_marks() -> None:
    lines = shown(replace(SCENE, events_s=None, timers=None, has_keys=False), 110, 30)
    assert "150 online   ? events/s   ? timers" in lines[1]
    assert lines[4] == "no keys, as stdin is not this terminal"


def test_every_key_is_named_within_80_columns() -> None:
    line = shown(SCENE, 80, 24)[4]
    for action in ACTIONS.values():
        assert f"{action.key} {action.what}" in line
    assert line.endswith("q end")


METRICS: Final = """
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
    found = parsed_metrics(METRICS, at=100.0)
    assert found == WheelMetrics(
        at=100.0, events=43, slots=(5, 6, 7), unattended_s=1.5, timers=4
    )
    assert found.hand(up_at=98.0, timeout_s=3) == 0
    assert found.hand(up_at=97.4, timeout_s=3) == 1
    assert found.hand(up_at=94.5, timeout_s=3) == 1
    assert parsed_metrics("", at=100.0) is None
