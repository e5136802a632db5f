"""Lists everyone online, in one snapshot: as frames, as JSON lines, or row by row.

A list is written to a file before it is sent: with a slow reader, the transaction would
last long and keep the WAL growing.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from liveness.core.records import OnlineRow
from liveness.core.wire.framing import encode
from liveness.service.storage import log_pages
from liveness.service.storage.database import reading
from liveness.service.storage.log_store import LogStore
from liveness.text import EXACT_IN_JSON, json_line, on_one_line, uid_text

# Rows of one frame, and lines that one statement makes.
LIST_ROWS: Final = 1_000

# One line a user, in the form of `text.json_ready`. SQLite makes them without the
# interpreter lock, except for the few uids that need `uid_text`.
_USER_LINES: Final = f"""
select group_concat(line, char(10)), count(*), max(session) from (
    select session, json_object(
        'uid', case
            when typeof(uid) = 'integer' and uid > {EXACT_IN_JSON} then 'int:' || uid
            when typeof(uid) = 'text' and instr(uid, 'int:') then uid_text(uid)
            else uid end,
        'gateway', gateway, 'session', session, 'conn', case
            when conn > {EXACT_IN_JSON} then 'int:' || conn else conn end,
        'since', start + :ahead_ms) as line
    from online where session > :after order by session limit :most)
"""


def shown_row(row: Sequence[Any], ahead_ms: int) -> OnlineRow:
    """A session with its start as wall time, which is *ahead_ms* ahead."""
    online = OnlineRow._make(row)
    return online._replace(start_ms=online.start_ms + ahead_ms)


def write_frames(
    store: LogStore, gateway: str | None, write: Callable[[bytes], object]
) -> None:
    """Write the answer to `list`, frame by frame, for one gateway or with None for all.

    The last frame has the log's newest seq at the time of the list.
    """
    query = "select uid, gateway, session, conn from online where ifnull(?1, gateway) = gateway"
    with reading(store.path) as db:
        db.execute("begin")
        seq = log_pages.newest(db)
        rows = db.execute(query, [gateway])
        page = rows.fetchmany(LIST_ROWS)
        while len(page) == LIST_ROWS and (next_page := rows.fetchmany(LIST_ROWS)):
            write(encode(["list", page]))
            page = next_page
        write(encode(["list", page, seq]))
        db.execute("rollback")


def write_lines(store: LogStore, write: Callable[[bytes], object]) -> None:
    """Write one line of JSON for each user, and a last one with log, seq and count."""
    users, session = 0, 0
    with reading(store.path) as db:
        db.create_function("uid_text", 1, uid_text, deterministic=True)
        db.execute("begin")
        seq = log_pages.newest(db)
        while True:
            values = {"after": session, "most": LIST_ROWS, "ahead_ms": store.ahead_ms}
            lines, count, last = db.execute(_USER_LINES, values).fetchone()
            if not count:
                break
            write(f"{on_one_line(lines)}\n".encode())
            users, session = users + count, last
        db.execute("rollback")
    write(f"{json_line({'log': store.log, 'seq': seq, 'users': users})}\n".encode())


def read_rows(store: LogStore, take: Callable[[Sequence[OnlineRow]], object]) -> int:
    """Give every session of the online set to *take*, a page at a time.

    Their starts are wall time. Returns the log's newest seq at the time of the list.
    """
    with reading(store.path) as db:
        db.execute("begin")
        seq = log_pages.newest(db)
        rows = db.execute("select * from online")
        while page := rows.fetchmany(LIST_ROWS):
            take([shown_row(row, store.ahead_ms) for row in page])
        db.execute("rollback")
    return seq
