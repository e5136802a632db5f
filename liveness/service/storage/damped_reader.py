"""Reads the log as a `TailReader` does, without the offlines of users who soon come back.

Records may leave it in another order than that of their seqs, as offlines wait
(`core.sessions.damping`). So it has a position of its own, before everything that waits.

An offline settles when the log was read up to a later moment. At the end of the log that is
the moment up to which everything decided is durable. Stamps are compared in milliseconds of
the monotonic clock, so that steps of the wall clock change nothing.
"""

from math import inf

from liveness.core.cursors import ReadPosition
from liveness.core.records import MOVED, SESSION_KINDS, Gap, Record, Subscription
from liveness.core.sessions.damping import (
    Damper,
    DampingCounts,
    damped_record,
    moved,
)
from liveness.service.common.clock import Clock
from liveness.service.storage.log_tail import (
    LogTail,
    TailEntry,
    TailReader,
)
from liveness.service.storage.log_writer import LogWriter


class DampedReader:
    """Reads the log for one HTTP reader or outlet.

    Args:
        log_writer: The log.
        feed: Its tail.
        wanted: Which records concern the reader.
        position: The seq to begin after.
        clock: For the stamps of gaps, and for what settles.
        counts: How many offlines may wait, and what is counted.
        settle_s: How long a user must be away; 0: no offline waits.
        is_resumed: Records after the position may have been passed on before.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        wanted: Subscription,
        position: int,
        *,
        clock: Clock,
        counts: DampingCounts,
        settle_s: float = 0.0,
        is_resumed: bool = False,
    ) -> None:
        read = wanted
        self._damper: Damper[TailEntry] | None = None
        if settle_s:
            # Whether a user is back, and where, may be in records of other kinds or
            # gateways than those wanted: so all records of sessions are read.
            kinds = wanted.kinds | {*SESSION_KINDS}
            read = wanted._replace(gateway=None, kinds=kinds)
            self._damper = Damper(
                round(settle_s * 1000),
                counts=counts,
                move=_moved,
                wants=self._concerns,
                wants_moves=MOVED in wanted.kinds and not wanted.users,
                has_gateways=wanted.gateway is not None,
                doubtful_until=log_writer.durable_seq if is_resumed else 0,
            )
        self._log_writer = log_writer
        self._clock = clock
        self._wanted = wanted
        self._settle_s = settle_s
        # It has read the log further than `position`, if offlines wait.
        self.tail = TailReader(
            log_writer, feed, ReadPosition(read, position), is_guest=True
        )

    @property
    def position(self) -> int:
        """Everything up to this seq was taken, or does not concern the reader."""
        reached = self.tail.position
        passed = None if self._damper is None else self._damper.position
        return reached if passed is None else min(reached, passed)

    @property
    def is_damped(self) -> bool:
        """Whether entries may leave it in another order than that of their seqs."""
        return self._damper is not None

    @property
    def waiting(self) -> int:
        """How many offlines wait."""
        return 0 if self._damper is None else len(self._damper)

    @property
    def is_behind(self) -> bool:
        """Whether `take` has something to read or to return now."""
        has_more = self._damper is not None and self._damper.has_more
        return has_more or self.tail.is_behind

    @property
    def next_in_s(self) -> float:
        """Seconds until an offline may be passed on; infinity: not before a commit."""
        next_at = None if self._damper is None else self._damper.next_at
        if next_at is None:
            return inf
        wait_ms = next_at - self._mono_ms
        if wait_ms <= 0 and self._log_writer.oldest_pending_ms < next_at:
            return inf
        # At most `settle_s`, if its stamp is from before the wall clock was set back.
        return min(max(0, wait_ms) / 1000, self._settle_s)

    def close(self) -> None:
        """Give back the room of what waits."""
        if self._damper is not None:
            self._damper.close()

    async def take(self, limit: int, *, most_bytes: float = inf) -> list[TailEntry]:
        """Take the next entries, as `TailReader.take` does.

        The work of one call is bounded by *limit*. So it may return none though there are
        more (`is_behind`).

        Raises:
            OSError, sqlite3.Error: The log cannot be read now.
        """
        entries: list[TailEntry] = []
        damper, log_writer = self._damper, self._log_writer
        if self.tail.is_behind and (damper is None or not damper.is_busy):
            entries = await self.tail.take(
                limit, wall_ms=self._clock.wall_ms(), most_bytes=most_bytes
            )
        if damper is None:
            return entries
        for entry in entries:
            record = entry.record
            at = 0 if isinstance(record, Gap) else log_writer.decided_ms(record)
            damper.put(entry, damped_record(record, users=self._wanted.users, at=at))
        if not self.tail.is_behind:
            damper.complete(min(self._mono_ms, log_writer.oldest_pending_ms))
        return [passed.item for passed in damper.take(limit)]

    @property
    def _mono_ms(self) -> int:
        return round(self._clock.mono() * 1000)

    def _concerns(self, entry: TailEntry) -> bool:
        return isinstance(entry.record, Gap) or self._wanted.wants(entry.record)


def _moved(offline: TailEntry, online: TailEntry) -> TailEntry:
    assert isinstance(offline.record, Record)
    assert isinstance(online.record, Record)
    return TailEntry(moved(offline.record, online.record))
