"""Reads the log as a `TailReader` does, without the offlines of users who soon come back.

Records may leave it in another order than that of their seqs, as offlines wait
(`core.damping`). So it has a position of its own, behind which nothing waits.
"""

from collections import deque
from collections.abc import Iterator
from math import inf

from liveness.core.cursors import ReadPosition
from liveness.core.damping import Damper, DampingCounts, damped_record, moved
from liveness.core.records import (
    MOVED,
    SESSION_KINDS,
    Gap,
    Logged,
    Record,
    Subscription,
)
from liveness.service.storage.log_tail import (
    LogTail,
    TailCommit,
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
        settle_s: How long a user must be away; 0: no offline waits.
        most_waiting: Offlines that may wait.
        gateways: Only records of these gateways concern the reader; none: of all.
        is_resumed: Records behind the position may have been passed on before.
        counts: What is counted.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        wanted: Subscription,
        position: int,
        *,
        settle_s: float = 0.0,
        most_waiting: int,
        gateways: frozenset[str] = frozenset(),
        is_resumed: bool = False,
        counts: DampingCounts | None = None,
    ) -> None:
        read = wanted
        self._damper: Damper[TailEntry] | None = None
        if settle_s:
            # What decides is where else a user is, and whether it is back: so the other
            # records of sessions are read as well.
            kinds = wanted.kinds | {*SESSION_KINDS}
            read = wanted._replace(gateway=None, kinds=kinds)
            self._damper = Damper(
                round(settle_s * 1000),
                most=most_waiting,
                move=None if wanted.users else self._moved,
                doubtful_until=log_writer.durable_seq if is_resumed else 0,
                counts=counts,
            )
        self._wanted = wanted
        self._gateways = gateways
        self._settle_s = settle_s
        self._reader = TailReader(
            log_writer, feed, ReadPosition(read, position), is_guest=True
        )
        self._ready = deque[TailEntry]()

    @property
    def position(self) -> int:
        """Everything up to this seq was taken, or does not concern the reader."""
        seqs = [entry.record.seq - 1 for entry in self._ready]
        if self._damper is not None and self._damper.oldest_seq is not None:
            seqs.append(self._damper.oldest_seq - 1)
        return min([self._reader.position, *seqs])

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
        return bool(self._ready) or self._reader.is_behind

    def next_in_s(self, wall_ms: int) -> float:
        """Seconds until an offline may be passed on; infinity if none waits."""
        next_at = None if self._damper is None else self._damper.next_at
        if next_at is None:
            return inf
        # No longer, also if the wall clock was set back: `take` heeds that.
        return min(max(0.0, (next_at - wall_ms) / 1000), self._settle_s)

    def passes(self, commit: TailCommit) -> bool:
        """As `TailReader.passes`."""
        return self._reader.passes(commit)

    async def take(
        self, limit: int, *, wall_ms: int, most_bytes: float = inf
    ) -> list[TailEntry]:
        """Take the next entries, as `TailReader.take` does.

        Raises:
            OSError, sqlite3.Error: The log cannot be read now.
        """
        if self._damper is None:
            entries = await self._reader.take(
                limit, wall_ms=wall_ms, most_bytes=most_bytes
            )
            if not self._gateways:
                return entries
            return [entry for entry in entries if self._is_of_gateways(entry.record)]
        if not self._ready:
            if self._reader.is_behind:
                for entry in await self._reader.take(
                    limit, wall_ms=wall_ms, most_bytes=most_bytes
                ):
                    self._ready.extend(self._damped(self._damper, entry))
            if not self._reader.is_behind:
                self._ready.extend(self._concerning(self._damper.read_until(wall_ms)))
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def _damped(
        self, damper: Damper[TailEntry], entry: TailEntry
    ) -> Iterator[TailEntry]:
        record = entry.record
        if isinstance(record, Record):
            damped = damped_record(record, users=self._wanted.users)
            yield from self._concerning(damper.add(entry, damped))
            return
        if isinstance(record, Gap):
            yield from self._concerning(damper.flush())
        yield entry

    def _concerning(self, entries: Iterator[TailEntry]) -> Iterator[TailEntry]:
        """Those that the reader wants, of what its damper passes on."""
        for entry in entries:
            record = entry.record
            assert not isinstance(record, Gap)
            if self._wanted.wants(record) and self._is_of_gateways(record):
                yield entry

    def _is_of_gateways(self, record: Logged | Gap) -> bool:
        if not self._gateways or isinstance(record, Gap):
            return True
        return not self._gateways.isdisjoint((record.gateway, record.from_gateway))

    def _moved(self, offline: TailEntry, online: TailEntry) -> tuple[TailEntry, ...]:
        """What is passed on of a user who is back through another gateway: a move.

        A reader of some gateways that wants no moves would never read that the user has
        left them, or come to them: it gets the offline and the online, as far as they are
        of its gateways.
        """
        has_gateways = bool(self._gateways or self._wanted.gateway)
        if has_gateways and MOVED not in self._wanted.kinds:
            return offline, online
        assert isinstance(offline.record, Record)
        assert isinstance(online.record, Record)
        return (TailEntry(moved(offline.record, online.record)),)
