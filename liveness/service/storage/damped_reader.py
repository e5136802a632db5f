"""Reads the log as a `TailReader` does, without the offlines of users who soon come back.

Records may leave it in another order than that of their seqs, as offlines wait
(`core.sessions.damping`). So it has a position of its own, before everything that waits.

An offline settles when the log was read up to a later moment. At the end of the log that is
the moment up to which everything decided is durable. Stamps are compared in milliseconds of
the monotonic clock, so that steps of the wall clock change nothing.
"""

from collections import deque
from math import inf
from typing import Final

from liveness.core.cursors import ReadPosition
from liveness.core.records import (
    MOVED,
    SESSION_KINDS,
    Gap,
    Logged,
    Record,
    Subscription,
)
from liveness.core.sessions.damping import (
    Damper,
    DampingCounts,
    Passed,
    SettlingRoom,
    damped_record,
    moved,
)
from liveness.service.common.clock import Clock
from liveness.service.storage.log_tail import (
    LogTail,
    TailCommit,
    TailEntry,
    TailReader,
)
from liveness.service.storage.log_writer import LogWriter

# A call looks at this many entries for each one that it may return: so it takes only
# milliseconds, however few concern the reader.
STEPS: Final = 4


class DampedReader:
    """Reads the log for one HTTP reader or outlet.

    Args:
        log_writer: The log.
        feed: Its tail.
        wanted: Which records concern the reader.
        position: The seq to begin after.
        clock: For the stamps of gaps, and for what settles.
        settle_s: How long a user must be away; 0: no offline waits.
        room: How many offlines may wait.
        is_resumed: Records after the position may have been passed on before.
        counts: What is counted.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        wanted: Subscription,
        position: int,
        *,
        clock: Clock,
        settle_s: float = 0.0,
        room: SettlingRoom,
        is_resumed: bool = False,
        counts: DampingCounts | None = None,
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
                room=room,
                move=_moved,
                wants_moves=MOVED in wanted.kinds and not wanted.users,
                has_gateways=wanted.gateway is not None,
                doubtful_until=log_writer.durable_seq if is_resumed else 0,
                counts=counts,
            )
        self._log_writer = log_writer
        self._clock = clock
        self._wanted = wanted
        self._settle_s = settle_s
        self._reader = TailReader(
            log_writer, feed, ReadPosition(read, position), is_guest=True
        )
        self._read = deque[TailEntry]()  # and not given to the damper yet
        self._passed = deque[Passed[TailEntry]]()  # by the damper, and not taken yet
        self._may_settle = False  # more may have settled than were taken

    @property
    def position(self) -> int:
        """Everything up to this seq was taken, or does not concern the reader."""
        seqs = [self._reader.position, *(passed.floor - 1 for passed in self._passed)]
        if self._read:
            seqs.append(self._read[0].record.seq - 1)
        if self._damper is not None and self._damper.oldest_seq is not None:
            seqs.append(self._damper.oldest_seq - 1)
        return min(seqs)

    @property
    def reached(self) -> int:
        """The log was read up to this seq."""
        return self._reader.position

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
        has_some = self._read or self._passed or self._may_settle
        return bool(has_some) or self._reader.is_behind

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

    def passes(self, commit: TailCommit) -> bool:
        """As `TailReader.passes`."""
        return self._reader.passes(commit)

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
        if self._reader.is_behind and not (self._read or self._passed):
            entries = await self._reader.take(
                limit, wall_ms=self._clock.wall_ms(), most_bytes=most_bytes
            )
        if self._damper is None:
            return entries
        self._read.extend(entries)
        return self._settled(self._damper, limit)

    @property
    def _mono_ms(self) -> int:
        return round(self._clock.mono() * 1000)

    def _settled(self, damper: Damper[TailEntry], limit: int) -> list[TailEntry]:
        """The entries that may be returned now."""
        taken: list[TailEntry] = []
        for _ in range(STEPS * limit):
            if len(taken) == limit:
                break
            if self._passed:
                entry = self._passed.popleft().item
                if self._concerns(entry.record):
                    taken.append(entry)
            elif self._read:
                self._give(damper)
            elif self._reader.is_behind:
                break
            else:
                settled = self._pop_settled(damper)
                self._may_settle = settled is not None
                if settled is None:
                    break
                self._passed.append(settled)
        return taken

    def _pop_settled(self, damper: Damper[TailEntry]) -> Passed[TailEntry] | None:
        """The next offline that has settled, at the end of the log."""
        next_at = damper.next_at
        if next_at is None or self._log_writer.oldest_pending_ms < next_at:
            return None
        return damper.pop_settled(self._mono_ms)

    def _give(self, damper: Damper[TailEntry]) -> None:
        """Pass on what settled before the next entry, or give the damper that entry."""
        entry = self._read[0]
        record = entry.record
        waits: Passed[TailEntry] | None = None
        if isinstance(record, Record):
            waits = damper.pop_settled(self._log_writer.decided_ms(record))
        elif isinstance(record, Gap):
            waits = damper.pop_oldest()
        if waits is not None:
            self._passed.append(waits)
            return
        self._read.popleft()
        if isinstance(record, Record):
            damped = damped_record(
                record, users=self._wanted.users, at=self._log_writer.decided_ms(record)
            )
            self._passed.extend(damper.add(entry, damped))
        else:
            self._passed.append(Passed(entry, record.seq))

    def _concerns(self, record: Logged | Gap) -> bool:
        return isinstance(record, Gap) or self._wanted.wants(record)


def _moved(offline: TailEntry, online: TailEntry) -> TailEntry:
    assert isinstance(offline.record, Record)
    assert isinstance(online.record, Record)
    return TailEntry(moved(offline.record, online.record))
