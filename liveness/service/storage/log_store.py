"""The log's database, `liveness.db`: opened, written, and read for links.

A copy, as in a backup, must not continue the same log: copy and original would give the
same seqs to different records. Nor must a log that has lost its end. So a log takes a new
id when it is opened, unless it surely continues what was shown (`high_water_mark`).

Rows are written by few statements with many rows each. `executemany` takes and releases the
interpreter lock for each row; beside a busy main thread that is the difference between
9,000 rows a second and 100,000. Only the pages of the log are written by `executemany`: a
commit has few of them.

Timers have their own file, which follows the log: there may be ten million, and no
commit of the log should wait for them.
"""

import json
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from liveness.core.cursors import CursorRow
from liveness.core.records import (
    TIMER,
    Logged,
    OnlineFields,
    OnlineRow,
    Subscription,
)
from liveness.core.wheel.record_batch import RecordBatch
from liveness.core.wire.framing import encode
from liveness.core.wire.uids import is_natural, names_of
from liveness.service.common.clock import StateTime
from liveness.service.storage import log_pages
from liveness.service.storage.database import (
    PUT_META,
    WAL_BYTES,
    bytes_in_use,
    check_structure,
    connect,
    created_private,
    damage_error,
    expecting_damage,
    meta,
    open_files,
    put_rows,
    reading,
    schema_of,
    size_of,
    transaction,
    write_ahead,
)
from liveness.service.storage.disk_reserve import Reserve
from liveness.service.storage.high_water_mark import HighWaterMark
from liveness.service.storage.log_pages import (
    SeqRange,
    has_all,
    merged,
    records_in,
    rows_of,
)
from liveness.service.storage.log_schema import (
    OLDEST_SCHEMA,
    SCHEMA,
    TABLES,
    TABLES_BESIDE_LOG,
    WallStep,
    migrate,
    store_clock,
    store_steps,
    stored_clock,
    stored_steps,
)
from liveness.service.storage.log_trimmer import LogTrimmer
from liveness.service.storage.private_folders import LOCK, identity, locked_folder
from liveness.service.storage.writer import Writer
from liveness.text import utc_time

DATABASE: Final = "liveness.db"
# A key of `meta` in a copy: when it was made, in Unix ms. The first start deletes it.
COPIED: Final = "copied"

# A key of `meta` since version 0.3, in which the names `7` and `"7"` are one user.
ONE_NAME: Final = "one_name"

# One read examines at most this many records, so that a reader that few records concern
# does not keep a transaction open for long.
SCAN_RECORDS: Final = 50_000
# The most earlier ids that are remembered, the newest: those of a start of the host a day
# for nearly three years, in 32 KB.
MOST_ANCESTORS: Final = 1_000
_LOG_ID: Final = re.compile("[0-9a-f]{1,64}")
_log = structlog.get_logger("start")


_FORGET_ONLINE: Final = (
    "delete from online where session in (select value from json_each(?))"
)


class LogRows(NamedTuple):
    """The result of one read of the log, from one snapshot."""

    records: list[Logged]
    reached: int  # the log was searched up to this seq
    first: int  # the oldest seq kept; after damage, the next seq that is not damaged
    # The newest trimmed record that concerned this reader; the newest of all that were
    # trimmed, if that is unknown; after damage, the newest damaged one.
    lost: int


def _needed(wanted: Subscription) -> list[list[bytes]]:
    """What the page of a record that is wanted contains, as `has_all` has it."""
    needed = list[list[bytes]]()
    if wanted.uid is not None:
        # The text alone, as that of a device begins with it.
        text, *numbers = names_of(wanted.uid)
        needed.append([str(text).encode(), *map(encode, numbers)])
    if wanted.gateway is not None:
        needed.append([encode(wanted.gateway)])
    if wanted.kinds <= {TIMER}:
        needed.append([encode(TIMER)])
    return needed


@dataclass(slots=True)
class Batch:
    """The content of one transaction: queued `Changes`, merged."""

    records: RecordBatch = field(default_factory=RecordBatch)
    online: dict[int, OnlineRow] = field(default_factory=dict)
    cursors: Mapping[tuple[str, str], CursorRow | None] = field(default_factory=dict)
    changes: int = 0  # how many `Changes`
    weight: int = 0
    ends: int = 0


