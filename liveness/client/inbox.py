"""Ends of connections, kept until the gateway has handled them.

A loop over `ended()` finishes an end by taking the next one; an end that it leaves
unfinished goes to the next loop. A record may be acknowledged once all ends up to it are
finished: an ack is one number and covers everything up to it. The sidecar's window, the most
records that may be unacknowledged, bounds all of this. Records without an end are finished
when they arrive.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

from liveness.core.records import Uid, identity

RecordMap: TypeAlias = Mapping[str, Any]


class End(NamedTuple):
    """A connection that has ended for the sidecar, and that the gateway has to close.

    `conn` is the one that the gateway reported, if any. `reason` is "silence" or
    "gateway_lost", or "moved" if the user has a newer connection, here or elsewhere; later
    versions may add reasons. `record` is the sidecar's record, with its evidence.
    """

    uid: Uid
    conn: int | None
    reason: str
    record: RecordMap


@dataclass(slots=True, eq=False)
class Arrival:
    """An end that has arrived."""

    seq: int  # 0 if its log no longer exists; then it needs no ack
    end: End
    # The loop that has it; None if there is none, or if it has gone.
    loop: Callable[[], object] = lambda: None
    is_withdrawn: bool = False  # while a loop had it, which may still handle it


class Inbox:
    """The ends that wait for a loop."""

    def __init__(self) -> None:
        self.newest = 0  # the seq of the newest record
        self.duplicates = 0
        # Not finished, the oldest first, by user and conn. An end is withdrawn if the
        # gateway logs the connection out first, or if a user without conns comes back.
        # An OrderedDict, as popping the front of a plain dict gets slower each time.
        self.unfinished: OrderedDict[tuple[str, int | None], Arrival] = OrderedDict()

    def is_new(self, seq: int) -> bool:
        """Whether *seq* arrives for the first time; if not, count a duplicate."""
        self.duplicates += seq <= self.newest
        return seq > self.newest

    def add(self, seq: int, end: End | None) -> None:
        """Add a record, newer than all before."""
        self.newest = seq
        if end is not None:
            key = identity(end.uid), end.conn
            # In place of one that a loop may have: it keeps its seq too, so that neither is
            # acknowledged before both are finished.
            before = self.unfinished.get(key)
            self.unfinished[key] = Arrival(before.seq if before else seq, end)

    def take(self, loop: object) -> Arrival | None:
        """Take the oldest end that no loop has."""
        for arrival in self.unfinished.values():
            if arrival.loop() is None and not arrival.is_withdrawn:
                arrival.loop = ref(loop)
                return arrival
        return None

    def finish(self, arrival: Arrival) -> None:
        key = identity(arrival.end.uid), arrival.end.conn
        if self.unfinished.get(key) is arrival:
            del self.unfinished[key]

    def withdraw(self, uid: Uid, conn: int | None) -> None:
        arrival = self.unfinished.get((identity(uid), conn))
        if arrival is not None and arrival.loop() is None:
            self.finish(arrival)
        elif arrival is not None:
            arrival.is_withdrawn = True

    @property
    def finished(self) -> int:
        """The seq up to which records may be acknowledged."""
        while self.unfinished:
            oldest = next(iter(self.unfinished.values()))
            if not oldest.is_withdrawn or oldest.loop() is not None:
                return max(oldest.seq - 1, 0)
            self.finish(oldest)  # nobody has to handle it any more
        return self.newest

    def begin_log(self) -> None:
        """Count seqs from 0 again, for a new log. Unfinished ends stay."""
        self.newest = 0
        for arrival in self.unfinished.values():
            arrival.seq = 0
