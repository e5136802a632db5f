"""Deletes the oldest records of the log, and the names that nobody uses any more.

Retention goes by marks of a seq and a moment, never by the stamps of records: those are of
the wall clock, which may have been wrong by days when a record was made. A mark says that
all records up to its seq were written by its moment, in milliseconds of the state's clock.
Some hundred marks are enough to know an age to a hundredth of the retention.
"""

import json
import sqlite3
from functools import partial
from typing import Any, Final, NamedTuple

from liveness.core.wire.uids import is_natural
from liveness.service.storage import log_pages
from liveness.service.storage.damaged_records import DamagedRecords
from liveness.service.storage.database import (
    PUT_META,
    bytes_in_use,
    damage_error,
    meta,
    transaction,
)
from liveness.service.storage.disk_reserve import WAL_ROOM_BYTES, Reserve
from liveness.service.storage.log_pages import END

# A trimming transaction deletes at most this many records and one page: about 10 ms.
TRIM_RECORDS: Final = 2_000
# Pages of the file that are returned to the file system in one step.
TRIM_PAGES: Final = 2_000
# How many marks there are in a retention, at most.
MARKS: Final = 100
# The key of `meta`.
_AGES: Final = "ages"

# For a new name it is not known which trimmed records concerned it: unless it had read
# all of them, all count as lost.
_TRIMMED_NAMES: Final = """
insert or ignore into trimmed select distinct name, ? from cursors
"""
_TRIMMED: Final = """insert or replace into trimmed
select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(?)
where json_extract(value, '$[0]') in (select name from cursors)
"""
_TRIMMED_UNKNOWN: Final = "update trimmed set seq = :seq where seq < :seq"
_FORGET_TRIMMED: Final = (
    "delete from trimmed where name not in (select name from cursors)"
)


class Mark(NamedTuple):
    """All records up to `seq` were written by `at_ms`."""

    seq: int
    at_ms: int


class LogAges:
    """By when the records of an open log were written: its marks.

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

        The mark is the newest durable record, and now. What was written before
        *oldest_ms* is deleted.
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
        return self._sampled(END) if self._marks is None else self._marks

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


class LogTrimmer:
    """Trims the log; *db* is the connection of its store."""

    def __init__(
        self,
        db: sqlite3.Connection,
        reserve: Reserve,
        ages: LogAges,
        damaged: DamagedRecords,
    ) -> None:
        self._db = db
        self._reserve = reserve
        self._ages = ages
        self._damaged = damaged

    def trim(
        self, *, oldest_ms: int, most_bytes: int, idle_ms: int, until: int = END
    ) -> bool:
        """Delete some of what exceeds the retention; return whether there is more.

        Forgets names not used since *idle_ms*, calls `delete_oldest`, and returns free
        pages to the file system. No cursor moves.
        """
        with transaction(self._db):
            self._db.execute("delete from cursors where used < ?", [idle_ms])
            self._db.execute(_FORGET_TRIMMED)
        is_behind = self.delete_oldest(
            oldest_ms=oldest_ms, most_bytes=most_bytes, until=until
        )
        self._reserve.lend(self._db, self._give_back, room=WAL_ROOM_BYTES)
        return is_behind

    def keep_bound(self, *, most_bytes: int, before: int, until: int) -> None:
        """After a commit: delete twice what it added to a log of *before* bytes.

        Nothing is deleted above the seq *until*, or once the log fits in *most_bytes*.
        """
        bound = max(most_bytes, 2 * before - bytes_in_use(self._db))
        while bytes_in_use(self._db) > bound and self.delete_oldest(
            oldest_ms=0, most_bytes=bound, until=until
        ):
            pass

    def delete_oldest(
        self, *, oldest_ms: int, most_bytes: int, until: int = END
    ) -> bool:
        """Delete some of the oldest pages; return whether there may be more to delete.

        A page is deleted if it was written before *oldest_ms*, or if the log has more
        than *most_bytes*; never above the seq *until*.

        For each name, the newest deleted record that concerned it is noted: only a reader
        that had not read that record gets a gap. The newest page is never deleted: it
        says which seq comes next. A damaged page is deleted with the next whole page, and
        counts as lost for every name.
        """
        db = self._db
        is_above = bytes_in_use(self._db) > most_bytes
        due = self._ages.written_before(oldest_ms)
        last, count, newest, unknown = 0, 0, dict[str, int](), 0
        reached = log_pages.oldest(db) - 1
        end = log_pages.newest(db)
        for page in log_pages.pages(db, after=reached, until=min(until, end - 1)):
            is_due = is_above or page.last <= due
            if count >= TRIM_RECORDS or not is_due or page.last >= min(end, until + 1):
                break
            if page.first > reached + 1:
                unknown = page.first - 1
                self._damaged.add(reached + 1, unknown)
            newest |= log_pages.newest_by_name(page)
            count += page.last - reached
            last = reached = page.last
        if not count:
            return False
        past = log_pages.trimmed(db)
        delete = "delete from log where last > ? and last <= ?", [past, last]
        # Damaged pages that SQLite cannot delete stay in the file, and are skipped.
        leave = PUT_META, [log_pages.TRIMMED, last]
        try:
            remove = partial(self._remove, delete, newest, unknown)
            self._reserve.lend(self._db, remove, room=WAL_ROOM_BYTES)
        except sqlite3.DatabaseError as error:
            if not log_pages.is_damage(error):
                raise
            self._remove(leave, newest, unknown)
        self._damaged.forget_below(last + 1)
        return count >= TRIM_RECORDS

    def _remove(
        self, statement: tuple[str, list[Any]], newest: dict[str, int], unknown: int
    ) -> None:
        """Delete pages with *statement*, and store what each name has thereby lost."""
        db = self._db
        with transaction(db):
            db.execute(_TRIMMED_NAMES, [log_pages.oldest(db) - 1])
            db.execute(_TRIMMED, [json.dumps([*newest.items()], ensure_ascii=False)])
            db.execute(_TRIMMED_UNKNOWN, {"seq": unknown})
            db.execute(*statement)

    def _give_back(self) -> None:
        try:
            # As a script: `execute` would stop after the first page.
            self._db.executescript(f"pragma incremental_vacuum({TRIM_PAGES})")
        except sqlite3.DatabaseError as error:
            if not log_pages.is_damage(error):
                raise
            # The free pages stay in the file, and are used again.
