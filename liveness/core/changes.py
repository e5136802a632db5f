"""Decisions that are not durable yet, numbered together for users and timers.

Records, and their changes of the tables beside the log, gather here and are taken together:
one pass over all links becomes one commit. A *ticket* is the number of a commit: a reply
that depends on a decision is sent once its ticket is durable.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from liveness.core.cursors import Cursors
from liveness.core.records import Instant, Logged, OnlineRow
from liveness.core.timer_states import TimerCommand
from liveness.core.wheel.record_batch import Opening, RecordBatch, offline_of
from liveness.core.wheel.table import Entry


@dataclass(slots=True)
class Changes:
    """The decisions of one pass: for the log, the online set and the table of timers."""

    records: RecordBatch = field(default_factory=RecordBatch)
    # Rows of the online set that change without a record, by session.
    online: dict[int, OnlineRow] = field(default_factory=dict)
    commands: list[TimerCommand] = field(default_factory=list)
    ends: int = 0  # records that end a session, or begin an attempt

    @property
    def weight(self) -> int:
        """Its length in the queue for the disk, in records; at least 1."""
        return max(len(self.records), len(self.online), 1)

    def __bool__(self) -> bool:
        return bool(self.records or self.online or self.commands)

    def change_online(self, rows: dict[int, OnlineRow]) -> None:
        """Apply the changes to a copy of the online set in memory, by session."""
        opened = zip(
            *[iter(self.records.opened())] * len(OnlineRow._fields), strict=True
        )
        rows |= {row[0]: OnlineRow._make(row) for row in opened}
        rows |= self.online
        for session in self.records.closed:
            rows.pop(session, None)


class Commit(NamedTuple):
    """Write these changes; `ticket` is then durable."""

    changes: Changes
    ticket: int
    with_cursors: bool = False  # the ticket also covers moved cursors


class Decisions:
    """Numbers records in the order in which they are decided, and commits.

    Cursors that moved are part of the next commit.
    """

    def __init__(
        self,
        next_seq: int,
        cursors: Cursors | None = None,
        *,
        new_batch: Callable[[], RecordBatch] = RecordBatch,
    ) -> None:
        self.next_seq = next_seq
        self.ticket = 0  # of the last commit
        self.new_batch = new_batch
        self.changes = Changes(new_batch())
        self.cursors = Cursors() if cursors is None else cursors

    def record(
        self, record: Logged, *, due: float = 0.0, opening: Opening | None = None
    ) -> None:
        """Add a record, whose seq is `next_seq`; see `RecordBatch.append`."""
        assert record.seq == self.next_seq
        self.next_seq += 1
        self.changes.records.append(record, due=due, opening=opening)

    def end(self, entry: Entry, gateway: str, reason: str, at: Instant) -> None:
        """Record the offline of a session that is off the wheel."""
        self.changes.ends += 1
        self.record(offline_of(entry, self.next_seq, gateway, reason, at))

    def take(self) -> Changes:
        changes, self.changes = self.changes, Changes(self.new_batch())
        return changes

    def commit(self, *, with_cursors: bool) -> Commit | None:
        """Take all decisions under a new ticket; None if there are none.

        *with_cursors*: also if only cursors moved, so that the ticket covers them.
        Otherwise they wait for the next one.
        """
        with_cursors = with_cursors and self.cursors.has_moved
        if not self.changes and not with_cursors:
            return None
        self.ticket += 1
        return Commit(self.take(), self.ticket, with_cursors)
