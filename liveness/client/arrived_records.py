"""Queues records that have arrived, until the loop of a watch takes them."""

from collections import deque
from typing import NamedTuple

from liveness.client.inbox import RecordMap


class ArrivedRecord(NamedTuple):
    """A record.

    Args:
        log: The number of its log, counted from the first one of the watch.
        record: In its form on the wire.
        floor: Until the loop has finished it, the watch's position stays below this seq.
    """

    log: int
    record: RecordMap
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
