"""The table of timers: a file beside the log's, which follows it.

    timers   every live timer, and the ended ones that are still kept
    states   how many there are in each state
    meta     the log it belongs to, how far it has followed that (seq) and the newest
             record that it knows of; the schema's version

A file of its own: ten million timers are written at random places, which costs some
hundred milliseconds a commit when there are many, and no offline is to wait for that.
A timer that fires is recorded in the log first. Where the table has followed to, which
knows of some runs beyond, is written with it; what it lacks after a crash is read from
the log.

What becomes of a timer is not decided here (`core.timers`): rows are found, settled in
memory and written back. Each step is one statement through JSON, for the rows that come
out as well as for those that go in: a statement gives the interpreter away once for each
row, which beside a busy main thread costs more than the row.

Ids only grow, so of one key the newest is the last in its index, and whatever is asked
for next lies at the end of most pages that are written.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from liveness.core.timer_scheduler import Coming, Due, LoadedWindow
from liveness.core.timer_states import (
    CANCELLED,
    DONE,
    FAILED,
    FIRED,
    LIVE,
    PENDING,
    REPLACED,
    RETRY_POLICY,
    STATES,
    CancelTimer,
    Fire,
    RetryPolicy,
    TimerCommand,
    TimerState,
    TimerTransaction,
    key_of,
    without_new,
)
from liveness.service.storage import migrations
from liveness.service.storage.database import (
    check_structure,
    connect,
    cut,
    damage,
    expecting_damage,
    is_full,
    made_private,
    meta,
    only_reading,
    open_files,
    read_through,
    size_of,
    transaction,
    write_ahead,
)
from liveness.service.storage.disk_reserve import RESERVE_BYTES, WAL_ROOM_BYTES, Reserve
from liveness.service.storage.private_folders import bytes_left

SCHEMA: Final = 1
DATABASE: Final = "timers.db"

# A key is looked up and put in at a random place: small pages make for less to write.
PAGE_BYTES: Final = 1_024
MOST_PAGES: Final = 2**32 - 2  # SQLite's own bound
# Pages kept in memory.
CACHE_BYTES: Final = 64 * 2**20
# What is in the WAL is written back beside the writer, as that takes seconds when a
# hundred thousand pages lie all over the file. Only from so many on, which it cannot
# begin anew while it is written to, the writer does the last of it: or from a quarter of
# what the disk has left, so that it does not fill a small one.
RESTART_BYTES: Final = 256 * 2**20
RESTART_SHARE: Final = 1 / 4
# On a disk that has less left than this, the file grows by no more than there is room for
# twice, in the WAL and in the file, and leaves as much as a WAL takes: with what it has,
# answers are written and ended timers deleted. And what it is to grow by is written back
# before that is more than the reserve has room for, with a transaction.
SHORT_BYTES: Final = 256 * 2**20
MOST_GROWTH_BYTES: Final = RESERVE_BYTES // 4
# Should that fail, a commit does it all.
CHECKPOINT_PAGES: Final = 4 * RESTART_BYTES // PAGE_BYTES

# A cancel by ext ends so many in one transaction, and goes on in the next: about 10 ms,
# so that a million timers of one ext hold up no other commit.
EXT_STEP: Final = 1_000
# Rows in one statement: what JSON is made and read at once, with nobody else running.
STATEMENT_ROWS: Final = 1_000
# Ended timers deleted in one transaction.
TRIM_ROWS: Final = 2_000
# And on a full disk: what that writes has to fit into the reserve.
TRIM_ROWS_IF_FULL: Final = 200

_ENDED: Final = (DONE, FAILED, CANCELLED, REPLACED)

# What is true of each row that makes sense.
SOUND: Final = f"""
    state in ({", ".join(f"'{state}'" for state in STATES)})
    and (next is not null) = (state in ('pending', 'fired'))
    and (state <> 'fired' or (seq is not null and fired is not null))
"""

_TABLES: Final = f"""
create table meta (key text primary key, value any) strict, without rowid;
create table timers (
    id integer primary key, gateway text not null, key text not null, ext text,
    payload text, state text not null, due integer not null, next integer,
    attempts integer not null, seq integer, since integer not null, message text,
    created integer not null, fired integer, changed integer not null) strict;
