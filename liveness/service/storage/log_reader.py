"""Searches the log: by user, kind, gateway and time.

    newest_of   the newest records of a user, up to a number of records or a time limit;
                the result says how far back the log was searched
    records     all records that match a filter (`record_filter`), oldest first

A search runs in chunks. Each is a transaction of some hundredths of a second, however slow
the caller is: a long transaction would keep the WAL growing. Between two chunks the log
may grow and be trimmed; no record is missed or found twice.

Damaged pages are left out, and listed in `LogReader.damaged`. A damaged tree is an error.

The sidecar searches its own file. Commands search the file of a sidecar that runs, was
stopped or was killed, and change nothing (`database.unchanged`).
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from liveness.core.records import (
    Logged,
    LogPosition,
    OnlineRow,
    Record,
    Uid,
    identity,
)
from liveness.service.storage import log_pages
from liveness.service.storage.database import (
    check_schema,
    meta,
    read_error,
    unchanged,
)
from liveness.service.storage.log_pages import (
    COLUMNS,
    END,
    PAGE,
    LogPage,
    SeqRange,
    is_whole,
    merged,
    records_in,
)
from liveness.service.storage.log_schema import SCHEMA, stored_clock
from liveness.service.storage.log_store import DATABASE
from liveness.service.storage.online_list import shown_row
from liveness.service.storage.record_filter import RecordFilter

# The time that a chunk should take. The number of its pages is adapted to that, as a page
# may have one record or a thousand.
CHUNK_S: Final = 0.05
FIRST_PAGES: Final = 64
MOST_PAGES: Final = 16_384
# A chunk ends with the page with which its matching pages exceed this.
CHUNK_BYTES: Final = 8 * 2**20
T = TypeVar("T")
Connect = Callable[[], AbstractContextManager[sqlite3.Connection]]


class SearchResult(NamedTuple):
    """Records of a user, newest first, and how far back the log was searched.

    `back_to` is None if all of the log was searched. `oldest` is then its first record;
    None if the log is empty.
    """

    records: list[Record]
    back_to: LogPosition | None
    oldest: LogPosition | None


class LogReader:
    """Searches a log.

    Args:
        connect: Opens the log's database for one read.
        clock: Monotonic seconds.
        separator: Separates a device from its user in a uid; "": users have no devices.
    Raises:
        sqlite3.Error: From each method: the file cannot be read.
    """

    def __init__(
        self, connect: Connect, *, clock: Callable[[], float], separator: str = ""
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._separator = separator
        self.damaged: list[SeqRange] = []  # the records that were left out

    def newest_of(self, uid: Uid, *, limit: int, within_s: float = inf) -> SearchResult:
        """The newest records of a user: at most *limit*, found in about *within_s*."""
        deadline = self._clock() + within_s
        query = RecordFilter(uid, separator=self._separator)
        found: list[Record] = []
        edge: LogPosition | None = None
        for chunk in self._chunks(query, is_back=True):
            edge = chunk.edge or edge
            for page in chunk.pages:
                for record in reversed(records_in(page)):
                    if isinstance(record, Record) and query.matches(record):
                        found.append(record)
                        if len(found) == limit:
                            here = LogPosition(record.seq, record.at)
                            return SearchResult(found, here, None)
            if edge is not None and not chunk.is_last and self._clock() >= deadline:
                return SearchResult(found, edge, None)
        return SearchResult(found, None, self.oldest())

    def records(self, query: RecordFilter) -> Iterator[Logged]:
        """All matching records, oldest first."""
        for chunk in self._chunks(query, is_back=False):
            for page in chunk.pages:
                yield from filter(query.matches, records_in(page))

    def record(self, seq: int) -> Logged | None:
        """One record; None if it was trimmed, is damaged, or is not there yet."""
        pages = self._read(lambda db: [*log_pages.pages(db, after=seq - 1, until=seq)])
        records = (record for page in pages for record in records_in(page))
        return next((record for record in records if record.seq == seq), None)

    def newest_with_opening(
        self, uid: Uid, session: int | None, *, limit: int, within_s: float = inf
    ) -> tuple[SearchResult, Record | None]:
        """The result of `newest_of`, and the first record of *session*, if it is kept.

        If *session* is None, that of the newest record is taken.
        """
        result = self.newest_of(uid, limit=limit, within_s=within_s)
        if session is None and result.records:
            session = result.records[0].session
        opening = None if session is None else self.record(session)
        return result, opening if isinstance(opening, Record) else None

    def online(self, uid: Uid) -> OnlineRow | None:
        """The open session of a user, as of the last commit; its start as wall time."""
        query = "select * from online where cast(uid as text) = ?"
        row = self._read(lambda db: db.execute(query, [identity(uid)]).fetchone())
        return None if row is None else shown_row(row, self.wall_ahead_ms())

    def wall_ahead_ms(self) -> int:
        """How far the wall clock was ahead of the state's when that was last stored."""
        clock = self._read(stored_clock)
        return 0 if clock is None else clock.wall_ahead_ms

    def log(self) -> str:
        """The log's id."""
        return str(self._read(lambda db: meta(db, "log")))

    def oldest(self) -> LogPosition | None:
        """The oldest record that is not damaged; None if there is none."""

        def read(db: sqlite3.Connection) -> LogPosition | None:
            pages = log_pages.pages(db, after=log_pages.oldest(db) - 1, until=END)
            first = next((records_in(page)[0] for page in pages), None)
            return None if first is None else LogPosition(first.seq, first.at)

        return self._read(read)

    def newest(self) -> LogPosition | None:
        """The newest seq, and its page's stamp; None if the log is empty."""
        query = "select last, newest from log order by last desc limit 1"
        row = self._read(lambda db: db.execute(query).fetchone())
        return None if row is None else LogPosition(*row)

    def _chunks(
        self, query: RecordFilter, *, is_back: bool
    ) -> Iterator["_SearchChunk"]:
        """Search the whole log, from its beginning or, with *is_back*, from its end."""
        size, place = FIRST_PAGES, END if is_back else 0
        while True:
            began = self._clock()
            chunk = self._read(
                partial(_search, query=query, place=place, size=size, is_back=is_back)
            )
            took = self._clock() - began
            for damaged in chunk.damaged:
                self.damaged = merged(self.damaged, damaged)
            yield chunk
            if chunk.is_last:
                return
            place = chunk.place
            if took < CHUNK_S / 2:
                size = min(2 * size, MOST_PAGES)
            elif took > 2 * CHUNK_S:
                size = max(1, size // 2)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with self._connect() as db:
            return read(db)


class _SearchChunk(NamedTuple):
    """The pages that one transaction found, and how far it searched."""

    pages: list[LogPage]
    place: int  # the next chunk begins above this seq; going back, it ends at this seq
    edge: LogPosition | None  # where the search got to: a seq, and its page's stamp
    is_last: bool
    damaged: Sequence[SeqRange] = ()


def _search(
    db: sqlite3.Connection, *, query: RecordFilter, place: int, size: int, is_back: bool
) -> _SearchChunk:
    """Search the next *size* pages from *place* on."""
    db.execute("begin")
    begin, end = log_pages.oldest(db) - 1, log_pages.newest(db)
    after, until = (begin, min(place, end)) if is_back else (max(place, begin), end)
    if after >= until:
        return _SearchChunk([], place, None, is_last=True)
    order = "desc" if is_back else "asc"
    searched = "from log where last > ? and last <= ?"
    last = db.execute(
        f"select {COLUMNS} {searched} order by last {order} limit 1 offset ?",
        [after, until, size - 1],
    ).fetchone()
    edge = None
    if last is not None:
        edge, after, until = _edge(last, after, until, is_back=is_back)
    condition, values = query.condition()
    rows = db.execute(
        f"select {PAGE} {searched} and {condition} order by last {order}",
        [after, until, *values],
    )
    pages, found_bytes, has_damage = list[LogPage](), 0, False
    for *fields, crc in rows:
        page = LogPage._make(fields)
        if not is_whole(page, crc):
            has_damage = True
            continue
        pages.append(page)
        found_bytes += len(page.records)
        if found_bytes > CHUNK_BYTES:
            edge, after, until = _edge(page[:3], after, until, is_back=is_back)
            break
    rows.close()
    damaged: Sequence[SeqRange] = ()
    count = f"select total(last - first + 1) {searched}"
    if has_damage or db.execute(count, [after, until]).fetchone() != (until - after,):
        whole = log_pages.pages(db, after=after, until=until)
        damaged = log_pages.damaged_ranges(whole, after=after, until=until)
    reached = after if is_back else until
    is_last = reached == (begin if is_back else end)
    return _SearchChunk(pages, reached, edge, is_last, damaged)


def _edge(
    page: tuple[int, int, int], after: int, until: int, *, is_back: bool
) -> tuple[LogPosition, int, int]:
    """Where a search ends that goes no further than a page: there, and its bounds."""
    last, first, newest = page
    if is_back:
        return LogPosition(first, newest), first - 1, until
    return LogPosition(last, newest), after, last


@contextmanager
def open_log(
    folder: Path, *, clock: Callable[[], float], separator: str = ""
) -> Iterator[LogReader]:
    """Search the log in a state directory, whether a sidecar has it open or not.

    Raises:
        StateError: There is no log, or it cannot be read.
    """
    path = folder / DATABASE
    try:
        with unchanged(path) as db:
            check_schema(db, path, oldest=SCHEMA, newest=SCHEMA)
        yield LogReader(partial(unchanged, path), clock=clock, separator=separator)
    except sqlite3.Error as error:
        raise read_error(path, error) from error
