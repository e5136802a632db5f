"""The pages of the log: how one is written, and which of them are whole.

SQLite notices damage in the structure of its file, and not in what a row says. So each page
has a checksum, and only pages that match theirs are read. What is missing between them is
known by the seqs, which have no gaps: whatever became of a page, and whatever SQLite says of
it, records that are in no whole page are damaged, and all others can be read.

A file that is damaged is read in smaller steps: one page by itself, where some cannot be
read together; and where SQLite cannot find the next one, as a page of its tree is damaged,
the nearest place beyond from which it can.

Many small pages are read by one statement, as one value: a row is given to the interpreter
by taking its lock, and beside a busy main thread that costs more than a page does.
"""

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from liveness.core.framing import decode, encode
from liveness.core.records import TIMER, Logged, Record, TimerRecord, logged

# A page of the log has no more records than this: what is encoded at once, while nobody
# else has the interpreter, and what a reader of one record decodes.
PAGE_RECORDS: Final = 1_000
# Nor more bytes, unless it is one record: what a reader of few is to read and hold.
PAGE_BYTES: Final = 2**17
# So many pages are listed at once, and of these so many bytes are read at once, or one page.
LISTED_PAGES: Final = 256
READ_BYTES: Final = 2**18

END: Final = 2**63 - 1
# Of `meta`: pages up to this seq are damaged such that SQLite cannot delete them.
TRIMMED: Final = "trimmed"

_KIND: Final = Record._fields.index("kind")
_GATEWAY: Final = Record._fields.index("gateway")
_FROM_GATEWAY: Final = Record._fields.index("from_gateway")
_TIMER_GATEWAY: Final = TimerRecord._fields.index("gateway")

_BOUNDS: Final = struct.Struct("<3q")

# Of a damaged page a column may be anything, and JSON has no blobs.
_COLUMNS: Final = (
    "last, cast(first as integer) as first, cast(newest as integer) as newest"
)
# What a `LogPage` is made of, and its checksum.
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
    """A page that is whole."""

    last: int
    first: int
    newest: int  # stamp
    records: bytes


class _Listed(NamedTuple):
    """What the file says of a page that was not read."""

    last: int
    first: int
    size: int


def rows_of(records: Sequence[Logged]) -> Iterator[tuple[int, int, int, bytes, int]]:
    """Rows of the log: last and first seq, newest stamp, the records, the checksum.

    One row as a rule: only timers may carry so much that it takes more.
    """
    encoded = encode(records)
    if len(encoded) > PAGE_BYTES and len(records) > 1:
        half = len(records) // 2
        yield from rows_of(records[:half])
        yield from rows_of(records[half:])
        return
    last, first = records[-1].seq, records[0].seq
    newest = max(record.at for record in records)
    yield last, first, newest, encoded, _checksum(last, first, newest, encoded)


def records_in(page: LogPage) -> list[Logged]:
    """The records of a page, in order."""
    return [logged(fields) for fields in decode(page.records)]


def newest_by_name(page: LogPage) -> dict[str, int]:
    """Of each gateway that a record of a page concerns, the newest such record.

    Made without the records: making them takes most of the time of a trim.
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
    """Whether SQLite says of a file that it is damaged; else it could not read it now."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code & 0xFF == sqlite3.SQLITE_CORRUPT


def joined(
    ranges: Iterable[tuple[int, int]], added: tuple[int, int]
) -> list[tuple[int, int]]:
    """Ranges of seqs and one more, the last; those that it touches are part of it."""
    apart = list[tuple[int, int]]()
    first, last = added
    for one in ranges:
        if one[1] + 1 < first or last + 1 < one[0]:
            apart.append(one)
        else:
            first, last = min(one[0], first), max(one[1], last)
    return [*apart, (first, last)]


def is_whole(page: LogPage, crc: int | None) -> bool:
    """Whether a page is what was written, by its checksum."""
    if not _is_plausible(page.last, page.first):
        return False
    if crc is not None:
        return page.newest is not None and crc == _checksum(*page)
    # Of a version before checksums: it is whole if it makes sense.
    try:
        seqs = [record.seq for record in records_in(page)]
    except (ValueError, TypeError):
        return False
    return seqs == [*range(page.first, page.last + 1)]


