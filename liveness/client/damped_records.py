"""Damps the records of a watch with `settle_s`; `core.damping` says why, and how.

A sidecar does not say when it has sent everything. So once nothing has arrived for a moment,
all records that were decided before that moment count as read.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from liveness.client.inbox import RecordMap
from liveness.core.damping import (
    MOST_SETTLE_S,
    DampedRecord,
    Damper,
    DampingCounts,
    Passed,
    SettlingRoom,
)
from liveness.core.records import GAP, MOVED, SESSION_KINDS
from liveness.errors import ReportError

# That moment; longer than a sidecar takes from a decision to its delivery.
QUIET_S: Final = 0.25
# How many offlines may wait. Each takes about 1.2 KB.
MAX_SETTLING: Final = 100_000
# The most offlines that one `settle` yields: they are in memory twice for a while.
SETTLED_AT_ONCE: Final = 1_000


class DampedRecords:
    """The records of one watch that wait.

    Args:
        settle_s: How long a user must be away.
        kinds: The kinds that the program reads; none: all.
        users: Whether it reads about users, not about devices.
        wall_s: Reads the wall clock, in Unix seconds.
    """

    def __init__(
        self,
        settle_s: float,
        kinds: Sequence[str],
        *,
        users: bool,
        wall_s: Callable[[], float],
    ) -> None:
        self.counts = DampingCounts()
        self._settle_s = settle_s
        self._kinds = frozenset(kinds)
        self._users = users
        self._wall_s = wall_s
        self._quiet_s = 0.0
        self.has_settled = False
        self._settled_until = 0
        self.begin(0)
        self.has_begun = False

    def begin(self, newest: int) -> None:
        """Begin with a log; its records up to *newest* may have come to the loop before."""
        self._damper = Damper[RecordMap](
            round(self._settle_s * 1000),
            room=SettlingRoom(MAX_SETTLING),
            move=_moved,
            wants_moves=not self._users and (not self._kinds or MOVED in self._kinds),
            doubtful_until=newest,
            counts=self.counts,
        )
        self.has_begun = True

    def linked(self) -> None:
        """Note that a link has begun: what it is about to deliver has not arrived yet."""
        self._quiet_s = 0.0

    @property
    def oldest_seq(self) -> int | None:
        """The seq of the oldest offline that waits; None if none does."""
        return self._damper.oldest_seq

    def add(self, record: RecordMap) -> Iterator[Passed[RecordMap]]:
        """Take a record that has arrived; yield what the loop gets now.

        Raises:
            KeyError, TypeError: It does not have the form of a record.
        """
        self._quiet_s = 0.0
        kind = record["kind"]
        if kind in SESSION_KINDS:
            user = record["uid"]
            if self._users:
                user = record.get("user", user)
            damped = DampedRecord(
                record["seq"], kind, user, record["gateway"], record["at"]
            )
            while settled := self._damper.pop_settled(damped.at):
                yield from self._wanted(settled)
            for passed in self._damper.add(record, damped):
                yield from self._wanted(passed)
            return
        if kind == GAP:
            yield from self.flush()
        yield Passed(record, record["seq"])

    def flush(self) -> Iterator[Passed[RecordMap]]:
        """Yield all that waits: users may have come back in records that are missing."""
        while oldest := self._damper.pop_oldest():
            yield from self._wanted(oldest)

    def settle(self) -> Iterator[Passed[RecordMap]]:
        """Yield what the loop gets when nothing has arrived for `next_in_s`.

        At most `SETTLED_AT_ONCE` offlines; `has_settled` then says that more may follow.
        The next call yields what had settled by this one: users may have come back since,
        and the records that say so are not read yet.
        """
        if not self.has_settled:
            self._settled_until = round((self._wall_s() - QUIET_S) * 1000)
        self.has_settled = False
        for _ in range(SETTLED_AT_ONCE):
            if (settled := self._damper.pop_settled(self._settled_until)) is None:
                return
            yield from self._wanted(settled)
        self.has_settled = True

    @property
    def next_in_s(self) -> float:
        """Seconds without a record after which to call `settle`; infinity: never."""
        next_at = self._damper.next_at
        if next_at is None:
            return inf
        # No offline waits for longer, even if the wall clock was set back.
        most_s = self._settle_s + QUIET_S
        settled_s = min(next_at / 1000 + QUIET_S - self._wall_s(), most_s)
        # Not 0: what has already arrived must be read first.
        return max(settled_s, QUIET_S - self._quiet_s, 0.01)

    def waited(self, seconds: float) -> None:
        """Note a wait of so many seconds that was cut off, and in which nothing arrived."""
        self._quiet_s += seconds

    def _wanted(self, passed: Passed[RecordMap]) -> Iterator[Passed[RecordMap]]:
        if not self._kinds or passed.item["kind"] in self._kinds:
            yield passed


def settle_s_in(settle_s: object) -> float:
    """Check a `settle_s`.

    Raises:
        ReportError: It is not one.
    """
    if (
        isinstance(settle_s, int | float)
        and not isinstance(settle_s, bool)
        and 0 <= settle_s <= MOST_SETTLE_S
    ):
        return float(settle_s)
    raise ReportError(
        f"settle_s is {settle_s!r:.80}; it must be 0 to {MOST_SETTLE_S:g} seconds"
    )


def _moved(offline: RecordMap, online: RecordMap) -> RecordMap:
    """As `core.damping.moved`."""
    record = {**online, "kind": MOVED, "from": offline["gateway"]}
    record["from_session"] = offline["session"]
    if "conn" in offline:
        record["from_conn"] = offline["conn"]
    return record
