"""The timers' database, `timers.db`: beside the log's, which it follows.

    timers   every live timer, and the ended ones that are still kept
    states   how many timers there are in each state
    meta     which log it belongs to; how far it has followed that log (seq), and the
             newest record that it knows of; the schema's version; the state's clock at
             the last start, in case that the log is moved away

It is a file of its own because ten million timers are written at random places: with
many of them a commit takes some hundred milliseconds, and no offline should wait for it.

An attempt is recorded in the log first. The table stores up to which record it has
everything; after a crash, what it lacks is read from the log.

The rules of timers are in `core.timer_states`. This module reads rows, applies the rules
in memory, and writes back what changed. The statements are in `timer_sql`.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from liveness.core.timer_states import (
    LIVE,
    RETRY_POLICY,
    STATES,
    CancelTimer,
    Fire,
    RetryPolicy,
    TimerCommand,
)
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.service.common.clock import StateTime
from liveness.service.storage.database import (
    check_structure,
    connect,
    created_private,
    damage_error,
    expecting_damage,
    is_full,
    meta,
    open_files,
    reading,
    schema_of,
    size_of,
    transaction,
    write_ahead,
)
from liveness.service.storage.disk_reserve import WAL_ROOM_BYTES, Reserve
from liveness.service.storage.log_schema import store_clock, stored_clock
from liveness.service.storage.writer import Writer
from liveness.service.timers import timer_sql
from liveness.service.timers.timer_sql import single_value

SCHEMA: Final = 1
DATABASE: Final = "timers.db"

# Keys are looked up and inserted at random places: with small pages, less is written.
PAGE_BYTES: Final = 1_024
CACHE_BYTES: Final = 64 * 2**20

# A checkpoint may write a hundred thousand pages all over the file, which takes seconds.
# In that time commits fill the WAL.
MOST_WAL_BYTES: Final = 256 * 2**20

# A cancel by ext ends this many timers in a transaction, about 10 ms, and continues in
# the next one: a million timers of one ext delay no other commit.
EXT_STEP: Final = 1_000
# Ended timers deleted in one transaction.
TRIM_ROWS: Final = 2_000
# The same on a full disk, where the transaction has to fit into the reserve.
TRIM_ROWS_IF_FULL: Final = 200

# Gateway and ext of a cancel, and the id below which it cancels.
_Ext: TypeAlias = tuple[str, str, int]


def check_not_emptied(path: Path, *, next_seq: int) -> None:
    """Check that the file was not emptied: it never is once the log has records.

    A missing file was moved away, which is allowed.

    Raises:
        sqlite3.DatabaseError: It is empty, and the log is not.
    """
    if next_seq > 1 and size_of(path) == 0:
        raise damage_error("it is empty, and the log is not")


class TimerStore:
    """The timers in a state directory, which `LogStore` has locked.

    Args:
        folder: The state directory.
        log: The id of the log in that directory.
        next_seq: The next seq of that log.
        ancestors: The ids of logs that this one continues, each with the last seq that
            they have in common.
        reserve: The reserve, shared with the log's store; None: one of its own.
        retry_policy: When further attempts are made.
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
        ancestors: Mapping[str, int] | None = None,
        reserve: Reserve | None = None,
        retry_policy: RetryPolicy = RETRY_POLICY,
    ) -> None:
        self.path = folder / DATABASE
        self._reserve = reserve or Reserve(folder)
        self.retry_policy = retry_policy
        with self.expecting_damage(), ExitStack() as resources:
            check_not_emptied(self.path, next_seq=next_seq)
            with created_private(self.path):
                schema = schema_of(self.path, oldest=SCHEMA, newest=SCHEMA)
                if schema is not None:
                    # About a second for a million timers. The connection is read-only,
                    # as closing a writing one would change a damaged file: it
                    # checkpoints the WAL.
                    with reading(self.path) as db:
                        check_structure(db)
                self._db = connect(self.path)
                resources.callback(self._db.close)
                self._prepare(schema, log, ancestors or {}, resources)
            self.files = open_files(self.path)  # the identity of each, by its path
            self.seq, self.newest = self._read_meta("seq"), self._read_meta("newest")
            self.clock = stored_clock(self._db)
            if self.states().keys() != set(STATES):
                raise damage_error("its states make no sense")
            # The id of the next timer.
            self.next_id: int = single_value(self._db, timer_sql.NEXT_ID)
            self._resources = resources.pop_all()

    def expecting_damage(self) -> AbstractContextManager[None]:
        """At the start: say what to do about a file that cannot be read."""
        return expecting_damage(self.path, "start without timers")

    def _prepare(
        self,
        schema: int | None,
        log: str,
        ancestors: Mapping[str, int],
        resources: ExitStack,
    ) -> None:
        """Migrate the file to this version, and match it to the log beside it."""
        db = self._db
        if schema is None:
            db.execute(f"pragma page_size = {PAGE_BYTES}")
        write_ahead(db)
        db.execute(f"pragma cache_size = -{CACHE_BYTES // 1024}")
        self._page_bytes: int = single_value(db, "pragma page_size")
        if schema is None:
            db.executescript(
                f"begin immediate; {timer_sql.TABLES} "
                f"insert into meta values ('schema', {SCHEMA}); commit;"
            )
        self.writer = Writer(
            "the timers' table",
            db,
            self.path,
            self._reserve,
            most_bytes=MOST_WAL_BYTES,
        )
        resources.callback(self.writer.close)
        previous = meta(db, "log")
        if previous != log:
            with transaction(db):
                db.execute("insert or replace into meta values ('log', ?)", [log])
                if isinstance(previous, str) and previous in ancestors:
                    self._forget_after(ancestors[previous])
                else:
                    db.execute(timer_sql.LOWER_SEQS, [0])
                    if previous is not None:
                        db.execute(timer_sql.FORGET_SEQS)

    def _read_meta(self, key: str) -> int:
        value = meta(self._db, key)
        if not isinstance(value, int):
            raise damage_error("its meta makes no sense")
        return value

    def close(self) -> None:
        self._resources.close()

    @property
    def has_live(self) -> bool:
        return any(self.states()[state] for state in LIVE)

    def states(self) -> dict[str, int]:
        return dict(self._db.execute("select state, timers from states"))

    def reconcile_with_log(self, newest: int) -> None:
        """At the start: forget records above the log's *newest*, which it lacks."""
        with transaction(self._db):
            self._forget_after(newest)
        self.seq, self.newest = min(self.seq, newest), min(self.newest, newest)

    def _forget_after(self, newest: int) -> None:
        if single_value(self._db, timer_sql.HIGHEST_SEQ) > newest:
            self._db.execute(timer_sql.FORGET_LATER_SEQS, {"newest": newest})
            self._db.execute(timer_sql.LOWER_SEQS, [newest])
        self._db.execute(timer_sql.LOWER_SINCE, {"next": newest + 1})

    # --- writing --------------------------------------------------------------

    def write(
        self, commands: Sequence[TimerCommand], *, seq: int = 0
    ) -> tuple[TimerTransaction, list[CancelTimer]]:
        """Apply commands in one transaction.

        Args:
            commands: In the order in which they came.
            seq: With them, the table has followed the log up to here; 0: as before.
        Returns:
            The outcome; and the cancels to repeat in the next transaction, as they were
            about too many timers for this one.
        """
        newest = max(
            (command.seq for command in commands if isinstance(command, Fire)),
            default=0,
        )
        with transaction(self._db):
            rows, unfinished_exts = self._find(commands)
            outcome = TimerTransaction(commands, rows, self.retry_policy)
            self._store(outcome)
            self._write_meta(seq, newest)
        self._raise_meta(seq, newest)
        self.writer.keep_growth_small()
        # Of several cancels of one ext, the last one cancels all that is left.
        unfinished = {
            (command.gateway, command.ext): command
            for command in commands
            if isinstance(command, CancelTimer)
            and (command.gateway, command.ext, command.below) in unfinished_exts
        }
        return outcome, [*unfinished.values()]

    def follow(self, seq: int) -> None:
        """Store that the table has everything from the log up to *seq*."""
        with transaction(self._db):
            self._write_meta(seq, seq)
        self._raise_meta(seq, seq)

    def store_clock(self, at: StateTime) -> None:
        """At the start: store the state's clock."""
        store_clock(self._db, at)

    def _write_meta(self, seq: int, newest: int) -> None:
        if seq > self.seq or newest > self.newest:
            values = {"seq": seq, "newest": newest}
            self._db.execute(timer_sql.RAISE_META, {"values": json.dumps(values)})

    def _raise_meta(self, seq: int, newest: int) -> None:
        """Update the copies in memory, after the commit."""
        self.seq, self.newest = max(self.seq, seq), max(self.newest, newest)

    def _find(
        self, commands: Sequence[TimerCommand]
    ) -> tuple[list[list[Any]], list[_Ext]]:
        """The rows that commands are about; and the exts that may have more timers."""
        keys, exts = dict[tuple[str, str], None](), dict[_Ext, None]()
        for command in commands:
            if command.key is not None:
                keys[command.gateway, command.key] = None
            elif isinstance(command, CancelTimer) and command.ext is not None:
                exts[command.gateway, command.ext, command.below] = None
        rows, _ = timer_sql.NEWEST_OF_KEYS.read(self._db, [*chain(*keys)])
        if not exts:
            return rows, []
        values = {"exts": json.dumps([*exts]), "most": EXT_STEP}
        ids, place = json.loads(
            single_value(self._db, timer_sql.LIVE_IDS_OF_EXTS, values)
        )
        rows += timer_sql.TIMERS_BY_ID.read(self._db, ids)[0]
        return rows, [*exts][place:] if len(ids) == EXT_STEP else []

    def _store(self, outcome: TimerTransaction) -> None:
        """Write the rows that a transaction added or changed, as they are now."""
        added, changed = list[Any](), list[Any]()
        for timer in outcome.changed:
            if timer.id in outcome.payloads:
                added += timer
                added.append(outcome.payloads[timer.id])
            else:
                changed += timer_sql.changed_values(timer)
        timer_sql.INSERT_TIMERS.execute(self._db, added)
        timer_sql.UPDATE_TIMERS.execute(self._db, changed)
        if states := {state: count for state, count in outcome.states.items() if count}:
            timer_sql.add_to_states(self._db, states)

    def trim(self, *, oldest_ms: int, most: int) -> dict[str, int]:
        """Delete some timers that ended before *oldest_ms*, or the oldest above *most*.

        Returns:
            How many of each state were deleted; empty if there is nothing to delete.
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
            states = self.states()
            surplus = sum(states[state] for state in timer_sql.ENDED_STATES) - most
            limits = {"before": oldest_ms, "limit": rows}
            if surplus > 0:
                limits = {"before": 2**62, "limit": min(surplus, rows)}
            oldest = self._db.execute(timer_sql.OLDEST_ENDED, limits).fetchall()
            for _, _, ids in oldest:
                self._db.execute(timer_sql.DELETE_TIMERS, [ids])
            deleted = {state: count for state, count, _ in oldest}
            if deleted:
                fewer = {state: -count for state, count in deleted.items()}
                timer_sql.add_to_states(self._db, fewer)
            return deleted
