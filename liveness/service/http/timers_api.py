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
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.timer_states import CANCELLED, DONE, FAILED, FIRED, LIVE, PENDING
from liveness.core.wire.uids import MAX_INTEGER
from liveness.service.common.clock import Clock
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
    route,
    written,
)
from liveness.service.storage.database import reading
from liveness.service.timers import timer_reader
from liveness.service.timers.state_writer import StateWriter

# Pages of timers in memory at a time for each listener, until their clients have read them.
# A page of a thousand timers in which every character is escaped takes 60 MiB.
PAGES_AT_ONCE: Final = 2
# Threads that read for these pages, apart from those that read for gateways.
READERS: Final = 2

T = TypeVar("T")


class _Change(NamedTuple):
    """A change that an operator can make to a timer."""

    apply: Callable[[str, str], None]  # to a gateway and a key
    done: str  # for messages: "cancelled"
    states: Collection[str]  # the states that allow it
    results: Collection[str]  # the states that it may lead to


class TimersApi:
    """The routes of timers."""

    def __init__(
        self,
        engine: Engine,
        log_writer: StateWriter,
        *,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._log_writer = log_writer
        self._clock = clock
        self._readers = trio.CapacityLimiter(READERS)
        self._changes = {
            "cancel": _Change(engine.cancel_timer, "cancelled", LIVE, (CANCELLED,)),
            # A retried timer is due at once, so it may already have any of these states.
            "retry": _Change(
                engine.retry_timer,
                "tried again",
                (PENDING, FAILED),
                (PENDING, FIRED, DONE, FAILED),
            ),
        }

    def routes(self) -> list[Route]:
        limiter = trio.CapacityLimiter(PAGES_AT_ONCE)
        return [
            route("/v1/timers", self._list, limiter=limiter),
            route("/v1/timers/newest", self._newest, limiter=limiter),
            *(
                route(f"/v1/timers/{name}", partial(self._change, change), "POST")
                for name, change in self._changes.items()
            ),
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

    async def _change(self, change: _Change, request: Request) -> Response:
        body = await body_of(request, "gateway", "key")
        gateway, key = body["gateway"], body["key"]
        unchanged = "nothing was changed, ask again"
        await written(self._log_writer, unchanged, gateway=gateway)
        timer = await self._newest_of(gateway, key)
        subject = f"the timer {key!r} of {gateway!r}"
        if timer["state"] not in change.states:
            states = " or ".join(change.states)
            message = f"{subject} is {timer['state']}; only one that is {states} can be"
            raise ApiError(409, f"{message} {change.done}")
        change.apply(gateway, key)
        late = f"{subject} will be {change.done} once the disk writes"
        await written(self._log_writer, late, gateway=gateway)
        timer = await self._newest_of(gateway, key)
        if timer["state"] not in change.results:
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
        ahead_ms = self._clock.wall_ahead_ms()

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
