"""The records that have arrived at a watch, and how far its loop is with them.

The position of a watch is a `seq` and the log that it belongs to. With a new log, it stays
that of the old one until the first record of the new one has arrived: the sidecar knows the
last record that a restored log shares with the one before.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from liveness.client.damped_records import MAX_SETTLING, DampedRecords
from liveness.client.inbox import RecordMap
from liveness.client.sidecar_frames import Welcome
from liveness.core.sessions.damping import Passed

# The kind of the mapping that says that the log is another one. It is not on the wire.
LOG: Final = "log"
LOG_SEQ: Final = 0  # its seq: below that of any record


class ArrivedRecord(NamedTuple):
    """A record, in its form on the wire."""

    log: int  # the number of its log, counted from the first one of the watch
    record: RecordMap
    # Until the loop has finished it, the watch's position stays below this seq.
    floor: int


class RecordBuffer:
    """The records of a watch, until its loop has finished them."""

    def __init__(
        self,
        after: int | None,
        log: str | None,
        *,
        has_cursor: bool,
        damped: DampedRecords | None,
        say: Callable[[str], None],
    ) -> None:
        # The seq after which to continue, None if only the sidecar knows it; and the log
        # that it belongs to, None for whichever the sidecar has.
        self.seq, self.seq_log = after, log
        self.known_log = log  # the newest known one
        self.floor = 0  # records of this link up to this seq are repeated ones
        self.has_begun = False  # a first welcome was taken
        self.damped = damped
        self._logs = 0  # how many there were before; several may have one id
        self._has_cursor = has_cursor
        self._say = say
        self._waiting = deque[ArrivedRecord]()  # and not given to the loop yet
        # What the loop was given and may not have finished: the number of its log, the seq
        # up to which all else is finished, and the last seq that was given.
        self._given: tuple[int, int, int] | None = None
        self._finished: tuple[int, int] = (0, 0)
        self._hurried = 0  # offlines passed on early that were said

    def __len__(self) -> int:
        return len(self._waiting)

    # --- the position ----------------------------------------------------------------

    @property
    def _in_log(self) -> int | None:
        """The seq, if it belongs to the newest known log."""
        return self.seq if self.seq_log in (None, self.known_log) else None

    @property
    def lacks_log(self) -> bool:
        """Whether the log of the seq is still unknown, so that no hello can name it."""
        return bool(self.seq) and self.seq_log is None

    def options(self) -> dict[str, object]:
        if self.seq is None:
            return {}
        if self.seq_log is None:  # 0, for any log
            return {"after": self.seq}
        return {"after": self.seq, "log": self.seq_log}

    def _is_new(self, seq: int) -> bool:
        """Move to a record that has arrived; return False if it came before."""
        if seq <= self.floor:
            return False
        self.floor = self.seq = seq
        self.seq_log = self.known_log
        return True

    def leave_to_the_sidecar(self, welcome: Welcome) -> bool:
        """Forget `after` if it is for a new name, and this one has a position already.

        Returns:
            Whether it was forgotten: then another hello without it is needed.
        """
        is_for_new_names = self._has_cursor and self.seq is not None
        if self.has_begun or not is_for_new_names or not welcome.known:
            return False
        self.has_begun = True
        self.seq = self.seq_log = self.known_log = None
        return True

    def _welcomed(self, welcome: Welcome) -> dict[str, Any] | None:
        """Take the welcome of a link; return the event of a new log for the reader, if any."""
        is_first, self.has_begun = not self.has_begun, True
        log, before = welcome.log, self.known_log
        is_resumed = self.seq is not None and self.seq_log in (None, log)
        has_lost_its_end = is_resumed and (self.seq or 0) >= welcome.next
        is_new = before not in (None, log) or has_lost_its_end
        self.known_log = log
        if has_lost_its_end:
            self.seq, self.seq_log = 0, log
        is_new_name = self._has_cursor and is_first and not welcome.known
        if self.seq is None and (is_new_name or not self._has_cursor):
            self.seq, self.seq_log = welcome.next - 1, log
            is_resumed = True
        self.floor = self.seq or 0 if is_resumed else 0
        if not is_new:
            return None
        self._logs += 1
        return {"kind": LOG, "log": log, "was": before, "seq": LOG_SEQ}

    def was_forgotten(self, welcome: Welcome) -> bool:
        """Begin with the oldest record if the sidecar has forgotten the position.

        Returns:
            Whether it has: then another hello is needed, which requests that.
        """
        if self.seq is not None or welcome.known:
            return False
        self.seq, self.seq_log = 0, welcome.log
        return True

    # --- the link -------------------------------------------------------------------

    def linked(self, welcome: Welcome) -> bool:
        """Take the welcome of a link; return whether its log is a new one."""
        new = self._welcomed(welcome)
        damped = self.damped
        if damped is not None and not (damped.has_begun and new is None):
            self.add(damped.flush())  # of the log before
            damped.begin(welcome.next - 1)
        if new is not None:
            self._add(new, LOG_SEQ)
            self._say("the log is a new one: its records follow")
        return new is not None

    def arrived(self, records: Iterable[RecordMap]) -> bool:
        """Take the records of a frame; return whether one of them came before."""
        damped, has_repeated = self.damped, False
        for record in records:
            seq = record["seq"]
            if not self._is_new(seq):
                has_repeated = True
            elif damped is None:
                self._add(record, seq)
            else:
                self.add(damped.add(record))
        return has_repeated

    def add(self, passed: Iterable[Passed[RecordMap]]) -> None:
        assert self.damped is not None
        for record, floor in passed:
            self._add(record, floor)
        if (hurried := self.damped.counts.hurried) > self._hurried:
            self._hurried = hurried
            self._say(
                f"more than {MAX_SETTLING} offlines wait for settle_s: the oldest are passed "
                "on early; give a shorter one"
            )

    def _add(self, record: RecordMap, floor: int) -> None:
        self._waiting.append(ArrivedRecord(self._logs, record, floor))

    # --- the loop -------------------------------------------------------------------

    def take(self) -> RecordMap | None:
        """Finish the last record; return the next one if it has arrived."""
        self.finish()
        if not self._waiting:
            return None
        log, record, floor = self._waiting.popleft()
        self._given = log, floor - 1, record["seq"]
        return record

    def take_all(self) -> list[RecordMap]:
        log, last, _ = self._waiting[-1]
        self._given = log, self._least_floor - 1, last["seq"]
        records = [record for _, record, _ in self._waiting]
        self._waiting.clear()
        return records

    def finish(self) -> None:
        """Note that the loop has come back from what it was given."""
        if self._given is not None:
            number, _, seq = self._given
            self._finished, self._given = (number, seq), None

    def next_ack(self) -> tuple[int, ...]:
        """The seq up to which to acknowledge and, if that differs, the cursor."""
        if self.damped is None:
            number, seq = self._finished
            return (seq if number == self._logs else 0,)
        cursor = self._all_given
        if self._given is not None:
            cursor = min(cursor, self._given[1])
        return (self.floor, max(cursor, 0))

    @property
    def given_position(self) -> int | None:
        if self._in_log is None or self._least_floor == LOG_SEQ:
            return None
        return self._all_given

    @property
    def _all_given(self) -> int:
        """The seq up to which everything that has arrived was given to the loop."""
        seqs = [self.floor, self._least_floor - 1]
        if self.damped is not None and (passed := self.damped.position) is not None:
            seqs.append(passed)
        return min(seqs)

    @property
    def _least_floor(self) -> int:
        """The least floor of the records that wait, or the one after all that came."""
        after = self.floor + 1
        return min((each.floor for each in self._waiting), default=after)
