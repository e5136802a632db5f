"""Was everyone reported who had to be, no sooner and no later, and nobody else?

The referee judges by what the gateway saw: when it read a user's last line, and when a
record came. It compares that with what the user had planned; of a guest, who joined from
outside, it knows no plan and takes any silence for meant.

It has no clock: every moment is told to it, in seconds of any one monotonic clock. Should
that show that this very process stood still, then what was decided or due meanwhile
cannot be measured by it, and is only counted.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final, NamedTuple

from liveness.demo.sidecar import Record
from liveness.demo.users import Behaviour

GUEST: Final = "guest"
FAULTS: Final = ("early", "missed", "false")
# Beyond its deadline, and what the gateway may take to pass a sign of life on: whoever is
# not reported by then is missed.
GRACE_S: Final = 1.0
# A line is passed on within a flush and this: by then no record crosses it any more.
CROSSING_S: Final = 0.2
# Somebody looks ten times a second. After a pause like this the process stood still.
STILL_S: Final = 0.5
# A demo may go on for a day and have many guests; what is kept of it does not grow.
MAX_LATENESSES: Final = 100_000
MAX_FAULTS: Final = 1_000


class Fault(NamedTuple):
    """One thing that must not happen; which kind of `FAULTS`, to whom, and how."""

    kind: str
    uid: str
    what: str


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
        self.planned = Counter(plans.values())
        self.ends = Counter[tuple[str, str]]()  # by behaviour, and reason or "moved"
        self.lateness_s: deque[float] = deque(maxlen=MAX_LATENESSES)
        self.not_measured = 0
        self.online = dict(plans)  # those simulated that were not reported yet
        self.timeout_s = timeout_s
        self.flush_s = flush_s
        self._plans = plans
        self._left: dict[str, float] = {}  # logged out, and not reported yet
        self._missed: set[str] = set()
        self._looked_at: float | None = None
        self._went_on_at = -inf

    def left(self, uid: str, at: float) -> None:
        """Notes that a simulated user logs out."""
        if uid in self.online:
            self._left[uid] = at

    def told(self, record: Record, *, heard: float | None, at: float) -> None:
        """Judges a record that the gateway got.

        Args:
            record: As it came.
            heard: When the gateway read the last line of that connection; None if it
                has ended already.
            at: Now.
        """
        if record["kind"] not in ("offline", "moved"):
            return
        self._note_standstill(at)
        uid = record["uid"]
        how = "moved" if record["kind"] == "moved" else record["reason"]
        behaviour = self.online.pop(uid, GUEST)
        has_left = self._left.pop(uid, None) is not None
        self.ends[behaviour, how] += 1
        if at - self._went_on_at < self.flush_s + GRACE_S:
            self.not_measured += 1
        elif how == "silence":
            self._judge_silence(uid, behaviour, heard, at)
        elif how == "gateway_lost":
            self._fault("false", uid, "was reported lost with a gateway that was there")
        elif how == "logout" and not has_left and behaviour != GUEST:
            self._fault("false", uid, f"was to {behaviour} and has not logged out")
        self._missed.discard(uid)

    def look(self, users: Iterable[tuple[str, float]], at: float) -> None:
        """Looks for those who should have been reported by now.

        Args:
            users: The uid of each connection, and when it was heard.
            at: Now; about ten times a second.
        """
        self._note_standstill(at)
        self._looked_at = at
        latest_s = self.timeout_s + self.flush_s + GRACE_S
        for uid, heard in users:
            if at - max(heard, self._went_on_at) > latest_s:
                self._miss(uid, f"is silent for {at - heard:.3f} s and not reported")
        for uid, since in self._left.items():
            if at - max(since, self._went_on_at) > GRACE_S:
                self._miss(uid, f"logged out {at - since:.3f} s ago, not reported")

    def _judge_silence(
        self, uid: str, behaviour: str, heard: float | None, at: float
    ) -> None:
        is_here = heard is not None and at - heard > self.flush_s + CROSSING_S
        if not is_here and uid not in self._plans:
            return  # the record has crossed a guest's last line, or logout
        if heard is None:
            self._fault("false", uid, "was reported silent and had gone already")
            return
        is_meant = behaviour in (Behaviour.SILENT, GUEST)
        silence_s = at - heard
        late_s = silence_s - self.timeout_s
        if late_s < 0:
            kind = "early" if is_meant else "false"
            self._fault(kind, uid, f"was reported after {silence_s:.3f} s of silence")
        elif heard < self._went_on_at:
            self.not_measured += 1
        elif not is_meant:
            self._fault("false", uid, f"was to {behaviour} and was reported silent")
        else:
            self.lateness_s.append(late_s)
            if late_s > self.flush_s + GRACE_S:
                self._miss(uid, f"was reported {late_s:.3f} s after its deadline")

    def _note_standstill(self, at: float) -> None:
        if self._looked_at is not None and at - self._looked_at > STILL_S:
            self._went_on_at = at

    def _miss(self, uid: str, what: str) -> None:
        if uid not in self._missed:
            self._missed.add(uid)
            self._fault("missed", uid, what)

    def _fault(self, kind: str, uid: str, what: str) -> None:
        self.faults_of[kind] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(kind, uid, what))
