"""Writes the log and the cursors of all names, with group commit.

A change that comes after a quiet time is written at once. While changes keep coming, a
commit begins at most every `COMMIT_EVERY_S` and takes all that are queued, since a
commit with its delivery costs more CPU than the decisions in it. It begins earlier if
something waits for it, as a reply does, or if many records wait.

No record is delivered before it is durable: each batch is published after its commit. A
commit that fails is repeated, whole, until it succeeds. Meanwhile the sidecar is not
ready, and pending records grow up to the bounds at which the server stops firing and then
reading.
"""

import math
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.changes import Commit, Decisions
from liveness.core.records import GATEWAY, Logged
from liveness.core.wheel.record_batch import RecordBatch
from liveness.metrics.counts import Counts
from liveness.service.common.clock import STEP_MS, Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.notifier import Notifier
from liveness.service.storage.log_pages import PAGE_RECORDS
from liveness.service.storage.log_store import Batch, LogStore

# The most records of one transaction. They take about 25 ms to write, the longest that a
# new record should wait for those before it.
COMMIT_RECORDS: Final = 4_000
# The least time between the beginnings of two commits, unless the second one is awaited.
# No record is delayed by more than this, which is half of what delivery may take.
COMMIT_EVERY_S: Final = 0.05
# When this many records wait, they are written at once. More would not make a commit
# cheaper: they fill a page of the log.
FULL_COMMIT: Final = PAGE_RECORDS
# If only cursors moved, a commit waits this long. After a crash, records acknowledged in
# that time are delivered again.
CURSOR_DELAY_S: Final = 1.0
# How often to look whether the wall clock was set: the state's clock is stored then.
CLOCK_LOOK_S: Final = 1.0
# It is also stored this often. If the host crashes, and its wall clock is behind after the
# boot, the state's clock loses no more than this; an idle disk is written to no more often.
CLOCK_STORED_S: Final = 300.0

# The steps of the wall clock that `decided_ms` knows, the newest.
MOST_STEPS: Final = 100

_log = structlog.get_logger("journal")


