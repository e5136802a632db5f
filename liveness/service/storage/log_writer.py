"""Decisions on their way to disk: one writer, group commit, and everyone's cursor.

Whatever gathers while a commit runs goes into the next one. Nothing is told to
anybody before its commit: readers are published to from here, after it. A commit
that fails is tried again, whole, until it succeeds; meanwhile the pending records
grow to the bounds at which the engine stops firing and then reading, and the sidecar
says it is not ready.

What is asked of timers goes to a journal of its own (`timer_writer`). A run is recorded
in the log first; the timers' table follows.
"""

import math
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.changes import Decisions
from liveness.core.records import GATEWAY, Changes
from liveness.core.timer_states import Fire, TimerCommand
from liveness.metrics import Counts
from liveness.service.common import threads
from liveness.service.common.clock import Clock
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.common.notifier import Notifier
from liveness.service.storage.log_pages import END
from liveness.service.storage.log_store import Batch, CursorRow, LogStore
from liveness.service.storage.timer_writer import TimerWriter
from liveness.service.storage.writer import Writer

# So many records go into one transaction: some fortieth of a second of writing, the
# most that a new record should wait for the ones before it.
COMMIT_RECORDS: Final = 4_000
# Cursors alone are not worth a commit each; a crash repeats what they would have saved.
CURSOR_DELAY_S: Final = 1.0
# Retention is looked at this often; a backlog is worked off in steps in between.
TRIM_EVERY_S: Final = 10.0
TRIM_PAUSE_S: Final = 0.05
# A step waits no longer than this for what is on its way to disk. On a full disk that
# would be for ever, and the step is what makes room.
SETTLE_S: Final = 1.0
# That a name is in use is noted no more often than each fourth of the retention, which
# leaves an idle disk alone. It is forgotten so much later, and by the time that a crash
# between two looks costs: never before the last record that it was to get.
USE_NOTED: Final = 1 / 4
USE_SLACK_S: Final = 2 * TRIM_EVERY_S

_log = structlog.get_logger("journal")


