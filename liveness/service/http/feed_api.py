"""The log as server-sent events: one for each record, once it is durable.

    GET /v1/feed   ?after=ID&kind=offline,moved&uid=UID&gateway=NAME&users=true&settle_s=N

The id of an event is `LOG:SEQ`; with `settle_s`, its seq is a position from which a reader
continues without a loss. A browser that reconnects sends its last id, and continues there.
If that id is of another log, the stream begins at the oldest record kept, or, if this log
continues that one, after their last common record. `after` may be a seq alone, of any log.
The first event of each stream, `log`, has the id of this log and the start of the stream.

A reader has no queue, only a position in the log, as readers on links do. A reader that
falls too far behind gets an event that says so, and its stream ends.
"""

import re
import sqlite3
from math import inf
from typing import Final

import structlog
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from liveness.core.sessions.damping import MOST_SETTLE_S, DampingCounts
from liveness.core.wire.uids import MAX_INTEGER
from liveness.metrics.counts import Counts
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.engine.engine import Engine
from liveness.service.http import api
from liveness.service.http.event_stream import (
    FEED,
    STOPPING,
    Stream,
    StreamEnded,
    Streams,
    event,
)
from liveness.service.storage.damped_reader import DampedReader
from liveness.service.storage.log_tail import TailEntry
from liveness.text import json_line

# Records read at a time. Encoding them takes 2 ms, once for all readers.
EVENTS_AT_ONCE: Final = 200
# Bytes of one write, before its last event. A reader takes a few times as much memory.
EVENTS_BYTES: Final = 128 * 2**10
# After a write, new records are collected for this long. With many readers, a write for
# each commit and reader would leave no time for anything else.
GATHER_S: Final = 0.05
_ID: Final = re.compile(r"([0-9a-f]{1,64}):([0-9]{1,19})")

_log = structlog.get_logger("http")


