"""The judge of several hosts: wrong and right histories of users online anywhere."""

from typing import Final

import pytest

from liveness.lab.common.cluster_judge import ClusterJudge
from liveness.lab.common.host_judge import HostJudge
from tests.lab.common.histories import Player, histories

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
JUDGED: Final = histories(
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


@pytest.mark.parametrize("case", JUDGED)
def test_the_judge_of_hosts_finds_these_faults_and_no_others(case: str) -> None:
    script, faults = JUDGED[case]
    assert sorted(Journal("ann bob").run(script)) == faults


def test_a_guest_is_counted_and_not_judged() -> None:
    journal = Journal("ann")
    assert journal.run("100 online ada b, 105 offline ada b silence") == []
    journal.run("106 online ada b")
    assert journal.judge.online == 1
