"""Decisions that the log has not taken yet, in one numbering for users and timers.

Records, and what they change in the tables beside the log, gather here and are taken
together: one pass over all links becomes one batch for the disk.
"""

from liveness.core.records import Changes, Logged


class Decisions:
    """Numbers records in the order in which they are decided.

    Args:
        next_seq: The seq of the next record.
    """

    def __init__(self, next_seq: int) -> None:
        self.next_seq = next_seq
        self.changes = Changes()

    def record(self, record: Logged, *, due: float = 0.0) -> None:
        """Add a record, whose seq is `next_seq`.

        Args:
            record: The record.
            due: Monotonic seconds of the deadline that led to it; 0.0 without one.
        """
        assert record.seq == self.next_seq
        self.next_seq += 1
        self.changes.records.append(record)
        self.changes.due.append(due)

    def take(self) -> Changes:
        """Return all decisions since the last call, in order."""
        changes, self.changes = self.changes, Changes()
        return changes
