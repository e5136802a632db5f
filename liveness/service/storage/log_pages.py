"""The pages of the log: how they are written, and how they are read despite damage.

SQLite notices damage to the structure of its file, but not to the content of a row. So
each page has a checksum, and only whole pages, which match theirs, are read. Seqs have no
gaps: a record that is in no whole page is damaged, whatever the cause, and every other
record can be read.

A damaged file is read in smaller steps. If several pages cannot be read together, each is
read by itself. If SQLite cannot find the next page, since its tree is damaged there,
reading continues at the next seq from which SQLite finds a page.

Many small pages are read by one statement, as one value. SQLite takes the interpreter
lock for each row, and beside a busy main thread that costs more than reading a page.
"""

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from liveness.core.records import TIMER, Logged, Record, TimerRecord, record_of
from liveness.core.wheel.record_batch import RecordBatch
from liveness.core.wire.framing import decode
from liveness.service.storage.damaged_records import SeqRange

# The most records of a page. They are encoded in one step, which holds the interpreter
# lock, and a reader of one record decodes all of them.
PAGE_RECORDS: Final = 1_000
# The most bytes of a page of several records: a reader of one of them has to read and
# hold all of it.
PAGE_BYTES: Final = 2**17
# What one statement lists, in pages, and reads, in bytes (but at least one page).
LISTED_PAGES: Final = 256
READ_BYTES: Final = 2**18

END: Final = 2**63 - 1
# A key of `meta`: pages up to this seq count as deleted, as SQLite could not delete them.
TRIMMED: Final = "trimmed"

_KIND: Final = Record._fields.index("kind")
_GATEWAY: Final = Record._fields.index("gateway")
_FROM_GATEWAY: Final = Record._fields.index("from_gateway")
_TIMER_GATEWAY: Final = TimerRecord._fields.index("gateway")

_BOUNDS: Final = struct.Struct("<3q")

# A column of a damaged page may have any type, and JSON has no blobs.
_COLUMNS: Final = (
    "last, cast(first as integer) as first, cast(newest as integer) as newest"
)
# The columns of a `LogPage`, and its checksum.
PAGE: Final = f"{_COLUMNS}, cast(records as blob), cast(crc as integer)"
_LIST: Final = f"""
select json_group_array(json_array(last, first, size)) from (
    select {_COLUMNS}, length(records) as size from log where last > ?
    order by last limit ?)
"""
_READ: Final = f"""
select json_group_array(json_array(last, first, newest, crc, size)),
    cast(group_concat(cast(records as text), '') as blob)
from (
    select {_COLUMNS}, cast(crc as integer) as crc, records,
        ifnull(length(cast(records as blob)), 0) as size
    from log where last between ? and ? order by last)
"""


class LogPage(NamedTuple):
    """A page of the log."""

    last: int
    first: int
    newest: int  # the latest stamp, in Unix milliseconds
    records: bytes


class _ListedPage(NamedTuple):
    """The bounds and the size of a page whose records were not read yet."""

    last: int
    first: int
    size: int


def rows_of(batch: RecordBatch) -> Iterator[tuple[int, int, int, bytes, int]]:
    """Encode records as rows of the log: last, first, newest stamp, records, checksum."""
    for start in range(0, len(batch), PAGE_RECORDS):
        yield from _rows_of(batch, start, min(start + PAGE_RECORDS, len(batch)))


def _rows_of(
    batch: RecordBatch, start: int, stop: int
) -> Iterator[tuple[int, int, int, bytes, int]]:
    """One row, unless payloads of timers make it larger than `PAGE_BYTES`."""
    newest, records = batch.packed(start, stop)
    if len(records) > PAGE_BYTES and stop - start > 1:
        half = (start + stop) // 2
        yield from _rows_of(batch, start, half)
        yield from _rows_of(batch, half, stop)
        return
    last, first = batch.first + stop - 1, batch.first + start
    yield last, first, newest, records, _checksum(last, first, newest, records)


def records_in(page: LogPage) -> list[Logged]:
    """The records of a page, in order."""
    return [record_of(fields) for fields in decode(page.records)]


def newest_by_name(page: LogPage) -> dict[str, int]:
    """For each gateway that a page concerns, the seq of its newest record there.

    This makes no record objects, which would take most of the time of a trim.
    """
    newest = dict[str, int]()
    for fields in decode(page.records):
        if fields[_KIND] == TIMER:
            newest[fields[_TIMER_GATEWAY]] = fields[0]
        else:
            newest[fields[_GATEWAY]] = fields[0]
            if len(fields) > _FROM_GATEWAY and fields[_FROM_GATEWAY] is not None:
                newest[fields[_FROM_GATEWAY]] = fields[0]
    return newest


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means damage, and not a file that cannot be read now."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code & 0xFF == sqlite3.SQLITE_CORRUPT


def is_whole(page: LogPage, crc: int | None) -> bool:
    """Whether a page is undamaged, by its checksum."""
    if not _is_plausible(page.last, page.first):
        return False
    if crc is not None:
        return page.newest is not None and crc == _checksum(*page)
    # A page of a version without checksums: check that its seqs are right.
    try:
        seqs = [record.seq for record in records_in(page)]
    except (ValueError, TypeError):
        return False
    return seqs == [*range(page.first, page.last + 1)]


