"""The judge of one sidecar's users: wrong histories, and those that are right."""

from typing import Any, Final

import pytest

from liveness.lab.common.host_judge import HostJudge
from tests.lab.common.histories import Player, histories


def record(kind: str, uid: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "uid": uid, "reason": reason, **more}


class Play(Player):
    """A judge with a timeout of 10 s and a flush of 0.3 s, and the world that it judges.

    All *users*, as in "ann chat, bob silent", come and write at 100 s; the one that is
    *talking* writes before each look.
    """

    def __init__(self, users: str, talking: str = "") -> None:
        plans = dict(user.split() for user in users.split(", ") if user)
        self.judge = HostJudge(plans, timeout_s=10, flush_s=0.3)
        self._talking = talking
        self._seq, self._sessions = 0, dict[str, int]()  # the open ones
        for uid, plan in plans.items():
            self.comes(100.0, uid)
            if plan == "silent":
                self.judge.falls_silent(uid)

    def write(self, at: float) -> None:
        if self._talking:
            self.judge.wrote(self._talking, at)

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

    def silent(self, _at: float, uid: str, on_purpose: str = "") -> None:
        self.judge.falls_silent(uid, is_planned=not on_purpose)

    def offline(self, at: float, uid: str, reason: str, decided: str = "") -> None:
        self._seq += 1
        session = self._sessions.pop(uid, 0)
        over = record("offline", uid, reason, seq=self._seq, session=session)
        self.judge.check(over, decided=float(decided or at), at=at)

    def hung_up(self, at: float, uid: str, reason: str = "") -> None:
        self.judge.hung_up(uid, reason, at=at)

    def killed(self, at: float) -> None:
        """The gateway is, until `restarted`."""
        self.judge.disruption_begins(at, of_gateway=True)

    def restarted(self, at: float) -> None:
        self.judge.disruption_ends(at, of_gateway=True)

    def away(self, at: float) -> None:
        """The sidecar is, until it is back."""
        self.judge.disruption_begins(at)

    def back(self, at: float) -> None:
        self.judge.disruption_ends(at)


# Who there is and what happens, the faults, and how late silences were reported (?: not to
# be measured).
JUDGED: Final = histories(
    """
silent, when due: ann silent | 110 offline ann silence ~ 0.00
silent, late to the arrival, early to the decision: ann silent, bob silent | 110.25
    offline ann silence 110.1, 110.25 offline bob silence 109.9 ~ 0.25 => early bob
silent, early, disturbed: ann silent | 100 away, 109.999 offline ann silence => early
    ann
talks, silent at 110.2 s: bob keepalive, eve keepalive | 110.2 offline bob silence =>
    false bob
silent, wrote after the decision: ann keepalive | 100 silent ann, 110.15 wrote ann,
    110.2 offline ann silence 110.1 ~ 0.20
silent, missed once: ann silent | 112 offline ann silence ~ 2.00 => missed ann
silent, twice: ann silent | 110.1 offline ann silence, 110.1 offline ann silence ~
    0.10 => false ann
silent on purpose, missed: ann chat, bob chat | 100 silent ann 1, 100 silent bob 1,
    110.1 offline ann silence, 112 ~ 0.10 => missed bob
logout, to be reported yet: bob logout, eve logout | {LEFT}, 101
logout, missed: bob logout, eve logout | {LEFT}, 101.1 => missed eve
talks, logged out: bob keepalive, eve keepalive | 100.2 offline bob logout => false
    bob
lost before its connection is seen to end: bob keepalive, eve keepalive | 100.5
    killed, 100.6 offline bob gateway_lost, 100.7 hung_up bob, 101 restarted, 101
    offline eve gateway_lost, 101.1 hung_up eve
back, and not online: bob keepalive, eve keepalive | {CUT}, 105.5 => missed eve
hung up by a gateway that runs: ann chat, bob chat, eve silent | 100.2 hung_up ann,
    100.2 hung_up bob silence, 100.2 hung_up eve => false ann
silent after a disturbance, until 129.5 s: ann silent, bob silent | 100 away, 115
    back, 125 offline ann silence, 129.5 ~ ? => missed bob
""",
    CUT="100.5 killed, 100.6 hung_up bob, 100.6 hung_up eve, "
    "100.9 offline bob gateway_lost, 101 restarted, 101 comes bob, 101 joins eve, "
    "101.2 offline eve gateway_lost 101.1",
    LEFT="100 leaves bob, 100 leaves eve, 100.1 hung_up bob logout, "
    "100.1 hung_up eve logout, 100.1 offline bob logout",
)


@pytest.mark.parametrize("case", JUDGED)
def test_the_judge_finds_these_faults_and_no_others(case: str) -> None:
    history, faults = JUDGED[case]
    users, _, rest = history.partition(" | ")
    script, _, lateness_s = rest.partition(" ~ ")
    play = Play(users, talking="eve" if "joins eve" in script else "")
    assert play.run(script) == faults
    measured = [f"{late_s:.2f}" for late_s in play.judge.lateness_s]
    assert measured + ["?"] * play.judge.not_measured == lateness_s.split()


def test_what_was_due_while_the_process_stood_still_is_not_measured() -> None:
    play = Play("ann silent, bob chat")
    play.run("100")
    play.judge.check_overdue(at=120.0)
    play.offline(120.1, "ann", "silence")
    play.offline(120.1, "bob", "silence")
    play.hung_up(120.2, "bob")
    assert play.judge.faults.listed == []
    assert (play.judge.not_measured, [*play.judge.lateness_s]) == (2, [])
