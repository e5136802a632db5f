"""The pages of the log: how they are written, and how they are read despite damage.

SQLite notices damage to the structure of its file, but not to the content of a row. So
each page has a checksum, and only whole pages, which match theirs, are read. Seqs have no
gaps: a record that is in no whole page is damaged, whatever the cause, and every other
record can be read.

A damaged file is read page by page. Where SQLite cannot read the next one, reading
continues at the next seq from which it can, found by doubling the step.

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
from liveness.service.storage.database import meta

# The first and last seq of consecutive records.
SeqRange = tuple[int, int]
# The most records of a page. They are encoded in one step, which holds the interpreter
# lock, and a reader of one record decodes all of them.
PAGE_RECORDS: Final = 1_000
# The most bytes of a page of several records: a reader of one of them has to read and
# hold all of it.
PAGE_BYTES: Final = 2**17
# What one statement reads at most (but at least one page).
READ_PAGES: Final = 256
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
_READ: Final = f"""
with sized (last, size) as (
    select last, sum(size) over (order by last) from (
        select last, length(records) as size from log where last > :after
        order by last limit :most))
select json_group_array(json_array(last, first, newest, crc, size)),
    cast(group_concat(cast(records as text), '') as blob)
from (
    select {_COLUMNS}, cast(crc as integer) as crc, records,
        ifnull(length(cast(records as blob)), 0) as size
    from log where last > :after and last <= (
        select coalesce(max(last) filter (where size <= {READ_BYTES}), min(last))
        from sized)
    order by last)
"""


class LogPage(NamedTuple):
    """A page of the log."""

    last: int
    first: int
    newest: int  # the latest stamp, in Unix milliseconds
    records: bytes


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


def has_all(page: LogPage, needed: Sequence[Sequence[bytes]]) -> bool:
    """Whether an encoded page contains, of each group, at least one of these bytes."""
    return all(any(name in page.records for name in group) for group in needed)


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
    at_once, step, reached = 1, 1, 0
    # Damage may be passed over beyond *until*, and what was passed over is looked at then.
    while after < until or (step > 1 and after < END):
        try:
            rows = _read(db, after, at_once)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            if at_once == 1:
                after, step = after + step, 2 * step
            at_once = 1
            continue
        if step > 2:  # there may be some that were passed over
            after, step = after - step // 2, 1
            continue
        if not rows:
            return
        at_once, step = min(2 * len(rows), READ_PAGES), 1
        plausible = [row for row in rows if _is_plausible(row[0].last, row[0].first)]
        for page, crc in plausible:
            if page.first > until:
                return
            if page.first > reached and is_whole(page, crc):
                yield page
                reached = page.last
        (end, *_), _ = (plausible or rows)[-1]
        after = max(after + 1, min(end, until))


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
    query = "select last, first from log where last > ? order by last limit 1"
    after = trimmed(db)
    try:
        row = db.execute(query, [after]).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
    else:
        if row is None:
            return after + 1
        if _is_plausible(*row):
            return int(row[1])
    return next((page.first for page in pages(db, after=after, until=END)), after + 1)


def trimmed(db: sqlite3.Connection) -> int:
    """The last seq of the pages that SQLite could not delete; 0 if there are none."""
    value = meta(db, TRIMMED)
    return value if isinstance(value, int) else 0


def newest(db: sqlite3.Connection) -> int:
    """The newest seq, even if its page is damaged; 0 if the log is empty."""
    return int(db.execute("select coalesce(max(last), 0) from log").fetchone()[0])


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


def _read(
    db: sqlite3.Connection, after: int, most: int
) -> list[tuple[LogPage, int | None]]:
    """Read the next pages, at most *most*, each with its checksum."""
    values = {"after": after, "most": most}
    found, data = db.execute(_READ, values).fetchone()
    read, at = list[tuple[LogPage, int | None]](), 0
    for last, first, newest, crc, size in json.loads(found):
        page = LogPage(last, first, newest, (data or b"")[at : at + size])
        read.append((page, crc))
        at += size
    return read
