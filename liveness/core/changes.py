"""What was decided and is not yet given to the log: one numbering for all who decide.

Records, and the effect they have on what is kept beside the log, gather here and are
taken together, so that one pass over all links becomes one batch for the disk.
"""

from liveness.core.records import Changes, Logged


class Decisions:
    """Numbers records in the order in which they are decided.

    Args:
        next_seq: The next sequence number to be given.
    """

    def __init__(self, next_seq: int) -> None:
        self.next_seq = next_seq
        self.changes = Changes()

    def record(self, record: Logged, *, due: float = 0.0) -> None:
        """Add a record, whose seq is `next_seq`.

        Args:
            record: What was decided.
            due: Monotonic seconds at which it was due; 0.0 where no deadline made it.
        """
        assert record.seq == self.next_seq
        self.next_seq += 1
        self.changes.records.append(record)
        self.changes.due.append(due)

    def take(self) -> Changes:
        """Hand over all that was decided since the last call, in order."""
        changes, self.changes = self.changes, Changes()
        return changes
