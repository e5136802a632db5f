"""The journal's file: the log, and what follows from it.

    log       what was decided, in order: a row a page of records of one commit
    online    whose session is open: the log's effect, changed with it
    cursors   how far each gateway and watcher has acknowledged, and a gateway's timeouts
    trimmed   for each name the newest record that concerned it and is no longer kept
    meta      the log's id, the schema's version; the logs that it was a copy of, and
              up to which seq it is the same as each

A copy, as a backup has it, is no second holder of the same log: both would give the same
numbers to different records. So it begins a log of its own when it is first opened.

`uid` columns are ANY in STRICT tables: any other type would make one user of `7` and
`"7"`. Up to `PAGE_RECORDS` rows are one statement through `json_each`, not
`executemany`, which takes and gives the interpreter lock once a row: beside a busy main
thread that is the difference between 100,000 rows a second and 9,000. Only the log's
rows go that way: they are few, as it has pages, not rows of fifteen columns. Sessions are
keyed by their number, not their user: a login costs 3 µs of writing, not 18, since
nothing is inserted but at the end.

Timers are in a file of their own (`timer_store`), which follows the log: they may be ten
million, and a commit of the log is not to wait for them.
"""

import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from liveness.core.framing import encode
from liveness.core.records import (
    TIMER,
    Logged,
    OnlineFields,
    OnlineRow,
    Subscription,
)
from liveness.core.timer_states import Fire
from liveness.core.uids import is_natural
from liveness.errors import StartError
from liveness.service.storage import log_pages, migrations, timer_store
from liveness.service.storage.database import (
    check_structure,
    connect,
    cut,
    damage,
    expecting_damage,
    made_private,
    meta,
    open_files,
    reading,
    size_of,
    transaction,
    write_ahead,
    write_back,
)
from liveness.service.storage.disk_reserve import WAL_ROOM_BYTES, Reserve
from liveness.service.storage.log_pages import END, PAGE_RECORDS, records_in, rows_of
from liveness.service.storage.log_schema import _TABLES, BESIDE, SCHEMA, unsound
from liveness.service.storage.private_folders import identity, make_own_folder, open_own
from liveness.service.storage.state_lock import _FOLDER_FLAGS, LOCK, _locked
from liveness.text import EXACT_IN_JSON, json_line, uid_text, utc_time

DATABASE: Final = "liveness.db"
# Of `meta`: when a copy was made, in Unix milliseconds, until it is first opened.
COPIED: Final = "copied"
# A reader of the log is given pages; a page looks at no more rows than this, so that
# one who is concerned by few does not hold the file for long.
SCAN_RECORDS: Final = 50_000
LIST_ROWS: Final = 1_000
# A trim deletes no more records than these and a page in one transaction: about 10 ms.
TRIM_RECORDS: Final = 2_000
# Of so many logs that this one was a copy of, one after the other, the newest are known.
MOST_PARTED: Final = 100
# Pages of the file that are given back in one step.
TRIM_PAGES: Final = 2_000
_log = structlog.get_logger("start")


def _from_json(columns: int) -> str:
    return ", ".join(f"json_extract(value, '$[{n}]')" for n in range(columns))


_PUT_ONLINE: Final = (
    f"insert or replace into online select {_from_json(6)} from json_each(?)"
)
# As `Presence.restore` wants them; it is the order in which they lie.
_ONLINE: Final = "select * from online order by session"
_FORGET_ONLINE: Final = (
    "delete from online where session in (select value from json_each(?))"
)
_PUT_CURSORS: Final = (
    f"insert or replace into cursors select {_from_json(6)} from json_each(?)"
)
_FORGET_CURSORS: Final = f"delete from cursors where (role, name) in (select {_from_json(2)} from json_each(?))"
# Of each user a line, as `text.json_ready` has it; SQLite makes them without the
# interpreter, but for the few whose names need a look.
_USER_LINES: Final = f"""
select group_concat(line, char(10)), count(*), max(session) from (
    select session, json_object(
        'uid', case
            when typeof(uid) = 'integer' and uid > {EXACT_IN_JSON} then 'int:' || uid
            when typeof(uid) = 'text' and instr(uid, 'int:') then uid_text(uid)
            else uid end,
        'gateway', gateway, 'session', session, 'conn', conn, 'since', start) as line
    from online where session > :after order by session limit :most)
"""
# A name that is new here had read everything that was trimmed before, or all of it counts
# as lost to it: nobody knows which of it concerned that name.
_TRIMMED_NAMES: Final = """
insert or ignore into trimmed select distinct name, ? from cursors
"""
_TRIMMED: Final = f"""
insert or replace into trimmed select {_from_json(2)} from json_each(?)
where json_extract(value, '$[0]') in (select name from cursors)
"""
_PUT_META: Final = "insert or replace into meta values (?, ?)"
_TRIMMED_UNKNOWN: Final = "update trimmed set seq = :seq where seq < :seq"
_FORGET_TRIMMED: Final = (
    "delete from trimmed where name not in (select name from cursors)"
)


