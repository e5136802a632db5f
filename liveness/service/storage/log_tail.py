"""The tail of the log in memory, and what reads it.

The newest records stay in memory, so that live readers need no disk. A reader that is
further behind reads from disk. Readers have no queues: a slow one costs no memory, only
its position is kept. If records are trimmed that it has not read, it gets a gap.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from math import inf
from sys import getsizeof
from typing import Final

import trio

from liveness.core.cursors import ReadPosition
from liveness.core.records import Gap, Logged, Subscription
from liveness.core.wheel.record_batch import Encoded, RecordBatch
from liveness.core.wire.framing import encode
from liveness.service.common.threads import in_thread
from liveness.service.storage.log_store import Batch
from liveness.service.storage.log_writer import LogWriter
from liveness.service.storage.record_json import record_json

# The memory that a record without a payload takes, about.
RECORD_BYTES: Final = 512

# At most this many links read from disk at a time; each uses a thread and an open file.
DISK_READERS: Final = 4
# The same for HTTP readers, which must not delay links.
GUESTS: Final = 2


class TailEntry:
    """A record in the tail. It is encoded once, when the first reader needs it."""

    # `cached_property` would take a lock for each: up to Python 3.11, a microsecond.
    __slots__ = ("_encoded", "_event", "_json", "record")

    def __init__(self, record: Logged | Gap) -> None:
        self.record = record
        self._encoded: bytes | None = None
        self._json: str | None = None
        self._event: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The record as msgpack."""
        if self._encoded is None:
            self._encoded = encode(self.record.as_map())
        return self._encoded

    @property
    def json(self) -> str:
        """The record as one line of JSON."""
        if self._json is None:
            self._json = record_json(self.record)
        return self._json

    @property
    def event(self) -> bytes:
        """The record as a server-sent event, without its id in front."""
        if self._event is None:
            self._event = f"event: {self.record.kind}\ndata: {self.json}\n\n".encode()
        return self._event


class TailCommit:
    """The records of one commit, with an entry for each that was asked for."""

    __slots__ = ("_entries", "first", "gateways", "last", "records", "weight")

    def __init__(self, records: RecordBatch) -> None:
        self.records = records
        self.first, self.last = records.first, records.last
        self.gateways = records.gateways
        # The memory that they take, in units of a record without a payload.
        self.weight = len(records) + sum(
            getsizeof(timer.payload) // RECORD_BYTES
            for timer in records.timers
            if timer.payload is not None
        )
        self._entries: dict[int, TailEntry] = {}  # by place

    def concerns(self, wanted: Subscription) -> bool:
        """Whether there may be records here that a reader gets."""
        return wanted.gateway is None or wanted.gateway in self.gateways

    def entry(self, place: int) -> TailEntry:
        """The entry of the record at a place, the same one for all readers."""
        entry = self._entries.get(place)
        if entry is None:
            entry = self._entries[place] = TailEntry(self.records[place])
        return entry


class LogTail:
    """The newest commits, and the readers that wait for the next one.

    Args:
        keep: Records kept in memory. A timer's payload counts as further records. The
            oldest commits are dropped whole, but never the newest.
    """

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._weight = 0
        self._tail: deque[TailCommit] = deque()
        self._readers: dict[TailReader, Callable[[], None]] = {}
        self._awaiting: dict[Callable[[], None], None] = {}
        self.disk = trio.CapacityLimiter(DISK_READERS)
        self.guests = trio.CapacityLimiter(GUESTS)

    def publish(self, batch: Batch) -> None:
        """Add a durable batch, and wake the readers that it concerns."""
        if batch.records:
            commit = TailCommit(batch.records)
            self._tail.append(commit)
            self._weight += commit.weight
            while self._weight > self._keep and len(self._tail) > 1:
                self._weight -= self._tail.popleft().weight
            for reader, notify in self._readers.items():
                if not reader.passes(commit):
                    notify()
        self.notify_waiting()

    def notify_waiting(self) -> None:
        """Make the calls that `notify_at_commit` registered."""
        awaiting, self._awaiting = self._awaiting, {}
        for notify in awaiting:
            notify()

    def follow(self, reader: "TailReader", notify: Callable[[], None]) -> None:
        """Call *notify* after each commit with records that concern *reader*."""
        self._readers[reader] = notify

    def unfollow(self, reader: "TailReader") -> None:
        self._readers.pop(reader, None)

    def notify_at_commit(self, notify: Callable[[], None]) -> None:
        """Call *notify* once, after the next commit."""
        self._awaiting[notify] = None

    @property
    def first(self) -> int | None:
        """The oldest seq in memory."""
        return self._tail[0].first if self._tail else None

    def reaches(self, after: int) -> bool:
        """Whether all records above *after* are in memory."""
        return bool(self._tail) and self._tail[0].first <= after + 1

    def commits(self, after: int, wanted: Subscription) -> list[TailCommit]:
        """The commits above *after* that may concern a reader, the oldest first."""
        found = takewhile(lambda commit: commit.last > after, reversed(self._tail))
        return [commit for commit in found if commit.concerns(wanted)][::-1]

    def since(self, after: int, wanted: Subscription) -> Iterator[TailEntry]:
        """The entries above *after* that concern a reader, from memory."""
        for commit in self.commits(after, wanted):
            places = commit.records.places(after, wanted, limit=len(commit.records))
            yield from map(commit.entry, places)


