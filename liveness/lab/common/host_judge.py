"""Checks that each silent user of a sidecar is reported on time, and that no other user is.

It compares two things: the actions of each simulated user, which the user itself reports,
and the records, which a watcher reads. So it checks gateway and sidecar, which are in
between, together. A guest, who joined from outside, reports no actions.

It has no clock: every moment is an argument, in seconds of one monotonic clock. During a
disruption (a process is killed, stopped or restarted on purpose) and after a standstill of
this process, the exact time at which a silence is due is unknown. Then lateness is not
measured, and a silent user counts as missed only after another whole timeout. Early and
false reports count at all times.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from liveness.core.records import TIMER, identity
from liveness.lab.common.promises import (
    NO_PROMISE,
    Breach,
    Record,
    SessionLog,
)

GUEST: Final = "guest"
SILENCED: Final = "silenced"
# A user counts as missed this long after its deadline, plus the time that the gateway may
# take to pass on an activity.
GRACE_S: Final = 1.0
# `check_overdue` is called ten times a second. After such a pause this process stood still.
STANDSTILL_S: Final = 0.5
# The longest that a sidecar takes to recover after it was down: it waits until its gateways
# have reconnected and sent the reports that they collected.
RECOVERY_S: Final = 3.0
KINDS: Final = ("early", "missed", "false")


@dataclass(slots=True)
class UserState:
    plan: str
    # The newest last. A record may arrive a little later than activities that follow it.
    wrote: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    connected_at: float | None = None  # when it opened its present connection
    joined_at: float | None = None  # when it was let in on that connection
    left_at: float | None = None
    is_silent: bool = False  # writes nothing from now on
    online_since: float | None = None  # the start of its session, by the records

    def last_wrote(self, by: float) -> float:
        """When it last wrote, up to *by*; -inf if it did not."""
        return next((at for at in reversed(self.wrote) if at <= by), -inf)


class Fault(NamedTuple):
    """Something that must not happen: its kind, the user, and what was broken."""

    kind: str
    who: str
    breach: Breach


class Faults:
    """Counts faults, and lists them."""

    def __init__(self) -> None:
        self.listed: list[Fault] = []
        self.counts = Counter[str]()  # by kind
        self._open = set[tuple[str, str]]()  # kind and user, until `forget`

    def add(self, kind: str, who: str, breach: Breach) -> None:
        """Counts a fault, unless the same one is counted already."""
        if (kind, who) in self._open:
            return
        self._open.add((kind, who))
        self.counts[kind] += 1
        self.listed.append(Fault(kind, who, breach))

    def forget(self, who: str) -> None:
        """Count the next fault of this user as a new one."""
        for kind in KINDS:
            self._open.discard((kind, who))


class HostJudge:
    """Checks records against what users did."""

    def __init__(
        self, plans: Mapping[str, str], *, timeout_s: float, flush_s: float
    ) -> None:
        self.faults = Faults()
        self.ends = Counter[str]()  # by reason, or "moved"
        self.ends_of = Counter[tuple[str, str]]()  # by plan, too
        self.lateness_s: list[float] = []
        self.not_measured = 0
        self.timeout_s = timeout_s
        self.flush_s = flush_s
        self.users = {uid: UserState(plan) for uid, plan in plans.items()}
        self._sessions = SessionLog()
        self._last_check: float | None = None
        self._stood_still_at = -inf
        self.up_at = -inf  # when the gateway was last up after a kill; inf: not yet
        self._disruptions = 0
        self._recovered_at = -inf  # lateness can be measured from here on

    # --- what users do ------------------------------------------------------------

    def connects(self, uid: str, at: float) -> None:
        user = self.users[uid]
        user.connected_at, user.left_at, user.is_silent = at, None, False

    def joined(self, uid: str, at: float) -> None:
        self.users[uid].joined_at = at

    def wrote(self, uid: str, at: float) -> None:
        self.users[uid].wrote.append(at)

    def leaves(self, uid: str, at: float) -> None:
        self.users[uid].left_at = at

    def falls_silent(self, uid: str, *, is_planned: bool = True) -> None:
        user = self.users[uid]
        user.is_silent = True
        if not is_planned:
            user.plan = SILENCED

    def hung_up(self, uid: str, reason: str, at: float) -> None:
        """A user's connection has ended; a fault if it should have stayed.

        The reason is the gateway's last message, or "".
        """
        self._note_standstill(at)
        user, is_read = self.users[uid], self._is_read(uid)
        is_over = user.joined_at is None or user.left_at is not None or user.is_silent
        user.connected_at = user.joined_at = None
        has_record = reason in ("silence", "moved")  # the record is checked instead
        if is_read and not is_over and not has_record:
            what = f"was cut off by a running gateway: {reason or 'no reason'}"
            self._fault("false", uid, Breach(NO_PROMISE, what), at)

    # --- disruptions ----------------------------------------------------------------

    def disruption_begins(self, at: float, *, of_gateway: bool = False) -> None:
        """A process is about to be killed, stopped or restarted."""
        self._disruptions += 1
        if of_gateway:
            self.up_at = inf

    def disruption_ends(self, at: float, *, of_gateway: bool = False) -> None:
        self._disruptions -= 1
        self._recovered_at = max(self._recovered_at, at + RECOVERY_S)
        if of_gateway:
            self.up_at = at

    @property
    def calm_since(self) -> float:
        """The end of the last disruption or standstill, with recovery; inf during one."""
        return inf if self._disruptions else self._recovered_at

    # --- records --------------------------------------------------------------------

    def check(self, record: Record, *, decided: float, at: float) -> None:
        """Checks a record that was decided at one moment, and received at the other.

        Timers are not checked: only guests ask for them.
        """
        self._note_standstill(at)
        if record["kind"] == TIMER:
            return
        kind, uid = record["kind"], identity(record["uid"])
        user = self.users.get(uid)
        breaches = self._sessions.take(record)
        for breach in breaches:
            self._fault("false", uid, breach)
        if kind != "online":
            how = record["reason"] if kind == "offline" else kind
            self.ends[how] += 1
            self.ends_of[user.plan if user else GUEST, how] += 1
            if user is not None and not breaches:
                self._check_end(uid, user, how, decided=decided, at=at)
        if user is not None:
            user.online_since = None if kind == "offline" else decided
        self.faults.forget(uid)

    def check_overdue(self, at: float) -> None:
        """Looks for users that should have been reported by *at*; ten times a second."""
        self._note_standstill(at)
        self._last_check = at
        if self._disruptions:
            return
        for uid, user in self.users.items():
            if user.online_since is None:
                self._check_online(uid, user, at)
            else:
                self._check_offline(uid, user, at)

    def alive_since(self, uid: str, at: float) -> float | None:
        """Since when a user has been here, heard and undisturbed; None: it is not."""
        user = self.users.get(uid)
        if user is None or user.joined_at is None or user.left_at is not None:
            return None
        if at - user.last_wrote(by=at) >= self.timeout_s or self.up_at == inf:
            return None
        return max(user.joined_at, self.calm_since)

    @property
    def online(self) -> int:
        return len(self._sessions.open)

    @property
    def guests(self) -> int:
        return len(self._sessions.open.keys() - self.users.keys())

    # --- checks ---------------------------------------------------------------------

    def _is_read(self, uid: str) -> bool:
        """Whether the gateway of a user's connection runs: it was not killed since."""
        return (self.users[uid].connected_at or -inf) > self.up_at

    def _check_end(
        self, uid: str, user: UserState, how: str, *, decided: float, at: float
    ) -> None:
        if how == "silence":
            self._check_silence(uid, user, decided=decided, at=at)
        elif how == "gateway_lost" and self._is_connected(uid, user):
            what = "was reported lost and is connected"
            self._fault("false", uid, Breach(5, what), at)
        elif how == "logout" and self._is_connected(uid, user) and user.left_at is None:
            what = f"was reported as logged out; its plan is to {user.plan}"
            self._fault("false", uid, Breach(6, what), at)

    def _is_connected(self, uid: str, user: UserState) -> bool:
        """Whether its session, by the records, belongs to its present connection.

        A connection that was there before the gateway was killed has ended, even if this
        process has yet to read that.
        """
        connected_at, since = user.connected_at, user.online_since
        if connected_at is None or since is None:
            return False
        return self._is_read(uid) and connected_at <= since

    def _check_silence(
        self, uid: str, user: UserState, *, decided: float, at: float
    ) -> None:
        wrote = user.last_wrote(by=decided)
        due = wrote + self.timeout_s
        if decided < due:
            what = f"was reported after {decided - wrote:.3f} s of silence"
            self._fault("early" if user.is_silent else "false", uid, Breach(1, what))
        elif self._disruptions or wrote < self._recovered_at:
            self.not_measured += 1
        elif not user.is_silent:
            what = f"was reported silent; its plan is to {user.plan}"
            self._fault("false", uid, Breach(5, what), at)
        else:
            self.lateness_s.append(at - due)
            if at - due > self.flush_s + GRACE_S:
                self._miss(2, uid, f"was reported {at - due:.3f} s after its deadline")

    def _check_online(self, uid: str, user: UserState, at: float) -> None:
        is_heard = at - user.last_wrote(by=at) < self.timeout_s
        if user.joined_at is None or user.left_at is not None or not is_heard:
            return
        waited_s = at - max(user.joined_at, self._recovered_at)
        if waited_s > self.flush_s + GRACE_S:
            what = f"has joined {at - user.joined_at:.3f} s ago, not online"
            self._miss(4, uid, what)

    def _check_offline(self, uid: str, user: UserState, at: float) -> None:
        if user.left_at is not None:
            if at - max(user.left_at, self._recovered_at) > GRACE_S:
                self._miss(4, uid, f"left {at - user.left_at:.3f} s ago, not reported")
            return
        wrote = user.last_wrote(by=at)
        most_s = self.timeout_s + self.flush_s + GRACE_S
        if at - max(wrote, self._recovered_at) > most_s:
            self._miss(2, uid, f"is silent for {at - wrote:.3f} s and not reported")

    def _note_standstill(self, at: float) -> None:
        if self._last_check is not None and at - self._last_check > STANDSTILL_S:
            self._last_check = self._stood_still_at = at
            self._recovered_at = max(self._recovered_at, at)

    def _miss(self, promise: int, uid: str, what: str) -> None:
        self._fault("missed", uid, Breach(promise, what))

    def _fault(self, kind: str, who: str, breach: Breach, at: float = inf) -> None:
        """Counts a fault, unless a standstill of this process may explain it."""
        if at - self._stood_still_at >= self.flush_s + GRACE_S:
            self.faults.add(kind, who, breach)
