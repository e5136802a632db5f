"""The readers of streams: each stream reads the log by its own, damped if requested."""

import re
from math import inf
from typing import Final

from liveness.core.records import Subscription
from liveness.core.sessions.damping import MOST_SETTLE_S, DampingCounts, SettlingRoom
from liveness.metrics.counts import Counts
from liveness.service.common.clock import Clock
from liveness.service.http.api import ApiError
from liveness.service.storage.damped_reader import DampedReader
from liveness.service.storage.log_tail import LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter

SETTLE: Final = "settle_s"  # in a query


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
