"""Reading the log back: by user, by time, by whatever a record says.

    newest_of   the newest records of a user, until there are enough of them, the log ends,
                or the time is up; then it says how far back it looked
    records     all that meet a query, oldest first, however many

There is no index by user: it would cost each login a place in a random page of a tree.
Instead a page of records is searched for the bytes that a record sought has in it, by
SQLite's `instr`, which runs in C and without the interpreter's lock; only pages that have
them are decoded. A page whose newest stamp is too old is not even looked into.

A look is made in chunks, each a transaction of some hundredths of a second, however slow
the reader is: a long one would keep the WAL growing. Between two chunks the log may go on
and be trimmed, and nothing is missed or given twice.

Where a chunk is damaged, in a page or in the file's tree, smaller ones are tried, and in the
end that place is read as the sidecar reads it (`logpages`): what it could not deliver is
left out, and noted.

The sidecar reads its own file. A command reads the file of a sidecar that runs, was
stopped or was killed, as anyone who may read it, and changes nothing: see `looking_at`.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from liveness.core.framing import encode
from liveness.core.records import (
    KINDS,
    SESSION_KINDS,
    Logged,
    LogPosition,
    OnlineRow,
    Record,
    Uid,
)
from liveness.errors import StateError
from liveness.service.storage import log_pages
from liveness.service.storage.database import (
    check_wal,
    damage,
    meta,
)
from liveness.service.storage.log_pages import (
    PAGE,
    PAGE_RECORDS,
    LogPage,
    is_whole,
    records_in,
)
from liveness.service.storage.log_store import DATABASE
from liveness.service.storage.read_only_access import (
    Opened,
    T,
    _remedy,
    file_state,
    looking_at,
    read_again,
)
from liveness.service.storage.state_lock import is_in_use

# How long a chunk is to take. By how long one took the next has more pages, or fewer: a
# page is of one record or of a thousand.
CHUNK_S: Final = 0.05
FIRST_PAGES: Final = 64
MOST_PAGES: Final = 16_384
# Pages found are in memory up to this many bytes, and one page more.
CHUNK_BYTES: Final = 8 * 2**20
# The wall clock may have been set back while the log was written, so what is older may
# come behind: the look ends only with what is so much younger than is wanted.
SET_BACK_MS: Final = 3_600_000
_END: Final = 2**63 - 1


class SearchResult(NamedTuple):
    """What was found of a user, the newest first, and how far back was looked.

    `back_to` None: as far as the log is kept, which is from `oldest` on (None: it is
    empty).
    """

    records: list[Record]
    back_to: LogPosition | None
    oldest: LogPosition | None


class RecordFilter(NamedTuple):
    """Which records are sought: those that meet all of it. Stamps are milliseconds."""

    uid: Uid | None = None
    kinds: frozenset[str] = frozenset(KINDS)
    gateway: str | None = None
    since: int | None = None
    until: int | None = None

    def wants(self, record: Logged) -> bool:
        """Whether this is one of them."""
        return (
            record.kind in self.kinds
            and (self.uid is None or self._is_of_user(record))
            and self.gateway in (None, record.gateway, record.from_gateway)
            and (self.since is None or self.since <= record.at)
            and (self.until is None or record.at < self.until)
        )

    def _is_of_user(self, record: Logged) -> bool:
        return isinstance(record, Record) and record.uid == self.uid

    def condition(self) -> tuple[str, list[Any]]:
        """What a page meets that has one of them, in SQL."""
        groups: list[list[bytes]] = []
        if self.uid is not None:
            uid = encode(self.uid)
            # First by itself, as a long one is in few pages. A short one is in all, but
            # not behind a kind.
            groups.append([uid])
            groups.append(
                [encode(kind) + uid for kind in SESSION_KINDS if kind in self.kinds]
            )
        elif len(self.kinds) < len(KINDS):
            groups.append([encode(kind) for kind in sorted(self.kinds)])
        if self.gateway is not None:
            groups.append([encode(self.gateway)])
        clauses = ["newest >= ?"]
        values: list[Any] = [-_END if self.since is None else self.since]
        for group in groups:
            any_of = " or ".join(["instr(records, ?)"] * len(group))
            clauses.append(f"({any_of or 0})")
            values += group
        return " and ".join(clauses), values


class LogReader:
    """A log, to be read.

    Args:
        opened: Opens its file for one read.
        clock: Seconds that go on.
    Raises:
        sqlite3.Error: From each of its methods: the file cannot be read.
    """

    def __init__(self, opened: Opened, *, clock: Callable[[], float]) -> None:
        self._opened = opened
        self._clock = clock
        self.damaged: list[
            tuple[int, int]
        ] = []  # first and last seq of what is left out

    def newest_of(self, uid: Uid, *, limit: int, within_s: float = inf) -> SearchResult:
        """The newest records of a user, at most *limit*, found in about this time."""
        until = self._clock() + within_s
        sought = RecordFilter(uid)
        found: list[Record] = []
        edge: LogPosition | None = None
        for chunk in self._chunks(sought, is_back=True):
            edge = chunk.edge or edge
            for page in chunk.pages:
                for record in reversed(records_in(page)):
                    if isinstance(record, Record) and sought.wants(record):
                        found.append(record)
                        if len(found) == limit:
                            here = LogPosition(record.seq, record.at)
                            return SearchResult(found, here, None)
            if edge is not None and not chunk.is_last and self._clock() >= until:
                return SearchResult(found, edge, None)
        return SearchResult(found, None, self.oldest())

    def records(self, sought: RecordFilter) -> Iterator[Logged]:
        """Every record that is sought, oldest first."""
        end = _END if sought.until is None else sought.until + SET_BACK_MS
        for chunk in self._chunks(sought, is_back=False):
            for page in chunk.pages:
                yield from filter(sought.wants, records_in(page))
            if chunk.edge is not None and chunk.edge.at >= end:
                return

    def record(self, seq: int) -> Logged | None:
        """One record; None if it is no longer kept, damaged, or not yet there."""
        pages = self._read(lambda db: [*log_pages.pages(db, after=seq - 1, until=seq)])
        records = (one for page in pages for one in records_in(page))
        return next((one for one in records if one.seq == seq), None)

    def opening(self, session: int) -> Record | None:
        """The record that a session began with; None if it is no longer kept."""
        record = self.record(session)
        return record if isinstance(record, Record) else None

    def newest_with_opening(
        self, uid: Uid, session: int | None, *, limit: int, within_s: float = inf
    ) -> tuple[SearchResult, Record | None]:
        """As `newest_of`, and what its session began with.

        That is the one given, or without any that of its newest record.
        """
        look = self.newest_of(uid, limit=limit, within_s=within_s)
        if session is None and look.records:
            session = look.records[0].session
        return look, None if session is None else self.opening(session)

    def online(self, uid: Uid) -> OnlineRow | None:
        """The session of a user that was open when the file was last written."""
        query = "select * from online where uid = ?"
        row = self._read(lambda db: db.execute(query, [uid]).fetchone())
        return None if row is None else OnlineRow._make(row)

    def log(self) -> str:
        """The log's id."""
        return str(self._read(lambda db: meta(db, "log")))

    def oldest(self) -> LogPosition | None:
        """Where the log begins by now, as far as it is whole; None if it is empty."""
        page = self._outermost(is_back=False)
        if page is None:
            return None
        first = records_in(page)[0]
        return LogPosition(first.seq, first.at)

    def newest(self) -> LogPosition | None:
        """Where the log ends by now; None if it is empty."""
        (last,) = self._read(
            lambda db: db.execute("select max(last) from log").fetchone()
        )
        page = self._outermost(is_back=True)
        return None if page is None else LogPosition(last, page.newest)

    # --- within ---------------------------------------------------------------

    def _outermost(self, *, is_back: bool) -> LogPage | None:
        """The oldest page that is whole, or the newest."""
        chunks = self._chunks(RecordFilter(), is_back=is_back, size=1)
        return next((page for chunk in chunks for page in chunk.pages), None)

    def _chunks(
        self, sought: RecordFilter, *, is_back: bool, size: int | None = None
    ) -> Iterator["_Chunk"]:
        size, place = size or FIRST_PAGES, _END if is_back else 0
        while True:
            began = self._clock()
            chunk = self._read(
                partial(_chunk, sought=sought, place=place, size=size, is_back=is_back)
            )
            took = self._clock() - began
            for damaged in chunk.damaged:
                self.damaged = log_pages.joined(self.damaged, damaged)
            yield chunk
            if chunk.is_last:
                return
            place, size = chunk.place, chunk.size
            if took < CHUNK_S / 2:
                size = min(2 * size, MOST_PAGES)
            elif took > 2 * CHUNK_S:
                size = max(1, size // 2)

    def _read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        return read_again(self._opened, look)


class _Chunk(NamedTuple):
    """Pages that have what is sought, and up to where was looked."""

    pages: list[LogPage]
    place: int  # of the seqs beyond it none was looked at
    edge: LogPosition | None  # the same, where that is the end of a page
    is_last: bool = False
    size: int = 1  # of so many pages it was made
    damaged: Sequence[tuple[int, int]] = ()  # first and last seq of what is in no page


def _chunk(
    db: sqlite3.Connection,
    *,
    sought: RecordFilter,
    place: int,
    size: int,
    is_back: bool,
) -> _Chunk:
    """Look at up to *size* pages beyond a place, from there on."""
    db.execute("begin")
    begin = log_pages.oldest(db) - 1
    (end,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
    after, until = (begin, min(place, end)) if is_back else (max(place, begin), end)
    if after >= until:
        return _Chunk([], place, None, is_last=True)
    chunk = None
    while chunk is None:
        try:
            chunk = _searched(db, sought, after, until, size=size, is_back=is_back)
        except sqlite3.DatabaseError as error:
            if not log_pages.is_damage(error):
                raise
            if size == 1:
                chunk = _read_past_damage(db, after, until, is_back=is_back)
            size = max(1, size // 4)
    return chunk._replace(is_last=chunk.place == (after if is_back else until))


def _searched(
    db: sqlite3.Connection,
    sought: RecordFilter,
    after: int,
    until: int,
    *,
    size: int,
    is_back: bool,
) -> _Chunk:
    """Look at the first pages of a range of seqs, or the last.

    Raises:
        sqlite3.DatabaseError: Of that something is damaged.
    """
    order = "desc" if is_back else "asc"
    row = db.execute(
        f"select {PAGE} from log where last > ? and last <= ? "
        f"order by last {order} limit 1 offset ?",
        [after, until, size - 1],
    ).fetchone()
    edge = None
    if row is not None:
        page = _page(*row)
        edge = LogPosition(page.first if is_back else page.last, page.newest)
        after, until = (page.first - 1, until) if is_back else (after, page.last)
    there = "from log where last > ? and last <= ?"
    query = f"select total(last - first + 1) {there}"
    if db.execute(query, [after, until]).fetchone() != (until - after,):
        raise damage("records are missing")
    condition, values = sought.condition()
    rows = db.execute(
        f"select {PAGE} {there} and {condition} order by last {order}",
        [after, until, *values],
    )
    pages, taken = list[LogPage](), 0
    for row in rows:
        page = _page(*row)
        if pages and (page.first > pages[-1].last) == is_back:
            raise damage("pages are out of order")
        pages.append(page)
        taken += len(page.records)
        if taken > CHUNK_BYTES:
            edge = LogPosition(page.first if is_back else page.last, page.newest)
            after, until = (page.first - 1, until) if is_back else (after, page.last)
            break
    rows.close()
    return _Chunk(pages, after if is_back else until, edge, size=size)


def _read_past_damage(
    db: sqlite3.Connection, after: int, until: int, *, is_back: bool
) -> _Chunk:
    """Read the first records of a range of seqs, or the last, as far as they are whole."""
    if is_back:
        after = max(after, until - PAGE_RECORDS)
    else:
        until = min(until, after + PAGE_RECORDS)
    reached = after
    pages, damaged = list[LogPage](), list[tuple[int, int]]()
    for page in log_pages.pages(db, after=after, until=until):
        if page.first > reached + 1:
            damaged.append((reached + 1, page.first - 1))
        pages.append(page)
        after, reached = min(after, page.first - 1), page.last
    if reached < until:
        damaged.append((reached + 1, until))
    if is_back:
        pages.reverse()
    return _Chunk(
        pages, after if is_back else max(until, reached), None, damaged=damaged
    )


def _page(
    last: int, first: int, newest: int, records: bytes, crc: int | None
) -> LogPage:
    """A page of the log.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    page = LogPage(last, first, newest, records)
    if not is_whole(page, crc):
        raise damage("a page is not what was written")
    return page


@contextmanager
def log_in(folder: Path, *, clock: Callable[[], float]) -> Iterator[LogReader]:
    """Read the log in a state directory, whether a sidecar has it open or not.

    Raises:
        StateError: There is none, or it cannot be read.
    """
    path = folder / DATABASE
    try:
        # Beside a sidecar, whose start has looked at it, the WAL grows.
        if file_state(path).wal is not None and not is_in_use(folder):
            check_wal(path)
        yield LogReader(partial(looking_at, path), clock=clock)
    except sqlite3.Error as error:
        raise StateError(f"{path} cannot be read: {_remedy(path, error)}") from error