class LogWriter:
    """Queues changes, writes them in order, and publishes each batch once it is durable."""

    def __init__(
        self,
        store: LogStore,
        decided: Decisions,
        *,
        clock: Clock,
        counts: Counts,
        published: Callable[[Batch], None],
    ) -> None:
        self.store = store
        self.first, next_seq = store.bounds()
        self.durable_seq = next_seq - 1
        self.cursors = decided.cursors
        self.records_pending = 0  # weight of the records that wait for the disk
        self.pending_ends = 0  # those that end a session or begin an attempt
        self.log_bytes = store.log_bytes()
        self._decided = decided
        self._appended = 0  # the last ticket that was queued
        self._clock = clock
        self._counts = counts
        self._published = published
        # At the front are those that are being written.
        self._queue: deque[Commit] = deque()
        # From a seq on: `Clock.mono_offset_ms` when these records were decided.
        self._offsets = deque[tuple[int, int]](maxlen=MOST_STEPS)
        # The same of all processes, for the next one. What was lost has none.
        self._steps = deque(
            (step for step in store.steps if step[0] < next_seq), MOST_STEPS
        )
        if store.clock is not None and not self._steps:  # as old logs have it
            self._steps.append((0, store.clock.wall_ahead_ms))
        for seq, wall_ahead_ms in self._steps:
            ago_ms = clock.state_ms() - round(clock.mono() * 1000)
            self._offsets.append((seq, -wall_ahead_ms - ago_ms))
        self._every = LogThrottle(REPEAT_LOG_S, clock=clock.mono)
        self._wake = Notifier()
        self._awaited = 0  # something waits for this ticket
        self._began_at = -math.inf  # when the last commit began
        self._cursors_at = math.inf  # when the first of the cursors to write has moved
        self._note_use_after_ms = math.inf  # what trims the log sets it
        self.writer = store.writer

    @property
    def log_ticket(self) -> int:
        """All changes up to this ticket are durable, except timer commands."""
        return self._queue[0].ticket - 1 if self._queue else self._appended

    @property
    def log(self) -> str:
        """The log's id."""
        return self.store.log

    @property
    def ancestors(self) -> Mapping[str, int]:
        """The logs that this one continues, each with the last seq in common."""
        return self.store.ancestors

    @property
    def oldest_pending_ms(self) -> float:
        """When the oldest record that waits for the disk was decided, as `decided_ms`.

        Infinity if none waits.
        """
        waiting = (it.changes.records for it in self._queue if it.changes.records)
        return next((self.decided_ms(records[0]) for records in waiting), math.inf)

    def decided_ms(self, record: Logged) -> int:
        """When a record was decided, in milliseconds of the monotonic clock.

        The disk may have written late, and the wall clock may have been set meanwhile.
        """
        for seq, offset_ms in reversed(self._offsets):
            if seq <= record.seq:
                return record.at + offset_ms
        return record.at + self._clock.mono_offset_ms()

    def note_offset(self, seq: int) -> None:
        """Note whether the wall clock was set before the record *seq* was decided."""
        offset_ms = self._clock.mono_offset_ms()
        if not self._offsets or abs(offset_ms - self._offsets[-1][1]) > STEP_MS:
            self._offsets.append((seq, offset_ms))
            wall_ahead_ms = self._clock.wall_ahead_ms()
            if not self._steps or wall_ahead_ms != self._steps[-1][1]:
                self._steps.append((seq, wall_ahead_ms))

    # --- queueing changes -----------------------------------------------------

    def append(self, commit: Commit) -> None:
        """Queue a commit. It is durable once `log_ticket` reaches its ticket."""
        changes, ticket, with_cursors = commit
        self._appended = ticket
        self._observe("decided", changes.records)
        if changes.records:
            self.note_offset(changes.records[0].seq)
        if changes.records or changes.online or with_cursors:
            self._queue.append(commit)
            self.records_pending += changes.weight
            self.pending_ends += changes.ends
            if len(self._queue) == 1 or self.records_pending >= FULL_COMMIT:
                self._wake.notify()

    def note_use(self, key: tuple[str, str]) -> None:
        """Note that a name has a link, or had until now, users, or a new record to read."""
        now_ms, every_ms = self._clock.state_ms(), self._note_use_after_ms
        self.cursors.note_use(key, now_ms, every_ms=every_ms)
        if self.cursors.has_moved:
            self.cursors_moved()

    def cursors_moved(self) -> None:
        """Write the cursors that moved, with the next commit or a little later."""
        if self._cursors_at == math.inf:
            self._cursors_at = self._clock.mono()
            self._wake.notify()

    def hurry(self) -> None:
        """Write what is queued without waiting for more, as something waits for it."""
        if self._awaited < self._appended:
            self._awaited = self._appended
            self._wake.notify()

    # --- the writer -----------------------------------------------------------

    async def run(self) -> None:
        """Write for ever. A failed commit is repeated; nothing is dropped."""
        while True:
            if self._next_at <= self._clock.mono():
                await self._commit()
            else:
                with trio.move_on_at(self._next_at):
                    await self._wake.wait()

    @property
    def _next_at(self) -> float:
        """When to commit next, if nothing comes before."""
        if not self._queue:
            return self._cursors_at + CURSOR_DELAY_S
        is_awaited = self._queue[0].ticket <= self._awaited
        if is_awaited or self.records_pending >= FULL_COMMIT:
            return -math.inf
        return self._began_at + COMMIT_EVERY_S

    async def keep_clock(self) -> None:
        """Store the state's clock for ever, as often as the next start may need it."""
        while True:
            await trio.sleep(CLOCK_LOOK_S)
            last, clock = self.store.clock, self._clock
            if (
                last is None
                or clock.wall_ahead_ms() != last.wall_ahead_ms
                or clock.state_s() - last.state_s >= CLOCK_STORED_S
            ):
                await self.store_clock()

    async def store_clock(self) -> None:
        """Store the state's clock now, if the disk takes it."""
        await self._write_meta(
            partial(self.store.store_clock, self._clock.state_time())
        )

    async def _write_meta(self, write: Callable[[], None]) -> None:
        try:
            await self.writer.once(write)
        except sqlite3.Error as error:
            self._warn("the clock of the state was not stored", error)

    def _warn(self, message: str, error: sqlite3.Error) -> None:
        # Throttled: the next commit meets the same fault, and logs it too.
        self._every(_log.warning, message, key=message, error=str(error))

    def _gather(self) -> Batch:
        batch = Batch(self._decided.new_batch())
        for changes, *_ in self._queue:
            if batch.records and (
                len(batch.records) + len(changes.records) > COMMIT_RECORDS
            ):
                break
            batch.changes += 1
            batch.records.extend(changes.records)
            batch.weight += changes.weight
            batch.ends += changes.ends
            batch.online.update(changes.online)
        batch.cursors = self.cursors.take_moved()
        self._cursors_at = math.inf
        return batch

    async def _commit(self) -> None:
        batch = self._gather()
        self._began_at = began = self._clock.mono()
        steps = [*self._steps]

        def write() -> int:
            self.store.write(batch, steps)
            return self.store.log_bytes()

        self.log_bytes = await self.writer.write(
            write, pending=lambda: self.records_pending
        )
        self._counts.commits.observe(self._clock.mono() - began)
        self._publish(batch)

    def _observe(self, stage: str, records: RecordBatch) -> None:
        """Count how late each record with a deadline reached a stage."""
        now, lateness = self._clock.mono(), self._counts.lateness[stage]
        for due in records.due:
            if due:
                lateness.observe(now - due)

    def _publish(self, batch: Batch) -> None:
        for _ in range(batch.changes):
            self._queue.popleft()
        self.records_pending -= batch.weight
        self.pending_ends -= batch.ends
        if batch.records:
            self.durable_seq = batch.records.last
            for name in batch.records.gateways:
                self.note_use((GATEWAY, name))
        self._observe("durable", batch.records)
        self._published(batch)