create index timers_key on timers (gateway, key);
create index timers_next on timers (next) where next is not null;
create index timers_ext on timers (gateway, ext)
    where ext is not null and next is not null;
create index timers_ended on timers (state, changed) where next is null;
create table states (state text primary key, timers integer not null)
    strict, without rowid;
insert into states values {", ".join(f"('{state}', 0)" for state in STATES)};
insert into meta values ('schema', {SCHEMA}), ('seq', 0), ('newest', 0);
"""

# Numbers of another log say nothing here. Whatever was fired counts as fired by record 0.
_FORGET_LOG: Final = """
update timers set since = 0, seq = iif(seq is null, null, 0)
where next is not null or state = 'failed'
"""

# Of a log that ends before, as one from a backup does, nobody knows the later numbers.
_FORGET_LATER: Final = """
update timers set seq = 0 where seq > :newest and (next is not null or state = 'failed')
"""

# A crash may leave the table ahead of the log, by what one pass asked for. Ids and
# `since` grow together.
_AHEAD: Final = """
update timers set since = :next where id > coalesce(
    (select id from timers where since <= :next order by id desc limit 1), 0)
"""

_NEXT_ID: Final = "select coalesce(max(id), 0) + 1 from timers"

_REACHED: Final = "select max(value) from meta where key in ('seq', 'newest')"

_NOTE: Final = """
insert into meta select key, value from json_each(:noted) where true
on conflict do update set value = max(meta.value, excluded.value)
"""

# The wall clock was set back while nobody ran: a run that seems to begin later would wait
# for its answer until the clock has caught up. This reads every live timer.
_BEGAN_LATER: Final = """
update timers set fired = :now, next = :now + :run_ms
where next > :now and state = 'fired' and fired > :now
"""

_TIMER: Final = ", ".join(f"timers.{column}" for column in TimerState._fields)

_FOUND: Final = f"""
select json_group_array(json_array({_TIMER})) from timers where id in (
    select (select max(id) from timers where gateway = json_extract(value, '$[0]')
        and key = json_extract(value, '$[1]'))
    from json_each(?))
"""
_FOUND_BY_ID: Final = f"""
select json_group_array(json_array({_TIMER})) from timers
where id in (select value from json_each(?))
"""

# Of one ext after the other, and the place of the last of them.
_OF_EXTS: Final = """
select json_array(json_group_array(id), max(place)) from (
    select timers.id, asked.key as place from json_each(:exts) as asked cross join timers
        on timers.gateway = json_extract(value, '$[0]')
        and timers.ext = json_extract(value, '$[1]')
    where timers.next is not null and timers.id < json_extract(value, '$[2]')
    limit :most)
"""

_ADD: Final = """
insert into timers
select json_extract(value, '$[0]'), json_extract(value, '$[1]'),
    json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]'), 'pending', json_extract(value, '$[5]'),
    json_extract(value, '$[5]'), 0, null, json_extract(value, '$[6]'), null,
    json_extract(value, '$[7]'), null, json_extract(value, '$[7]')
