"""Who reads the log: a bounded tail in memory, and a cursor for each reader.

The newest records stay in memory, so that live readers cost no read of the disk; a
reader further back is served from there. There is no queue per reader: a slow one
holds a position, not memory, until the log's retention passes it by and a gap says so.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from sys import getsizeof
from typing import Final

import trio

from liveness.core.framing import encode
from liveness.core.records import Gap, Logged, Subscription, TimerRecord
from liveness.service.common.threads import in_thread
from liveness.service.storage.log_store import Batch
from liveness.service.storage.log_writer import LogWriter
from liveness.text import json_line, json_ready

# What a record takes in memory without a payload, about.
RECORD_BYTES: Final = 512

# At most this many readers of the disk at a time; each holds a thread and a file.
DISK_READERS: Final = 4
# And so many of those for whom no user waits.
GUESTS: Final = 2


class TailEntry:
    """A record in the tail, encoded when the first reader wants it, then for all."""

    __slots__ = ("_encoded", "_event", "_json", "due", "record")

    def __init__(self, record: Logged | Gap, due: float = 0.0) -> None:
        self.record = record
        self.due = due
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
            self._json = json_line(json_ready(self.record.as_map()))
        return self._json

    @property
    def event(self) -> bytes:
        """The record as a server-sent event, but for the log in front of its id's seq."""
        if self._event is None:
            record = self.record
            head = f":{record.seq}\nevent: {record.kind}\n"
            self._event = f"{head}data: {self.json}\n\n".encode()
        return self._event


def _weight(record: Logged) -> int:
    """How many records without a payload take as much memory, about."""
    if type(record) is not TimerRecord or record.payload is None:
        return 1
    return 1 + getsizeof(record.payload) // RECORD_BYTES


class Commit:
    """The records of one commit, and which gateways they concern."""

    __slots__ = ("by_gateway", "entries", "first", "last", "weight")

    def __init__(self, batch: Batch) -> None:
        self.entries = [
            TailEntry(record, due)
            for record, due in zip(batch.records, batch.due, strict=True)
        ]
        self.first, self.last = batch.records[0].seq, batch.records[-1].seq
        self.weight = sum(map(_weight, batch.records))
        self.by_gateway: dict[str, list[TailEntry]] = {}
        for entry, record in zip(self.entries, batch.records, strict=True):
            self.by_gateway.setdefault(record.gateway, []).append(entry)
            if record.from_gateway not in (None, record.gateway):
                self.by_gateway.setdefault(record.from_gateway, []).append(entry)


class LogTail:
    """The tail of the log, and those who wait for more of it.

    Args:
        keep: Records kept in memory, where what a timer carries counts as well; whole
            commits beyond that are let go.
    """

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._kept = 0
        self._tail: deque[Commit] = deque()
        self._readers: dict[Cursor, Callable[[], None]] = {}
        self._awaiting: dict[Callable[[], None], None] = {}
        self.disk = trio.CapacityLimiter(DISK_READERS)
        self.guests = trio.CapacityLimiter(GUESTS)

    def publish(self, batch: Batch) -> None:
        """Take a batch that is on disk, and wake whom it concerns."""
        if batch.records:
            commit = Commit(batch)
            self._tail.append(commit)
            self._kept += commit.weight
            while self._kept > self._keep and len(self._tail) > 1:
                self._kept -= self._tail.popleft().weight
            for cursor, notify in self._readers.items():
                if not cursor.passes(commit):
                    notify()
        self.notify_waiting()

    def notify_waiting(self) -> None:
        """Wake those who wait for a commit, of whatever."""
        awaiting, self._awaiting = self._awaiting, {}
        for notify in awaiting:
            notify()

    def follow(self, cursor: "Cursor", notify: Callable[[], None]) -> None:
        """Call *notify* whenever records that concern *cursor* have come to disk."""
        self._readers[cursor] = notify

    def unfollow(self, cursor: "Cursor") -> None:
        """Stop calling for *cursor*."""
        self._readers.pop(cursor, None)

    def notify_at_commit(self, notify: Callable[[], None]) -> None:
        """Call *notify* once, after the next commit."""
        self._awaiting[notify] = None

    def reaches(self, after: int) -> bool:
        """Whether all records above *after* are in memory."""
        return bool(self._tail) and self._tail[0].first <= after + 1

    def since(self, after: int, wanted: Subscription) -> Iterator[TailEntry]:
        """The entries above *after* that concern a reader, from memory."""
        # From the newest back: a live reader lacks the last commit or two.
        commits: list[Commit] = []
        for commit in reversed(self._tail):
            if commit.last <= after:
                break
            commits.append(commit)
        for commit in reversed(commits):
            entries = commit.entries
            if wanted.gateway is not None:
                entries = commit.by_gateway.get(wanted.gateway, [])
            for entry in entries:
                record = entry.record
                assert not isinstance(record, Gap)  # they are made for one reader
                if record.seq > after and wanted.wants(record):
                    yield entry


class Cursor:
    """One reader's position in the log.

    Args:
        log_writer: The log.
        feed: Its tail.
        wanted: Which records concern it.
        position: Everything up to here was given out, or did not concern it.
        is_guest: No gateway waits for it, and it waits for none at the disk.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        *,
        wanted: Subscription,
        position: int,
        is_guest: bool = False,
    ) -> None:
        self.wanted = wanted
        self.position = position
        self._log_writer = log_writer
        self._feed = feed
        self._disk = feed.guests if is_guest else feed.disk

    def passes(self, commit: Commit) -> bool:
        """Go past a commit that does not concern this reader, if it is that far.

        Waking a thousand idle links for the records of one costs more than the
        records do.
        """
        gateway = self.wanted.gateway
        if gateway is None or gateway in commit.by_gateway:
            return False
        if self.position == commit.first - 1:
            self.position = commit.last
        return True

    @property
    def is_behind(self) -> bool:
        """Whether there is something on disk that was not looked at."""
        return self.position < self._log_writer.durable_seq

    async def take(
        self, limit: int, *, wall_ms: int, most_bytes: float = inf
    ) -> list[TailEntry]:
        """Give the next entries that concern this reader, in order, and move on.

        Args:
            limit: At most this many.
            wall_ms: Now, as the stamp of a gap.
            most_bytes: No more behind the one with which they have so many, encoded; or,
                from disk, behind its page of the log.
        """
        if self._feed.reaches(self.position):
            return self._from_memory(limit, most_bytes)
        read = partial(
            self._log_writer.store.read,
            after=self.position,
            until=self._log_writer.durable_seq,
            wanted=self.wanted,
            limit=limit,
            most_bytes=most_bytes,
        )
        page = await in_thread(read, limiter=self._disk)
        if self.position < page.lost:
            gap = Gap(self.position + 1, page.first, wall_ms)
            self.position = gap.seq
            return [TailEntry(gap)]
        self.position = page.reached
        return [TailEntry(record) for record in page.records]

    def _from_memory(self, limit: int, most_bytes: float) -> list[TailEntry]:
        taken: list[TailEntry] = []
        size = 0
        end = self._log_writer.durable_seq
        for entry in self._feed.since(self.position, self.wanted):
            taken.append(entry)
            size += len(entry.encoded) if most_bytes < inf else 0
            if len(taken) == limit or size >= most_bytes:
                end = entry.record.seq
                break
        self.position = end
        return taken
