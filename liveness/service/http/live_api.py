"""The state of the sidecar as a summary, once or every second.

    GET /v1/wheel   one summary
    GET /v1/live    ?kind=offline,moved&uid=UID&gateway=NAME&users=true
                    the last minutes and the newest records, then every second a summary
                    with the newest records since the one before

The cost of a stream of summaries does not depend on the load: each summary has only the
newest matching records, and how many it leaves out. A slow reader misses seconds. The first
records come from memory: after a restart of the sidecar there are none.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from liveness.core.records import Subscription
from liveness.service.engine.engine import Engine
from liveness.service.http import api
from liveness.service.http.event_stream import (
    LIVE,
    Stream,
    Streams,
    event,
)
from liveness.service.http.summary import Summaries
from liveness.service.storage.log_tail import TailEntry
from liveness.text import json_line

# Most records in a summary: more than a person can read in a second.
MAX_RECORDS: Final = 50
# How many of the newest records since the last summary are searched: twice those of a
# second at the promised load. Older ones count as left out, matching or not. A stream
# begins with the matches among as many of the newest records.
MAX_SEARCHED: Final = 20_000


class LiveApi:
    """The routes of summaries."""

    def __init__(self, engine: Engine, summaries: Summaries, streams: Streams) -> None:
        self._summaries = summaries
        self._log_writer, self._feed = engine.log_writer, engine.feed
        self._streams = streams
        self._shared = api.SharedPages(
            lambda _: json_line(summaries.summary()).encode(), streams.turnstile
        )
        # Records found in this second, by newest seq, first seq and subscription.
        self._found: dict[tuple[int, int, Subscription], tuple[str, int]] = {}

    def routes(self) -> list[Route]:
        return [Route("/v1/wheel", self._wheel), Route("/v1/live", self._live)]

    async def _wheel(self, request: Request) -> Response:
        api.query_of(request)
        return api.json_text(await self._shared.page("wheel"))

    async def _live(self, request: Request) -> Response:
        subscription = api.subscription_in(api.query_of(request, *api.SUBSCRIPTION))

        async def produce(stream: Stream) -> None:
            notify = stream.wake.notify
            self._summaries.followers.add(notify)
            try:
                await self._send_summaries(stream, subscription)
            finally:
                self._summaries.followers.discard(notify)

        return self._streams.events(LIVE, produce)

    async def _send_summaries(self, stream: Stream, subscription: Subscription) -> None:
        log_writer, summaries = self._log_writer, self._summaries
        position, log = log_writer.durable_seq, log_writer.store.log
        first = self._feed.first
        after = position if first is None else max(first - 1, position - MAX_SEARCHED)
        records = [*self._feed.since(after, subscription)][-MAX_RECORDS:]
        if len(records) == MAX_RECORDS:
            after = records[0].record.seq - 1
        shown = f'"records":[{_json(records)}],"records_after":{after}'
        history = f"{summaries.history_text[:-1]},{shown}}}"
        await stream.send(event("history", history, id=f"{log}:{position}"))
        while True:
            await stream.wait()
            newest = log_writer.durable_seq
            skipped = max(0, newest - MAX_SEARCHED - position)
            shown = self._since(position + skipped, skipped, subscription)
            position = newest
            text = f"{summaries.text[:-1]},{shown}}}"
            await stream.send(event("summary", text, id=f"{log}:{position}"))

    def _since(self, after: int, skipped: int, subscription: Subscription) -> str:
        """The matching records above *after*, as JSON; equal subscriptions share it."""
        key = (self._log_writer.durable_seq, after, subscription)
        found = self._found.get(key)
        if found is None:
            if any(newest != key[0] for newest, *_ in self._found):
                self._found.clear()
            records = deque[TailEntry](maxlen=MAX_RECORDS)
            count = 0
            for entry in self._feed.since(after, subscription):
                records.append(entry)
                count += 1
            found = self._found[key] = _json(records), count - len(records)
        text, left_out = found
        return f'"records":[{text}],"left_out":{left_out + skipped}'


def _json(entries: Iterable[TailEntry]) -> str:
    return ",".join(entry.json for entry in entries)