class CursorRow(NamedTuple):
    """A name's place in the log, as stored."""

    seq: int
    used_ms: int
    timeout: float | None  # a gateway's, as its last hello gave it
    # The longest timeout that a session of that gateway may still be under, in seconds.
    in_force: float | None = None


class LogRows(NamedTuple):
    """What a read of the log found, all of it as of one snapshot."""

    records: list[Logged]
    reached: int  # the seq up to which the log was looked at
    first: int  # the oldest seq kept; where those read for are damaged, the next that is not
    # The newest seq that is no longer kept and concerned this reader, as far as that is
    # known; else the newest that is no longer kept. Of what is damaged it is not known.
    lost: int


@dataclass(slots=True)
class Batch:
    """What one transaction writes."""

    records: list[Logged] = field(default_factory=list)
    due: list[float] = field(default_factory=list)
    online: dict[int, OnlineRow | None] = field(default_factory=dict)
    cursors: Mapping[tuple[str, str], CursorRow | None] = field(default_factory=dict)
    runs: list[Fire] = field(default_factory=list)  # for the timers' table, after it
    changes: int = 0
    weight: int = 0
    ends: int = 0


class LogStore:
    """The state directory, owned by this process until `close`.

    Args:
        folder: The state directory; made, private, if it is missing.
    Raises:
        StartError: It cannot be used, or another sidecar uses it.
        StateError: What lies in it is damaged, or of a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        # Readers have threads of their own.
        self._noting = threading.Lock()
        self._damaged: list[tuple[int, int]] = []
        with ExitStack() as held:
            try:
                make_own_folder(folder)
                held.enter_context(_locked(os.open(folder, _FOLDER_FLAGS)))
                lock = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
                held.enter_context(_locked(lock))
            except BlockingIOError as error:
                raise StartError(
                    f"state directory {folder} is in use by another sidecar; stop that "
                    "one or name another with --state"
                ) from error
            except OSError as error:
                is_file = isinstance(error, FileExistsError | NotADirectoryError)
                why = "it is no folder" if is_file else error.strerror
                raise StartError(
                    f"state directory {folder}: {why}; make it a folder that this user "
                    "may write to, or name another with --state"
                ) from error
            self.reserve = Reserve(folder)
            # A start writes too, on a disk however full; `load` restores it, or the end.
            self.reserve.release()
            held.callback(self.reserve.restore)
            with self.expecting_damage():
                check_not_emptied(folder)
                with made_private(self.path):
                    has = migrations.found(self.path, SCHEMA, migrations.LOG)
                    self._db = connect(self.path)
                    self._prepare(has)
            locked = os.fstat(lock)
            # By where each was opened.
            self.files = open_files(self.path)
            self.files[folder / LOCK] = locked.st_dev, locked.st_ino
            self._held = held.pop_all()

    def expecting_damage(self) -> AbstractContextManager[None]:
        """At the start: what cannot be read is told, and left as it is."""
        return expecting_damage(self.path, "start with an empty log")

    def _prepare(self, has: int | None) -> None:
        db = self._db
        if has is None:
            db.execute("pragma auto_vacuum = incremental")
        write_ahead(db)
        if has is None:
            db.executescript(f"begin immediate; {_TABLES}")
            db.execute("insert into meta values ('log', ?)", [secrets.token_hex(8)])
            db.execute("commit")
        else:
            migrations.migrate(db, self.path, has, SCHEMA, migrations.LOG)
        log = meta(db, "log")
        try:
            parted = json.loads(str(meta(db, "parted") or "{}"))
        except ValueError:
            parted = None
        is_sound = isinstance(parted, dict) and all(map(is_natural, parted.values()))
        if not isinstance(log, str) or not is_sound:
            raise damage("its meta makes no sense")
        self.log = log
        # By the id of a log: up to which seq this one is the same.
        self.parted: dict[str, int] = parted
        copied_ms = meta(db, COPIED)
        if isinstance(copied_ms, int):
            self._part(copied_ms)

    def _part(self, copied_ms: int) -> None:
        """Begin a log of its own: what follows here, the original has numbered too."""
        db, was, seq = self._db, self.log, self.bounds()[1] - 1
        parted = {**self.parted, was: seq}
        self.parted = dict([*parted.items()][-MOST_PARTED:])
        self.log = secrets.token_hex(8)
        values = [("log", self.log), ("parted", json.dumps(self.parted))]
        with transaction(db):
            db.executemany(_PUT_META, values)
            db.execute("delete from meta where key = ?", [COPIED])
        _log.warning(
            "this is a backup, restored: it begins a log of its own",
            made=utc_time(copied_ms),
            log=self.log,
            was=was,
            seq=seq,
        )

    @property
    def is_in_place(self) -> bool:
        """Whether the log at its path is the one that is open."""
        return identity(self.path) == self.files.get(self.path)

    def close(self) -> None:
        """Close the file and let the directory go."""
        self._db.close()
        self._held.close()

    # --- reading --------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """The oldest seq kept, and the next one to be given."""
        return log_pages.oldest(self._db), log_pages.following(self._db)

    def check(self) -> None:
        """At the start: see whether what is kept beside the log is whole and makes sense.

        The log itself is not read: it may have gigabytes, and damage in it is a gap.

        Raises:
            sqlite3.DatabaseError: It is not; SQLite sees only damage to its structure.
        """
        check_structure(self._db, BESIDE)
        _, following = self.bounds()
        for table, count in unsound(self._db, following).items():
            if count:
                raise sqlite3.DatabaseError(f"{count} rows of {table} make no sense")

    def cursors(self) -> dict[tuple[str, str], CursorRow]:
        """Every stored cursor, by role and name."""
        rows = self._db.execute("select * from cursors")
        return {(role, name): CursorRow(*rest) for role, name, *rest in rows}

    def online(self) -> Iterator[OnlineFields]:
        """Every open session, in the order in which they began."""
        return self._db.execute(_ONLINE)

    def read(
        self,
        *,
        after: int,
        until: int,
        wanted: Subscription,
        limit: int,
        most_bytes: float = inf,
    ) -> LogRows:
        """Read on in the log.

        Args:
            after: Records above this seq.
            until: None above this seq.
            wanted: Only records that concern this reader.
            limit: At most this many.
            most_bytes: No further than the page of the log with which those read have so
                many bytes.
        """
        records: list[Logged] = []
        size = 0
        with reading(self.path) as db:
            db.execute("begin")
            first = log_pages.oldest(db)
            lost = _lost(db, wanted.gateway, first)
            (newest,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
            after = reached = max(after, first - 1)
            until = min(until, after + SCAN_RECORDS)
            # A page that lacks the bytes of a name has no record of it.
            names = [it for it in (wanted.uid, wanted.gateway) if it is not None]
            if wanted.kinds <= {TIMER}:
                names.append(TIMER)
            needed = [*map(encode, names)]
            for page in log_pages.pages(db, after=after, until=until):
                if page.first > reached + 1:
                    damaged = page.first - 1
                    break
                reached = page.last
                if not all(name in page.records for name in needed):
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
                damaged = min(until, newest)
        if reached >= damaged:
            return LogRows(records, until, first, lost)
        self._note_damage(reached + 1, damaged)
        if reached > after:  # and what is damaged is met by the next read
            return LogRows(records, reached, first, lost)
        return LogRows([], damaged, damaged + 1, damaged)

    @property
    def damaged_records(self) -> int:
        """How many records were found to be damaged, and are still in the log's range."""
        return sum(last - first + 1 for first, last in self._damaged)

    def _take(
        self, how: tuple[str, list[Any]], newest: dict[str, int], unknown: int
    ) -> None:
        """Have pages gone, and by name what that takes."""
        db = self._db
        with transaction(db):
            db.execute(_TRIMMED_NAMES, [log_pages.oldest(db) - 1])
            db.execute(_TRIMMED, [json.dumps([*newest.items()], ensure_ascii=False)])
            db.execute(_TRIMMED_UNKNOWN, {"seq": unknown})
            db.execute(*how)

    def _note_damage(self, first: int, last: int) -> None:
        """Say once of each damaged record that it is one."""
        with self._noting:
            known = self._damaged
            self._damaged = log_pages.joined(known, (first, last))
            is_known = self._damaged[-1] in known
        if not is_known:
            _log.error(
                "records are damaged on disk; who had not read them is told of a gap, and "
                "gets everything else: see what `liveness check-state` says, look at the "
                "disk, and restore a backup only if these records are worth it",
                path=str(self.path),
                first=first,
                last=last,
            )

    def _forget_damage(self, first: int) -> None:
        """Damage below the oldest record kept is history."""
        with self._noting:
            self._damaged = [
                (max(one, first), last) for one, last in self._damaged if last >= first
            ]

    def spool_online(
        self, gateway: str | None, write: Callable[[bytes], object]
    ) -> None:
        """Write the answer to `list`, whole, a frame at a time, from one snapshot.

        The snapshot is let go when this returns, however slowly the answer is read
        afterwards; an open one would keep the WAL growing.
        """
        query = "select uid, gateway, session, conn from online"
        values = []
        if gateway is not None:
            query += " where gateway = ?"
            values = [gateway]
        with reading(self.path) as db:
            db.execute("begin")
            (seq,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
            rows = db.execute(query, values)
            page = rows.fetchmany(LIST_ROWS)
            while len(page) == LIST_ROWS and (following := rows.fetchmany(LIST_ROWS)):
                write(encode(["list", page]))
                page = following
            write(encode(["list", page, seq]))
            db.execute("rollback")

    def spool_users(self, write: Callable[[bytes], object]) -> None:
        """Write everyone online, a line of JSON each, from one snapshot.

        The last line has the log, and the `seq` at which the whole is true.
        """
        users, session = 0, 0
        with reading(self.path) as db:
            db.create_function("uid_text", 1, uid_text, deterministic=True)
            db.execute("begin")
            (seq,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
            while True:
                lines, found, last = db.execute(
                    _USER_LINES, {"after": session, "most": LIST_ROWS}
                ).fetchone()
                if not found:
                    break
                write(f"{lines}\n".encode())
                users, session = users + found, last
            db.execute("rollback")
        last_line = {"log": self.log, "seq": seq, "users": users}
        write(f"{json_line(last_line)}\n".encode())

    # --- writing --------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Write a batch in one transaction; all of it, or on an error none.

        Raises:
            sqlite3.Error: It cannot be written; an `IntegrityError` if another process
                has written to the log.
        """
        kept = [row for row in batch.online.values() if row is not None]
        gone = [session for session, row in batch.online.items() if row is None]
        cursors = [
            (*key, *row) for key, row in batch.cursors.items() if row is not None
        ]
        forgotten = [key for key, row in batch.cursors.items() if row is None]
        pages = [
            row for part in cut(batch.records, PAGE_RECORDS) for row in rows_of(part)
        ]
        db = self._db
        with transaction(db):
            db.executemany("insert into log values (?, ?, ?, ?, ?)", pages)
            changes: tuple[tuple[str, list[Any]], ...] = (
                (_FORGET_ONLINE, gone),
                (_PUT_ONLINE, kept),
                (_PUT_CURSORS, cursors),
                (_FORGET_CURSORS, forgotten),
            )
            for statement, rows in changes:
                for part in cut(rows, PAGE_RECORDS):
                    db.execute(statement, [json.dumps(part, ensure_ascii=False)])

    def log_bytes(self) -> int:
        """Bytes of the file in use, whatever for."""
        pages, free, size = (
            self._db.execute(f"pragma {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def trim(
        self, *, oldest_ms: int, most_bytes: int, idle_ms: int, until: int = END
    ) -> bool:
        """Take one small step towards the retention; return whether more is to do.

        Cursors stay where they are. Names not used since *idle_ms* are forgotten. Of the
        log nothing above *until* goes; what is free is given back to the disk.
        """
        with transaction(self._db):
            self._db.execute("delete from cursors where used < ?", [idle_ms])
            self._db.execute(_FORGET_TRIMMED)
        is_behind = self.shed(oldest_ms=oldest_ms, most_bytes=most_bytes, until=until)
        self.reserve.lend(self._db, self._give_back, room=WAL_ROOM_BYTES)
        return is_behind

    def keep_bound(self, *, most_bytes: int, before: int, until: int) -> None:
        """After a commit: shed twice what it added, so that a full log does not grow.

        Args:
            most_bytes: Bytes above which the log is full.
            before: Bytes that it had before the commit.
            until: Nothing above this seq goes.
        """
        bound = max(most_bytes, 2 * before - self.log_bytes())
        while self.log_bytes() > bound and self.shed(
            oldest_ms=0, most_bytes=bound, until=until
        ):
            pass

    def shed(self, *, oldest_ms: int, most_bytes: int, until: int = END) -> bool:
        """Delete some of the oldest pages that are past the retention.

        Of each name it is kept which record that concerned it was the newest to go: a
        reader that had not read that one is told of a gap, and no other. The newest page is
        always kept: it says which seq comes next. A damaged page has no age that could be
        trusted, and goes with the next whole one; whom it concerned nobody knows, so it
        counts for all.

        Returns:
            Whether there may be more of them.
        """
        db = self._db
        is_above = self.log_bytes() > most_bytes
        last, count, newest, unknown = 0, 0, dict[str, int](), 0
        reached = log_pages.oldest(db) - 1
        (end,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
        for page in log_pages.pages(db, after=reached, until=min(until, end - 1)):
            is_due = is_above or page.newest < oldest_ms
            if count >= TRIM_RECORDS or not is_due or page.last >= min(end, until + 1):
                break
            if page.first > reached + 1:
                unknown = page.first - 1
                self._note_damage(reached + 1, unknown)
            newest |= log_pages.newest_by_name(page)
            count += page.last - reached
            last = reached = page.last
        if not count:
            return False
        past = log_pages.trimmed(db)
        delete = "delete from log where last > ? and last <= ?", [past, last]
        # What SQLite cannot delete, as it is damaged, stays in the file.
        leave = _PUT_META, [log_pages.TRIMMED, last]
        try:
            take = partial(self._take, delete, newest, unknown)
            self.reserve.lend(self._db, take, room=WAL_ROOM_BYTES)
        except sqlite3.DatabaseError as error:
            if not log_pages.is_damage(error):
                raise
            self._take(leave, newest, unknown)
        self._forget_damage(last + 1)
        return count >= TRIM_RECORDS

    def _give_back(self) -> None:
        """Give some of the free pages of the file back to the disk."""
        try:
            # As a script: `execute` stops after the first page that was given back.
            self._db.executescript(f"pragma incremental_vacuum({TRIM_PAGES})")
        except sqlite3.DatabaseError as error:
            if not log_pages.is_damage(error):
                raise
            # What is free stays in the file, and is used again.

    def write_back(self) -> None:
        """Write the WAL back to the file, and give its room back where nobody reads."""
        self.reserve.lend(self._db, partial(write_back, self._db))


def check_not_emptied(folder: Path) -> None:
    """See that the log was not emptied: its timers are made after it.

    Raises:
        sqlite3.DatabaseError: It was.
    """
    if size_of(folder / DATABASE) == 0 and size_of(folder / timer_store.DATABASE):
        raise damage(f"it is empty, and {timer_store.DATABASE} is not")


def _lost(db: sqlite3.Connection, gateway: str | None, first: int) -> int:
    """The newest record that is gone and may have concerned a reader of *gateway*."""
    row = db.execute("select seq from trimmed where name = ?", [gateway]).fetchone()
    return first - 1 if row is None else int(row[0])
