"""Was everyone reported who had to be, no sooner and no later, and nobody else?

The referee knows two things: what each simulated user did, told by the user itself, and
the records, read by a watcher. Gateway and sidecar are between the two and are judged
whole. Of a guest, who joined from outside, it knows only what the records say.

It has no clock: every moment is told to it, in seconds of any one monotonic clock. While
something is cut, stopped or restarted on purpose, or should the calls show that this very
process stood still, nobody can say to the second when a silence is due: lateness is not
measured then, and whoever is silent is missed only when a whole timeout has passed since.
That nobody is reported early or falsely holds at all times, and is judged at all times.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from liveness.core.records import TIMER
from liveness.demo.plans import Behaviour
from liveness.demo.reminders import Reminders, key_of

GUEST: Final = "guest"
FAULTS: Final = ("early", "missed", "false")
# Beyond its deadline, and what the gateway may take to pass a sign of life on: whoever is
# not reported by then is missed.
GRACE_S: Final = 1.0
# Somebody looks ten times a second. After a pause like this the process stood still.
STILL_S: Final = 0.5
# The longest that a sidecar takes to be itself again after an absence: it waits for its
# gateways to come back and to say what they have collected.
SETTLING_S: Final = 3.0
# A demo may go on for a day and have many guests; what is kept of it does not grow.
MAX_LATENESSES: Final = 100_000
MAX_FAULTS: Final = 1_000

Record = Mapping[str, Any]


class Fault(NamedTuple):
    """One thing that must not happen; which kind of `FAULTS`, to whom, and how."""

    kind: str
    uid: str
    what: str


@dataclass(slots=True)
class Seen:
    """What is known of one simulated user."""

    behaviour: Behaviour
    # The newest last. A record tells of what was before it, and may come a little later.
    wrote: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    called_at: float | None = None  # when it opened the connection that it has
    joined_at: float | None = None  # when it was let in on that
    left_at: float | None = None
    is_silent: bool = False  # writes nothing any more
    online_since: float | None = None  # when its session began, by the records

    def last_wrote(self, by: float) -> float:
        """When it last wrote before *by*; long ago, if it never did."""
        return next((at for at in reversed(self.wrote) if at <= by), -inf)

    @property
    def stays(self) -> bool:
        """Whether it is in and goes on talking."""
        is_in = self.joined_at is not None
        return is_in and self.left_at is None and not self.is_silent

    @property
    def is_the_sessions(self) -> bool:
        """Whether the session that is known is that of the connection it has."""
        called_at, since = self.called_at, self.online_since
        return called_at is not None and since is not None and called_at <= since


class Referee:
    """Is told what happens, and keeps account of it.

    Args:
        plans: What each simulated user is to do, by uid.
        timeout_s: The silence after which a user is to be reported.
        flush_s: How long the gateway may collect signs of life before it sends them.
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
        self.users = {uid: Seen(behaviour) for uid, behaviour in plans.items()}
        self.guests: set[str] = set()  # those online
        self.reminders = Reminders(self._fault, grace_s=flush_s + GRACE_S)
        self._named = set[tuple[str, str]]()  # faults, until a record of that user
        self._looked_at: float | None = None
        self._stood_still_at = -inf
        self._cut_at = -inf
        self._disturbances = 0
        self._quiet_since = -inf  # from when on silences can be measured
        self._empty_at = -inf  # when nobody was in the room to hear a reminder

    # --- what users do ------------------------------------------------------------

    def calls(self, uid: str, at: float) -> None:
        """Notes that a user is about to open a connection."""
        self.users[uid].called_at = at

    def joined(self, uid: str, at: float) -> None:
        """Notes that it was let in."""
        self.users[uid].joined_at = at

    def wrote(self, uid: str, at: float) -> None:
        """Notes that it is about to write a line."""
        self.users[uid].wrote.append(at)

    def asks(self, uid: str, line: Mapping[str, Any], at: float) -> None:
        """Notes that it is about to ask for a reminder, or to cancel one."""
        # What is said to a gateway that is being killed, nobody may have heard.
        is_safe = (self.users[uid].called_at or -inf) > self._cut_at
        if "remind" in line:
            key = key_of(uid, line["remind"])
            self.reminders.asks(key, line["in"], at=at, is_safe=is_safe)
        else:
            self.reminders.cancels(key_of(uid, line["forget"]), at=at, is_safe=is_safe)

    def heard(self, uid: str, what: str) -> None:
        """Notes that somebody has heard a reminder, and whose it was."""
        self.reminders.heard(key_of(uid, what))

    def leaves(self, uid: str, at: float) -> None:
        """Notes that it is about to log out."""
        self.users[uid].left_at = at

    def falls_silent(self, uid: str) -> None:
        """Notes that from now on it writes nothing any more."""
        self.users[uid].is_silent = True

    def silenced(self, uid: str) -> None:
        """The same, and that this was not its plan."""
        self.users[uid].behaviour = Behaviour.SILENCED
        self.falls_silent(uid)

    def hung_up(self, uid: str, why: str, at: float) -> None:
        """Notes that its connection has ended, and judges that if it meant to stay.

        Args:
            uid: Whose.
            why: The gateway's last word; may be empty.
            at: Now.
        """
        self._note_standstill(at)
        seen = self.users[uid]
        was_in, called_at = seen.stays, seen.called_at or -inf
        seen.called_at = seen.joined_at = None
        is_told = why in ("silence", "moved")  # by a record, which is judged
        if was_in and not is_told and called_at > self._cut_at:
            what = f"was cut off by a gateway that is there: {why or 'no reason'}"
            self._fault("false", uid, what, at)

    def talkers(self) -> list[str]:
        """Those who are in and go on talking."""
        return [uid for uid, seen in self.users.items() if seen.stays]

    # --- what is done on purpose ---------------------------------------------------

    def cut(self, at: float) -> None:
        """Notes that the gateway is being killed, or has just been."""
        self._cut_at = at
        self.reminders.cut()

    def disturbed(self) -> None:
        """Notes that something is being cut, stopped or restarted."""
        self._disturbances += 1

    def settles(self, at: float) -> None:
        """Notes that it is there again."""
        self._disturbances -= 1
        self._quiet_since = max(self._quiet_since, at + SETTLING_S)

    # --- what is reported ------------------------------------------------------------

    def told(self, record: Record, *, decided: float, at: float) -> None:
        """Judges a record.

        Args:
            record: As it came.
            decided: When that was so, by its stamp.
            at: Now.
        """
        self._note_standstill(at)
        if record["kind"] == TIMER:
            calm_since = self._heard_since(at)
            self.reminders.told(record, decided=decided, at=at, calm_since=calm_since)
            return
        kind, uid = record["kind"], record["uid"]
        seen = self.users.get(uid)
        if kind != "online":
            how = record["reason"] if kind == "offline" else kind
            self.ends[self._behaviour(uid), how] += 1
            if seen is None:
                self._judge_guest(record)
            else:
                self._judge(uid, seen, how, decided=decided, at=at)
        if seen is not None:
            seen.online_since = None if kind == "offline" else decided
            for fault in FAULTS:
                self._named.discard((fault, uid))
        elif kind == "offline":
            self.guests.discard(uid)
        else:
            self.guests.add(uid)

    def look(self, at: float) -> None:
        """Looks for those who should have been reported by *at*; ten times a second."""
        self._note_standstill(at)
        self._looked_at = at
        if self._disturbances:
            return
        self.reminders.look(at, calm_since=self._heard_since(at))
        for uid, seen in self.users.items():
            if seen.online_since is None:
                self._look_for_online(uid, seen, at)
            else:
                self._look_for_offline(uid, seen, at)

    def online_of(self, behaviour: Behaviour) -> int:
        """How many of these users are online, by the records."""
        return sum(
            seen.online_since is not None and seen.behaviour is behaviour
            for seen in self.users.values()
        )

    @property
    def online(self) -> int:
        """How many users are online, by the records."""
        users = self.users.values()
        return len(self.guests) + sum(seen.online_since is not None for seen in users)

    # --- judging -----------------------------------------------------------------------

    @property
    def _calm_since(self) -> float:
        return inf if self._disturbances else self._quiet_since

    def _heard_since(self, at: float) -> float:
        """Since when a reminder comes once and is heard: all is calm, and somebody here.

        The gateway has one that comes into an empty room come again later.
        """
        if not self.online:
            self._empty_at = at
        return max(self._calm_since, self._empty_at)

    def _behaviour(self, uid: str) -> str:
        return self.users[uid].behaviour if uid in self.users else GUEST

    def _judge_guest(self, record: Record) -> None:
        silence_s = record.get("silence", inf)
        if record["reason"] == "silence" and silence_s < self.timeout_s:
            what = f"was reported after {silence_s:.3f} s of silence"
            self._fault("early", record["uid"], what)

    def _judge(
        self, uid: str, seen: Seen, how: str, *, decided: float, at: float
    ) -> None:
        if how != "moved" and seen.online_since is None:
            self._fault("false", uid, "was not online and was reported offline", at)
        elif how == "silence":
            self._judge_silence(uid, seen, decided=decided, at=at)
        elif how == "gateway_lost" and seen.is_the_sessions:
            self._fault("false", uid, "was reported lost and is connected", at)
        elif how == "logout" and seen.is_the_sessions and seen.left_at is None:
            what = f"was to {seen.behaviour} and has not logged out"
            self._fault("false", uid, what, at)

    def _judge_silence(
        self, uid: str, seen: Seen, *, decided: float, at: float
    ) -> None:
        wrote = seen.last_wrote(by=decided)
        silence_s = decided - wrote
        if silence_s < self.timeout_s:
            kind = "early" if seen.is_silent else "false"
            self._fault(kind, uid, f"was reported after {silence_s:.3f} s of silence")
        elif self._disturbances or wrote < self._quiet_since:
            self.not_measured += 1
        elif not seen.is_silent:
            what = f"was to {seen.behaviour} and was reported silent"
            self._fault("false", uid, what, at)
        else:
            late_s = at - wrote - self.timeout_s
            self.lateness_s.append(late_s)
            if late_s > self.flush_s + GRACE_S:
                self._miss(uid, f"was reported {late_s:.3f} s after its deadline")

    def _look_for_online(self, uid: str, seen: Seen, at: float) -> None:
        is_heard = at - seen.last_wrote(by=at) < self.timeout_s
        if seen.joined_at is None or seen.left_at is not None or not is_heard:
            return
        if at - max(seen.joined_at, self._quiet_since) > self.flush_s + GRACE_S:
            self._miss(uid, f"has joined {at - seen.joined_at:.3f} s ago, not online")

    def _look_for_offline(self, uid: str, seen: Seen, at: float) -> None:
        if seen.left_at is not None:
            if at - max(seen.left_at, self._quiet_since) > GRACE_S:
                self._miss(uid, f"left {at - seen.left_at:.3f} s ago, not reported")
            return
        wrote = seen.last_wrote(by=at)
        if at - max(wrote, self._quiet_since) > self.timeout_s + self.flush_s + GRACE_S:
            self._miss(uid, f"is silent for {at - wrote:.3f} s and not reported")

    def _note_standstill(self, at: float) -> None:
        if self._looked_at is not None and at - self._looked_at > STILL_S:
            self._looked_at = self._stood_still_at = at
            self._quiet_since = max(self._quiet_since, at)

    def _miss(self, uid: str, what: str) -> None:
        self._fault("missed", uid, what)

    def _fault(self, kind: str, uid: str, what: str, at: float = inf) -> None:
        """Names a fault once, unless it may be one of this process that stood still."""
        is_dazed = at - self._stood_still_at < self.flush_s + GRACE_S
        if is_dazed or (kind, uid) in self._named:
            return
        if uid in self.users:
            self._named.add((kind, uid))
        self.faults_of[kind] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(kind, uid, what))
