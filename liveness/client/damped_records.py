"""Damps the records of a watch with `settle_s`; `core.sessions.damping` explains that.

While records arrive, their stamps show which offlines have settled. After a moment without
records, the watch sends a ping: the pong comes when everything decided before is durable.
The sidecar then sends some of those records, if there are any, before it answers a second
ping. So if no record comes before the second pong, all records decided before the first
ping have arrived.

Stamps are compared in milliseconds of the monotonic clock, so that steps of the wall clock
change nothing.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import anyio

from liveness.client.inbox import RecordMap
from liveness.core.records import MOVED, SESSION_KINDS, identity
from liveness.core.sessions.damping import (
    MOST_SETTLE_S,
    DampedRecord,
    Damper,
    DampingCounts,
    Passed,
)
from liveness.core.wire.uids import is_within
from liveness.errors import ReportError

# That moment: so it sends pings a few times a second at most.
QUIET_S: Final = 0.25
# The wall clock was set if it moves by more than this against the monotonic clock.
STEP_MS: Final = 100
# Most offlines that may wait. Each takes about 1.2 KB.
MAX_SETTLING: Final = 100_000
# The most offlines that one `settle` yields, as they are briefly in memory twice.
SETTLED_AT_ONCE: Final = 1_000


class DampedRecords:
    """The waiting records of one watch."""

    def __init__(
        self,
        settle_s: float,
        kinds: Sequence[str],
        *,
        users: bool,
        wall_s: Callable[[], float],
    ) -> None:
        if not is_within(settle_s, 0, MOST_SETTLE_S):
            raise ReportError(
                f"settle_s is {settle_s!r:.80}; it must be 0 to {MOST_SETTLE_S:g} seconds"
            )
        self.counts = DampingCounts(MAX_SETTLING)
        self._settle_s = settle_s
        self._kinds = frozenset(kinds)
        self._users = users
        self._wall_s = wall_s
        self._arrived_at = -inf  # when the last records or answer came
        self._offset_ms = 0  # add it to the stamps of records that arrive
        self._former_offset_ms = 0  # before the wall clock was set
        self._set_by = -inf  # when that was noticed, in milliseconds
        self._pings = 0
        self._asked_at: float | None = None  # when it sent the first of two pings
        self._is_second = False  # the first ping is answered
        self._awaits_pong = False
        self.begin(0)
        self.has_begun = False

    def begin(self, newest: int) -> None:
        """Begin with a log; the loop may already have had its records up to *newest*."""
        self.damper = Damper[RecordMap](
            round(self._settle_s * 1000),
            counts=self.counts,
            move=_moved,
            wants=self._wants,
            wants_moves=not self._users and (not self._kinds or MOVED in self._kinds),
            doubtful_until=newest,
        )
        self.has_begun = True

    def linked(self) -> None:
        """Note that a link has begun, whose first records have not arrived yet."""
        self.arrives()
        self.damper.complete(-inf)

    def arrives(self) -> None:
        """Note that records arrive: earlier pings prove nothing."""
        self._arrived_at = anyio.current_time()
        offset_ms = round((self._arrived_at - self._wall_s()) * 1000)
        if abs(offset_ms - self._offset_ms) > STEP_MS:
            self._former_offset_ms = self._offset_ms
            self._set_by = self._arrived_at * 1000
        self._offset_ms = offset_ms
        self._asked_at, self._is_second, self._awaits_pong = None, False, False

    def add(self, record: RecordMap) -> list[Passed[RecordMap]]:
        """Take a record that has arrived; return records for the loop.

        Raises:
            KeyError, TypeError: It does not have the form of a record.
        """
        now = round(self._arrived_at * 1000)
        # The wall clock may have been set since the decision, also while no link was up.
        # A moment after that, by the former offset, is wrong, and so is one in the future.
        # By the later of two, no offline settles early.
        moments = [
            record["at"] + offset_ms
            for offset_ms, until in (
                (self._offset_ms, now),
                (self._former_offset_ms, self._set_by),
            )
            if record["at"] + offset_ms <= until + STEP_MS
        ]
        at = min(max(moments, default=now), now)
        kind, user, gateway = record["kind"], "", ""
        if kind in SESSION_KINDS:
            uid, gateway = record["uid"], record["gateway"]
            user = identity(record.get("user", uid) if self._users else uid)
        self.damper.put(record, DampedRecord(record["seq"], kind, user, gateway, at))
        return self.damper.take()

    @property
    def must_ask_again(self) -> bool:
        """Whether to send the second ping."""
        return self._is_second and not self._awaits_pong

    def ask(self) -> int:
        """Return a number for a ping to send now."""
        if not self._is_second:
            self._asked_at = anyio.current_time()
        self._pings += 1
        self._awaits_pong = True
        return self._pings

    def answered(self, ping: object) -> None:
        """Take a pong, which may be that of a ping from before the last records."""
        if self._asked_at is None or ping != self._pings:
            return
        asked_at = self._asked_at
        if self._is_second:
            self.arrives()
            self.damper.complete(round(asked_at * 1000))
        else:
            self._is_second, self._awaits_pong = True, False

    def settle(self) -> list[Passed[RecordMap]]:
        """Return some of those that have settled, at most `SETTLED_AT_ONCE`."""
        return self.damper.take(SETTLED_AT_ONCE)

    @property
    def next_in_s(self) -> float:
        """Seconds without a record until `ask` must be called; infinity: never."""
        next_at = self.damper.next_at
        if next_at is None or self._awaits_pong:
            return inf
        ask_at = max(next_at / 1000, self._arrived_at + QUIET_S)
        return max(0.0, ask_at - anyio.current_time())

    def _wants(self, record: RecordMap) -> bool:
        kind = record["kind"]
        return not self._kinds or kind in self._kinds or kind not in SESSION_KINDS


def _moved(offline: RecordMap, online: RecordMap) -> RecordMap:
    """Like `core.sessions.damping.moved`."""
    record = {**online, "kind": MOVED, "from": offline["gateway"]}
    record["from_session"] = offline["session"]
    if "conn" in offline:
        record["from_conn"] = offline["conn"]
    return record
