"""Searches the log: by user, kind, gateway and time.

A search runs in chunks. Each is a transaction of some hundredths of a second, however slow
the caller is: a long transaction would keep the WAL growing. Between two chunks the log
may grow and be trimmed; no record is missed or found twice.

There is no index by user: each login would change a random page of its tree. Instead, the
encoded pages are searched for the bytes of a matching record. Only pages that contain them
are decoded.

Damaged pages are left out, and listed in `LogReader.damaged`.

The sidecar searches its own file. Commands search the file of a sidecar that runs, was
stopped or was killed, and change nothing (`database.unchanged`).
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple, TypeVar

from liveness.core.records import (
    KINDS,
    SESSION_KINDS,
    Logged,
    LogPosition,
    OnlineRow,
    Record,
    Uid,
    identity,
)
from liveness.core.wheel.devices import user_of
from liveness.core.wire.framing import encode
from liveness.core.wire.uids import names_of
from liveness.service.storage import log_pages
from liveness.service.storage.database import (
    check_schema,
    meta,
    read_error,
    unchanged,
)
from liveness.service.storage.log_pages import (
    END,
    LogPage,
    SeqRange,
    has_all,
    merged,
    records_in,
)
from liveness.service.storage.log_schema import SCHEMA, stored_clock
from liveness.service.storage.log_store import DATABASE
from liveness.service.storage.online_list import shown_row

# The records of one chunk: some 2 MB, or 80 MB of timers with payloads of full length.
CHUNK_RECORDS: Final = 20_000
# The stamps of a page are of one commit, and the newest is known. The oldest may be this
# much older: if the disk failed for that long, or the wall clock was set back.
OLDER_MS: Final = 86_400_000
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


class RecordFilter(NamedTuple):
    """The conditions that a record has to meet, all of them. Stamps are milliseconds.

    A `uid` may be the name of a user with devices: those that `separator` separates.
    """

    uid: Uid | None = None
    kinds: frozenset[str] = frozenset(KINDS)
    gateway: str | None = None
    since: int | None = None
    until: int | None = None
    separator: str = ""

    def matches(self, record: Logged) -> bool:
        """Whether a record matches."""
        return (
            record.kind in self.kinds
            and (self.uid is None or self._is_of_user(record))
            and self.gateway in (None, record.gateway, record.from_gateway)
            and (self.since is None or self.since <= record.at)
            and (self.until is None or record.at < self.until)
        )

    def _is_of_user(self, record: Logged) -> bool:
        """Whether it is of this uid or, by the separator of today, of a device of it.

        The record's own `user` does not count: it is missing in older records, and the
        condition below finds pages by this separator.
        """
        if not isinstance(record, Record):
            return False
        user = user_of(record.uid, self.separator) if self.separator else record.uid
        assert self.uid is not None
        return identity(self.uid) in (identity(record.uid), identity(user))

    def may_be_in(self, page: LogPage, needed: list[list[bytes]]) -> bool:
        """Whether a page may have a matching record, which *needed* describes."""
        since = -inf if self.since is None else self.since
        until = inf if self.until is None else self.until + OLDER_MS
        return since <= page.newest < until and has_all(page, needed)

    def needed(self) -> list[list[bytes]]:
        """What the page of a matching record contains, as `has_all` has it."""
        needed: list[list[bytes]] = []
        if self.uid is not None:
            uids = [*map(encode, names_of(self.uid))]
            # First the uid alone, as few pages contain a long one. Most pages contain the
            # bytes of a short one, but few of them after a kind.
            needed.append([*uids])
            kinds = [encode(kind) for kind in SESSION_KINDS if kind in self.kinds]
            needed.append([kind + uid for kind in kinds for uid in uids])
            if kinds and self.separator:
                device = (identity(self.uid) + self.separator).encode()
                needed[0].append(device)
                needed[1].append(device)
        elif len(self.kinds) < len(KINDS):
            needed.append([encode(kind) for kind in sorted(self.kinds)])
        if self.gateway is not None:
            needed.append([encode(self.gateway)])
        return needed


class LogReader:
    """Searches a log.

    Args:
        connect: Opens the log's database for one read.
        separator: Separates a device from its user in a uid; "": users have no devices.
    Raises:
        sqlite3.Error: From each method: the file cannot be read.
    """

    def __init__(self, connect: Connect, *, separator: str = "") -> None:
        self._connect = connect
        self._separator = separator
        self.damaged: list[SeqRange] = []  # the records that were left out

    def newest_of(self, uid: Uid, *, limit: int, within_s: float = inf) -> SearchResult:
        """The newest records of a user: at most *limit*, found in about *within_s*."""
        deadline = perf_counter() + within_s
        query = RecordFilter(uid, separator=self._separator)
        found: list[Record] = []
        for records, back_to in self._chunks(query, is_back=True):
            for record in records:
                if isinstance(record, Record):
                    found.append(record)
                    if len(found) == limit:
                        here = LogPosition(record.seq, record.at)
                        return SearchResult(found, here, None)
            if back_to is not None and perf_counter() >= deadline:
                return SearchResult(found, back_to, None)
        return SearchResult(found, None, self.oldest())

    def records(self, query: RecordFilter) -> Iterator[Logged]:
        """All matching records, oldest first."""
        for records, _ in self._chunks(query, is_back=False):
            yield from records

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
    ) -> Iterator[tuple[Iterator[Logged], LogPosition | None]]:
        """Search the whole log, from its beginning or, with *is_back*, from its end.

        Gives the matching records of each chunk, in that order; and the oldest seq that
        was searched, with the stamp of the first whole page there, if there are older
        ones to search.
        """
        place = END if is_back else 0
        is_last = False
        while not is_last:
            back_to = None
            with self._connect() as db:
                db.execute("begin")
                begin, end = log_pages.oldest(db) - 1, log_pages.newest(db)
                if is_back:
                    until = min(place, end)
                    place = after = max(begin, until - CHUNK_RECORDS)
                    is_last = after == begin
                    if not is_last:
                        whole = log_pages.pages(db, after=after, until=END)
                        stamps = (page.newest for page in whole)
                        back_to = LogPosition(after + 1, next(stamps, 0))
                else:
                    after = max(place, begin)
                    place = until = min(end, after + CHUNK_RECORDS)
                    is_last = until == end
                pages, damaged = _search(db, query, after, until)
            for lost in damaged:
                self.damaged = merged(self.damaged, lost)
            yield _matching(pages, query, after, until, is_back=is_back), back_to

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with self._connect() as db:
            return read(db)


def _search(
    db: sqlite3.Connection, query: RecordFilter, after: int, until: int
) -> tuple[list[LogPage], list[SeqRange]]:
    """The pages above *after*, up to *until*, that may have matching records.

    Also the records there that are damaged.
    """
    found, needed = list[LogPage](), query.needed()

    def searched() -> Iterator[LogPage]:
        for page in log_pages.pages(db, after=after, until=until):
            if query.may_be_in(page, needed):
                found.append(page)
            yield page

    return found, log_pages.damaged_ranges(searched(), after=after, until=until)


def _matching(
    pages: list[LogPage], query: RecordFilter, after: int, until: int, *, is_back: bool
) -> Iterator[Logged]:
    for page in reversed(pages) if is_back else pages:
        records = records_in(page)
        for record in reversed(records) if is_back else records:
            if after < record.seq <= until and query.matches(record):
                yield record


@contextmanager
def open_log(folder: Path, *, separator: str = "") -> Iterator[LogReader]:
    """Search the log in a state directory, whether a sidecar has it open or not.

    Raises:
        StateError: There is no log, or it cannot be read.
    """
    path = folder / DATABASE
    try:
        with unchanged(path) as db:
            check_schema(db, path, oldest=SCHEMA, newest=SCHEMA)
        yield LogReader(partial(unchanged, path), separator=separator)
    except sqlite3.Error as error:
        raise read_error(path, error) from error
