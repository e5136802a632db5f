"""The log as it grows, over HTTP: a server-sent event for each record.

    GET /v1/feed   ?after=SEQ&kind=offline,moved&uid=UID&gateway=NAME

Each event's id is `LOG:SEQ`. A browser that connects anew sends the last one, and goes on
behind it; where that is of another log, from the oldest record kept, or, if this log is a
copy of that, from where they part. The first event of every answer, `log`, says which log
it is and from where it goes on.

As with every reader there is no queue: a slow one has a position, which may fall behind
by so many records; then it is told so, and let go.
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

from liveness.core.records import Subscription
from liveness.core.uids import MAX_INTEGER
from liveness.metrics import Counts
from liveness.service.common.clock import Clock
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.http.api import ApiError, answering, query_of, subscription_in
from liveness.service.http.event_stream import (
    STOPPING,
    StreamEnded,
    StreamKind,
    StreamListener,
    Streams,
    event,
)
from liveness.service.storage.log_tail import Cursor, LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter
from liveness.text import json_line

# StreamEnded at a time: for the first who wants them it takes two milliseconds to write them.
EVENTS_AT_ONCE: Final = 200
# StreamEnded at once, and one event more: some times as much is in memory for each reader.
EVENTS_BYTES: Final = 128 * 2**10
# What comes soon after something was told is gathered for so long: one write for each
# commit and each of many readers would leave no time for anything else.
GATHER_S: Final = 0.05
_ID: Final = re.compile(r"([0-9a-f]{1,64}):([0-9]{1,19})")

_log = structlog.get_logger("http")


class FeedApi:
    """The pages.

    Args:
        log_writer: The log.
        feed: Its tail.
        streams: Where the answers have their places.
        clock: For the stamp of a gap.
        counts: Where readers that are let go are counted.
        max_backlog: So many records a reader may fall further behind.
    """

    def __init__(
        self,
        log_writer: LogWriter,
        feed: LogTail,
        streams: Streams,
        *,
        clock: Clock,
        counts: Counts,
        max_backlog: int,
    ) -> None:
        self._log_writer = log_writer
        self._feed = feed
        self._streams = streams
        self._clock = clock
        self._counts = counts
        self._max_backlog = max_backlog
        self._every = Every(SAY_AGAIN_S, clock=clock.mono)

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door, whichever it is."""
        return [Route("/v1/feed", answering(self._answer))]

    async def _answer(self, request: Request) -> Response:
        query = query_of(request, "after", "kind", "uid", "gateway")
        after = _number(query.pop("after", None))
        wanted = subscription_in(query)
        position, is_new = self._place(after, request.headers.get("last-event-id"))

        async def tell(listener: StreamListener) -> None:
            await self._tell(listener, wanted, position, is_new=is_new)

        return self._streams.events(StreamKind.FEED, tell)

    def _place(self, after: int | None, last_id: str | None) -> tuple[int, bool]:
        """From where to go on, and whether the reader knows another log."""
        log_writer = self._log_writer
        newest, oldest = log_writer.durable_seq, log_writer.first - 1
        if last_id is None:
            if after is None:
                return newest, False
            return (after, False) if after <= newest else (oldest, True)
        found = _ID.fullmatch(last_id)
        if found is None:
            told = f"Last-Event-ID is {last_id!r:.80}; it must be the id of an event of"
            raise ApiError(
                400, f"{told} this page, LOG:SEQ; leave it out, or use after=SEQ"
            )
        log, seq = found[1], int(found[2])
        # A log that ends below it has lost its end: it is another one by now.
        if log == log_writer.store.log and seq <= newest:
            return seq, False
        # Of a log of which this one is a copy it is the same up to where they part.
        parted = log_writer.store.parted.get(log)
        return oldest if parted is None else min(seq, parted), True

    async def _tell(
        self,
        listener: StreamListener,
        wanted: Subscription,
        position: int,
        *,
        is_new: bool,
    ) -> None:
        log_writer, log = self._log_writer, self._log_writer.store.log
        cursor = Cursor(
            *(log_writer, self._feed),
            wanted=wanted,
            position=position,
            is_guest=True,
        )
        begin = json_line({"log": log, "seq": position, "new": is_new})
        await listener.tell(event("log", begin, id=f"{log}:{position}"))
        id_ = f"id: {log}".encode()  # in front of each event
        self._feed.follow(cursor, listener.wake.notify)
        try:
            least = inf  # records it was behind, when it was nearest to the end
            while True:
                while cursor.is_behind:
                    is_last = listener.is_stopping
                    behind = log_writer.durable_seq - cursor.position
                    least = min(least, behind)
                    if behind - least > self._max_backlog:
                        raise self._too_slow(behind)
                    entries = await self._take(cursor)
                    entries.reverse()
                    while entries:
                        await listener.tell(_taken(entries, id_))
                    if is_last:
                        raise StreamEnded(STOPPING)
                least = 0
                await trio.sleep(GATHER_S)
                await listener.wait()
        finally:
            self._feed.unfollow(cursor)

    async def _take(self, cursor: Cursor) -> list[TailEntry]:
        try:
            return await cursor.take(
                EVENTS_AT_ONCE,
                wall_ms=self._clock.wall_ms(),
                most_bytes=EVENTS_BYTES,
            )
        except (sqlite3.Error, OSError) as error:
            say = "the log cannot be read for a stream, which ends"
            self._every(_log.warning, say, key=say, error=str(error))
            told = f"the log cannot be read ({error}); connect again to go on"
            raise StreamEnded(told) from error

    def _too_slow(self, behind: int) -> StreamEnded:
        self._counts.limits_met["http.max_backlog"] += 1
        say = "a reader of /v1/feed is too slow, and was let go"
        self._every(_log.warning, say, key=say, behind=behind)
        return StreamEnded(
            f"you are {behind} records behind, and have fallen back by more than "
            f"{self._max_backlog}: read faster, ask for less, or raise http.max_backlog; "
            "connect again to go on"
        )


def _taken(entries: list[TailEntry], id_: bytes) -> bytes:
    """Take events from the end, as many as are told together; none is kept meanwhile."""
    events, size = list[bytes](), 0
    while entries and size < EVENTS_BYTES:
        event = entries.pop().event
        events += id_, event
        size += len(event)
    return b"".join(events)


def _number(after: str | None) -> int | None:
    if after is None or (
        re.fullmatch("[0-9]{1,19}", after) and int(after) <= MAX_INTEGER
    ):
        return None if after is None else int(after)
    told = f"after is {after!r:.80} in the query; it must be a seq, 0 for all there are"
    raise ApiError(400, told)
