"""Lists of everyone online, in one snapshot: as frames, as JSON lines, or row by row.

A list may be too large to be in memory while a slow peer reads it, and must be true at one
`seq`. So it is written to a file from one snapshot of the database, a spool, and sent from
there: with a slow reader, the transaction would last long and keep the WAL growing. The
file has no name, so it vanishes with the process or the link.

The log is on the same disk, and comes first: spools take no more than a setting allows,
and no more than they leave free.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Self

import trio

from liveness.core.records import OnlineRow
from liveness.core.wire.framing import encode
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage import log_pages
from liveness.service.storage.database import reading
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.private_folders import bytes_left
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
# The most spools that are filled at the same time.
AT_ONCE: Final = 2

Fill = Callable[[Callable[[bytes], None]], None]


class SpoolFull(Exception):
    """There is no room for a spool of at least *needed_bytes*.

    There never will be if these are more than `Spools.most_bytes`.
    """

    def __init__(self, why: str, needed_bytes: int) -> None:
        super().__init__(why)
        self.needed_bytes = needed_bytes


class Spool:
    """One reply on disk, read in the pieces in which it was written."""

    def __init__(self, spools: "Spools") -> None:
        self.size = 0
        self._spools = spools
        self._pieces = deque[int]()
        self.file: IO[bytes] | None = None

    def write(self, data: bytes) -> None:
        """Write the next piece. Call in a thread."""
        assert self.file is not None
        self._spools.check(self, len(data))
        self.size += len(data)
        self._pieces.append(len(data))
        left = memoryview(data)
        while left:
            left = left[self.file.write(left) :]

    async def read(self) -> bytes:
        """Read the next piece; b"" at the end."""
        if not self._pieces:
            return b""
        assert self.file is not None
        return await in_thread(partial(self.file.read, self._pieces.popleft()))

    def close(self) -> None:
        """Remove the file."""
        if self.file is not None:
            self.file.close()
        self._spools.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Spools:
    """All spools, and the room for them."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self._folder = folder
        self.most_bytes = most_bytes
        self._open: set[Spool] = set()
        self._filling = 0
        self._waiting: dict[Notifier, None] = {}

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        # Threads call this too: tuple() copies the set without a switch of threads.
        return sum(spool.size for spool in tuple(self._open))

    def may_fill(self, wake: Notifier) -> bool:
        """Whether another may be filled now; if not, *wake* is notified to try again."""
        if self._filling < AT_ONCE:
            return True
        self._waiting[wake] = None
        return False

    async def make(
        self, fill: Fill, *, limiter: trio.CapacityLimiter, needed_bytes: int = 0
    ) -> Spool:
        """Fill a spool in a thread; the caller closes it.

        *fill* writes the reply, with the function that it is given. The reply needs
        *needed_bytes*, as far as is known.

        Raises:
            SpoolFull: There is no room.
            OSError, sqlite3.Error: The disk, or *fill*, failed.
        """
        spool = Spool(self)

        def run() -> None:
            self.check(spool, needed_bytes)
            spool.file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            fill(spool.write)
            spool.file.seek(0)

        self._open.add(spool)
        self._filling += 1
        try:
            await in_thread(run, limiter=limiter)
        except BaseException:
            spool.close()
            raise
        finally:
            self._filling -= 1
            self._notify()
        return spool

    def check(self, spool: Spool, more: int) -> None:
        """Check that *more* bytes may be written to a spool; called in its thread.

        Raises:
            SpoolFull: There is no room.
        """
        if spool.size + more > self.most_bytes:
            raise SpoolFull(
                f"one answer takes more than the {self.most_bytes} bytes that all "
                "answers on disk together may take; raise limits.max_spool_bytes",
                spool.size + more,
            )
        after = self.bytes + more
        if after > self.most_bytes:
            raise SpoolFull(
                f"other answers take up the {self.most_bytes} bytes that all answers on "
                "disk together may take; ask again later, or raise "
                "limits.max_spool_bytes",
                spool.size + more,
            )
        free = bytes_left(self._folder)
        if free - more < after:
            raise SpoolFull(
                f"{free} bytes are free on the disk of state.dir: answers may take half "
                "of them, and the rest is the log's; make room there, and ask again",
                spool.size + more,
            )

    def closed(self, spool: Spool) -> None:
        """Forget a spool."""
        self._open.discard(spool)
        self._notify()

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake.notify()


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
    query = "select uid, gateway, session, conn from online where ifnull(?, gateway) = gateway"
    with reading(store.path) as db:
        db.execute("begin")
        seq = log_pages.newest(db)
        rows = db.execute(query, [gateway])
        page = rows.fetchmany(LIST_ROWS)
        while len(page) == LIST_ROWS and (next_page := rows.fetchmany(LIST_ROWS)):
            write(encode(["list", page]))
            page = next_page
        write(encode(["list", page, seq]))


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
    return seq
