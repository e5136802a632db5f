"""Which records were found to be damaged; each range is logged once."""

import threading
from collections.abc import Iterable
from pathlib import Path

import structlog

_log = structlog.get_logger("start")

# The first and last seq of consecutive records.
SeqRange = tuple[int, int]


def merged(ranges: Iterable[SeqRange], added: SeqRange) -> list[SeqRange]:
    """Join a range with those that it overlaps or touches; the result has it last."""
    separate = list[SeqRange]()
    first, last = added
    for known in ranges:
        if known[1] + 1 < first or last + 1 < known[0]:
            separate.append(known)
        else:
            first, last = min(known[0], first), max(known[1], last)
    return [*separate, (first, last)]


class DamagedRecords:
    """The damaged records that the log at a path still has. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._ranges: list[SeqRange] = []

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._ranges)

    def add(self, first: int, last: int) -> None:
        """Add records; log an error if any of them is new."""
        with self._lock:
            known = self._ranges
            self._ranges = merged(known, (first, last))
            is_known = self._ranges[-1] in known
        if not is_known:
            _log.error(
                "records are damaged on disk; readers get a gap in their place: run "
                "`liveness check-state`, look at the disk, and restore a backup only if "
                "these records are worth it",
                path=str(self._path),
                first=first,
                last=last,
            )

    def forget_below(self, oldest: int) -> None:
        """Forget the records below *oldest*, which the log no longer has."""
        with self._lock:
            self._ranges = [
                (max(first, oldest), last)
                for first, last in self._ranges
                if last >= oldest
            ]
