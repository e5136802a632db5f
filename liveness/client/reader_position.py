"""A reader's position in the log, over its links: for hellos, and moved by records.

The position is a `seq` and the log that it belongs to. With a new log, it stays that of the
old one until the first record of the new one has arrived: the sidecar knows the last record
that a restored log shares with the one before.
"""

from typing import Any, Final

from liveness.client.sidecar_frames import Welcome

__all__ = ["ReaderPosition"]

# The kind of the mapping that says that the log is another one. It is not on the wire.
LOG: Final = "log"
LOG_SEQ: Final = 0  # its seq: below that of any record


class ReaderPosition:
    """A reader's position in the log.

    Args:
        after: Begin above this seq; None: with the next record.
        log: The log that it belongs to; None: the sidecar's.
        has_cursor: Whether the sidecar stores the cursor of this name.

    Attributes:
        known_log: The id of the newest known log.
        floor: Records of this link up to this seq are repeated ones.
        logs: How many logs there were before; it distinguishes logs with one id.
    """

    def __init__(self, after: int | None, log: str | None, *, has_cursor: bool) -> None:
        self.known_log = log
        self.floor = 0
        self.logs = 0
        self.has_begun = False  # a first welcome was taken
        self._has_cursor = has_cursor
        self._seq, self._seq_log = after, log

    @property
    def seq(self) -> int | None:
        """The seq after which to continue; None if only the sidecar knows it."""
        return self._seq

    @property
    def in_log(self) -> int | None:
        """The seq, if it belongs to the newest known log."""
        return self._seq if self._seq_log in (None, self.known_log) else None

    @property
    def lacks_log(self) -> bool:
        """Whether the log of the seq is still unknown, so that no hello can name it."""
        return bool(self._seq) and self._seq_log is None

    def is_of(self, log: str) -> None:
        """Note which log the seq belongs to."""
        self._seq_log = log

    def options(self) -> dict[str, object]:
        """The options of the next hello."""
        if self._seq is None:
            return {}
        if self._seq_log is None:  # 0, for any log
            return {"after": self._seq}
        return {"after": self._seq, "log": self._seq_log}

    def arrived(self, seq: int) -> bool:
        """Move to a record that has arrived; return False if it came before."""
        if seq <= self.floor:
            return False
        self.floor = self._seq = seq
        self._seq_log = self.known_log
        return True

    def leave_to_the_sidecar(self, welcome: Welcome) -> bool:
        """Forget `after` if it is for a new name, and this one has a position already.

        Returns:
            Whether it was forgotten: then another hello without it is needed.
        """
        is_for_new_names = self._has_cursor and self._seq is not None
        if self.has_begun or not is_for_new_names or not welcome.known:
            return False
        self.has_begun = True
        self._seq = self._seq_log = self.known_log = None
        return True

    def welcomed(self, welcome: Welcome) -> dict[str, Any] | None:
        """Take the welcome of a link; return the event of a new log for the reader, if any."""
        is_first, self.has_begun = not self.has_begun, True
        log, before = welcome.log, self.known_log
        is_resumed = self._seq is not None and self._seq_log in (None, log)
        has_lost_its_end = is_resumed and (self._seq or 0) >= welcome.next
        is_new = before not in (None, log) or has_lost_its_end
        self.known_log = log
        if has_lost_its_end:
            self._seq, self._seq_log = 0, log
        is_new_name = self._has_cursor and is_first and not welcome.known
        if self._seq is None and (is_new_name or not self._has_cursor):
            self._seq, self._seq_log = welcome.next - 1, log
            is_resumed = True
        self.floor = self._seq or 0 if is_resumed else 0
        if not is_new:
            return None
        self.logs += 1
        return {"kind": LOG, "log": log, "was": before, "seq": LOG_SEQ}

    def was_forgotten(self, welcome: Welcome) -> bool:
        """Begin with the oldest record if the sidecar has forgotten the position.

        Returns:
            Whether it has: then another hello is needed, which requests that.
        """
        if self._seq is not None or welcome.known:
            return False
        self._seq, self._seq_log = 0, welcome.log
        return True
