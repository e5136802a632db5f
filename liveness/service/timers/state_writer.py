"""Writes commits: their records to the log, their timer commands to the timers' table.

Both files have a writer of their own, and one numbering of tickets. An attempt of a timer is
durable in the log before the table gets it: after a crash, the table follows the log.
"""

import math
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.changes import Commit, Decisions
from liveness.core.timer_states import Fire, TimerCommand
from liveness.metrics.counts import Counts
from liveness.service.common import threads
from liveness.service.common.clock import Clock
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.log_writer import LogWriter
from liveness.service.timers.timer_writer import TimerWriter

# How often the log is trimmed, and the pause between two steps if there is more to trim.
TRIM_EVERY_S: Final = 10.0
TRIM_PAUSE_S: Final = 0.05
# A trimming step waits at most this long for pending writes: on a full disk they cannot
# end before it frees space.
FLUSH_S: Final = 1.0
# The time of a name's last use is written at most once in this share of the retention, so
# that an idle disk stays idle. A name is kept that much longer, plus a slack for a crash
# between two writes: so it is never forgotten before the last record that it should get.
USE_NOTED: Final = 1 / 4
USE_SLACK_S: Final = 2 * TRIM_EVERY_S

_log = structlog.get_logger("journal")


class StateWriter(LogWriter):
    """A writer of the log that also passes timer commands to theirs."""

    def __init__(
        self,
        store: LogStore,
        timers: TimerWriter,
        decided: Decisions,
        *,
        clock: Clock,
        counts: Counts,
        published: Callable[[Batch], None],
    ) -> None:
        super().__init__(
            store, decided, clock=clock, counts=counts, published=published
        )
        self.timers = timers
        self._fires = deque[Fire]()  # whose records wait for the disk
        # The timers' table has all attempts up to this seq.
        self._flushed_seq = 0
        self._flush_progress = trio.Event()

    @property
    def failure(self) -> str | None:
        """Why nothing can be written at present; None if it can."""
        return threads.failure() or self.writer.failure or self.timers.writer.failure

    @property
    def write_failures(self) -> dict[str, int]:
        """How many attempts to write failed, by file."""
        return {"log": self.writer.failures, "timers": self.timers.writer.failures}

    @property
    def pending(self) -> int:
        """How many records and timer commands wait for the disk."""
        return self.records_pending + self.timers.pending

    @property
    def commands_pending(self) -> int:
        """How many requests about timers wait for the disk."""
        return self.timers.pending

    @property
    def commands_by_gateway(self) -> Mapping[str, int]:
        """The same, by gateway; only those that have any."""
        return self.timers.pending_by_gateway

    # --- tickets --------------------------------------------------------------

    @property
    def durable_ticket(self) -> int:
        """All changes up to this ticket are durable."""
        return self._before(self.timers.oldest_ticket)

    def ticket_of(self, gateway: str) -> int:
        """All changes up to this ticket are durable, with timer commands of *gateway*."""
        return self._before(self.timers.oldest_ticket_of(gateway))

    def _before(self, oldest: int | None) -> int:
        """The ticket that the log has reached, if no command waits with *oldest*."""
        reached = self.log_ticket
        return reached if oldest is None else min(reached, oldest - 1)

    def append(self, commit: Commit) -> None:
        """Queue a commit. It is durable once `durable_ticket` reaches its ticket."""
        commands = list[TimerCommand]()
        for command in commit.changes.commands:
            if isinstance(command, Fire):
                self._fires.append(command)
            else:
                commands.append(command)
        if commands:
            self.timers.append(commands, ticket=commit.ticket)
        super().append(commit)

    def flush(self) -> int:
        """Queue all decisions and moved cursors; return the ticket to wait for."""
        commit = self._decided.commit(with_cursors=True)
        if commit is not None:
            self.append(commit)
        return self._appended

    async def flushed(self) -> None:
        """Wait until all changes so far are durable."""
        ticket = self.flush()
        self.hurry()
        while self.durable_ticket < ticket:
            await self._flush_progress.wait()

    async def flushed_for(self, gateway: str | None) -> None:
        """Wait as `flushed`, but only for timer commands of *gateway*; None: for none.

        The timers' table then also has the attempts that were decided so far.
        """
        ticket = self.flush()
        self.hurry()
        while self.log_ticket < ticket:
            await self._flush_progress.wait()
        if gateway is None:
            return
        ticket = self._appended  # of the attempts, which were queued just now
        while (self.timers.oldest_ticket_of(gateway) or math.inf) <= ticket:
            await self._flush_progress.wait()

    def notify_flushed(self) -> None:
        """Wake `flushed` and `flushed_for`: more is durable."""
        self._flush_progress.set()
        self._flush_progress = trio.Event()

    def _publish(self, batch: Batch) -> None:
        if batch.records:
            until, fires = batch.records.last, list[Fire]()
            while self._fires and self._fires[0].seq <= until:
                fires.append(self._fires.popleft())
            # Before the attempt is published, so that its answer is queued behind it.
            self.timers.add_fires(fires, until=until, ticket=self._appended)
        super()._publish(batch)
        self.notify_flushed()

    # --- the retention --------------------------------------------------------

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

        Args:
            retention_s: Seconds for which records are kept.
            most_bytes: If the log is larger, its oldest records are deleted earlier.
            most_ended: If there are more ended timers, the oldest are deleted earlier.
            in_use: Gives the roles and names that have a link or users.
            forgot: Called with the number of deleted timers, by state.
        """
        retention_ms = round(retention_s * 1000)
        self._note_use_after_ms = retention_ms * USE_NOTED
        # By then all that had a link at the last stop have one again.
        forgets_from = trio.current_time() + TRIM_EVERY_S
        while True:
            now_ms, seq = self._clock.state_ms(), self.durable_seq
            oldest_ms = now_ms - retention_ms
            idle_ms = oldest_ms - round(self._note_use_after_ms + USE_SLACK_S * 1000)
            for key in in_use():
                self.note_use(key)
            with trio.move_on_after(FLUSH_S) as waiting:
                await self.flushed()
                self._flushed_seq = seq
            if waiting.cancelled_caught or trio.current_time() < forgets_from:
                # Forget no name: a later use of it may not be durable yet, or not be noted
                # if the host slept for longer than the retention shortly before a stop.
                idle_ms = 0
            # A failing file must not keep the other one from being trimmed.
            is_behind = await self._trim_log(
                oldest_ms=oldest_ms, most_bytes=most_bytes, idle_ms=idle_ms
            )
            is_behind |= await self._trim_timers(
                oldest_ms=oldest_ms, most_ended=most_ended, forgot=forgot
            )
            note = partial(self.store.trimmer.note, (seq, now_ms), oldest_ms=oldest_ms)
            await self._write_meta(partial(note, retention_ms=retention_ms))
            await trio.sleep(TRIM_PAUSE_S if is_behind else TRIM_EVERY_S)

    async def _trim_log(self, *, oldest_ms: int, most_bytes: int, idle_ms: int) -> bool:
        """Trim the log by one step; return whether there is more to trim.

        The log keeps the attempts that the timers' table lacks: after a crash, they are
        read from it.
        """
        store, until, is_behind = self.store, self.durable_seq, False
        if self.timers.pending or self.timers.fires:
            until = max(self._flushed_seq, self.timers.table.seq)
        step = partial(
            store.trimmer.trim,
            oldest_ms=oldest_ms,
            most_bytes=most_bytes,
            idle_ms=idle_ms,
            until=until,
        )
        try:
            is_behind = await self.writer.once(step)
            (self.first, _), stored, self.log_bytes = await self.writer.once(
                lambda: (store.bounds(), store.cursors(), store.log_bytes())
            )
            self.cursors.forget_idle(stored, idle_ms)
            is_behind |= self.log_bytes > most_bytes and until < self.durable_seq
            if self.failure is None:
                room = max(0, most_bytes - self.log_bytes)
                await self.writer.once(partial(store.reserve.make, log_bytes=room))
        except sqlite3.Error as error:
            self._warn("the log was not trimmed", error)
        return is_behind

    async def _trim_timers(
        self,
        *,
        oldest_ms: int,
        most_ended: int,
        forgot: Callable[[dict[str, int]], None],
    ) -> bool:
        """Trim ended timers by one step; return whether there is more to trim."""
        is_behind = False
        step = partial(self.timers.table.trim, oldest_ms=oldest_ms, most=most_ended)
        try:
            deleted = await self.timers.writer.once(step)
            forgot(deleted)
            is_behind = bool(deleted)
            await self.timers.follow(self.durable_seq)
        except sqlite3.Error as error:
            self._warn("ended timers were not trimmed", error)
        return is_behind