def pages(db: sqlite3.Connection, *, after: int, until: int) -> Iterator[LogPage]:
    """The whole pages with seqs above *after* and up to *until*, in order.

    Raises:
        sqlite3.Error: The file cannot be read now. Damaged pages are skipped.
    """
    reached = 0
    for listed in _list(db, after, until):
        for group in _groups(listed):
            for page in _read_whole(db, group):
                if page.first > reached:
                    yield page
                    reached = page.last


def damaged_ranges(
    whole: Iterable[LogPage], *, after: int, until: int
) -> list[SeqRange]:
    """The seqs above *after*, up to *until*, that are in none of these pages."""
    ranges = list[SeqRange]()
    for page in whole:
        if page.first > after + 1:
            ranges.append((after + 1, page.first - 1))
        after = page.last
    if after < until:
        ranges.append((after + 1, until))
    return ranges


def oldest(db: sqlite3.Connection) -> int:
    """The oldest seq kept; 1 if the log is empty."""
    for listed in _list(db, trimmed(db), END, at_once=1):
        for row in listed:
            return row.first
    return 1


def newest(db: sqlite3.Connection) -> int:
    """The newest seq, even if its page is damaged; 0 if the log is empty."""
    return int(db.execute("select coalesce(max(last), 0) from log").fetchone()[0])


def stamp_of(db: sqlite3.Connection, seq: int) -> tuple[int, int] | None:
    """The last seq and the newest stamp of the page with a record; None if it is damaged."""
    query = "select last, newest from log where last >= ? order by last limit 1"
    try:
        row = db.execute(query, [seq]).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return None
    if row is None or not all(isinstance(value, int) for value in row):
        return None
    return int(row[0]), int(row[1])


def trimmed(db: sqlite3.Connection) -> int:
    """The last seq of the trimmed pages that SQLite could not delete; 0 if none."""
    query = "select cast(value as integer) from meta where key = ?"
    row = db.execute(query, [TRIMMED]).fetchone()
    return row[0] if row and row[0] else 0


def next_seq(db: sqlite3.Connection) -> int:
    """The seq of the next record.

    Raises:
        sqlite3.DatabaseError: It is unknown, as the end of the log is damaged.
    """
    query = "select last, first from log order by last desc limit 1"
    row = db.execute(query).fetchone()
    if row is None:
        return 1
    last, first = row
    if any(page.last == last for page in pages(db, after=last - 1, until=last)):
        return int(last) + 1
    if not _is_plausible(last, first):
        raise sqlite3.DatabaseError(
            f"the newest page of the log says that it has the records {first} to {last}"
        )
    # The damaged page may have had any of these seqs, and no seq is used twice.
    return int(first) + PAGE_RECORDS


def _checksum(last: int, first: int, newest: int, records: bytes) -> int:
    return crc32(records, crc32(_BOUNDS.pack(last, first, newest)))


def _is_plausible(last: object, first: object) -> bool:
    return (
        isinstance(first, int)
        and isinstance(last, int)
        and 0 < first <= last < first + PAGE_RECORDS
    )


def _list(
    db: sqlite3.Connection, after: int, until: int, *, at_once: int = LISTED_PAGES
) -> Iterator[list[_ListedPage]]:
    """List pages without reading their records; skip those that cannot be listed."""
    while after < until:
        try:
            (found,) = db.execute(_LIST, [after, at_once]).fetchone()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            if at_once > 1:
                at_once = 1
            else:
                after = _next_listable(db, after, until)
            continue
        rows = [_ListedPage._make(row) for row in json.loads(found)]
        if not rows:
            return
        plausible = [row for row in rows if _is_plausible(row.last, row.first)]
        yield [row for row in plausible if row.first <= until]
        if any(row.first > until for row in plausible):
            return
        after = max(after + 1, min((plausible or rows)[-1].last, until))
        at_once = min(2 * at_once, LISTED_PAGES)


def _next_listable(db: sqlite3.Connection, after: int, until: int) -> int:
    """The next seq from which pages can be listed; at most *until*."""
    step = 1
    while after + step < until and not _is_listable(db, after + step):
        step *= 2
    low, high = after + step // 2, min(after + step, until)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_listable(db, middle):
            high = middle
        else:
            low = middle
    return high


def _is_listable(db: sqlite3.Connection, after: int) -> bool:
    try:
        db.execute(_LIST, [after, 1]).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return False
    return True


def _groups(rows: Sequence[_ListedPage]) -> Iterator[list[_ListedPage]]:
    """Pages in groups that one statement reads."""
    group, size = list[_ListedPage](), 0
    for row in rows:
        if group and size + row.size > READ_BYTES:
            yield group
            group, size = [], 0
        group.append(row)
        size += row.size
    if group:
        yield group


def _read_whole(db: sqlite3.Connection, group: Sequence[_ListedPage]) -> list[LogPage]:
    """Read the whole pages of a group."""
    try:
        found, data = db.execute(_READ, [group[0].last, group[-1].last]).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        if len(group) == 1:
            return []
        return [page for row in group for page in _read_whole(db, [row])]
    whole, at = list[LogPage](), 0
    for last, first, newest, crc, size in json.loads(found):
        page = LogPage(last, first, newest, data[at : at + size])
        at += size
        if is_whole(page, crc):
            whole.append(page)
    return whole
