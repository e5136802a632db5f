"""The state of the sidecar as a summary, once or every second.

    GET /v1/wheel   one summary
    GET /v1/live    ?kind=offline,moved&uid=UID&gateway=NAME&users=true
                    the last minutes and the newest records, then every second a summary
                    with the newest records since the one before

The cost of a stream of summaries does not depend on the load: each summary has only the
newest matching records, and how many it leaves out. A slow reader misses seconds. The first
records come from memory; after a restart of the sidecar, from the end of the log.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from liveness.core.records import Logged, Subscription
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.common.threads import in_thread
from liveness.service.common.turnstile import Turnstile
from liveness.service.http import api
from liveness.service.http.event_stream import (
    LIVE,
    Stream,
    Streams,
    event,
)
from liveness.service.http.pacing import SharedPages
from liveness.service.http.summary import Summaries
from liveness.service.storage.log_tail import LogTail, TailEntry
from liveness.service.storage.log_writer import LogWriter
from liveness.text import json_line

# Most records in a summary: more than a person can read in a second.
MAX_RECORDS: Final = 50
# How many of the newest records since the last summary are searched: twice those of a
# second at the promised load. Older ones count as left out, matching or not. A stream
# begins with the matches among as many of the newest records.
MAX_SEARCHED: Final = 20_000
# How many records that search reads at a time.
SEARCH_STEP: Final = 1_000

_log = structlog.get_logger("http")


class LiveApi:
    """The routes of summaries."""

    def __init__(
        self,
        summaries: Summaries,
        log_writer: LogWriter,
        feed: LogTail,
        streams: Streams,
        turnstile: Turnstile,
        *,
        mono: Callable[[], float],
    ) -> None:
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=mono)
        self._summaries = summaries
        self._log_writer = log_writer
        self._feed = feed
        self._streams = streams
        self._shared = SharedPages[None](
            lambda _: json_line(summaries.summary()).encode(), turnstile
        )
        # Records found in this second, by newest seq, first seq and subscription.
        self._found: dict[tuple[int, int, Subscription], tuple[str, int]] = {}

    def routes(self) -> list[Route]:
        return [Route("/v1/wheel", self._wheel), Route("/v1/live", self._live)]

    async def _wheel(self, request: Request) -> Response:
        api.query_of(request)
        return api.json_text(await self._shared.page(None))

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
        records, after = await self._recent(position, subscription)
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

    async def _recent(
        self, newest: int, subscription: Subscription
    ) -> tuple[list[TailEntry], int]:
        """The newest records up to *newest* that match, of the last `MAX_SEARCHED`.

        And the seq above which these are all.
        """
        after = max(newest - MAX_SEARCHED, self._log_writer.first - 1)
        entries = self._feed.newest(after, subscription, MAX_RECORDS)
        first = self._feed.first
        reached = newest if first is None else first - 1  # searched from the top
        while len(entries) < MAX_RECORDS and reached > after:
            step = max(after, reached - SEARCH_STEP)
            read = partial(self._read, step, reached, subscription)
            try:
                found = await in_thread(read, limiter=self._feed.guests)
            except (sqlite3.Error, OSError) as error:
                message = (
                    "the log cannot be read: a stream begins without older records"
                )
                self._log_throttled(
                    _log.warning, message, key=message, error=str(error)
                )
                return entries, reached
            entries = [*map(TailEntry, found), *entries]
            reached = step
        if len(entries) >= MAX_RECORDS:
            entries = entries[-MAX_RECORDS:]
            after = entries[0].record.seq - 1
        return entries, after

    def _read(self, after: int, until: int, subscription: Subscription) -> list[Logged]:
        """The matching records of a range of the log; damaged ones are left out."""
        found: list[Logged] = []
        while after < until:
            rows = self._log_writer.store.read(
                after=after, until=until, wanted=subscription, limit=SEARCH_STEP
            )
            found += rows.records
            after = max(rows.reached, after + 1)
        return found


def _json(entries: Iterable[TailEntry]) -> str:
    return ",".join(entry.json for entry in entries)
