"""Checks that no user is reported offline anywhere while it is on another host.

Each host has a `HostJudge`, which knows what each user did there. This one compares all of
them with the records of the cluster. A user may be on several hosts at once: it is offline
when its last session ends, on whichever host.

Like the other judge it has no clock: every moment is in seconds of one monotonic clock.
What Redis cannot know is not judged: see `_may_be_unknown`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import inf
from typing import Final

from liveness.core.records import MOVED, OFFLINE
from liveness.lab.common.host_judge import RECOVERY_S, Faults, HostJudge
from liveness.lab.common.promises import NO_PROMISE, Breach

# From a decision of a sidecar until every reader of the cluster has it: the disk, the
# linger, a call, and the pause between two reads take half a second on a busy machine.
PUBLISH_S: Final = 1.0


class ClusterJudge:
    """Checks the records of the cluster against the judges of its hosts."""

    def __init__(self, hosts: Mapping[str, HostJudge], *, lease_s: float) -> None:
        self.faults = Faults()
        self.ends = Counter[str]()  # by reason, or "moved"
        self._hosts = hosts
        self._lease_s = lease_s
        self._online = defaultdict[int, set[str]](set)  # by partition
        self._redis_away: tuple[float, float] = (-inf, -inf)  # from, until; inf: still

    # --- disruptions ----------------------------------------------------------------

    def redis_killed(self, at: float) -> None:
        self._redis_away = (at, inf)

    def redis_up(self, at: float) -> None:
        """Redis is up again, and empty; before the first kill this says nothing."""
        away_at, up_at = self._redis_away
        if up_at == inf:
            self._redis_away = (away_at, at)

    @property
    def calm_since(self) -> float:
        """When the hosts had sent Redis all they know, after it was away; inf: not yet."""
        return self._redis_away[1] + self._lease_s + RECOVERY_S

    # --- records --------------------------------------------------------------------

    def take(
        self, kind: str, user: str, host: str, reason: str, *, partition: int, at: float
    ) -> None:
        """Checks a record; its host is where the user is, or was until it went offline."""
        if kind == OFFLINE:
            self.ends[reason] += 1
            self._online[partition].discard(user)
            self._check_offline(user, at, f"by {reason} on {host}")
        else:
            self.ends[MOVED] += kind == MOVED
            self._online[partition].add(user)

    def take_list(
        self, partition: int, now: set[str], *, is_settled: bool, at: float
    ) -> None:
        """Takes a list of users: others went offline without a record."""
        before, self._online[partition] = self._online[partition], now
        for user in before - now if is_settled else ():
            self._check_offline(user, at, "and is in no list")

    @property
    def online(self) -> int:
        return sum(map(len, self._online.values()))

    # --- checks -----------------------------------------------------------------------

    def _check_offline(self, uid: str, decided: float, how: str) -> None:
        """An offline is false if the user had been on another host for long enough."""
        hosts = list[str]()
        for name, judge in self._hosts.items():
            since = judge.alive_since(uid, decided)
            if since is None or decided - since <= PUBLISH_S:
                continue
            if not self._may_be_unknown(since, decided):
                hosts.append(name)
        if hosts:
            what = f"is on {' and '.join(hosts)}, and was reported offline {how}"
            self.faults.forget(uid)
            self.faults.add("false", uid, Breach(NO_PROMISE, what))

    def _may_be_unknown(self, since: float, decided: float) -> bool:
        """Whether Redis may not know yet of a session that began at *since*.

        When Redis starts empty, one host after the other sends its users, within a
        lease. A session that began while it was down, or shortly before, may take longer.
        """
        away_at, up_at = self._redis_away
        if decided < up_at + self._lease_s:
            return True
        return away_at - PUBLISH_S <= since and decided < self.calm_since