from json_each(?)
"""

# What may change of a timer; and of one that just ends, as nearly all do: half the work.
_COLUMNS: Final = (
    "id", "state", "due", "next", "attempts", "seq", "message", "fired", "changed",
)  # fmt: skip
_END_COLUMNS: Final = ("id", "state", "message", "changed")
_RUN_COLUMNS: Final = ("due", "attempts", "seq", "fired")


def _columns(names: tuple[str, ...]) -> "itemgetter[Any]":
    return itemgetter(*map(TimerState._fields.index, names))


_of_any, _of_ended, _of_runs = map(_columns, (_COLUMNS, _END_COLUMNS, _RUN_COLUMNS))


def _change(columns: tuple[str, ...], also: str) -> str:
    """A statement that sets these columns of the rows it is given."""
    sets = ", ".join(f"{column} = one.{column}" for column in columns[1:])
    one = ", ".join(
        f"json_extract(value, '$[{at}]') as {column}"
        for at, column in enumerate(columns)
    )
    return (
        f"update timers set {sets}{also} from (select {one} from json_each(?)) as one "
        "where timers.id = one.id"
    )


_CHANGE: Final = _change(_COLUMNS, "")
_END: Final = _change(_END_COLUMNS, ", next = null")

_COUNT: Final = """
update states set timers = timers + json_extract(:more, '$.' || state)
where json_extract(:more, '$.' || state) is not null
"""

# Of each state the oldest come from its index, and of these the oldest: a state of
# which there are few is not emptied for one of which there are many.
_OLDEST: Final = f"""
select state, count(*), json_group_array(id) from (
    select * from ({
    " union all ".join(
        "select * from (select id, state, changed from timers where next is null "
        f"and state = '{state}' and changed < :before order by changed limit :limit)"
        for state in _ENDED
    )
}) order by changed limit :limit) group by state
"""
_DELETE: Final = "delete from timers where id in (select value from json_each(?))"

_DUE: Final = f"""
select json_group_array(json_array({_TIMER}, timers.payload)) from timers
where id in (select value from json_each(?)) and next is not null
"""

# For a text that is damaged, its bytes.
_SHOWN: Final = """
select cast(json_array(id, gateway, key) as blob) from timers where id = ?
"""
_TEXT_COLUMNS: Final = ("gateway", "key", "ext", "payload", "message", "state")
_TEXTS: Final = f"""
select cast({
    " || char(10) || ".join(f"ifnull({column}, '')" for column in _TEXT_COLUMNS)
} as blob), ({SOUND}) is true from timers
"""
_TEXTS_OF: Final = f"""
select {", ".join(f"cast({column} as blob)" for column in _TEXT_COLUMNS)},
    ({SOUND}) is true from timers where id = ?
"""
_MEND: Final = f"""
update timers set {
    ", ".join(f"{column} = ?" for column in _TEXT_COLUMNS)
}, next = null, changed = ? where id = ?
"""

_COMING: Final = """
select cast(json_group_array(json_array(id, gateway, next)) as blob) from (
    select id, gateway, next from timers
    where next >= :next and next <= :until and (next > :next or id > :id)
    order by next, id limit :limit)