class FeedApi:
    """The route of the feed. At most *max_settling* offlines wait, in all its streams."""

    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        counts: Counts,
        *,
        max_backlog: int,
        max_settling: int,
    ) -> None:
        self._log_writer, self._feed = engine.log_writer, engine.feed
        self._streams = streams
        self._clock = engine.clock
        self._counts = counts
        self._max_backlog = max_backlog
        self._damping = DampingCounts(max_settling)
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=engine.clock.mono)

    def routes(self) -> list[Route]:
        return [Route("/v1/feed", self._answer)]

    async def _answer(self, request: Request) -> Response:
        query = api.query_of(request, "after", "settle_s", *api.SUBSCRIPTION)
        after = query.pop("after", None)
        settle_s, subscription = _settle_s(query), api.subscription_in(query)
        last_id = request.headers.get("last-event-id")
        position, is_new = self._start(after, last_id)

        async def produce(stream: Stream) -> None:
            reader = DampedReader(
                self._log_writer,
                self._feed,
                subscription,
                position,
                clock=self._clock,
                settle_s=settle_s,
                is_resumed=after is not None or last_id is not None,
                counts=self._damping,
            )
            await self._send_records(stream, reader, is_new=is_new)

        return self._streams.events(FEED, produce)

    def _start(self, after: str | None, last_id: str | None) -> tuple[int, bool]:
        """The seq after which to begin, and whether this log is new to the reader."""
        log_writer = self._log_writer
        newest, oldest = log_writer.durable_seq, log_writer.first - 1
        if last_id is None and after is None:
            return newest, False
        log, seq = _place(after or "", last_id)
        # A log that ends below that seq has lost its end, and counts as another one.
        if log in (None, log_writer.log) and seq <= newest:
            return seq, False
        # A log that this is a copy of has the same records up to the last shared seq.
        last_shared = log_writer.ancestors.get(log or "")
        return oldest if last_shared is None else min(seq, last_shared), True

    async def _send_records(
        self, stream: Stream, reader: DampedReader, *, is_new: bool
    ) -> None:
        log_writer, log = self._log_writer, self._log_writer.store.log
        first = json_line({"log": log, "seq": reader.position, "new": is_new})
        await stream.send(event("log", first, id=f"{log}:{reader.position}"))
        id_ = f"id: {log}".encode()  # in front of each event
        self._feed.follow(reader.tail, stream.wake.notify)
        try:
            least = inf  # the fewest records that the reader was behind
            has_settled = False
            while True:
                while reader.is_behind or has_settled:
                    has_settled = False
                    is_last = stream.streams.is_stopping
                    behind = log_writer.durable_seq - reader.tail.position
                    least = min(least, behind)
                    if behind - least > self._max_backlog:
                        raise self._too_slow(behind)
                    if reader.is_damped:  # it may hold back all its records
                        await stream.streams.turnstile.wait()
                    entries = await self._read(reader)
                    entries.reverse()
                    while entries:
                        await stream.send(_take_events(entries, id_))
                    if is_last:
                        raise StreamEnded(STOPPING)
                least = 0
                await trio.sleep(GATHER_S)
                has_settled = not await stream.wait(reader.next_in_s)
        finally:
            self._feed.unfollow(reader.tail)
            reader.close()

    async def _read(self, reader: DampedReader) -> list[tuple[int, TailEntry]]:
        """Read the next entries, each with the seq of its id."""
        before = reader.position
        try:
            entries = await reader.take(EVENTS_AT_ONCE, most_bytes=EVENTS_BYTES)
            if hurried := self._damping.hurried:
                self._counts.limits_met["limits.max_settling"] += hurried
                self._damping.hurried = 0
            if not reader.is_damped:
                return [(entry.record.seq, entry) for entry in entries]
            # The new position is right only once all entries are sent: so only the last one
            # has it.
            seqs = [before] * (len(entries) - 1) + [reader.position]
            return [*zip(seqs, entries, strict=False)]
        except (sqlite3.Error, OSError) as error:
            message = "the log cannot be read for a stream, which ends"
            self._log_throttled(_log.warning, message, key=message, error=str(error))
            why = f"the log cannot be read ({error}); connect again to continue"
            raise StreamEnded(why) from error

    def _too_slow(self, behind: int) -> StreamEnded:
        self._counts.limits_met["http.max_backlog"] += 1
        message = "a reader of /v1/feed is too slow: its stream ends"
        self._log_throttled(_log.warning, message, key=message, behind=behind)
        return StreamEnded(
            f"you are {behind} records behind, and have fallen back by more than "
            f"{self._max_backlog} (http.max_backlog): read faster, or ask for less, and "
            "connect again to continue"
        )


def _take_events(entries: list[tuple[int, TailEntry]], id_: bytes) -> bytes:
    """Take the events for one write from the end of *entries*, which frees their memory."""
    events, size = list[bytes](), 0
    while entries and size < EVENTS_BYTES:
        seq, entry = entries.pop()
        events += b"%b:%d\n" % (id_, seq), entry.event
        size += len(entry.event)
    return b"".join(events)


def _settle_s(query: dict[str, str]) -> float:
    text = query.pop("settle_s", "0")
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", text):
        seconds = float(text)
        if seconds <= MOST_SETTLE_S:
            return seconds
    raise api.ApiError(
        400,
        f"settle_s is {text!r:.80} in the query; it must be a number of seconds, 0 to "
        f"{MOST_SETTLE_S:g}",
    )


def _place(after: str, last_id: str | None) -> tuple[str | None, int]:
    """The log and the seq after which to continue; None: any log."""
    is_seq = last_id is None and re.fullmatch("[0-9]{1,19}", after)
    if is_seq and int(after) <= MAX_INTEGER:
        return None, int(after)
    name, text = ("after", after) if last_id is None else ("Last-Event-ID", last_id)
    found = _ID.fullmatch(text)
    if found is None:
        message = f"{name} is {text!r:.80}; it must be the id of an event, LOG:SEQ"
        raise api.ApiError(
            400, f"{message}; after may be a seq, too, or 0 for all records"
        )
    return found[1], int(found[2])
