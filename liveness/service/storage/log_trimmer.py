"""Deletes the oldest records of the log, and the names that nobody uses any more.

Retention goes by marks of a seq and a moment, never by the stamps of records: those are of
the wall clock, which may have been wrong by days when a record was made. A mark says that
all records up to its seq were written by its moment, in milliseconds of the state's clock.
Some hundred marks are enough to know an age to a hundredth of the retention.
"""

import json
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from liveness.core.wire.uids import is_natural
from liveness.service.storage import log_pages
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

_log = structlog.get_logger("journal")


# A seq and a moment: all records up to the seq were written by then.
Mark = tuple[int, int]


class LogTrimmer:
    """Trims the log; *db* is the connection of its store.

    Raises:
        sqlite3.DatabaseError: The marks are damaged.
    """

    def __init__(self, db: sqlite3.Connection, reserve: Reserve) -> None:
        self._db = db
        self._reserve = reserve
        stored = meta(db, _AGES)
        self._has_marks = stored is not None
        try:
            self.marks = [(seq, ms) for seq, ms in json.loads(str(stored or "[]"))]
        except (ValueError, TypeError):
            self.marks = [(-1, -1)]
        if not all(is_natural(value) for mark in self.marks for value in mark):
            raise damage_error("the ages of the log in its meta make no sense")

    def begin(self, now_ms: int) -> None:
        """At the start: the records of a version without marks count as written now."""
        if not self._has_marks:
            newest = log_pages.newest(self._db)
            self._store([(newest, now_ms)] if newest else [])

    def note(self, mark: Mark, *, oldest_ms: int, retention_ms: int) -> None:
        """Add a mark, if it says enough that is new; forget those that are not needed.

        The mark is the newest durable record, and now. What was written before
        *oldest_ms* is deleted.
        """
        seq, at_ms = mark
        last_seq, last_ms = self.marks[-1] if self.marks else (0, -retention_ms)
        if seq > last_seq and at_ms - last_ms >= retention_ms // MARKS:
            due = self.written_before(oldest_ms)
            self._store([*(known for known in self.marks if known[0] >= due), mark])

    def written_before(self, at_ms: int) -> int:
        """The newest seq that is known to be older than that; 0 if none is."""
        return max((seq for seq, by_ms in self.marks if by_ms < at_ms), default=0)

    def _store(self, marks: list[Mark]) -> None:
        self._db.execute(PUT_META, [_AGES, json.dumps(marks)])
        self.marks = marks

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
        # As a script: `execute` would stop after the first page.
        vacuum = f"pragma incremental_vacuum({TRIM_PAGES})"
        # Where the file is damaged, free pages stay in it, and are used again.
        self._free(partial(self._db.executescript, vacuum))
        return is_behind

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
        is_above = bytes_in_use(db) > most_bytes
        due = self.written_before(oldest_ms)
        count, newest, unknown = 0, dict[str, int](), 0
        reached = log_pages.oldest(db) - 1
        end = log_pages.newest(db)
        for page in log_pages.pages(db, after=reached, until=min(until, end - 1)):
            is_due = is_above or page.last <= due
            if count >= TRIM_RECORDS or not is_due or page.last >= min(end, until + 1):
                break
            if page.first > reached + 1:
                unknown = page.first - 1
            newest |= log_pages.newest_by_name(page)
            count += page.last - reached
            reached = page.last
        if count:
            remove = partial(self._remove, reached, newest, unknown)
            if not self._free(remove):
                remove(stays=True)
                _log.warning(
                    "old records cannot be deleted, as the file is damaged: they stay in "
                    "it, and are not read any more",
                    until=reached,
                )
        return count >= TRIM_RECORDS

    def _free(self, call: Callable[[], object]) -> bool:
        """Call a function that frees space; return False if damage keeps it from that."""
        try:
            self._reserve.lend(self._db, call, room=WAL_ROOM_BYTES)
        except sqlite3.DatabaseError as error:
            if not log_pages.is_damage(error):
                raise
            return False
        return True

    def _remove(
        self, last: int, newest: dict[str, int], unknown: int, *, stays: bool = False
    ) -> None:
        """Delete pages up to *last*, and store what each name has thereby lost.

        With *stays* the pages only count as deleted. SQLite balances a page with those
        beside it, so it cannot delete the neighbours of a damaged one either.
        """
        db = self._db
        with transaction(db):
            db.execute(_TRIMMED_NAMES, [log_pages.oldest(db) - 1])
            db.execute(_TRIMMED, [json.dumps([*newest.items()], ensure_ascii=False)])
            db.execute(_TRIMMED_UNKNOWN, {"seq": unknown})
            if stays:
                db.execute(PUT_META, [log_pages.TRIMMED, last])
            else:
                query = "delete from log where last > ? and last <= ?"
                db.execute(query, [log_pages.trimmed(db), last])
