"""The judge of one sidecar's users and timers: wrong histories, and those that are right."""

from typing import Any, Final

import pytest

from liveness.lab.common.host_judge import HostJudge


def record(kind: str, uid: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "uid": uid, "reason": reason, **more}


class Play:
    """A judge with a timeout of 10 s and a flush of 0.3 s, and the world that it judges.

    All users come, and write, at 100 s. After that a script such as
    "110.1 offline ann silence, 112" says what happens at which moment; a method below
    does it, or one of the judge. Meanwhile that looks ten times a second.

    Args:
        users: Uids with what each is to do, as in "ann chat, bob silent".
        talking: The user that writes a line before each look.
    """

    def __init__(self, users: str, talking: str = "") -> None:
        plans = dict(user.split() for user in users.split(", ") if user)
        self.judge = HostJudge(plans, timeout_s=10, flush_s=0.3)
        self._talking = talking
        self._next_tenth = 1_000
        self._seq, self._sessions = 0, dict[str, int]()  # the open ones
        for uid, plan in plans.items():
            self.comes(100.0, uid)
            if plan == "silent":
                self.judge.falls_silent(uid)

    def run(self, script: str) -> list[str]:
        """Plays a script; the faults so far."""
        for step in script.split(", "):
            at, *words = step.split()
            self._look_until(float(at))
            if words:
                name, *rest = words
                getattr(self, name)(float(at), *rest)
        listed = self.judge.faults.listed
        assert self.judge.faults.counts.total() == len(listed)
        return [f"{fault.kind} {fault.who}" for fault in listed]

    def _look_until(self, at: float) -> None:
        while self._next_tenth <= int(at * 10):
            now = self._next_tenth / 10
            if self._talking:
                self.judge.wrote(self._talking, now)
            self.judge.check_overdue(now)
            self._next_tenth += 1

    def comes(self, at: float, uid: str) -> None:
        """Joins, and is online."""
        self.joins(at, uid)
        self._seq += 1
        began = record("online", uid, "login", seq=self._seq, session=self._seq)
        if uid in self._sessions:
            began |= {"kind": "moved", "from_session": self._sessions[uid]}
        self._sessions[uid] = self._seq
        self.judge.check(began, decided=at, at=at)

    def joins(self, at: float, uid: str) -> None:
        self.judge.connects(uid, at)
        self.judge.wrote(uid, at)
        self.judge.joined(uid, at)

    def wrote(self, at: float, uid: str) -> None:
        self.judge.wrote(uid, at)

    def leaves(self, at: float, uid: str) -> None:
        self.judge.leaves(uid, at)

    def silent(self, _at: float, uid: str, on_purpose: str = "") -> None:
        self.judge.falls_silent(uid, is_planned=not on_purpose)

    def offline(self, at: float, uid: str, reason: str, decided: str = "") -> None:
        self._seq += 1
        session = self._sessions.pop(uid, 0)
        over = record("offline", uid, reason, seq=self._seq, session=session)
        self.judge.check(over, decided=float(decided or at), at=at)

    def hung_up(self, at: float, uid: str, reason: str = "") -> None:
        self.judge.hung_up(uid, reason, at=at)

    def killed(self, _at: float) -> None:
        """The gateway is, until `restarted`."""
        self.judge.disruption_begins(of_gateway=True)

    def restarted(self, at: float) -> None:
        self.judge.disruption_ends(at, of_gateway=True)

    def away(self, _at: float) -> None:
        """The sidecar is, until `back`."""
        self.judge.disruption_begins()

    def back(self, at: float) -> None:
        self.judge.disruption_ends(at)

    def asks(self, at: float) -> None:
        """Ann wants to be reminded of the tea in 5 s."""
        self.judge.asks("ann", "tea", 5, at)

    def forgets(self, at: float) -> None:
        self.judge.cancels("ann", "tea", at)

    def fires(self, at: float, attempt: str = "1") -> None:
        fired = {"kind": "timer", "key": "tea", "attempt": int(attempt)}
        self.judge.check(fired, decided=at, at=at)

    def heard(self, _at: float) -> None:
        self.judge.timers.heard("tea")


CUT: Final = (
    "100.5 killed, 100.6 hung_up bob, 100.6 hung_up eve, "
    "100.9 offline bob gateway_lost, 101 restarted, 101 comes bob, 101 joins eve, "
    "101.2 offline eve gateway_lost 101.1, "
)
LEFT: Final = (
    "100 leaves bob, 100 leaves eve, 100.1 hung_up bob logout, "
    "100.1 hung_up eve logout, 100.1 offline bob logout, "
)
TWO: Final = "bob keepalive, eve keepalive"
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
        "ann silent", "100 away, 109.999 offline ann silence", ["early ann"], [],
    ),
    **{
        f"talks, silent at {at} s": (
            TWO, f"{at} offline bob silence", ["false bob"], [],
        )
        for at in (100.2, 109.9, 110.2)
    },
    "silent, wrote after the decision": (
        "ann keepalive",
        "100 silent ann, 110.15 wrote ann, 110.2 offline ann silence 110.1",
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
    "silent on purpose, missed": (
        "ann chat, bob chat",
        "100 silent ann 1, 100 silent bob 1, 110.1 offline ann silence, 112",
        ["missed bob"],
        [0.1],
    ),
    "logout, to be reported yet": ("bob logout, eve logout", f"{LEFT} 101", [], []),
    "logout, missed": ("bob logout, eve logout", f"{LEFT} 101.1", ["missed eve"], []),
    "talks, logged out": (TWO, "100.2 offline bob logout", ["false bob"], []),
    "talks, lost": (TWO, "100.2 offline bob gateway_lost", ["false bob"], []),
    "back after the gateway's kill": (TWO, f"{CUT} 105.2", [], []),
    "lost before its connection is seen to end": (
        TWO,
        "100.5 killed, 100.6 offline bob gateway_lost, 100.7 hung_up bob, 101 restarted, "
        "101 offline eve gateway_lost, 101.1 hung_up eve",
        [],
        [],
    ),
    "back, and not online": (TWO, f"{CUT} 105.5", ["missed eve"], []),
    "hung up by a gateway that runs": (
        "ann chat, bob chat, eve silent",
        "100.2 hung_up ann, 100.2 hung_up bob silence, 100.2 hung_up eve",
        ["false ann"],
        [],
    ),
    **{
        f"silent after a disturbance, until {until} s": (
            "ann silent, bob silent",
            f"100 away, 115 back, 125 offline ann silence, {until}",
            faults,
            [None],
        )
        for until, faults in ((129.2, []), (129.5, ["missed bob"]))
    },
}  # fmt: skip


