"""The log on its way to disk: one writer, group commit, and everyone's cursor.

Whatever gathers while a commit runs goes into the next one. Nothing is told to
anybody before its commit: readers are published to from here, after it. A commit
that fails is tried again, whole, until it succeeds; meanwhile the pending records
grow to the bounds at which the engine stops firing and then reading, and the sidecar
says it is not ready.
"""

import math
import sqlite3
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.records import Changes
from liveness.core.timers import Drop
from liveness.metrics import Counts
from liveness.service.clock import Clock
from liveness.service.store import Batch, CursorRow, Store
from liveness.service.wake import Wake

# So many records go into one transaction: some fortieth of a second of writing, the
# most that a new record should wait for the ones before it.
COMMIT_RECORDS: Final = 4_000
# Cursors alone are not worth a commit each; a crash repeats what they would have saved.
CURSOR_DELAY_S: Final = 1.0
RETRY_S: Final = 1.0
# A lasting failure is said once a minute.
SAY_AGAIN_S: Final = 60.0
# Retention is looked at this often; a backlog is worked off in steps in between.
TRIM_EVERY_S: Final = 10.0
TRIM_PAUSE_S: Final = 0.05

_log = structlog.get_logger("journal")


class Journal:
    """Appends changes in order; tells when they are on disk.

    Args:
        store: The open state directory.
        clock: For durations and stamps.
        counts: Where commits and lateness are counted.
        published: Called with each batch once it is on disk.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        counts: Counts,
        published: Callable[[Batch], None],
    ) -> None:
        self.store = store
        self.first, following = store.bounds()
        self.durable_seq = following - 1
        self.cursors = store.cursors()
        self.pending = 0  # what waits for the disk, in records
        self.pending_ends = 0  # and of that the records that end a session
        self.failure: str | None = None
        self.log_bytes = store.log_bytes()
        self.mark = 0
        self.durable_mark = 0
        self._gathered_mark = 0
        # Cancels that were too much for the last transaction. They come first in the
        # next one, and until they are done no mark is reached.
        self._unfinished: list[Drop] = []
        self.linked: set[tuple[str, str]] = set()
        self._clock = clock
        self._counts = counts
        self._published = published
        self._waiting: deque[Changes] = deque()
        self._dirty: set[tuple[str, str]] = set()
        self._wake = Wake()
        self._is_urgent = False
        self._settled = trio.Event()
        # One writer: the connection has one user at a time.
        self._writer = trio.CapacityLimiter(1)

    # --- what the engine says -------------------------------------------------

    def append(self, changes: Changes) -> None:
        """Queue what was decided. On disk once `durable_mark` reaches `mark`."""
        self._waiting.append(changes)
        self.pending += changes.weight
        self.pending_ends += changes.ends
        self.mark += 1
        self._hurry()

    def move_cursor(self, role: str, name: str, seq: int) -> None:
        """Store that this name has everything up to *seq*; never back."""
        key = (role, name)
        known = self.cursors.get(key)
        if known is None or known.seq < seq:
            timeout = None if known is None else known.timeout
            self.cursors[key] = CursorRow(seq, self._clock.wall_ms(), timeout)
            self._dirty.add(key)
            self._wake.ring()

    def introduce(
        self, role: str, name: str, *, seq: int, timeout: float | None
    ) -> int:
        """Store a name with its cursor and timeout, at once; return its mark."""
        known = self.cursors.get((role, name))
        if known is not None:
            seq = max(seq, known.seq)
        self.cursors[role, name] = CursorRow(seq, self._clock.wall_ms(), timeout)
        self._dirty.add((role, name))
        return self.flush()

    def flush(self) -> int:
        """Have everything so far written soon; return the mark to wait for."""
        if self._dirty:
            self.append(Changes())
        return self.mark

    async def settled(self) -> None:
        """Wait until everything so far is on disk."""
        mark = self.flush()
        while self.durable_mark < mark:
            await self._settled.wait()

    # --- the writer -----------------------------------------------------------

    async def run(self) -> None:
        """Write for ever. Failures are retried, never dropped."""
        while True:
            await self._wake.wait()
            if not self._is_urgent:
                with trio.move_on_after(CURSOR_DELAY_S):
                    while not self._is_urgent:
                        await self._wake.wait()
            self._is_urgent = False
            while self._waiting or self._dirty or self._unfinished:
                await self._commit(self._gather())

    async def trim(
        self,
        *,
        retention_s: float,
        most_bytes: int,
        most_ended: int,
        forgot: Callable[[dict[str, int]], None],
    ) -> None:
        """Keep the log and ended timers within the retention, in steps, for ever.

        Args:
            retention_s: Seconds.
            most_bytes: Bytes of records above which the oldest go before that.
            most_ended: Ended timers above which the oldest go.
            forgot: Told how many timers of each state went.
        """
        while True:
            now_ms = self._clock.wall_ms()
            oldest_ms = now_ms - round(retention_s * 1000)
            for key in self.linked & self.cursors.keys():
                cursor = self.cursors[key]
                # Often enough never to be taken for forgotten, and seldom enough to
                # leave an idle disk alone.
                if now_ms - cursor.used_ms > (now_ms - oldest_ms) / 4:
                    self.cursors[key] = cursor._replace(used_ms=now_ms)
                    self._dirty.add(key)
            await self.settled()
            try:
                step = partial(
                    self.store.trim,
                    oldest_ms=oldest_ms,
                    most_bytes=most_bytes,
                    idle_ms=oldest_ms,
                )
                is_behind = await trio.to_thread.run_sync(step, limiter=self._writer)
                timers = partial(
                    self.store.trim_timers, oldest_ms=oldest_ms, most=most_ended
                )
                gone = await trio.to_thread.run_sync(timers, limiter=self._writer)
                forgot(gone)
                is_behind |= bool(gone)
                await self._after_trim(idle_ms=oldest_ms)
            except sqlite3.Error as error:
                # The writer meets the same fault at its next commit and reports it;
                # here only the step is put off.
                _log.warning("the log was not trimmed", error=str(error))
                is_behind = False
            await trio.sleep(TRIM_PAUSE_S if is_behind else TRIM_EVERY_S)

    async def _after_trim(self, *, idle_ms: int) -> None:
        (self.first, _), stored, self.log_bytes = await trio.to_thread.run_sync(
            lambda: (self.store.bounds(), self.store.cursors(), self.store.log_bytes()),
            limiter=self._writer,
        )
        for key in list(self.cursors):
            if key not in stored and self.cursors[key].used_ms < idle_ms:
                del self.cursors[key]
            elif key in stored and stored[key].seq > self.cursors[key].seq:
                self.cursors[key] = stored[key]

    def _hurry(self) -> None:
        self._is_urgent = True
        self._wake.ring()

    def _gather(self) -> Batch:
        batch = Batch(mark=self._gathered_mark, orders=[*self._unfinished])
        while self._waiting:
            if batch.weight and (
                batch.weight + self._waiting[0].weight > COMMIT_RECORDS
            ):
                break
            changes = self._waiting.popleft()
            batch.records += changes.records
            batch.orders += changes.orders
            batch.due += changes.due
            batch.weight += changes.weight
            batch.ends += changes.ends
            batch.online.update(changes.online)
            batch.mark += 1
        self._gathered_mark = batch.mark
        batch.cursors = {key: self.cursors[key] for key in self._dirty}
        self._dirty.clear()
        return batch

    async def _commit(self, batch: Batch) -> None:
        said_at = -math.inf
        while True:
            began = self._clock.mono()
            try:
                await trio.to_thread.run_sync(
                    self.store.write, batch, limiter=self._writer
                )
                break
            except sqlite3.IntegrityError:
                # No disk mends this; it is a fault of ours. Ending is safe: nobody
                # was told, and the next start goes on from what is on disk.
                raise
            except sqlite3.Error as error:
                self.failure = str(error)
                if began - said_at >= SAY_AGAIN_S:
                    said_at = began
                    _log.error(
                        "the log cannot be written; nothing is dropped, it is tried "
                        "again every second: make room or mend the disk",
                        error=self.failure,
                        path=str(self.store.path),
                        pending=self.pending,
                    )
                await trio.sleep(RETRY_S)
        if self.failure is not None:
            _log.warning("the log is written again", pending=self.pending)
            self.failure = None
        self._counts.commits.observe(self._clock.mono() - began)
        self._is_written(batch)

    def _is_written(self, batch: Batch) -> None:
        self._unfinished = batch.unfinished
        if not self._unfinished:
            self.durable_mark = batch.mark
        self.pending -= batch.weight
        self.pending_ends -= batch.ends
        if batch.records:
            self.durable_seq = batch.records[-1].seq
        now = self._clock.mono()
        lateness = self._counts.lateness["durable"]
        for due in batch.due:
            if due:
                lateness.observe(now - due)
        self._published(batch)
        self._settled.set()
        self._settled = trio.Event()
