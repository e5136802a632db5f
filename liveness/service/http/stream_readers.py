"""The readers of streams: each stream reads the log by its own, damped if requested."""

import re
import sqlite3
from collections import deque
from math import inf
from typing import Final, NamedTuple

import structlog

from liveness.core.records import Gap, Subscription
from liveness.core.sessions.damping import MOST_SETTLE_S, DampingCounts, SettlingRoom
from liveness.metrics.counts import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.api import ApiError
from liveness.service.storage.damped_reader import DampedReader
from liveness.service.storage.log_tail import LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter

SETTLE: Final = "settle_s"  # in a query
# How many records the search for a summary reads at a time.
SEARCH_STEP: Final = 1_000

_log = structlog.get_logger("http")


def settle_s_in(query: dict[str, str]) -> float:
    """Take `settle_s` out of the query.

    Raises:
        ApiError: It is not a number of seconds that is allowed.
    """
    text = query.pop(SETTLE, "0")
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", text):
        seconds = float(text)
        if seconds <= MOST_SETTLE_S:
            return seconds
    raise ApiError(
        400,
        f"{SETTLE} is {text!r:.80} in the query; it must be a number of seconds, 0 to "
        f"{MOST_SETTLE_S:g}",
    )


class StreamReaders:
    """Opens the readers of streams.

    At most *max_settling* offlines wait, in all readers together.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        *,
        clock: Clock,
        counts: Counts,
        max_settling: int,
    ) -> None:
        self._log_writer = log_writer
        self._feed = feed
        self._clock = clock
        self._counts = counts
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=clock.mono)
        # For all streams together, as each waiting offline takes memory.
        self._room = SettlingRoom(max_settling)
        self._damping = DampingCounts()

    def open(
        self, wanted: Subscription, position: int, settle_s: float, *, is_resumed: bool
    ) -> DampedReader:
        """A reader of the records after *position*; see `DampedReader`."""
        return DampedReader(
            self._log_writer,
            self._feed,
            wanted,
            position,
            clock=self._clock,
            settle_s=settle_s,
            room=self._room,
            is_resumed=is_resumed,
            counts=self._damping,
        )

    async def take(
        self, reader: DampedReader, limit: int, *, most_bytes: float = inf
    ) -> list[TailEntry]:
        """Take the next entries; see `DampedReader.take`.

        Raises:
            OSError, sqlite3.Error: The log cannot be read now.
        """
        entries = await reader.take(limit, most_bytes=most_bytes)
        if hurried := self._damping.hurried:
            self._counts.limits_met["limits.max_settling"] += hurried
            self._damping.hurried = 0
        return entries

    def log_unread(self, error: Exception) -> None:
        """Log that a stream leaves out records that cannot be read."""
        message = "the log cannot be read: a stream leaves records out"
        self._log_throttled(_log.warning, message, key=message, error=str(error))


class NewestSettled(NamedTuple):
    """The newest entries that a damped stream shows, and how many it leaves out.

    All matching records above `after` are among them, or wait.
    """

    entries: list[TailEntry]
    left_out: int
    after: int


class SettledRecords:
    """The records of one damped stream of summaries: offlines wait in a reader of its own.

    Of the newest records since the last summary, *max_searched* are searched; the
    turnstile is passed before each part of that.
    """

    def __init__(
        self,
        readers: StreamReaders,
        log_writer: LogWriter,
        wanted: Subscription,
        settle_s: float,
        *,
        max_searched: int,
        turnstile: Turnstile,
    ) -> None:
        self._readers = readers
        self._log_writer = log_writer
        self._wanted = wanted
        self._settle_s = settle_s
        self._max_searched = max_searched
        self._turnstile = turnstile
        oldest = log_writer.first - 1
        self._start = max(log_writer.durable_seq - max_searched, oldest)
        self._reader = self._open()

    async def take(self, limit: int) -> NewestSettled:
        """Take all settled records but damaged ones; return the newest *limit*."""
        left_out = 0
        behind = self._log_writer.durable_seq - self._reader.reached
        if behind > self._max_searched:
            left_out = self._skip(self._log_writer.durable_seq - self._max_searched)
        after = self._start
        newest = deque[TailEntry]()
        while True:
            await self._turnstile.wait()
            try:
                entries = await self._readers.take(self._reader, SEARCH_STEP)
            except (sqlite3.Error, OSError) as error:
                self._readers.log_unread(error)
                left_out += self._skip(self._log_writer.durable_seq)
                after = self._start
                break
            # Summaries have no gaps.
            newest += (each for each in entries if not isinstance(each.record, Gap))
            while len(newest) > limit:
                after = max(after, newest.popleft().record.seq)
                left_out += 1
            if not self._reader.is_behind:
                break
        return NewestSettled([*newest], left_out, after)

    def close(self) -> None:
        """Free the room of waiting offlines."""
        self._reader.close()

    def _skip(self, start: int) -> int:
        """Begin again after *start*; return how many records that leaves out."""
        left_out = start - self._reader.reached + self._reader.waiting
        self._reader.close()
        self._start = start
        self._reader = self._open()
        return left_out

    def _open(self) -> DampedReader:
        return self._readers.open(
            self._wanted, self._start, self._settle_s, is_resumed=False
        )