@pytest.mark.parametrize("case", JUDGED)
def test_the_judge_finds_these_faults_and_no_others(case: str) -> None:
    users, script, faults, lateness_s = JUDGED[case]
    play = Play(users, talking="eve" if CUT in script else "")
    assert play.run(script) == faults
    measured = [round(late_s, 3) for late_s in play.judge.lateness_s]
    assert measured + [None] * play.judge.not_measured == lateness_s


def test_a_guest_is_judged_by_what_its_records_say() -> None:
    play = Play("")
    for seq, uid in enumerate(("ada", "bea"), 1):
        began = record("online", uid, "login", seq=seq, session=seq)
        play.judge.check(began, decided=100, at=100)
    assert (play.judge.online, play.judge.guests) == (2, 2)
    for seq, uid, silence_s in ((1, "ada", 10.0), (2, "bea", 9.999)):
        over = record(
            "offline", uid, "silence", seq=2 + seq, session=seq, silence=silence_s
        )
        play.judge.check(over, decided=100.1, at=100.1)
    assert play.run("100.1") == ["early bea"]
    assert play.judge.ends["guest", "silence"] == 2
    assert play.judge.online == 0


def test_what_was_due_while_the_process_stood_still_is_not_measured() -> None:
    play = Play("ann silent, bob chat")
    play.run("100")
    play.judge.check_overdue(at=120.0)
    play.offline(120.1, "ann", "silence")
    play.offline(120.1, "bob", "silence")
    play.hung_up(120.2, "bob")
    assert play.judge.faults.listed == []
    assert (play.judge.not_measured, [*play.judge.lateness_s]) == (2, [])


EMPTY_ROOM: Final = (
    "104 offline ann logout, 105 fires, 110 comes ann, 110.3 fires 2, 110.3 heard"
)
TAKEN: Final = "105 fires, 105 killed, 105.1 hung_up ann, 106 restarted, 106 comes ann"
# After ann, who talks, has asked at 100 s to be reminded at 105 s.
REMINDED: Final = {
    "when due, and heard": ("105.25 fires, 105.25 heard, 120", []),
    "before its time": ("104.999 fires", ["early tea"]),
    "twice": ("105 fires, 105.3 fires", ["false tea"]),
    "again": ("105 fires, 105.3 fires 2", ["false tea"]),
    "not yet": ("106.2", []),
    "never": ("107", ["missed tea"]),
    "not heard": ("105 fires, 107", ["missed tea"]),
    "though cancelled": ("102 forgets, 105 fires", ["false tea"]),
    "cancelled just before": ("104.9 forgets, 105 fires, 105 heard, 120", []),
    "not, cancelled just before": ("104.9 forgets, 120", []),
    "not, gateway killed before it had passed it on": (
        "100.5 killed, 101.5 comes ann, 101.5 restarted, 120", [],
    ),
    "not, gateway killed after it had passed it on": (
        "103 killed, 104 comes ann, 104 restarted, 120", ["missed tea"],
    ),
    "not yet, asked while the sidecar was away": ("100.1 away, 106 back, 115.2", []),
    "never, asked while the sidecar was away": (
        "100.1 away, 106 back, 115.5", ["missed tea"],
    ),
    "twice, to a gateway that was killed": (
        "104 killed, 105 fires, 106 restarted, 108 fires", [],
    ),
    "again after a disturbance": ("105 fires, 105 away, 106 back, 108 fires 2", []),
    "heard by the attempt after that of a killed gateway": (
        f"{TAKEN}, 112.5 fires 2, 112.7 heard, 120", [],
    ),
    "not heard after that of a killed gateway": (f"{TAKEN}, 113.5", ["missed tea"]),
    "again after the room was empty": (EMPTY_ROOM, ["false ann", "missed ann"]),
    "a third time": (
        f"{EMPTY_ROOM}, 110.6 fires 3", ["false ann", "missed ann", "false tea"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REMINDED)
def test_the_judge_finds_these_faults_of_timers(case: str) -> None:
    script, faults = REMINDED[case]
    assert Play("ann chat", talking="ann").run(f"100 asks, {script}") == faults


def test_timers_are_counted_with_their_lateness() -> None:
    play = Play("ann chat", talking="ann")
    timers = play.judge.timers
    play.run("100 asks, 105.25 fires")
    assert (timers.fired, timers.cancelled, timers.lateness_s) == (1, 0, [0.25])
    play.run("106 asks, 107 forgets")
    assert (timers.fired, timers.cancelled) == (0, 1)