"""


_Ext: TypeAlias = tuple[str, str | None, int]


def check_not_emptied(path: Path, *, next_seq: int) -> None:
    """See that the file was not emptied: it is made with the log, and never empty after.

    Args:
        path: The file; one that is missing was moved away.
        next_seq: Of the log beside it.
    Raises:
        sqlite3.DatabaseError: It was.
    """
    if next_seq > 1 and size_of(path) == 0:
        raise damage("it is empty, and the log is not")


class Written(NamedTuple):
    """What one transaction made of its orders."""

    settlement: TimerTransaction
    unfinished: list[CancelTimer]  # to be given again: there was too much to cancel
    later: list[TimerCommand]  # for which there was no room
    error: sqlite3.Error | None  # which said so


class TimerStore:
    """The timers in a state directory, which another part owns.

    Args:
        folder: The state directory.
        log: The log that is kept there.
        next_seq: What that log gives next.
        parted: Logs that this one was a copy of, and up to which seq it is the same.
        reserve: The state directory's, as its log's store has it; None: one by itself.
        ladder: How the attempts of a timer follow each other.
    Raises:
        StartError: The file cannot be used.
        StateError: It is damaged, or of a newer version.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log: str,
        next_seq: int = 1,
        parted: Mapping[str, int] | None = None,
        reserve: Reserve | None = None,
        ladder: RetryPolicy = RETRY_POLICY,
    ) -> None:
        self.path = folder / DATABASE
        self._reserve = reserve or Reserve(folder)
        self._most_pages = MOST_PAGES
        self.ladder = ladder
        with self.expecting_damage():
            check_not_emptied(self.path, next_seq=next_seq)
            with made_private(self.path):
                has = migrations.found(self.path, SCHEMA, migrations.TIMERS)
                if has is not None:
                    # About a second for a million timers. What is damaged is left as it
                    # is: whoever may write, and closes last, writes back the WAL.
                    read_through(self.path)
                    with only_reading(self.path) as db:
                        check_structure(db)
                self._db = connect(self.path)
                self._prepare(has, log, parted or {})
            self.files = open_files(self.path)  # by where each was opened
            self.seq, self.newest = self._noted_as("seq"), self._noted_as("newest")
            # When the latest run began, at most; a version before noted none.
            self._fired = self._noted_as("fired", 0)
            if self.states().keys() != set(STATES):
                raise damage("its states make no sense")
            self.next_id: int = _one(self._db, _NEXT_ID)  # for the next timer

    def expecting_damage(self) -> AbstractContextManager[None]:
        """At the start: what cannot be read is told, and left as it is."""
        return expecting_damage(self.path, "start without timers")

    def _prepare(self, has: int | None, log: str, parted: Mapping[str, int]) -> None:
        db = self._db
        if has is None:
            db.execute(f"pragma page_size = {PAGE_BYTES}")
        write_ahead(db)
        db.execute(f"pragma cache_size = -{CACHE_BYTES // 1024}")
        db.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._page_bytes: int = _one(db, "pragma page_size")
        if has is None:
            db.executescript(f"begin immediate; {_TABLES} commit;")
        else:
            migrations.migrate(db, self.path, has, SCHEMA, migrations.TIMERS)
        known = meta(db, "log")
        if known != log:
            with transaction(db):
                db.execute("insert or replace into meta values ('log', ?)", [log])
                if isinstance(known, str) and known in parted:
                    self._fit(parted[known])
                else:
                    self._lower(0)
                    if known is not None:
                        db.execute(_FORGET_LOG)

    def _noted_as(self, key: str, default: int | None = None) -> int:
        value = meta(self._db, key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int):
            raise damage("its meta makes no sense")
        return value

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def has_live(self) -> bool:
        """Whether something may still become of any timer."""
        return any(self.states()[state] for state in LIVE)

    def states(self) -> dict[str, int]:
        """How many timers there are in each state."""
        return dict(self._db.execute("select state, timers from states"))

    def fit(self, newest: int, *, wall_ms: int) -> None:
        """At the start: let no timer count on what is not so.

        Args:
            newest: The log's last record: nothing was fired by a later one.
            wall_ms: Now: nothing was fired later.
        """
        with transaction(self._db):
            self._fit(newest)
            if self._fired > wall_ms:
                run_ms = self.ladder.run_ms
                self._db.execute(_BEGAN_LATER, {"now": wall_ms, "run_ms": run_ms})
                self._db.execute(
                    "update meta set value = ? where key = 'fired'", [wall_ms]
                )
                self._fired = wall_ms
        self.seq, self.newest = min(self.seq, newest), min(self.newest, newest)

    def _fit(self, newest: int) -> None:
        if _one(self._db, _REACHED) > newest:
            self._db.execute(_FORGET_LATER, {"newest": newest})
            self._lower(newest)
        self._db.execute(_AHEAD, {"next": newest + 1})

    def _lower(self, newest: int) -> None:
        self._db.execute(
            "update meta set value = min(value, ?) where key in ('seq', 'newest')",
            [newest],
        )

    def write(
        self, orders: Sequence[TimerCommand], *, seq: int = 0
    ) -> tuple[TimerTransaction, list[CancelTimer]]:
        """Apply orders in one transaction; all of them, or on an error none.

        Args:
            orders: In the order in which they came.
            seq: With these nothing in the log up to here is news to the table; 0: as
                before.
        Returns:
            What became of them, and those that are to be given again with the next
            transaction, as there was too much to cancel for this one.
        """
        return self._write(orders, seq, room=WAL_ROOM_BYTES)

    def write_what_fits(
        self, orders: Sequence[TimerCommand], *, seq: int = 0
    ) -> Written:
        """The same; on a full disk without new timers, if there are any.

        The others need no larger file, as a rule: to part a page, half of the room is
        theirs that is left for a WAL.
        """
        try:
            settlement, unfinished = self._write(orders, seq, room=WAL_ROOM_BYTES)
        except sqlite3.OperationalError as error:
            now, later = without_new(orders)
            if not is_full(error) or not later:
                raise
            settlement, unfinished = self._write(now, seq, room=WAL_ROOM_BYTES // 2)
            return Written(settlement, unfinished, later, error)
        return Written(settlement, unfinished, [], None)

    def _write(
        self, orders: Sequence[TimerCommand], seq: int, *, room: int
    ) -> tuple[TimerTransaction, list[CancelTimer]]:
        fires = [it for it in orders if isinstance(it, Fire)]
        newest = max((it.seq for it in fires), default=0)
        fired = max((it.at for it in fires), default=0)
        self._limit_size(room)
        with transaction(self._db):
            found, cut_off = self._find(orders)
            settlement = TimerTransaction(orders, found, self.ladder)
            self._store(settlement)
            self._note(seq, newest, fired)
        self._noted(seq, newest, fired)
        self._keep_growth_small()
        # What is left to cancel of several of one ext, the last of them cancels.
        unfinished = {
            (it.gateway, it.ext): it
            for it in orders
            if isinstance(it, CancelTimer) and _ext_of(it) in cut_off
        }
        return settlement, [*unfinished.values()]

    def _limit_size(self, room: int) -> None:
        """On a disk that may soon be full: leave room for what needs no larger file."""
        pages, growth, left = self._room()
        most = MOST_PAGES
        if left < SHORT_BYTES:
            more = max(0, left - growth - room) // 2
            most = pages + more // self._page_bytes
        if most != self._most_pages:
            self._db.execute(f"pragma max_page_count = {most}")
            self._most_pages = most

    def _keep_growth_small(self) -> None:
        """On a disk that may soon be full: write back what the file has to grow by."""
        # The commit counts whatever becomes of this; the next one meets the same fault.
        with suppress(sqlite3.Error):
            _, growth, left = self._room()
            if growth > MOST_GROWTH_BYTES and left < SHORT_BYTES:
                _write_back(self._db)

    def _room(self) -> tuple[int, int, int]:
        """Pages; bytes that the file has to grow by; bytes that the disk has left."""
        pages: int = _one(self._db, "pragma page_count")
        try:
            size, left = self.path.stat().st_size, bytes_left(self.path.parent)
        except FileNotFoundError:
            # Removed while it runs: it goes on with files that only it has open, whose
            # disk cannot be asked.
            return pages, 0, SHORT_BYTES
        except OSError as error:
            raise sqlite3.OperationalError(f"{self.path}: {error.strerror}") from error
        return pages, pages * self._page_bytes - size, left

    @property
    def has_large_wal(self) -> bool:
        """Whether the WAL has become so large that it is to begin anew."""
        wal = self.path.with_name(self.path.name + "-wal")
        left = bytes_left(self.path.parent)
        return wal.stat().st_size > min(RESTART_BYTES, RESTART_SHARE * left)

    def write_back(self) -> None:
        """Write back what is in the WAL, beside the writer."""
        with closing(connect(self.path)) as db:
            self._reserve.lend(db, partial(_write_back, db))

    def write_back_the_rest(self) -> None:
        """Write back what is left, so that the WAL begins anew; and give back its room.

        But for while somebody reads it, which is put off.
        """
        self._reserve.lend(self._db, self._begin_wal_anew)

    def _begin_wal_anew(self) -> None:
        _write_back(self._db)
        self._db.execute("pragma busy_timeout = 0")
        try:
            self._db.execute("pragma wal_checkpoint(truncate)").fetchone()
        finally:
            self._db.execute("pragma busy_timeout = 1000")

    def follow(self, seq: int) -> None:
        """Note that nothing in the log up to *seq* is news to the table."""
        with transaction(self._db):
            self._note(seq, seq)
        self._noted(seq, seq)

    def _note(self, seq: int, newest: int, fired: int = 0) -> None:
        if seq > self.seq or newest > self.newest or fired > self._fired:
            noted = {"seq": seq, "newest": newest, "fired": fired}
            self._db.execute(_NOTE, {"noted": json.dumps(noted)})

    def _noted(self, seq: int, newest: int, fired: int = 0) -> None:
        self.seq, self.newest = max(self.seq, seq), max(self.newest, newest)
        self._fired = max(self._fired, fired)

    def _find(
        self, orders: Sequence[TimerCommand]
    ) -> tuple[list[TimerState], list[_Ext]]:
        """The timers that orders are about; and the exts that may have still more."""
        keys = {key: None for order in orders if (key := key_of(order)) is not None}
        exts = {
            _ext_of(it): None
            for it in orders
            if isinstance(it, CancelTimer) and it.ext is not None
        }
        ids: list[int] = []
        cut_off: list[_Ext] = []
        if exts:
            values = {"exts": json.dumps([*exts]), "most": EXT_STEP}
            ids, place = json.loads(_one(self._db, _OF_EXTS, values))
            if len(ids) == EXT_STEP:
                cut_off = [*exts][place:]
        found: list[TimerState] = []
        for some_keys in cut([*keys], STATEMENT_ROWS):
            found += self._read(_FOUND, some_keys)
        for some_ids in cut(ids, STATEMENT_ROWS):
            found += self._read(_FOUND_BY_ID, some_ids)
        return found, cut_off

    def _read(self, query: str, values: Sequence[object]) -> list[TimerState]:
        rows, _ = _read_apart(self._db, query, values)
        return [TimerState._make(row) for row in rows]

    def _store(self, settlement: TimerTransaction) -> None:
        added = [
            (it.id, it.gateway, it.key, it.ext, payload, it.due, it.since, it.created)
            for it, payload in settlement.added
        ]
        new = {order.timer.id: order.timer for order in settlement.added}
        changed = [it for it in settlement.changed if new.get(it.id) is not it]
        more, ended = list[Any](), list[Any]()
        for timer in changed:
            was = new.get(timer.id) or settlement.before[timer.id]
            if timer.is_live or _of_runs(timer) != _of_runs(was):
                more.append(_of_any(timer))
            else:
                ended.append(_of_ended(timer))
        for statement, rows in ((_ADD, added), (_CHANGE, more), (_END, ended)):
            for part in cut(rows, STATEMENT_ROWS):
                self._db.execute(statement, [json.dumps(part, ensure_ascii=False)])
        states = {state: more for state, more in settlement.states.items() if more}
        if states:
            self._db.execute(_COUNT, {"more": json.dumps(states)})

    def trim(self, *, oldest_ms: int, most: int) -> dict[str, int]:
        """Delete some of the timers that ended before *oldest_ms*, or are too many.

        Returns:
            How many of which state; none if there is nothing to delete.
        """
        trim = partial(self._trim, oldest_ms, most)
        try:
            return trim(TRIM_ROWS)
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
        few = partial(trim, TRIM_ROWS_IF_FULL)
        return self._reserve.lend(self._db, few, room=WAL_ROOM_BYTES)

    def _trim(self, oldest_ms: int, most: int, rows: int) -> dict[str, int]:
        with transaction(self._db):
            return self._take_ended(oldest_ms, most, rows)

    def _take_ended(self, oldest_ms: int, most: int, rows: int) -> dict[str, int]:
        states = self.states()
        surplus = sum(states[state] for state in _ENDED) - most
        is_above = surplus > 0
        picked = self._db.execute(
            _OLDEST,
            {
                "before": 2**62 if is_above else oldest_ms,
                "limit": min(surplus, rows) if is_above else rows,
            },
        ).fetchall()
        for _, _, ids in picked:
            self._db.execute(_DELETE, [ids])
        gone = {state: count for state, count, _ in picked}
        if gone:
            less = {state: -count for state, count in gone.items()}
            self._db.execute(_COUNT, {"more": json.dumps(less)})
        return gone

    def end_damaged(self, number: int, *, at: int) -> dict[str, int] | None:
        """End a timer that is damaged; what cannot be read of its texts is replaced.

        For one that makes no sense all are read: about a second for a million.

        Args:
            number: Its id.
            at: Now, on the timers' clock.
        Returns:
            How many fewer there are in each state; None if it is not damaged, or not
            there.
        """
        with transaction(self._db):
            row = self._db.execute(_TEXTS_OF, [number]).fetchone()
            if row is None or (row[-1] and all(map(_is_text, filter(None, row[:-1])))):
                return None
            *texts, state = (
                None if it is None else it.decode(errors="replace") for it in row[:-1]
            )
            was = str(state)
            if not row[-1]:  # nobody knows in which state it is counted
                surplus = miscounted(self._db)
                was = max(surplus, key=surplus.__getitem__)
            now = was if row[-1] and was in _ENDED else CANCELLED
            # An index may still have what the row had: only so does SQLite pass over an
            # entry that it does not find. The other stays, and leads to another key.
            self._db.execute("pragma writable_schema = on")
            try:
                self._db.execute(_MEND, [*texts, now, at, number])
            finally:
                self._db.execute("pragma writable_schema = off")
            less = Counter({was: 1})
            less.subtract({now: 1})
            more = {one: -count for one, count in less.items() if count}
            self._db.execute(_COUNT, {"more": json.dumps(more)})
        return less


def _ext_of(drop: CancelTimer) -> _Ext:
    return drop.gateway, drop.ext, drop.below


def _write_back(db: sqlite3.Connection) -> None:
    db.execute("pragma wal_checkpoint(passive)").fetchone()


# --- reading, on connections of the reader's own ------------------------------


class Unreadable(NamedTuple):
    """A timer of which a text is no UTF-8, or a value makes no sense; as can be shown."""

    id: int
    gateway: str
    key: str


def due(
    db: sqlite3.Connection, ids: Sequence[int]
) -> tuple[list[Due], list[Unreadable]]:
    """Read timers that came due, as far as they are still live; and name the damaged."""
    rows, damaged = _read_apart(db, _DUE, ids)
    found = [Due(TimerState._make(row[:-1]), row[-1]) for row in rows]
    damaged += [one.timer.id for one in found if not _makes_sense(one.timer)]
    shown = [_decoded(_one(db, _SHOWN, [it])) for it in damaged]
    return [one for one in found if _makes_sense(one.timer)], [
        Unreadable._make(row) for row in shown
    ]


def coming(db: sqlite3.Connection, window: LoadedWindow) -> list[Coming]:
    """Read the timers of a window, earliest first.

    One whose gateway cannot be read is among them; `due` names it once it is due.
    """
    rows = _decoded(_one(db, _COMING, window._asdict()))
    return [Coming._make(row) for row in rows]


def first_run(db: sqlite3.Connection, gateway: str) -> int | None:
    """The seq of the oldest run of a gateway that is under way; None if none is."""
    query = "select min(seq) from timers where gateway = ? and state = 'fired'"
    first: int | None = _one(db, query, [gateway])
    return first


def damaged(db: sqlite3.Connection) -> int:
    """How many timers have a text that is no UTF-8, or make no sense; each is read."""
    return sum(
        not (is_sound and _is_text(data)) for data, is_sound in db.execute(_TEXTS)
    )


def miscounted(db: sqlite3.Connection) -> dict[str, int]:
    """By state, how many more timers are counted than are there and make sense."""
    query = f"select state, count(*) from timers where {SOUND} group by state"
    there = dict(db.execute(query))
    counted = db.execute("select state, timers from states")
    return {state: count - there.get(state, 0) for state, count in counted}


def _makes_sense(timer: TimerState) -> bool:
    """Whether one that came due, and was read, is as the product may have left it."""
    is_fired = timer.state == FIRED and None not in (timer.seq, timer.fired)
    return is_fired or timer.state == PENDING


def _read_apart(
    db: sqlite3.Connection, query: str, values: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The rows that a query gives for values, and the values whose rows are damaged."""
    try:
        found = _one(db, query, [json.dumps(values, ensure_ascii=False)])
    except sqlite3.OperationalError as error:
        # SQLite looks into no text: that one is no UTF-8 is found by Python.
        if hasattr(error, "sqlite_errorcode"):
            raise
    else:
        return json.loads(found), []
    if len(values) == 1:
        return [], [*values]
    rows, damaged = list[Any](), list[Any]()
    for part in cut(values, (len(values) + 1) // 2):
        more_rows, more_damaged = _read_apart(db, query, part)
        rows += more_rows
        damaged += more_damaged
    return rows, damaged


def _decoded(data: bytes) -> Any:
    """JSON in which some text may be damaged."""
    return json.loads(data.decode(errors="replace"))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _one(db: sqlite3.Connection, query: str, values: Any = ()) -> Any:
    """The only value that a query gives."""
    return db.execute(query, values).fetchone()[0]
