"""The reader of one outlet: the records of the log that concern it, from its cursor on.

An outlet takes a batch with `take`, sends it, and reports it with `delivered`. It may take
more batches before that, and reports them in the order in which it took them.
"""

import sqlite3
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

import structlog
import trio

from liveness.config.outlet_settings import OutletSettings
from liveness.core.records import TIMER, Gap, Logged, Record, Subscription
from liveness.core.sessions.damping import DampingCounts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.common.outlet_store import (
    OutletStore,
    position_in,
    put_cursor,
)
from liveness.service.storage.damped_reader import DampedReader
from liveness.service.storage.log_tail import LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter

# Records read at a time, in a few milliseconds in a thread. A page of the log has up to
# 1,000: with fewer at a time, each page would be read and decoded several times.
READ_RECORDS: Final = 2_000
# A batch ends once it has this many bytes: payloads of timers may be large.
READ_BYTES: Final = 2**18
# While there is more to read, records are collected for this long: if few of a long log
# concern the outlet, a full batch may take hours.
COLLECT_S: Final = 1.0
# The pause after a failure to read the log, or to write the cursor.
RETRY_S: Final = 1.0
# How often a cursor that has moved is written.
CURSOR_S: Final = 1.0

_log = structlog.get_logger("outlet")


class LogBatch(NamedTuple):
    """Records to deliver, in order, and the cursor once they are delivered."""

    entries: list[TailEntry]
    position: int
    oldest_ms: int  # when the first of them was decided, by the state's clock


class LogAccess(NamedTuple):
    """Shared by all outlets."""

    log_writer: LogWriter
    feed: LogTail
    store: OutletStore
    clock: Clock
    turnstile: Turnstile
    most_settling: int
    # Whether, for a reader with these settings, a record of a session is not true any more.
    is_superseded: Callable[[Record, OutletSettings], bool]


