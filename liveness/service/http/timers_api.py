"""Timers over HTTP, for operators: list, cancel, retry.

    GET  /v1/timers          timers that match a query, newest first, a page at a time
    GET  /v1/timers/newest   for each gateway that has a key, its newest timer of that key
    POST /v1/timers/cancel   {"gateway": …, "key": …}
    POST /v1/timers/retry    the same

Timers are read from their table, in a few threads of their own, so that only these requests
wait for the disk. A change takes the same path as a gateway's frame, through the engine and
the log writer, and is answered once it is durable. The table may lag behind the requests of
gateways, so a change first waits until these are written.
"""

import json
import sqlite3
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.timer_states import CANCELLED, DONE, FAILED, FIRED, LIVE, PENDING
from liveness.core.wire.uids import MAX_INTEGER
from liveness.service.common.threads import in_thread
from liveness.service.engine.engine import Engine
from liveness.service.http.api import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    ApiError,
    body_of,
    json_text,
    number_in,
    query_of,
    written,
)
from liveness.service.storage.database import reading
from liveness.service.timers import timer_reader

# Threads that read for these pages, apart from those that read for gateways.
READERS: Final = 2

T = TypeVar("T")


class TimersApi:
    """The routes of timers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._log_writer = engine.log_writer
        self._readers = trio.CapacityLimiter(READERS)

    def routes(self) -> list[Route]:
        return [
            Route("/v1/timers", self._list),
            Route("/v1/timers/newest", self._newest),
            Route("/v1/timers/cancel", self._cancel, methods=["POST"]),
            Route("/v1/timers/retry", self._retry, methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        query = query_of(request, "gateway", "state", "ext", "key", "before", "limit")
        limit = number_in(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        before = number_in(query, "before", MAX_INTEGER, MAX_INTEGER)
        page = await self._read(
            timer_reader.list_timers, wanted=query, before=before, limit=limit
        )
        before_next = json.dumps(None if page.next is None else str(page.next))
        return json_text(f'{{"timers": {page.timers}, "next": {before_next}}}')

    async def _newest(self, request: Request) -> Response:
        query = query_of(request, "key", "gateway", "limit")
        limit = number_in(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        if "key" not in query:
            raise ApiError(400, "the query has no key; name the timer by key=…")
        timers = await self._read(
            timer_reader.newest_of_key,
            key=query["key"],
            gateway=query.get("gateway"),
            limit=limit,
        )
        return json_text(f'{{"timers": {timers}}}')

    async def _cancel(self, request: Request) -> Response:
        cancel = self._engine.cancel_timer
        return await self._change(request, cancel, "cancelled", LIVE, (CANCELLED,))

    async def _retry(self, request: Request) -> Response:
        # A retried timer is due at once, so it may already have any of these states.
        results = PENDING, FIRED, DONE, FAILED
        retry, allowed = self._engine.retry_timer, (PENDING, FAILED)
        return await self._change(request, retry, "tried again", allowed, results)

    async def _change(
        self,
        request: Request,
        apply: Callable[[str, str], None],
        done: str,
        allowed: Collection[str],
        results: Collection[str],
    ) -> Response:
        """Apply a change to a timer in one of the *allowed* states.

        *done* names the change in messages, and *results* are the states that it leads to.
        """
        body = await body_of(request, "gateway", "key")
        gateway, key = body["gateway"], body["key"]
        unchanged = "nothing was changed, ask again"
        await written(self._log_writer, unchanged, gateway=gateway)
        timer = await self._newest_of(gateway, key)
        subject = f"the timer {key!r} of {gateway!r}"
        if timer["state"] not in allowed:
            states = " or ".join(allowed)
            message = f"{subject} is {timer['state']}; only one that is {states} can be"
            raise ApiError(409, f"{message} {done}")
        apply(gateway, key)
        late = f"{subject} will be {done} once the disk writes"
        await written(self._log_writer, late, gateway=gateway)
        timer = await self._newest_of(gateway, key)
        if timer["state"] not in results:
            message = f"{subject} changed meanwhile, and is {timer['state']} now"
            raise ApiError(409, f"{message}; check it, and try again")
        return JSONResponse(timer)

    async def _newest_of(self, gateway: str, key: str) -> dict[str, Any]:
        timers: list[dict[str, Any]] = json.loads(
            await self._read(
                timer_reader.newest_of_key, key=key, gateway=gateway, limit=1
            )
        )
        if not timers:
            message = f"{gateway!r} has no timer {key!r}: "
            raise ApiError(
                404, message + "`liveness timers list` shows those that there are"
            )
        return timers[0]

    async def _read(self, read: Callable[..., T], **query: Any) -> T:
        ahead_ms = self._engine.clock.wall_ahead_ms()

        def read_in_thread() -> T:
            with reading(self._log_writer.timers.table.path) as db:
                return read(db, ahead_ms=ahead_ms, **query)

        try:
            return await in_thread(read_in_thread, limiter=self._readers)
        except sqlite3.Error as error:
            message = (
                f"the timers cannot be read ({error}); repair the disk, and ask again"
            )
            raise ApiError(503, message) from error
