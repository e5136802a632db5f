"""The judges of the demo and the bench: wrong histories, and those that are right."""

import math
from abc import ABC, abstractmethod
from typing import Any, Final

import pytest

from liveness.lab.common.cluster_judge import ClusterJudge
from liveness.lab.common.host_judge import HostJudge
from liveness.lab.common.judge import Moment, Notices, judge, quantile


def histories(text: str, **parts: str) -> dict[str, tuple[str, list[str]]]:
    """By name: a script, and the faults that a judge has to find in it.

    A line is `NAME: SCRIPT => FAULT, FAULT`, and goes on where the next one is indented.
    `{PART}` in it is one of *parts*, which may have others in them.
    """
    found = {}
    for line in text.strip().replace("\n    ", " ").splitlines():
        while "{" in line:
            line = line.format(**parts)
        name, _, rest = line.partition(": ")
        script, _, faults = rest.partition(" => ")
        found[name] = (script, faults.split(", ") if faults else [])
    return found


class Player(ABC):
    """Plays a script such as "100 joins ann, 112", from 100 s on, to a judge.

    A step is a method of this, or else one of the judge. Between the steps the judge looks
    ten times a second for what is missing.
    """

    judge: Any
    _next_tenth = 1_000

    def run(self, script: str) -> list[str]:
        """Plays it; the faults so far."""
        for step in script.split(", "):
            at, *words = step.split()
            while self._next_tenth <= int(float(at) * 10):
                self.write(self._next_tenth / 10)
                self.look(self._next_tenth / 10)
                self._next_tenth += 1
            if words and hasattr(self, words[0]):
                getattr(self, words[0])(float(at), *words[1:])
            elif words:
                getattr(self.judge, words[0])(*words[1:], float(at))
        faults = self.judge.faults
        assert faults.counts.total() == len(faults.listed)
        return [f"{fault.kind} {fault.who}" for fault in faults.listed]

    def look(self, at: float) -> None:
        self.judge.check_overdue(at)

    @abstractmethod
    def write(self, at: float) -> None:
        """Have the users write that are to go on writing."""


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


HOSTS: Final = ("a", "b", "c")


class Journal(Player):
    """A judge of three hosts, with a timeout of 10 s and a lease of 5 s."""

    def __init__(self, users: str) -> None:
        plans = dict.fromkeys(users.split(), "keepalive")
        self.hosts = {
            name: HostJudge(plans, timeout_s=10, flush_s=0.3) for name in HOSTS
        }
        self.judge = ClusterJudge(self.hosts, lease_s=5)
        self._writing = set[tuple[str, str]]()  # users and their hosts

    def write(self, at: float) -> None:
        for uid, host in self._writing:
            self.hosts[host].wrote(uid, at)

    def look(self, at: float) -> None:
        """Looks for nothing: this judge finds no missing records."""

    # --- what users and operators do ------------------------------------------------

    def joins(self, at: float, uid: str, host: str) -> None:
        """On a host; the cluster does not know yet."""
        self.hosts[host].connects(uid, at)
        self.hosts[host].wrote(uid, at)
        self.hosts[host].joined(uid, at)
        self._writing.add((uid, host))

    def comes(self, at: float, uid: str, host: str) -> None:
        """On a host, and the cluster knows."""
        self.joins(at, uid, host)
        self.online(at, uid, host)

    def silent(self, _at: float, uid: str, host: str) -> None:
        self.hosts[host].falls_silent(uid)
        self._writing.remove((uid, host))

    def leaves(self, at: float, uid: str, host: str) -> None:
        self.silent(at, uid, host)
        self.hosts[host].leaves(uid, at)

    def kills(self, at: float, host: str) -> None:
        self.hosts[host].disruption_begins(at, of_gateway=True)
        for uid, place in [*self._writing]:
            if place == host:
                self._writing.remove((uid, host))
                self.hosts[host].hung_up(uid, "", at)

    def is_up(self, at: float, host: str) -> None:
        self.hosts[host].disruption_ends(at, of_gateway=True)

    # --- what the cluster says ------------------------------------------------------

    def online(self, at: float, uid: str, host: str) -> None:
        self._record(at, "online", uid, host, "login")

    def moved(self, at: float, uid: str, host: str) -> None:
        self._record(at, "moved", uid, host, "login")

    def offline(
        self, at: float, uid: str, host: str, reason: str, decided: str = ""
    ) -> None:
        self._record(float(decided or at), "offline", uid, host, reason)

    def listed(self, at: float, *users: str, is_settled: bool = True) -> None:
        """The online users, by a list."""
        self.judge.take_list(0, {*users}, is_settled=is_settled, at=at)

    def listed_early(self, at: float) -> None:
        self.listed(at, is_settled=False)

    def _record(self, at: float, kind: str, uid: str, host: str, reason: str) -> None:
        self.judge.take(kind, uid, host, reason, partition=0, at=at)


