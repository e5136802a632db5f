"""Checks that a user is online anywhere exactly while it is on some host.

Each host has a `Referee`, which knows what each user did there. This one compares all of
them with the records of the cluster. A user may be on several hosts at once: it is offline
when its last session ends, on whichever host.

Like the other referee it has no clock: every moment is in seconds of one monotonic clock.
While Redis is away nothing is known; a host that was killed keeps its users until the
others notice. What nobody can tell is not judged: see `expected`.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from liveness.cluster.events import ClusterEvent, Listed
from liveness.cluster.format import ClusterRecord, Place
from liveness.core.records import MOVED, OFFLINE, identity
from liveness.lab.common.promises import NO_PROMISE, Breach
from liveness.lab.demo.referee import (
    GRACE_S,
    MAX_FAULTS,
    RECOVERY_S,
    Fault,
    Referee,
    UserState,
)

CLUSTER_FAULTS: Final = ("missed", "false")
# From a decision of a sidecar until every reader of the cluster knows: the sidecar's disk,
# the linger, a call, and the pause between two reads take half a second on a busy machine.
PUBLISH_S: Final = 1.0
# The others notice a lost host after half a lease of silence and half a lease of looking
# on, each up to a sixth late; then they end its sessions.
LOST_LEASES: Final = 2.0

MAX_LOST: Final = 100  # kills of hosts that are remembered, in a demo of a day


@dataclass(slots=True)
class LostHost:
    """A host that was killed, and what became of the users whose newest session it had."""

    name: str
    killed_at: float
    users: set[str]  # of which nothing is known yet
    moved_s: list[float] = field(
        default_factory=list
    )  # until they were on another host
    offline_s: list[float] = field(default_factory=list)  # until they were offline
    kept: int = 0  # neither, before the host was up again


class OnlineCounts(NamedTuple):
    """How many users are online anywhere, by what they have to be."""

    required: int  # have to be online
    required_online: int
    forbidden: int  # must not be
    forbidden_online: int
    open: int  # have just come or gone, or their host was lost: both is right
    open_online: int


class ClusterReferee:
    """Checks the records of the cluster against the referees of its hosts.

    Args:
        hosts: The referee of each host, by its name; all know the same users.
        lease_s: The lease of the hosts.
    """

    def __init__(self, hosts: Mapping[str, Referee], *, lease_s: float) -> None:
        self.faults: list[Fault] = []
        self.faults_of = Counter[str]()  # by kind
        self.ends = Counter[str]()  # by reason, or "moved"
        self.lost: deque[LostHost] = deque(maxlen=MAX_LOST)
        self.not_judged = 0  # offlines
        self._hosts = hosts
        self._lease_s = lease_s
        first = next(iter(hosts.values()))
        self._users = first.users.keys()
        self._timeout_s = first.timeout_s
        self._settling_s = first.flush_s + GRACE_S + PUBLISH_S
        self._online: dict[int, dict[str, Place]] = {}  # by partition
        self._counted = set[tuple[str, str]]()  # kind and user, until its next record
        self._killed: dict[str, float] = {}  # hosts that are down, and since when
        self._redis_away: tuple[float, float] = (-inf, -inf)  # from, until; inf: still

    # --- disruptions ----------------------------------------------------------------

    def host_killed(self, name: str, at: float) -> None:
        """A host was killed, with its sidecar and its gateway."""
        self._killed[name] = at
        users = {user for user, place in self._places() if place.host == name}
        self.lost.append(LostHost(name, at, users))

    def host_up(self, name: str) -> None:
        """It is up again, and settles itself what is left of its users."""
        del self._killed[name]
        for lost in self.lost:
            if lost.name == name:
                lost.kept += len(lost.users)
                lost.users.clear()

    def redis_killed(self, at: float) -> None:
        """Redis was killed, with all that it knew."""
        self._redis_away = (at, inf)

    def redis_up(self, at: float) -> None:
        """Redis is up again, and empty."""
        self._redis_away = (self._redis_away[0], at)

    @property
    def calm_since(self) -> float:
        """When the hosts had told Redis all they know, after it was away; inf: not yet."""
        return self._redis_away[1] + self._lease_s + RECOVERY_S

    # --- records --------------------------------------------------------------------

    def take(self, event: ClusterEvent, *, decided: float, at: float) -> None:
        """Checks a record that was made at one moment and read at the other."""
        if isinstance(event, Listed):
            self._take_list(event, at)
        elif isinstance(event, ClusterRecord):
            self._take_record(event, decided=decided)

    @property
    def online(self) -> int:
        """How many users and guests are online anywhere, by the records."""
        return sum(map(len, self._online.values()))

    def online_on(self, host: str) -> int:
        """How many of them have their newest session on a host."""
        return sum(place.host == host for _, place in self._places())

    def check_overdue(self, at: float) -> None:
        """Looks for users that the cluster should have reported by *at*."""
        online = {user for user, _ in self._places()}
        for uid in self._users:
            expected = self.expected(uid, at)
            if expected is None or expected is (uid in online):
                continue
            what = "is on no host" if uid in online else "is on a host"
            state = "online" if uid in online else "offline"
            self._fault("missed", uid, f"{what}, and {state} in the cluster")

    def counts(self, at: float) -> OnlineCounts:
        """Who has to be online anywhere at *at*, and who is."""
        online = {user for user, _ in self._places()}
        counts = Counter((self.expected(uid, at), uid in online) for uid in self._users)
        return OnlineCounts(
            *(
                number
                for expected in (True, False, None)
                for number in (
                    counts[expected, True] + counts[expected, False],
                    counts[expected, True],
                )
            )
        )

    # --- what users are by what they did ----------------------------------------------

    def expected(self, uid: str, at: float) -> bool | None:
        """Whether a user has to be online anywhere at *at*; None: both is right.

        Both is right while a change may still be on its way.
        """
        if at < self.calm_since:
            return None
        alive_since, over_at = list[float](), -inf
        for name, referee in self._hosts.items():
            user = referee.users[uid]
            since = self._alive_since(name, user, at)
            if since is not None:
                alive_since.append(since)
            if name not in self._killed:
                over_at = max(over_at, referee.calm_since)
            over_at = max(over_at, self._over_at(name, user))
        since = max(min(alive_since, default=over_at), self.calm_since)
        return bool(alive_since) if at - since > self._settling_s else None

    def _alive_since(self, name: str, user: UserState, at: float) -> float | None:
        """Since when a user is on a host that runs; None: it is not there."""
        is_there = user.joined_at is not None and user.left_at is None
        is_heard = at - user.last_wrote(by=at) < self._timeout_s
        if not is_there or not is_heard or name in self._killed:
            return None
        assert user.joined_at is not None
        return max(user.joined_at, self._hosts[name].calm_since)

    def _over_at(self, name: str, user: UserState) -> float:
        """When the session of a user on a host has to be over; -inf: it had none."""
        over_at = user.last_wrote(by=inf) + self._timeout_s
        if user.left_at is not None:
            over_at = user.left_at
        killed_at = self._killed.get(name)
        if killed_at is None or over_at < killed_at - PUBLISH_S:
            return over_at
        # Those who watch it begin anew when Redis comes back.
        return max(killed_at, self.calm_since) + LOST_LEASES * self._lease_s

    # --- checks -----------------------------------------------------------------------

    def _take_record(self, record: ClusterRecord, *, decided: float) -> None:
        users = self._online.setdefault(record.partition, {})
        user, place = identity(record.user), record.place
        self._forget_counted(user)
        if record.kind == OFFLINE:
            self.ends[place.reason] += 1
            users.pop(user, None)
            self._check_offline(user, decided, f"by {place.reason} on {place.host}")
        else:
            self.ends[MOVED] += record.kind == MOVED
            users[user] = place
        self._note_lost(user, users.get(user), decided)

    def _take_list(self, event: Listed, at: float) -> None:
        """Who was online and is not in the list has gone offline without a record."""
        before = self._online.get(event.partition, {})
        now = {identity(place.user): place for place in event.places}
        self._online[event.partition] = now
        for user in {**before, **now}:
            self._forget_counted(user)
            self._note_lost(user, now.get(user), at)
            if user not in now and event.is_settled:
                self._check_offline(user, at, "and is in no list")

    def _check_offline(self, user: str, decided: float, how: str) -> None:
        """An offline is false if the user had been on another host for long enough."""
        if user not in self._users:
            return
        hosts = list[str]()
        for name, referee in self._hosts.items():
            since = self._alive_since(name, referee.users[user], decided)
            if since is None:
                continue
            is_known = decided - since > PUBLISH_S
            if is_known and not self._may_be_unknown(since, decided):
                hosts.append(name)
            else:
                self.not_judged += 1
        if hosts:
            what = f"is on {' and '.join(hosts)}, and was reported offline {how}"
            self._fault("false", user, what)
            self._counted.add(("missed", user))  # that it is offline is the same fault

    def _may_be_unknown(self, since: float, decided: float) -> bool:
        """Whether Redis may not have been told of a session that began at *since*.

        A Redis that starts empty is told by one host after the other, within a lease. A
        session that began while it was away, or shortly before, may take longer.
        """
        away_at, up_at = self._redis_away
        if decided < up_at + self._lease_s:
            return True
        return away_at - PUBLISH_S <= since and decided < self.calm_since

    def _note_lost(self, user: str, place: Place | None, at: float) -> None:
        for lost in self.lost:
            if user in lost.users and (place is None or place.host != lost.name):
                lost.users.remove(user)
                took = lost.offline_s if place is None else lost.moved_s
                took.append(at - lost.killed_at)

    def _places(self) -> list[tuple[str, Place]]:
        return [pair for users in self._online.values() for pair in users.items()]

    def _forget_counted(self, user: str) -> None:
        for kind in CLUSTER_FAULTS:
            self._counted.discard((kind, user))

    def _fault(self, kind: str, user: str, what: str) -> None:
        if (kind, user) in self._counted:
            return
        self._counted.add((kind, user))
        self.faults_of[kind] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(kind, user, Breach(NO_PROMISE, what)))
