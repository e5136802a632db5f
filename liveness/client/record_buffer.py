"""The records that have arrived at a watch, and how far its loop is with them."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from liveness.client.damped_records import MAX_SETTLING, DampedRecords
from liveness.client.inbox import RecordMap
from liveness.client.reader_position import LOG_SEQ, ReaderPosition
from liveness.client.sidecar_frames import Welcome
from liveness.core.sessions.damping import Passed

CURSOR: Final = "cursor"  # in `welcome.features`


class ArrivedRecord(NamedTuple):
    """A record, in its form on the wire."""

    log: int  # the number of its log, counted from the first one of the watch
    record: RecordMap
    # Until the loop has finished it, the watch's position stays below this seq.
    floor: int


class ArrivedRecords:
    """A queue of records; their floors may be in any order."""

    def __init__(self) -> None:
        self._records = deque[ArrivedRecord]()
        # Only floors without a lower one after them: so the first is the least.
        self._floors = deque[int]()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def least_floor(self) -> int | None:
        """The least floor of the records that wait; None if none does."""
        return self._floors[0] if self._floors else None

    def add(self, log: int, record: RecordMap, floor: int) -> None:
        """Add a record after the others."""
        self._records.append(ArrivedRecord(log, record, floor))
        while self._floors and self._floors[-1] > floor:
            self._floors.pop()
        self._floors.append(floor)

    def pop(self) -> ArrivedRecord | None:
        """Take the first; None if none waits."""
        if not self._records:
            return None
        arrived = self._records.popleft()
        if self._floors[0] == arrived.floor:
            self._floors.popleft()
        return arrived

    def pop_all(self) -> list[ArrivedRecord]:
        """Take all."""
        arrived = [*self._records]
        self._records.clear()
        self._floors.clear()
        return arrived


class RecordBuffer:
    """The records of a watch, until its loop has finished them."""

    def __init__(
        self,
        position: ReaderPosition,
        damped: DampedRecords | None,
        say: Callable[[str], None],
    ) -> None:
        self.position = position
        self.damped = damped
        self._say = say
        self._waiting = ArrivedRecords()  # and not given to the loop yet
        # What the loop was given and may not have finished: the number of its log, the seq
        # up to which all else is finished, and the last seq that was given.
        self._given: tuple[int, int, int] | None = None
        self._finished: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self._waiting)

    # --- the link -------------------------------------------------------------------

    def linked(self, welcome: Welcome) -> bool:
        """Take the welcome of a link; return whether its log is a new one."""
        new = self.position.welcomed(welcome)
        damped = self.damped
        if damped is not None and not (damped.has_begun and new is None):
            self.add(damped.flush())  # of the log before
            damped.begin(welcome.next - 1)
        if new is not None:
            self._waiting.add(self.position.logs, new, LOG_SEQ)
            self._say("the log is a new one: its records follow")
        return new is not None

    def arrived(self, records: Iterable[RecordMap]) -> bool:
        """Take the records of a frame; return whether one of them came before.

        Raises:
            KeyError, TypeError: One does not have the form of a record.
        """
        position, damped, has_repeated = self.position, self.damped, False
        for record in records:
            seq = record["seq"]
            if not position.arrived(seq):
                has_repeated = True
            elif damped is None:
                self._waiting.add(position.logs, record, seq)
            else:
                self.add(damped.add(record))
        return has_repeated

    def add(self, passed: Iterable[Passed[RecordMap]]) -> None:
        """Have the loop get what the damper passes on."""
        assert self.damped is not None
        counts = self.damped.counts
        before = counts.hurried
        for record, floor in passed:
            self._waiting.add(self.position.logs, record, floor)
        if counts.hurried > before:
            self._say(
                f"more than {MAX_SETTLING} offlines wait for settle_s: the oldest are passed "
                "on early; give a shorter one"
            )

    # --- the loop -------------------------------------------------------------------

    def take(self) -> RecordMap | None:
        """Finish the last record; return the next one if it has arrived."""
        self.finish()
        if (arrived := self._waiting.pop()) is None:
            return None
        log, record, floor = arrived
        self._given = log, floor - 1, record["seq"]
        return record

    def take_all(self) -> list[RecordMap]:
        """Return all that have arrived; at least one has."""
        floor = self._waiting.least_floor
        assert floor is not None
        arrived = self._waiting.pop_all()
        self._given = arrived[-1].log, floor - 1, arrived[-1].record["seq"]
        return [record for _, record, _ in arrived]

    def finish(self) -> None:
        """Note that the loop has come back from what it was given."""
        if self._given is not None:
            number, _, seq = self._given
            self._finished, self._given = (number, seq), None

    def next_ack(self, features: Sequence[str]) -> tuple[int, ...]:
        """The seq up to which to acknowledge and, if that differs, the cursor."""
        if self.damped is None:
            number, seq = self._finished
            return (seq if number == self.position.logs else 0,)
        cursor = self._all_given
        if self._given is not None:
            cursor = min(cursor, self._given[1])
        cursor = max(cursor, 0)  # that of a new log may be -1
        return (self.position.floor, cursor) if CURSOR in features else (cursor,)

    @property
    def given_position(self) -> int | None:
        """The seq to go on after; see `Watch.position`."""
        if self.position.in_log is None or self._waiting.least_floor == LOG_SEQ:
            return None
        return self._all_given

    @property
    def _all_given(self) -> int:
        """The seq up to which everything that has arrived was given to the loop."""
        oldest = None if self.damped is None else self.damped.oldest_seq
        seqs = (self._waiting.least_floor, oldest)
        return min([self.position.floor, *(seq - 1 for seq in seqs if seq is not None)])