def pages(db: sqlite3.Connection, *, after: int, until: int) -> Iterator[LogPage]:
    """The whole pages that have seqs above *after* and up to *until*, in order.

    Raises:
        sqlite3.Error: The file cannot be read now; damage is passed over.
    """
    reached = 0
    for listed in _listed(db, after, until):
        for group in _groups(listed):
            for page in _whole(db, group):
                if page.first > reached:
                    yield page
                    reached = page.last


def oldest(db: sqlite3.Connection) -> int:
    """The oldest seq kept, as its page has it; 1 of an empty log."""
    for listed in _listed(db, trimmed(db), END, at_once=1):
        for row in listed:
            return row.first
    return 1


def trimmed(db: sqlite3.Connection) -> int:
    """Up to which seq pages are no longer kept that could not be deleted; 0: none is."""
    query = "select cast(value as integer) from meta where key = ?"
    row = db.execute(query, [TRIMMED]).fetchone()
    return row[0] if row and row[0] else 0


def following(db: sqlite3.Connection) -> int:
    """The seq that is to be given next.

    Raises:
        sqlite3.DatabaseError: Nobody can say, as the end of the log is damaged.
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
    # It may have had more than it says, and no seq is given twice.
    return int(first) + PAGE_RECORDS


def _checksum(last: int, first: int, newest: int, records: bytes) -> int:
    return crc32(records, crc32(_BOUNDS.pack(last, first, newest)))


def _is_plausible(last: object, first: object) -> bool:
    return (
        isinstance(first, int)
        and isinstance(last, int)
        and 0 < first <= last < first + PAGE_RECORDS
    )


def _listed(
    db: sqlite3.Connection, after: int, until: int, *, at_once: int = LISTED_PAGES
) -> Iterator[list[_Listed]]:
    """What the file says of its pages, as far as it can be."""
    while after < until:
        try:
            (found,) = db.execute(_LIST, [after, at_once]).fetchone()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            if at_once > 1:
                at_once = 1
            else:
                after = _beyond(db, after, until)
            continue
        rows = [_Listed._make(row) for row in json.loads(found)]
        if not rows:
            return
        plausible = [row for row in rows if _is_plausible(row.last, row.first)]
        yield [row for row in plausible if row.first <= until]
        if any(row.first > until for row in plausible):
            return
        after = max(after + 1, min((plausible or rows)[-1].last, until))
        at_once = min(2 * at_once, LISTED_PAGES)


def _beyond(db: sqlite3.Connection, after: int, until: int) -> int:
    """The nearest seq from which pages can be listed; *until* if there is none before."""
    step = 1
    while after + step < until and not _is_readable(db, after + step):
        step *= 2
    low, high = after + step // 2, min(after + step, until)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_readable(db, middle):
            high = middle
        else:
            low = middle
    return high


def _is_readable(db: sqlite3.Connection, after: int) -> bool:
    try:
        db.execute(_LIST, [after, 1]).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return False
    return True


def _groups(rows: Sequence[_Listed]) -> Iterator[list[_Listed]]:
    """What is read at once."""
    group, size = list[_Listed](), 0
    for row in rows:
        if group and size + row.size > READ_BYTES:
            yield group
            group, size = [], 0
        group.append(row)
        size += row.size
    if group:
        yield group


def _whole(db: sqlite3.Connection, group: Sequence[_Listed]) -> list[LogPage]:
    try:
        found, data = db.execute(_READ, [group[0].last, group[-1].last]).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        if len(group) == 1:
            return []
        return [page for row in group for page in _whole(db, [row])]
    whole, at = list[LogPage](), 0
    for last, first, newest, crc, size in json.loads(found):
        page = LogPage(last, first, newest, data[at : at + size])
        at += size
        if is_whole(page, crc):
            whole.append(page)
    return whole