# What happens to ann and bob.
JUDGED_ON_HOSTS: Final = histories(
    """
silent, when due: 100 comes ann a, 105 silent ann a, 115.2 offline ann a silence, 130
roamed, offline twice: {ROAMED}, 115.1 offline ann a silence, 115.2 online ann b,
    115.3 offline ann b silence => false ann, false ann
hopped, offline before anyone could know: {HOPPED}, 105.1 offline ann a logout, 105.2
    online ann b, 120
host lost, offline though on another one: {LOST}, 105.5 joins ann b, 105.7 moved ann
    b, 111 offline bob a host_lost, 111 offline ann b host_lost => false ann
host back, a user that is on another one is offline: {LOST}, 111 offline ann a
    host_lost, 120 online ann a, 121 comes ann b, 124 is_up a, 127 offline ann a
    gateway_lost => false ann
Redis emptied, all listed again: {EMPTIED}, 113 listed ann, 150
Redis emptied, not settled yet: {EMPTIED}, 108.5 listed_early, 109 online ann c, 150
Redis emptied, one forgotten: {EMPTIED}, 113 listed, 114 online ann c, 150 => false
    ann
Redis emptied, one that came meanwhile: 100 comes ann a, 105 redis_killed, 106 leaves
    ann a, 106 joins ann b, 108 redis_up, 109 offline ann a logout, 109.1 online ann
    b, 150
""",
    ROAMED="100 comes ann a, 105 silent ann a, 105 joins ann b, 105.1 moved ann b",
    HOPPED="100 comes ann a, 105 leaves ann a, 105 joins ann b",
    LOST="100 comes ann a, 100 comes bob a, 105 kills a",
    EMPTIED="100 comes ann c, 105 redis_killed, 108 redis_up",
)


@pytest.mark.parametrize("case", JUDGED_ON_HOSTS)
def test_the_judge_of_hosts_finds_these_faults_and_no_others(case: str) -> None:
    script, faults = JUDGED_ON_HOSTS[case]
    assert sorted(Journal("ann bob").run(script)) == faults


def test_a_guest_is_counted_and_not_judged() -> None:
    journal = Journal("ann")
    assert journal.run("100 online ada b, 105 offline ada b silence") == []
    journal.run("106 online ada b")
    assert journal.judge.online == 1


LAST = Moment(mono=100.0, wall_ms=5_000_000.0)
DUE_MS = 5_010_000


def offline(uid: str, *, at_ms: int = DUE_MS, reason: str = "silence") -> Notices:
    record = {"kind": "offline", "uid": uid, "reason": reason, "at": at_ms}
    return Notices(110.0 + (at_ms - DUE_MS) / 1000, [record])


def test_users_in_bulk_are_right_early_false_or_missing() -> None:
    notices = [
        offline("right", at_ms=DUE_MS + 20),
        offline("right", at_ms=DUE_MS + 20),
        offline("speaks"),
        offline("leaves", reason="logout"),
        offline("early", at_ms=DUE_MS - 2),
    ]
    silent = dict.fromkeys(("right", "leaves", "early", "silent"), LAST)
    verdict = judge(notices, silent, timeout_s=10.0)
    assert (verdict.early, verdict.false, verdict.missing) == (1, 3, 1)
    assert verdict.decided_s[0] == pytest.approx(0.02)
    assert verdict.delivered_s[0] == pytest.approx(0.02)


def test_a_timer_is_judged_by_its_key() -> None:
    fired = [Notices(100.0, [{"kind": "timer", "key": "tea", "at": 5_000_000}])]
    verdict = judge(fired * 2, {"tea": LAST, "bus": LAST}, key="key")
    assert (verdict.early, verdict.false, verdict.missing) == (0, 1, 1)


def test_a_quantile_is_a_value_that_occurred_and_none_of_nothing() -> None:
    assert quantile([*range(1, 101)], 0.99) == 99
    assert quantile([7.0], 0.99) == 7.0
    assert math.isnan(quantile([], 0.5))
