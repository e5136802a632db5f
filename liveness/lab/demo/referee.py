"""Checks that each silent user is reported on time, and that no other user is.

The referee compares two things: what each simulated user did, which the user itself
reports, and the records, which a watcher reads. It checks gateway and sidecar, which are
in between, together. Of a guest, who joined from outside, it knows only the records.

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
from typing import Any, Final, NamedTuple, TypeAlias

from liveness.core.records import TIMER, identity
from liveness.lab.common.promises import (
    NO_PROMISE,
    Breach,
    SessionLog,
    is_early,
    is_late,
)
from liveness.lab.demo.plans import Behaviour
from liveness.lab.demo.reminders import Reminders, timer_key

GUEST: Final = "guest"
FAULTS: Final = ("early", "missed", "false")
# A user counts as missed this long after its deadline, plus the time that the gateway may
# take to pass on an activity.
GRACE_S: Final = 1.0
# `check_overdue` is called ten times a second. After such a pause this process stood still.
STANDSTILL_S: Final = 0.5
# The longest that a sidecar takes to recover after an absence: it waits until its gateways
# have reconnected and sent what they have collected.
RECOVERY_S: Final = 3.0
# Bounds for a demo that runs for a day with many guests.
MAX_LATENESSES: Final = 100_000
MAX_FAULTS: Final = 1_000

Record: TypeAlias = Mapping[str, Any]


class Fault(NamedTuple):
    """Something that must not happen: its kind (of `FAULTS`), the user, what was broken."""

    kind: str
    uid: str
    breach: Breach


@dataclass(slots=True)
class UserState:
    """What is known of one simulated user."""

    behaviour: Behaviour
    # The newest last. A record may arrive a little later than the activities after it.
    wrote: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    connected_at: float | None = None  # when it opened its present connection
    joined_at: float | None = None  # when it was let in on that connection
    left_at: float | None = None
    is_silent: bool = False  # writes nothing from now on
    online_since: float | None = None  # the start of its session, by the records

    def last_wrote(self, by: float) -> float:
        """When it last wrote, up to *by*; -inf if it did not."""
        return next((at for at in reversed(self.wrote) if at <= by), -inf)

    @property
    def is_active(self) -> bool:
        """Whether it is in the room and goes on writing."""
        is_in = self.joined_at is not None
        return is_in and self.left_at is None and not self.is_silent


class Referee:
    """Checks records against what users did, and counts faults.

    The gateway may collect activities for `flush_s` before it sends them.
    """

    def __init__(
        self, plans: Mapping[str, Behaviour], *, timeout_s: float, flush_s: float
    ) -> None:
        self.faults: list[Fault] = []
        self.faults_of = Counter[str]()  # by kind
        self.ends = Counter[tuple[str, str]]()  # by behaviour, and reason or "moved"
        self.lateness_s: deque[float] = deque(maxlen=MAX_LATENESSES)
        self.not_measured = 0
        self.timeout_s = timeout_s
        self.flush_s = flush_s
        self.users = {uid: UserState(behaviour) for uid, behaviour in plans.items()}
        self._sessions = SessionLog()
        self.reminders = Reminders(self._fault, grace_s=flush_s + GRACE_S)
        self._counted = set[tuple[str, str]]()  # kind and uid, until the next record
        self._last_check: float | None = None
        self._stood_still_at = -inf
        self._gateway_killed_at = -inf
        self._disruptions = 0
        self._recovered_at = -inf  # from when on lateness can be measured
        self._empty_at = -inf  # when the room was last empty

    # --- what users do ------------------------------------------------------------

    def connects(self, uid: str, at: float) -> None:
        """A user is about to open a connection."""
        self.users[uid].connected_at = at

    def joined(self, uid: str, at: float) -> None:
        """The gateway let a user in."""
        self.users[uid].joined_at = at

    def wrote(self, uid: str, at: float) -> None:
        """A user is about to write a line."""
        self.users[uid].wrote.append(at)

    def asks(self, uid: str, line: Mapping[str, Any], at: float) -> None:
        """A user is about to ask for a reminder, or to cancel one."""
        # A gateway that is being killed may not read the line.
        is_safe = (self.users[uid].connected_at or -inf) > self._gateway_killed_at
        if "remind" in line:
            key = timer_key(uid, line["remind"])
            self.reminders.asks(key, line["in"], at=at, is_safe=is_safe)
        else:
            key = timer_key(uid, line["forget"])
            self.reminders.cancels(key, at=at, is_safe=is_safe)

    def heard(self, uid: str, what: str) -> None:
        """A user in the room received a reminder that *uid* had asked for."""
        self.reminders.heard(timer_key(uid, what))

    def leaves(self, uid: str, at: float) -> None:
        """A user is about to log out."""
        self.users[uid].left_at = at

    def returns(self, uid: str) -> None:
        """A user that left or fell silent is about to connect and write again."""
        user = self.users[uid]
        user.left_at, user.is_silent = None, False

    def falls_silent(self, uid: str) -> None:
        """A user writes nothing from now on."""
        self.users[uid].is_silent = True

    def silenced(self, uid: str) -> None:
        """The same, against its plan."""
        self.users[uid].behaviour = Behaviour.SILENCED
        self.falls_silent(uid)

    def hung_up(self, uid: str, reason: str, at: float) -> None:
        """A user's connection has ended; a fault if it should have stayed.

        The reason is the gateway's last message, or "".
        """
        self._note_standstill(at)
        user = self.users[uid]
        was_active, connected_at = user.is_active, user.connected_at or -inf
        user.connected_at = user.joined_at = None
        has_record = reason in ("silence", "moved")  # the record is checked instead
        if was_active and not has_record and connected_at > self._gateway_killed_at:
            what = f"was cut off by a running gateway: {reason or 'no reason'}"
            self._fault("false", uid, Breach(NO_PROMISE, what), at)

    def active_users(self) -> list[str]:
        """The users that are in the room and go on writing."""
        return [uid for uid, user in self.users.items() if user.is_active]

    # --- disruptions ----------------------------------------------------------------

    def gateway_killed(self, at: float) -> None:
        """The gateway was killed at *at*; infinity until it is up again."""
        self._gateway_killed_at = at
        self.reminders.gateway_killed()

    def disruption_begins(self) -> None:
        """A process is about to be killed, stopped or restarted."""
        self._disruptions += 1

    def disruption_ends(self, at: float) -> None:
        """That process is up again."""
        self._disruptions -= 1
        self._recovered_at = max(self._recovered_at, at + RECOVERY_S)

    @property
    def calm_since(self) -> float:
        """The end of the last disruption or standstill, with recovery; inf during one."""
        return inf if self._disruptions else self._recovered_at

    # --- records --------------------------------------------------------------------

    def check(self, record: Record, *, decided: float, at: float) -> None:
        """Checks a record that was decided at one moment, and received at the other."""
        self._note_standstill(at)
        if record["kind"] == TIMER:
            calm_since = self._reminders_calm_since(at)
            self.reminders.check(record, decided=decided, at=at, calm_since=calm_since)
            return
        kind, uid = record["kind"], identity(record["uid"])
        user = self.users.get(uid)
        breaches = self._sessions.take(record)
        for breach in breaches:
            self._fault("false", uid, breach)
        if kind != "online":
            how = record["reason"] if kind == "offline" else kind
            self.ends[self._behaviour(uid), how] += 1
            if user is None:
                self._check_guest(record)
            elif not breaches:
                self._check_end(uid, user, how, decided=decided, at=at)
        if user is not None:
            user.online_since = None if kind == "offline" else decided
            for fault in FAULTS:
                self._counted.discard((fault, uid))

    def check_overdue(self, at: float) -> None:
        """Looks for users that should have been reported by *at*; ten times a second."""
        self._note_standstill(at)
        self._last_check = at
        if self._disruptions:
            return
        self.reminders.check_overdue(at, calm_since=self._reminders_calm_since(at))
        for uid, user in self.users.items():
            if user.online_since is None:
                self._check_online(uid, user, at)
            else:
                self._check_offline(uid, user, at)

    def online_of(self, behaviour: Behaviour) -> int:
        """How many users of this behaviour are online, by the records."""
        return sum(
            user.online_since is not None and user.behaviour is behaviour
            for user in self.users.values()
        )

    @property
    def online(self) -> int:
        """How many users and guests are online, by the records."""
        return len(self._sessions.open)

    @property
    def guests(self) -> int:
        """How many guests are online, by the records."""
        return len(self._sessions.open.keys() - self.users.keys())

    # --- checks ---------------------------------------------------------------------

    def _reminders_calm_since(self, at: float) -> float:
        """Since when there was no disruption and somebody in the room; inf if there is.

        Then a reminder fires once and is heard. In an empty room the gateway has it
        retried later.
        """
        if not self.online:
            self._empty_at = at
        return max(self.calm_since, self._empty_at)

    def _behaviour(self, uid: str) -> str:
        return self.users[uid].behaviour if uid in self.users else GUEST

    def _check_guest(self, record: Record) -> None:
        silence_s = record.get("silence", inf)
        if record["reason"] == "silence" and is_early(silence_s, self.timeout_s):
            what = f"was reported after {silence_s:.3f} s of silence"
            self._fault("early", record["uid"], Breach(1, what))

    def _check_end(
        self, uid: str, user: UserState, how: str, *, decided: float, at: float
    ) -> None:
        if how == "silence":
            self._check_silence(uid, user, decided=decided, at=at)
        elif how == "gateway_lost" and self._is_connected(user):
            what = "was reported lost and is connected"
            self._fault("false", uid, Breach(5, what), at)
        elif how == "logout" and self._is_connected(user) and user.left_at is None:
            what = f"was reported as logged out; its plan is to {user.behaviour}"
            self._fault("false", uid, Breach(6, what), at)

    def _is_connected(self, user: UserState) -> bool:
        """Whether its session, by the records, belongs to its present connection.

        A connection that was there before the gateway was killed has ended, even if this
        process has yet to read that.
        """
        connected_at, since = user.connected_at, user.online_since
        if connected_at is None or since is None:
            return False
        return self._gateway_killed_at < connected_at <= since

    def _check_silence(
        self, uid: str, user: UserState, *, decided: float, at: float
    ) -> None:
        wrote = user.last_wrote(by=decided)
        silence_s = decided - wrote
        if is_early(silence_s, self.timeout_s):
            kind = "early" if user.is_silent else "false"
            what = f"was reported after {silence_s:.3f} s of silence"
            self._fault(kind, uid, Breach(1, what))
        elif self._disruptions or wrote < self._recovered_at:
            self.not_measured += 1
        elif not user.is_silent:
            what = f"was reported silent; its plan is to {user.behaviour}"
            self._fault("false", uid, Breach(5, what), at)
        else:
            late_s = at - wrote - self.timeout_s
            self.lateness_s.append(late_s)
            if is_late(late_s, self.flush_s + GRACE_S):
                self._miss(2, uid, f"was reported {late_s:.3f} s after its deadline")

    def _check_online(self, uid: str, user: UserState, at: float) -> None:
        is_heard = at - user.last_wrote(by=at) < self.timeout_s
        if user.joined_at is None or user.left_at is not None or not is_heard:
            return
        waited_s = at - max(user.joined_at, self._recovered_at)
        if is_late(waited_s, self.flush_s + GRACE_S):
            self._miss(
                4, uid, f"has joined {at - user.joined_at:.3f} s ago, not online"
            )

    def _check_offline(self, uid: str, user: UserState, at: float) -> None:
        if user.left_at is not None:
            if is_late(at - max(user.left_at, self._recovered_at), GRACE_S):
                self._miss(4, uid, f"left {at - user.left_at:.3f} s ago, not reported")
            return
        wrote = user.last_wrote(by=at)
        most_s = self.timeout_s + self.flush_s + GRACE_S
        if is_late(at - max(wrote, self._recovered_at), most_s):
            self._miss(2, uid, f"is silent for {at - wrote:.3f} s and not reported")

    def _note_standstill(self, at: float) -> None:
        if self._last_check is not None and at - self._last_check > STANDSTILL_S:
            self._last_check = self._stood_still_at = at
            self._recovered_at = max(self._recovered_at, at)

    def _miss(self, promise: int, uid: str, what: str) -> None:
        self._fault("missed", uid, Breach(promise, what))

    def _fault(self, kind: str, uid: str, breach: Breach, at: float = inf) -> None:
        """Counts a fault once, unless a standstill of this process may explain it."""
        may_be_ours = at - self._stood_still_at < self.flush_s + GRACE_S
        if may_be_ours or (kind, uid) in self._counted:
            return
        if uid in self.users:
            self._counted.add((kind, uid))
        self.faults_of[kind] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(kind, uid, breach))
