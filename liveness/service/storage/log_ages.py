"""By when the records of the log were written: marks of a seq and a moment.

A mark says that all records up to its seq were written by its moment, in milliseconds of
the state's clock. Retention goes by marks, never by the stamps of records: those are of the
wall clock, which may have been wrong by days when a record was made. Some hundred marks are
enough to know an age to a hundredth of the retention.
"""

import json
import sqlite3
from typing import Final, NamedTuple

from liveness.core.wire.uids import is_natural
from liveness.service.storage import log_pages
from liveness.service.storage.database import PUT_META, damage_error, meta

# How many marks there are in a retention, at most.
MARKS: Final = 100
# The key of `meta`.
_AGES: Final = "ages"


class Mark(NamedTuple):
    """All records up to `seq` were written by `at_ms`."""

    seq: int
    at_ms: int


class LogAges:
    """The marks of an open log.

    Args:
        db: Its database.
    Raises:
        sqlite3.DatabaseError: The marks are damaged.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        stored = meta(db, _AGES)
        self._marks = None if stored is None else _marks_in(str(stored))

    def begin(self, now_ms: int) -> None:
        """At the start: make the marks of a log whose version has written none."""
        if self._marks is None:
            self._store(self._sampled(now_ms))

    def note(self, mark: Mark, *, oldest_ms: int, retention_ms: int) -> None:
        """Add a mark, if it says enough that is new; forget those that are not needed.

        Args:
            mark: The newest durable record, and now.
            oldest_ms: What was written before this moment is deleted.
            retention_ms: For how long records are kept.
        """
        marks = self._known
        last = marks[-1] if marks else Mark(0, -retention_ms)
        if mark.seq > last.seq and mark.at_ms - last.at_ms >= retention_ms // MARKS:
            due = self.written_before(oldest_ms)
            self._store([*(known for known in marks if known.seq >= due), mark])

    def written_before(self, at_ms: int) -> int:
        """The newest seq that is known to be older than that; 0 if none is."""
        marks = self._known
        return max((mark.seq for mark in marks if mark.at_ms < at_ms), default=0)

    @property
    def _known(self) -> list[Mark]:
        return self._sampled(log_pages.END) if self._marks is None else self._marks

    def _store(self, marks: list[Mark]) -> None:
        self._db.execute(PUT_META, [_AGES, json.dumps(marks)])
        self._marks = marks

    def _sampled(self, now_ms: int) -> list[Mark]:
        """Marks by the stamps of some pages: none is newer than those behind it, or now."""
        first, newest = log_pages.oldest(self._db), log_pages.newest(self._db)
        marks, at_ms = list[Mark](), now_ms
        for seq in range(newest, first - 1, -max(1, (newest - first) // MARKS)):
            if (page := log_pages.stamp_of(self._db, seq)) is not None:
                at_ms = min(at_ms, page[1])
                marks.append(Mark(page[0], at_ms))
        return marks[::-1]


def _marks_in(text: str) -> list[Mark]:
    """Parse stored marks."""
    try:
        marks = [Mark(*values) for values in json.loads(text)]
    except (ValueError, TypeError):
        marks = [Mark(-1, -1)]
    if not all(is_natural(value) for mark in marks for value in mark):
        raise damage_error("the ages of the log in its meta make no sense")
    return marks