class TailReader:
    """Reads the log for one reader.

    *is_guest*: it is an HTTP reader, whose reads from disk must not delay those of links.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        reading: ReadPosition,
        *,
        is_guest: bool = False,
    ) -> None:
        self._reading = reading
        self._log_writer = log_writer
        self._feed = feed
        self._disk = feed.guests if is_guest else feed.disk

    @property
    def position(self) -> int:
        """All records up to this seq were taken, or do not concern the reader."""
        return self._reading.seq

    def passes(self, commit: TailCommit) -> bool:
        """Skip a commit that does not concern this reader; return whether it does not.

        So the reader need not wake: waking a thousand idle links for the records of
        another one costs more than the records do. The position moves only if the reader
        had read everything before the commit.
        """
        if commit.concerns(self._reading.wanted):
            return False
        if self._reading.seq == commit.first - 1:
            self._reading.seq = commit.last
        return True

    @property
    def is_behind(self) -> bool:
        """Whether there are durable records after its position."""
        return self.position < self._log_writer.durable_seq

    async def take(
        self, limit: int, *, wall_ms: int, most_bytes: float = inf
    ) -> list[TailEntry]:
        """Take the next entries that concern this reader, in order; at most *limit*.

        A gap has the stamp *wall_ms*. It stops once the encoded entries have
        *most_bytes*; when reading from disk, at the end of that page.
        """
        if self._feed.reaches(self.position):
            return self._from_memory(limit, most_bytes)
        return await self._from_disk(limit, wall_ms, most_bytes)

    async def take_encoded(
        self, limit: int, *, wall_ms: int, most_bytes: float, own: str | None
    ) -> Encoded:
        """As `take`, for a link: the records as msgpack maps.

        *own* is the link's own gateway; None: it has none.
        """
        if self._feed.reaches(self.position):
            return self._encoded_from_memory(limit, most_bytes, own)
        # Of records that are read from disk, no deadline is known.
        entries = await self._from_disk(limit, wall_ms, most_bytes)
        maps = b"".join(entry.encoded for entry in entries)
        return Encoded([entry.record.seq for entry in entries], maps, [])

    async def _from_disk(
        self, limit: int, wall_ms: int, most_bytes: float
    ) -> list[TailEntry]:
        read = partial(
            self._log_writer.store.read,
            after=self.position,
            until=self._log_writer.durable_seq,
            wanted=self._reading.wanted,
            limit=limit,
            most_bytes=most_bytes,
        )
        page = await in_thread(read, limiter=self._disk)
        if self.position < page.lost:
            gap = Gap(self.position + 1, page.first, wall_ms)
            self._reading.seq = gap.seq
            return [TailEntry(gap)]
        self._reading.seq = page.reached
        return [TailEntry(record) for record in page.records]

    def _from_memory(self, limit: int, most_bytes: float) -> list[TailEntry]:
        taken: list[TailEntry] = []
        size = 0
        end = self._log_writer.durable_seq
        for entry in self._feed.since(self.position, self._reading.wanted):
            taken.append(entry)
            size += len(entry.encoded) if most_bytes < inf else 0
            if len(taken) == limit or size >= most_bytes:
                end = entry.record.seq
                break
        self._reading.seq = end
        return taken

    def _encoded_from_memory(
        self, limit: int, most_bytes: float, own: str | None
    ) -> Encoded:
        seqs: list[int] = []
        maps: list[bytes] = []
        deadlines: list[float] = []
        size, end = 0, self._log_writer.durable_seq
        wanted = self._reading.wanted
        for commit in self._feed.commits(self.position, wanted):
            found = commit.records.encoded(
                self.position,
                wanted,
                limit=limit - len(seqs),
                most_bytes=most_bytes - size,
                own=own,
            )
            seqs += found.seqs
            maps.append(found.maps)
            deadlines += found.deadlines
            size += len(found.maps)
            if len(seqs) == limit or size >= most_bytes:
                end = seqs[-1]
                break
        self._reading.seq = end
        return Encoded(seqs, b"".join(maps), deadlines)