class LogWriter:
    """Appends changes in order; tells when they are on disk.

    Args:
        store: The open state directory.
        timers: Where what is asked of timers goes.
        clock: For durations and stamps.
        counts: Where commits and lateness are counted.
        published: Called with each batch once it is on disk.
    """

    def __init__(
        self,
        store: LogStore,
        timers: TimerWriter,
        *,
        clock: Clock,
        counts: Counts,
        published: Callable[[Batch], None],
    ) -> None:
        self.store = store
        self.timers = timers
        self.first, following = store.bounds()
        self.durable_seq = following - 1
        self.cursors = store.cursors()
        # By gateway, of its links that are closed: up to which seq records were written
        # to one of them, whether it acknowledged them or not.
        self.written_to: dict[str, int] = {}
        self.records_pending = 0  # what waits for the disk
        self.pending_ends = 0  # and of that the records that end a session
        self.log_bytes = store.log_bytes()
        self.ticket = 0
        self._clock = clock
        self._counts = counts
        self._published = published
        # With the ticket of each; those of the batch that is being written in front.
        self._waiting: deque[tuple[int, Changes]] = deque()
        self._dirty: set[tuple[str, str]] = set()
        self._every = Every(SAY_AGAIN_S, clock=clock.mono)
        self._wake = Notifier()
        self._is_urgent = False
        # Until `trim` knows the retention.
        self._note_use_after_ms = math.inf
        self._most_bytes = END
        self._flushed_seq = 0  # up to here the timers' table lacks nothing
        self._settled = trio.Event()
        self._writer = Writer("the log", store.path, clock=clock)

    @property
    def failure(self) -> str | None:
        """Why nothing can be written at present; None if it can."""
        return threads.failure() or self._writer.failure or self.timers.writer.failure

    @property
    def log_failure(self) -> str | None:
        """Why the log cannot be written at present; None if it can."""
        return self._writer.failure

    @property
    def write_failures(self) -> dict[str, int]:
        """How often writing failed, by what was to be written."""
        return {"log": self._writer.failures, "timers": self.timers.writer.failures}

    @property
    def pending(self) -> int:
        """How much waits for the disk, in records and orders."""
        return self.records_pending + self.timers.pending

    @property
    def durable_ticket(self) -> int:
        """Everything up to this ticket is on disk, but for timers without room there."""
        oldest = self.timers.oldest
        reached = self.log_ticket
        return reached if oldest is None else min(reached, oldest - 1)

    @property
    def log_ticket(self) -> int:
        """Everything up to this ticket is on disk, but for what is asked of timers."""
        return self._waiting[0][0] - 1 if self._waiting else self.ticket

    # --- what the engine says -------------------------------------------------

    def take_over(self, decided: Decisions) -> None:
        """Queue what was decided since the last time, if anything was."""
        changes = decided.take()
        if not changes:
            return
        self._observe("decided", changes.due)
        self.append(changes)

    def append(self, changes: Changes) -> None:
        """Queue what was decided. On disk once `durable_ticket` reaches `ticket`."""
        self.ticket += 1
        orders: list[TimerCommand] = [
            it for it in changes.orders if not isinstance(it, Fire)
        ]
        if orders:
            self.timers.append(orders, ticket=self.ticket)
        if changes.records or changes.online or not orders:
            self._waiting.append((self.ticket, changes))
            self.records_pending += changes.weight
            self.pending_ends += changes.ends
            self._hurry()

    def move_cursor(self, role: str, name: str, seq: int) -> None:
        """Store that this name has everything up to *seq*; never back."""
        key = (role, name)
        known = self.cursors.get(key)
        if known is not None and known.seq < seq:  # or it was forgotten meanwhile
            self.cursors[key] = known._replace(seq=seq, used_ms=self._clock.wall_ms())
            self._dirty.add(key)
            self._wake.notify()

    def introduce(
        self,
        role: str,
        name: str,
        *,
        seq: int,
        timeout: float | None,
        in_force: float | None = None,
    ) -> int:
        """Store a name with its cursor and timeouts, at once; return its ticket."""
        known = self.cursors.get((role, name))
        if known is not None:
            seq = max(seq, known.seq)
        self.cursors[role, name] = CursorRow(
            seq, self._clock.wall_ms(), timeout, in_force
        )
        self._dirty.add((role, name))
        return self.flush()

    def keep_in_force(self, gateway: str, timeout: float) -> None:
        """Store the longest timeout that a session of a gateway may still be under."""
        known = self.cursors.get((GATEWAY, gateway))
        if known is not None and known.in_force != timeout:
            self.cursors[GATEWAY, gateway] = known._replace(in_force=timeout)
            self._dirty.add((GATEWAY, gateway))
            self._wake.notify()

    def note_written(self, gateway: str, position: int | None) -> None:
        """Note up to where records were written to a link; None: it had no welcome."""
        if position is not None and (GATEWAY, gateway) in self.cursors:
            position = max(position, self.written_to.get(gateway, 0))
            self.written_to[gateway] = position

    def forget(self, role: str, name: str) -> None:
        """Forget a name and its place in the log."""
        if self.cursors.pop((role, name), None) is not None:
            self._let_go(role, name)
            self._dirty.add((role, name))
            self.flush()

    def flush(self) -> int:
        """Have everything so far written soon; return the ticket to wait for."""
        if self._dirty:
            self.append(Changes())
        return self.ticket

    async def flushed(self) -> None:
        """Wait until everything so far is on disk that has room there."""
        ticket = self.flush()
        while self.durable_ticket < ticket:
            await self._settled.wait()

    async def flushed_for(self, gateway: str | None) -> None:
        """The same of the log, and of what a gateway asked of timers; None: of none."""
        ticket = self.flush()
        while self.log_ticket < ticket or self.timers.writes(gateway, ticket):
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
            while self._waiting or self._dirty:
                await self._commit()

    async def trim(
        self,
        *,
        retention_s: float,
        most_bytes: int,
        most_ended: int,
        in_use: Callable[[], Iterable[tuple[str, str]]],
        forgot: Callable[[dict[str, int]], None],
    ) -> None:
        """Keep the log and ended timers within the retention, in steps, for ever.

        Between two steps each commit sheds twice what it added to a log that is full.

        Args:
            retention_s: Seconds.
            most_bytes: Bytes of the log above which its oldest records go before that.
            most_ended: Ended timers above which the oldest go.
            in_use: The names, with their roles, that have a link or users.
            forgot: Told how many timers of each state went.
        """
        self._note_use_after_ms = retention_s * USE_NOTED * 1000
        self._most_bytes = most_bytes
        while True:
            now_ms = self._clock.wall_ms()
            oldest_ms = now_ms - round(retention_s * 1000)
            idle_ms = oldest_ms - round(self._note_use_after_ms + USE_SLACK_S * 1000)
            for key in in_use():
                self._note_use(key, now_ms)
            seq = self.durable_seq
            with trio.move_on_after(SETTLE_S) as waiting:
                await self.flushed()
                # Runs wait behind no ticket: those of a table that fails are in the log only.
                if self.timers.writer.failure is None:
                    self._flushed_seq = seq
            if waiting.cancelled_caught:
                idle_ms = 0  # that a name is in use may not be on disk
            until = self._shed_until
            is_behind = False
            # Of one that fails the writer meets the same fault at its next commit, and
            # reports it; here only the step is put off, and not the other's.
            try:
                is_behind = await self._writer.once(
                    partial(
                        self.store.trim,
                        oldest_ms=oldest_ms,
                        most_bytes=most_bytes,
                        idle_ms=idle_ms,
                        until=until,
                    )
                )
                await self._after_trim(idle_ms=idle_ms)
                is_behind |= self.log_bytes > most_bytes and until < self.durable_seq
                if self.failure is None:
                    room = max(0, most_bytes - self.log_bytes)
                    make = partial(self.store.reserve.make, log_bytes=room)
                    await self._writer.once(make)
                else:
                    await self._writer.once(self.store.write_back)
            except sqlite3.Error as error:
                say = "the log was not trimmed"
                self._every(_log.warning, say, key=say, error=str(error))
            try:
                gone = await self.timers.writer.once(
                    partial(
                        self.timers.table.trim, oldest_ms=oldest_ms, most=most_ended
                    )
                )
                forgot(gone)
                is_behind |= bool(gone)
                await self.timers.follow(self.durable_seq)
            except sqlite3.Error as error:
                say = "ended timers were not trimmed"
                self._every(_log.warning, say, key=say, error=str(error))
            await trio.sleep(TRIM_PAUSE_S if is_behind else TRIM_EVERY_S)

    @property
    def _shed_until(self) -> int:
        """The seq above which the log is to stay as it is.

        What the timers' table lacks after a crash is read from the log.
        """
        is_followed = not (self.timers.pending or self.timers.runs)
        followed = max(self._flushed_seq, self.timers.table.seq)
        return self.durable_seq if is_followed else followed

    async def _after_trim(self, *, idle_ms: int) -> None:
        (self.first, _), stored, self.log_bytes = await self._writer.once(
            lambda: (self.store.bounds(), self.store.cursors(), self.store.log_bytes())
        )
        for key in list(self.cursors):
            if key not in stored and self.cursors[key].used_ms < idle_ms:
                del self.cursors[key]
                self._let_go(*key)

    def _let_go(self, role: str, name: str) -> None:
        if role == GATEWAY:
            self.written_to.pop(name, None)

    def _note_use(self, key: tuple[str, str], now_ms: int) -> None:
        """Note that a name is in use, or will have something to read."""
        cursor = self.cursors.get(key)
        if cursor is not None and now_ms - cursor.used_ms > self._note_use_after_ms:
            self.cursors[key] = cursor._replace(used_ms=now_ms)
            self._dirty.add(key)
            self._wake.notify()

    def _hurry(self) -> None:
        self._is_urgent = True
        self._wake.notify()

    def _gather(self) -> Batch:
        batch = Batch()
        for _, changes in self._waiting:
            if batch.records and (
                len(batch.records) + len(changes.records) > COMMIT_RECORDS
            ):
                break
            batch.changes += 1
            batch.records += changes.records
            batch.runs += [it for it in changes.orders if isinstance(it, Fire)]
            batch.due += changes.due
            batch.weight += changes.weight
            batch.ends += changes.ends
            batch.online.update(changes.online)
        batch.cursors = {key: self.cursors.get(key) for key in self._dirty}
        self._dirty.clear()
        return batch

    async def _commit(self) -> None:
        batch = self._gather()
        began = self._clock.mono()
        before = self.log_bytes

        def write() -> int:
            self.store.write(batch)
            return self.store.log_bytes()

        self.log_bytes = await self._writer.write(write, pending=lambda: self.pending)
        self._counts.commits.observe(self._clock.mono() - began)
        self._is_written(batch)
        if self.log_bytes > self._most_bytes:
            await self._keep_bound(before)

    async def _keep_bound(self, before: int) -> None:
        """Have a log that is full not grow by what was just written.

        Whoever writes makes room, before the next commit: however much there is to write,
        it waits for the disk as always, and `pause_reading` bounds how much of it.
        """

        def keep() -> tuple[int, int]:
            self.store.keep_bound(
                most_bytes=self._most_bytes, before=before, until=until
            )
            return self.store.bounds()[0], self.store.log_bytes()

        until = self._shed_until
        try:
            self.first, self.log_bytes = await self._writer.once(keep)
        except sqlite3.Error as error:
            say = "the log was not trimmed"
            self._every(_log.warning, say, key=say, error=str(error))

    def _observe(self, stage: str, due: list[float]) -> None:
        """Count how late a stage is for those who had a deadline."""
        now, lateness = self._clock.mono(), self._counts.lateness[stage]
        for moment in due:
            if moment:
                lateness.observe(now - moment)

    def _is_written(self, batch: Batch) -> None:
        for _ in range(batch.changes):
            self._waiting.popleft()
        if batch.records:
            # Before anyone is told of a run, so that its answer comes behind it.
            self.timers.begun(batch.runs, until=batch.records[-1].seq)
        self.records_pending -= batch.weight
        self.pending_ends -= batch.ends
        if batch.records:
            self.durable_seq = batch.records[-1].seq
            now_ms = self._clock.wall_ms()
            for name in {record.gateway for record in batch.records} | {
                record.from_gateway for record in batch.records
            }:
                if name is not None:
                    self._note_use((GATEWAY, name), now_ms)
        self._observe("durable", batch.due)
        self._published(batch)
        self.is_flushed()

    def is_flushed(self) -> None:
        """Have those who wait in `settled` look again."""
        self._settled.set()
        self._settled = trio.Event()
