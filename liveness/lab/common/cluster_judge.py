"""Checks that a user is online anywhere exactly while it is on some host.

Each host has a `HostJudge`, which knows what each user did there. This one compares all of
them with the records of the cluster. A user may be on several hosts at once: it is offline
when its last session ends, on whichever host.

Like the other judge it has no clock: every moment is in seconds of one monotonic clock.
While Redis is down the state of users is unknown. A host that was killed keeps its users
until the others notice. When it comes back it lists the users that it knows: these are
online again until it has decided about each. A state that cannot be known is not judged:
see `expected`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import inf
from typing import Final

from liveness.core.records import MOVED, OFFLINE
from liveness.lab.common.host_judge import (
    GRACE_S,
    RECOVERY_S,
    Faults,
    HostJudge,
    UserState,
)
from liveness.lab.common.promises import NO_PROMISE, Breach

# From a decision of a sidecar until every reader of the cluster has it: the disk, the
# linger, a call, and the pause between two reads take half a second on a busy machine.
PUBLISH_S: Final = 1.0
# The others notice a lost host after a quarter of a lease of silence, some of it late, and a
# lease of waiting; then they end its sessions.
LOST_LEASES: Final = 2.0


class ClusterJudge:
    """Checks the records of the cluster against the judges of its hosts.

    Args:
        hosts: The judge of each host, by its name; all know the same users.
        lease_s: The lease of the hosts.
    """

    def __init__(self, hosts: Mapping[str, HostJudge], *, lease_s: float) -> None:
        self.faults = Faults()
        self.ends = Counter[str]()  # by reason, or "moved"
        self.not_judged = 0  # offlines
        self._hosts = hosts
        self._lease_s = lease_s
        first = next(iter(hosts.values()))
        self._users = first.users.keys()
        self._timeout_s = first.timeout_s
        self._settling_s = first.flush_s + GRACE_S + PUBLISH_S
        self._online = defaultdict[int, set[str]](set)  # by partition
        self._redis_away: tuple[float, float] = (-inf, -inf)  # from, until; inf: still

    # --- disruptions ----------------------------------------------------------------

    def redis_killed(self, at: float) -> None:
        """Redis was killed, and lost all its data."""
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
        self.faults.forget(user)
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
        for user in before | now:
            self.faults.forget(user)
            if user not in now and is_settled:
                self._check_offline(user, at, "and is in no list")

    @property
    def online(self) -> int:
        return sum(map(len, self._online.values()))

    def check_overdue(self, at: float) -> None:
        online = {user for users in self._online.values() for user in users}
        for uid in self._users:
            expected = self.expected(uid, at)
            if expected is None or expected is (uid in online):
                continue
            what = (
                "is on no host, and online"
                if uid in online
                else "is on a host, offline"
            )
            self._fault("missed", uid, f"{what} in the cluster")

    # --- the expected state of users ----------------------------------------------------

    def expected(self, uid: str, at: float) -> bool | None:
        """Whether a user must be online anywhere at *at*; None: either state is right.

        Either is right while a change may still be on its way.
        """
        if at < self.calm_since:
            return None
        alive_since, over_at = list[float](), -inf
        for judge in self._hosts.values():
            user = judge.users[uid]
            since = self._alive_since(judge, user, at)
            if since is not None:
                alive_since.append(since)
            over_at = max(over_at, self._over_at(judge, user))
        since = max(min(alive_since, default=over_at), self.calm_since)
        return bool(alive_since) if at - since > self._settling_s else None

    def _alive_since(
        self, judge: HostJudge, user: UserState, at: float
    ) -> float | None:
        is_heard = at - user.last_wrote(by=at) < self._timeout_s
        if user.joined_at is None or user.left_at is not None or not is_heard:
            return None
        return None if judge.up_at == inf else max(user.joined_at, judge.calm_since)

    def _over_at(self, judge: HostJudge, user: UserState) -> float:
        """When the sessions of a user on a host must have ended; -inf: it had none."""
        wrote = user.last_wrote(by=inf)
        over_at = wrote + self._timeout_s if user.left_at is None else user.left_at
        is_of_now = wrote >= judge.up_at  # from after the last kill
        if is_of_now or over_at < judge.killed_at - self._settling_s:
            return max(over_at, -inf if judge.up_at == inf else judge.calm_since)
        if judge.started_at == inf:
            # The hosts that watch it start over when Redis comes back.
            return max(judge.killed_at, self.calm_since) + LOST_LEASES * self._lease_s
        # Its connection died with the host, which does not know that. To the host the
        # user is online until its gateway comes back without it, or its silence is
        # decided: the timeout starts over.
        return judge.calm_since + self._timeout_s

    # --- checks -----------------------------------------------------------------------

    def _check_offline(self, user: str, decided: float, how: str) -> None:
        """An offline is false if the user had been on another host for long enough."""
        hosts = list[str]()
        for name, judge in self._hosts.items() if user in self._users else ():
            since = self._alive_since(judge, judge.users[user], decided)
            if since is None:
                continue
            if decided - since <= PUBLISH_S or self._may_be_unknown(since, decided):
                self.not_judged += 1
            else:
                hosts.append(name)
        if hosts:
            what = f"is on {' and '.join(hosts)}, and was reported offline {how}"
            self._fault("false", user, what)
            self.faults.excuse("missed", user)  # it would be the same fault

    def _may_be_unknown(self, since: float, decided: float) -> bool:
        """Whether Redis may not know yet of a session that began at *since*.

        When Redis starts empty, one host after the other sends its users, within a
        lease. A session that began while it was down, or shortly before, may take longer.
        """
        away_at, up_at = self._redis_away
        if decided < up_at + self._lease_s:
            return True
        return away_at - PUBLISH_S <= since and decided < self.calm_since

    def _fault(self, kind: str, user: str, what: str) -> None:
        self.faults.add(kind, user, Breach(NO_PROMISE, what))