class OutletLog:
    """The log, as one outlet reads it."""

    def __init__(self, name: str, settings: OutletSettings, access: LogAccess) -> None:
        self.name = name
        self.damping = DampingCounts(access.most_settling)
        self.missed = 0  # records that were deleted before they were read
        self._settings = settings
        # Only payloads of timers are large; without them, records need not be measured,
        # which would mean encoding each.
        self._most_bytes = READ_BYTES if TIMER in settings.kind_set else inf
        self._access = access
        self._reader: DampedReader | None = None
        self._wake = Notifier()
        self._taken = deque[LogBatch]()
        # All records up to this seq are delivered, or do not concern the outlet.
        self.cursor = 0
        self._has_cursor = False  # whether `open` has found it
        # Where a new outlet begins. Links are served before all is open, and a file that
        # an outlet needs may be mended later.
        self._end_at_start = access.log_writer.durable_seq
        self._caught_up_at = access.clock.mono()
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=access.clock.mono)

    @property
    def log(self) -> str:
        return self._access.log_writer.store.log

    @property
    def lag_records(self) -> int:
        """Records not read or not delivered yet, except offlines that settle."""
        newest = self._access.log_writer.durable_seq
        if self._reader is None:  # it was stopped or never opened
            return max(0, newest - self.cursor) if self._has_cursor else 0
        unread = newest - self._reader.tail.position
        collected = len(self._collected)
        return unread + collected + sum(len(batch.entries) for batch in self._taken)

    @property
    def lag_s(self) -> float:
        """For how many seconds there have been undelivered records."""
        if not self.lag_records:
            return 0.0
        return self._access.clock.mono() - self._caught_up_at

    async def open(self) -> None:
        """Find the outlet's place in the log. Call this first.

        Raises:
            OSError, sqlite3.Error: The cursor cannot be read or stored now.
        """
        log_writer = self._access.log_writer
        newest, oldest = log_writer.durable_seq, log_writer.first - 1
        found = await self._access.store.cursor(self.name)
        if found is not None:
            start = position_in(
                found,
                log=self.log,
                ancestors=log_writer.store.ancestors,
                newest=newest,
                oldest=oldest,
            )
        else:
            is_newest = self._settings.begin == "newest"
            start = self._end_at_start if is_newest else oldest
        self.restart_at(start, is_resumed=found is not None)
        # For a new outlet, too, and before it sends anything: otherwise, after a power
        # failure, it would begin at the new end of the log, and leave records out.
        await self._put_cursor()
        await self._access.store.sync()

    def restart_at(self, position: int, *, is_resumed: bool) -> None:
        """Continue after *position*; all records up to it must be delivered or stored.

        Batches that were taken and not delivered are forgotten.
        """
        access, settings = self._access, self._settings
        self.close()
        self._taken.clear()
        # By a `take` that has not returned yet.
        self._collected: list[TailEntry] = []
        self._reader = DampedReader(
            access.log_writer,
            access.feed,
            Subscription(None, settings.kind_set, users=settings.users_only),
            position,
            clock=access.clock,
            settle_s=settings.settle_s,
            is_resumed=is_resumed,
            counts=self.damping,
        )
        self.cursor, self._has_cursor = position, True
        access.feed.follow(self._reader.tail, self._wake.notify)

    def behind_since(self, at_ms: int) -> None:
        """Count `lag_s` from *at_ms*, when a record that still waits was decided.

        That is in milliseconds of the state's clock.
        """
        decided_at = self._access.clock.mono() - self._access.clock.age_s(at_ms)
        self._caught_up_at = min(self._caught_up_at, decided_at)

    def close(self) -> None:
        if self._reader is not None:
            self._access.feed.unfollow(self._reader.tail)
            self._reader.close()
            self._reader = None

    async def take(self, limit: int, *, linger_s: float = 0.0) -> LogBatch:
        """Wait for records, and take up to *limit*; fewer if they exceed `READ_BYTES`.

        If there are fewer, it waits for more for *linger_s*; while the log has more to read,
        for at least `COLLECT_S`.
        """
        entries = self._collected = []
        began, size, oldest_ms = inf, 0, self._access.clock.state_ms()
        while len(entries) < limit and size < self._most_bytes:
            more = await self._read(limit - len(entries))
            if self._most_bytes < inf:
                size += sum(len(entry.encoded) for entry in more)
            if more:
                began = min(began, trio.current_time())
                # A gap counts from now; the record after it may be older.
                decided_ms = [self._decided_ms(entry.record) for entry in more[:2]]
                oldest_ms = min(oldest_ms, *decided_ms)
                if not self._taken:
                    self.behind_since(oldest_ms)
            entries += more
            assert self._reader is not None
            is_behind = bool(more) or self._reader.is_behind
            most_s = max(linger_s, COLLECT_S) if is_behind else linger_s
            if trio.current_time() >= began + most_s:
                break
            if is_behind:
                continue
            self._note_position()
            settled_at = trio.current_time() + self._reader.next_in_s
            with trio.move_on_at(min(began + linger_s, settled_at)):
                await self._wake.wait()
        assert self._reader is not None
        batch = LogBatch(entries, self._reader.position, oldest_ms)
        self._taken.append(batch)
        self._collected = []
        return batch

    def delivered(self, batch: LogBatch) -> None:
        """Note that *batch*, the oldest undelivered one, is delivered."""
        first = self._taken.popleft()
        assert first is batch
        self.cursor = max(self.cursor, batch.position)
        clock = self._access.clock
        self._caught_up_at = clock.mono() - clock.age_s(batch.oldest_ms)
        self._note_position()

    async def keep_cursor(self) -> None:
        """Store the cursor whenever it has moved, and once more when cancelled."""
        try:
            while True:
                await trio.sleep(CURSOR_S)
                self._note_position()
                await self.store_cursor()
        finally:
            with trio.CancelScope(deadline=trio.current_time() + CURSOR_S, shield=True):
                await self.store_cursor()

    async def store_cursor(self) -> None:
        """Store the cursor, if it has moved; a failure is logged, and tried again."""
        if self.cursor == self._stored:
            return
        try:
            await self._put_cursor()
        except (OSError, sqlite3.Error) as error:
            self._log_disk("the cursor cannot be stored", error)

    async def _put_cursor(self) -> None:
        log, now_ms = self.log, self._access.clock.state_ms()

        def put(db: sqlite3.Connection) -> int:
            # Read only when it is this call's turn: while it waited, the outlet may have
            # stored a newer cursor together with the end of a batch.
            seq = self.cursor
            put_cursor(db, self.name, (log, seq), now_ms)
            return seq

        self._stored = await self._access.store.run(put)

    def _note_position(self) -> None:
        """While no batch is in flight, skip records that do not concern the outlet."""
        if self._reader is not None and not self._taken and not self._collected:
            self.cursor = max(self.cursor, self._reader.position)
            if not self._reader.is_behind:
                self._caught_up_at = self._access.clock.mono()

    def _decided_ms(self, record: Logged | Gap) -> int:
        clock, log_writer = self._access.clock, self._access.log_writer
        if isinstance(record, Gap):  # found now; the log has no time of it
            return clock.state_ms()
        ago_ms = round(clock.mono() * 1000) - log_writer.decided_ms(record)
        return clock.state_ms() - max(0, ago_ms)

    async def _read(self, limit: int) -> list[TailEntry]:
        assert self._reader is not None
        await self._access.turnstile.wait()
        try:
            entries = await self._reader.take(
                min(limit, READ_RECORDS), most_bytes=self._most_bytes
            )
        except (OSError, sqlite3.Error) as error:
            self._log_disk("the log cannot be read", error)
            await trio.sleep(RETRY_S)
            return []
        gaps = [entry.record for entry in entries if isinstance(entry.record, Gap)]
        self.missed += sum(gap.until - gap.first for gap in gaps)
        return entries

    def _log_disk(self, message: str, error: Exception) -> None:
        self._log_throttled(
            _log.warning, f"{message}; it is tried again", key=message,
            outlet=self.name, error=str(error),
        )  # fmt: skip