class LogStore:
    """The state directory, owned by this process until `close`.

    Args:
        folder: The state directory; made, private, if it is missing.
        runtime: The folder of the log's high-water mark; None: the log counts as the
            continuation of what was shown.
        made_later: A file of the folder that is made after the log's.
    Raises:
        StartError: It cannot be used, or another sidecar uses it.
        StateError: Its content is damaged, or of a newer version.
    """

    def __init__(
        self, folder: Path, runtime: Path | None = None, *, made_later: str = ""
    ) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        self._mark = None if runtime is None else HighWaterMark(runtime)
        self._damaged = list[SeqRange]()
        with ExitStack() as resources:
            lock = resources.enter_context(locked_folder(folder))
            self.reserve = Reserve(folder)
            # A start must be able to write on a full disk. The reserve is restored at the
            # end of the start, or else by `close`.
            self.reserve.release()
            resources.callback(self.reserve.restore)
            with self.expecting_damage():
                check_not_emptied(folder, made_later)
                with created_private(self.path):
                    stored = schema_of(self.path, oldest=OLDEST_SCHEMA, newest=SCHEMA)
                    self._db = connect(self.path)
                    resources.callback(self._db.close)
                    self._prepare(stored, resources)
            self.files = {**open_files(self.path), folder / LOCK: lock}
            self._resources = resources.pop_all()

    def expecting_damage(self) -> AbstractContextManager[None]:
        """At the start: say what to do about a file that cannot be read."""
        return expecting_damage(self.path, "start with an empty log")

    def _prepare(self, stored: int | None, resources: ExitStack) -> None:
        db = self._db
        if stored is None:
            db.execute("pragma auto_vacuum = incremental")
        write_ahead(db)
        if stored is None:
            db.executescript(f"begin immediate; {TABLES}")
            db.execute("insert into meta values ('log', ?)", [secrets.token_hex(8)])
            db.execute("commit")
        else:
            migrate(db, self.path, stored)
        self.writer = Writer(
            "the log", db, self.path, self.reserve, most_bytes=WAL_BYTES
        )
        resources.callback(self.writer.close)
        self.trimmer = LogTrimmer(db, self.reserve)
        log = meta(db, "log")
        try:
            ancestors = json.loads(str(meta(db, "parted") or "{}"))
            is_sound = all(map(is_natural, ancestors.values()))
        except (ValueError, AttributeError):
            is_sound = False
        # A file is named by it.
        if not isinstance(log, str) or not _LOG_ID.fullmatch(log) or not is_sound:
            raise damage_error("its meta makes no sense")
        self.log = log
        # Whether the last sidecar of this log took `7` and `"7"` for two users.
        self.had_two_names = meta(db, ONE_NAME) is None
        # By the id of a log that this one continues: the last seq they share.
        self.ancestors: dict[str, int] = ancestors
        self.clock, self.steps = stored_clock(db), stored_steps(db)
        copied_ms = meta(db, COPIED)
        is_new = stored is None
        if isinstance(copied_ms, int):
            is_new = True
            message = "this is a backup, restored: it begins a log of its own"
            self._begin_own_log(_log.warning, message, made=utc_time(copied_ms))
        if self._mark is not None:
            self._take_mark(self._mark, is_new=is_new)

    def _take_mark(self, mark: HighWaterMark, *, is_new: bool) -> None:
        """Take a new id unless the mark vouches for this log; then keep its mark."""
        shown, following = mark.take(self.log), self.bounds()[1]
        if not is_new and (shown is None or following < shown):
            mark.drop()
            if shown is None:
                self._begin_own_log(
                    _log.info,
                    "the host or its runtime folder is new, so the log may lack records "
                    "that were shown: it goes on with a new id",
                )
            else:
                self._begin_own_log(
                    _log.warning,
                    "the log lacks records that were shown, or is an older copy: it goes "
                    "on with a new id",
                    lost=shown - following,
                )
            mark.take(self.log)
        mark.raise_to(following)

    def _begin_own_log(
        self, line: Callable[..., object], message: str, **about: object
    ) -> None:
        """Take a new id, as the next seqs may have been given to other records."""
        db, was, seq = self._db, self.log, self.bounds()[1] - 1
        self.ancestors[was] = seq
        self.ancestors = dict([*self.ancestors.items()][-MOST_ANCESTORS:])
        self.log = secrets.token_hex(8)
        values = [("log", self.log), ("parted", json.dumps(self.ancestors))]
        with transaction(db):
            db.executemany(PUT_META, values)
            db.execute("delete from meta where key = ?", [COPIED])
        line(message, **about, log=self.log, was=was, seq=seq)

    def ids_at(self, seq: int) -> set[str]:
        """The ids that the log has, or had while *seq* was its newest record."""
        return {self.log, *(id_ for id_, last in self.ancestors.items() if last == seq)}

    @property
    def is_in_place(self) -> bool:
        """Whether the file at the log's path is still the one that is open."""
        return identity(self.path) == self.files.get(self.path)

    def close(self) -> None:
        if self._mark is not None:
            self._mark.close()
        self._resources.close()

    # --- reading --------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """The oldest seq kept, and the seq of the next record."""
        return log_pages.oldest(self._db), log_pages.next_seq(self._db)

    def check(self) -> None:
        """At the start: raise DatabaseError if a table other than the log is damaged.

        The log is not read: it may have gigabytes, and readers get a gap for damage. The
        rows of `online` are checked when they are restored (`core/wheel/restart.py`).
        """
        check_structure(self._db, TABLES_BESIDE_LOG)
        first, next_seq = self.bounds()
        if first > next_seq:
            raise damage_error("its meta has a seq behind the end of the log")
        for table in ("cursors", "trimmed"):
            query = f"select coalesce(max(seq), 0) from {table}"
            if self._db.execute(query).fetchone()[0] >= next_seq:
                raise damage_error(f"{table} has a seq behind the end of the log")

    def cursors(self) -> dict[tuple[str, str], CursorRow]:
        """Every stored cursor, by role and name."""
        rows = self._db.execute("select * from cursors")
        return {(role, name): CursorRow(*rest) for role, name, *rest in rows}

    def online(self) -> Iterator[OnlineFields]:
        """All open sessions, the oldest first."""
        return self._db.execute("select * from online order by session")

    def read(
        self,
        *,
        after: int,
        until: int,
        wanted: Subscription,
        limit: int,
        most_bytes: float = inf,
    ) -> LogRows:
        """Read records above *after*, up to *until*, that concern a subscription.

        Read at most *limit* records, and stop after the page that makes the searched
        pages at least *most_bytes* long. Any thread may call this.
        """
        records: list[Logged] = []
        size = 0
        with reading(self.path) as db:
            db.execute("begin")
            first = log_pages.oldest(db)
            lost = _newest_lost(db, wanted.gateway, first)
            after = reached = max(after, first - 1)
            until = min(until, after + SCAN_RECORDS)
            needed = _needed(wanted)
            for page in log_pages.pages(db, after=after, until=until):
                if page.first > reached + 1:
                    damaged = page.first - 1
                    break
                reached = page.last
                if not has_all(page, needed):
                    continue
                for record in records_in(page):
                    if after < record.seq <= until and wanted.wants(record):
                        records.append(record)
                        if len(records) == limit:
                            return LogRows(records, record.seq, first, lost)
                size += len(page.records)
                if records and size >= most_bytes:
                    return LogRows(records, min(reached, until), first, lost)
            else:
                damaged = min(until, log_pages.newest(db))
        if reached >= damaged:
            return LogRows(records, until, first, lost)
        self._note_damage(reached + 1, damaged)
        if reached > after:  # the next read begins at the damage
            return LogRows(records, reached, first, lost)
        return LogRows([], damaged, damaged + 1, damaged)

    def _note_damage(self, first: int, last: int) -> None:
        """Log an error for damaged records, unless they are known."""
        known = self._damaged
        self._damaged = merged(known, (first, last))
        if self._damaged[-1] not in known:
            _log.error(
                "records are damaged on disk; readers get a gap in their place: run "
                "`liveness check-state`, look at the disk, and restore a backup only if "
                "these records are worth it",
                path=str(self.path),
                first=first,
                last=last,
            )

    def damaged_records(self, oldest: int) -> int:
        """How many damaged records were found that are not below *oldest*."""
        return sum(
            max(0, last - max(first, oldest) + 1) for first, last in self._damaged
        )

    @property
    def ahead_ms(self) -> int:
        """How far the wall clock is ahead of the state's clock."""
        return 0 if self.clock is None else self.clock.wall_ahead_ms

    # --- writing --------------------------------------------------------------

    def write(self, batch: Batch, steps: Sequence[WallStep] = ()) -> None:
        """Write a batch in one transaction.

        *steps* say how the wall clock was set, up to these records.

        Raises:
            sqlite3.Error: It cannot be written; an `IntegrityError` if another process
                has written to the log.
        """
        closed = batch.records.closed
        opened = batch.records.opened()
        if batch.online:
            ended = {*closed}
            for session, row in batch.online.items():
                if session not in ended:
                    opened += row
        moved = batch.cursors.items()
        cursors = [
            value for key, row in moved if row is not None for value in (*key, *row)
        ]
        forgotten = [key for key, row in moved if row is None]
        pages = [*rows_of(batch.records)]
        db = self._db
        with transaction(db):
            db.executemany("insert into log values (?, ?, ?, ?, ?)", pages)
            if closed:
                db.execute(_FORGET_ONLINE, [json.dumps(closed)])
            put_rows(db, "online", 6, opened)
            put_rows(db, "cursors", 6, cursors)
            db.executemany("delete from cursors where role = ? and name = ?", forgotten)
            if has_new_steps := bool(steps) and [*steps] != self.steps:
                store_steps(db, steps)
        if has_new_steps:
            self.steps = [*steps]
        if self._mark is not None and batch.records:
            self._mark.raise_to(batch.records.last + 1)
        self.writer.keep_growth_small()

    def begin(self, at: StateTime) -> None:
        """At the end of a start: store what the next one has to know of this one."""
        self._db.execute(PUT_META, [ONE_NAME, 1])
        self.store_clock(at)

    def store_clock(self, at: StateTime) -> None:
        store_clock(self._db, at)
        self.clock = at

    def log_bytes(self) -> int:
        return bytes_in_use(self._db)


def check_not_emptied(folder: Path, made_later: str) -> None:
    """Raise DatabaseError if the log's file is empty, and one *made_later* is not."""
    if made_later and size_of(folder / DATABASE) == 0 and size_of(folder / made_later):
        raise damage_error(f"it is empty, and {made_later} is not")


def _newest_lost(db: sqlite3.Connection, gateway: str | None, first: int) -> int:
    """The newest trimmed seq that may have concerned a reader of *gateway*."""
    row = db.execute("select seq from trimmed where name = ?", [gateway]).fetchone()
    return first - 1 if row is None else int(row[0])
