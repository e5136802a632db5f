"""The wheel as it turns, over HTTP.

    GET /v1/wheel   one summary
    GET /v1/live    ?kind=offline,moved&uid=UID&gateway=NAME
                    the last minutes, and then a summary a second, with the newest records

A stream of summaries costs the same whatever the load: of the records that are wanted
each has the newest, and how many more there were. A reader that is slow misses seconds.
"""

from collections import deque
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from liveness.core.records import Subscription
from liveness.service.http.api import answering, json_text, query_of, subscription_in
from liveness.service.http.event_stream import (
    StreamKind,
    StreamListener,
    Streams,
    event,
)
from liveness.service.http.pacing import SharedPages, Turnstile
from liveness.service.http.summary import Summaries
from liveness.service.storage.log_tail import LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter
from liveness.text import json_line

# In one summary: more than a person reads in a second.
MOST_RECORDS: Final = 50
# Of what came since the last summary so many are looked at, the newest: twice what the
# promises allow for a second. The others count as left out, wanted or not.
LOOKED_AT: Final = 20_000


class LiveApi:
    """The pages.

    Args:
        summaries: What is told.
        log_writer: The log.
        feed: Its tail.
        streams: Where the answers have their places.
        turnstile: Whoever waited for a summary goes through it.
    """

    def __init__(
        self,
        summaries: Summaries,
        log_writer: LogWriter,
        feed: LogTail,
        streams: Streams,
        turnstile: Turnstile,
    ) -> None:
        self._summaries = summaries
        self._log_writer = log_writer
        self._feed = feed
        self._streams = streams
        self._shared = SharedPages[None](
            lambda _: json_line(summaries.summary()).encode(), turnstile
        )
        # Of this second: by what is newest, from where on, and who wants it.
        self._found: dict[tuple[int, int, Subscription], tuple[str, int]] = {}

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door, whichever it is."""
        return [
            Route("/v1/wheel", answering(self._wheel)),
            Route("/v1/live", answering(self._live)),
        ]

    async def _wheel(self, request: Request) -> Response:
        query_of(request)
        return json_text(await self._shared.page(None))

    async def _live(self, request: Request) -> Response:
        query = query_of(request, "kind", "uid", "gateway")
        wanted = subscription_in(query)

        async def tell(listener: StreamListener) -> None:
            await self._tell(listener, wanted)

        return self._streams.events(StreamKind.LIVE, tell)

    async def _tell(self, listener: StreamListener, wanted: Subscription) -> None:
        log_writer, summaries = self._log_writer, self._summaries
        ring = listener.wake.notify
        summaries.follow(ring)
        try:
            position = log_writer.durable_seq
            log = log_writer.store.log
            history = summaries.history_text
            await listener.tell(event("history", history, id=f"{log}:{position}"))
            while True:
                await listener.wait()
                newest = log_writer.durable_seq
                passed_over = max(0, newest - LOOKED_AT - position)
                records = self._records(position + passed_over, passed_over, wanted)
                position = newest
                text = f"{summaries.text[:-1]},{records}}}"
                await listener.tell(event("summary", text, id=f"{log}:{position}"))
        finally:
            summaries.unfollow(ring)

    def _records(self, after: int, passed_over: int, wanted: Subscription) -> str:
        """What is told of those above *after*, found once for all who want the same."""
        key = (self._log_writer.durable_seq, after, wanted)
        found = self._found.get(key)
        if found is None:
            if any(newest != key[0] for newest, *_ in self._found):
                self._found.clear()
            found = self._found[key] = self._find(after, wanted)
        records, left_out = found
        return f'"records":[{records}],"left_out":{left_out + passed_over}'

    def _find(self, after: int, wanted: Subscription) -> tuple[str, int]:
        newest = deque[TailEntry](maxlen=MOST_RECORDS)
        count = 0
        for entry in self._feed.since(after, wanted):
            newest.append(entry)
            count += 1
        return ",".join(entry.json for entry in newest), count - len(newest)
