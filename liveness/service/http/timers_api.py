"""An operator's view of timers, over HTTP: they are listed, cancelled and tried again.

    GET  /v1/timers          those that meet a query, newest first, a page at a time
    GET  /v1/timers/newest   of each gateway that has a key, the newest with it
    POST /v1/timers/cancel   {"gateway": …, "key": …}
    POST /v1/timers/retry    the same
    POST /v1/timers/cancel-damaged   {"id": …}, of one that is damaged on disk

What is read comes from the table, in threads of which there are few, so that a page
waits for the disk and nothing else does. A change goes the way of a gateway's own frame,
through the engine and the log_writer, and is answered once it is on disk. Until then the
table may not yet know what a gateway asked for a moment ago; so it is also waited for
before it is looked at whether the change can be made.

Who damaged text belongs to nobody can say for certain. So a damaged timer is known by its
id, and is ended where it lies.
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
from starlette.types import Receive, Scope, Send

from liveness.core.timer_states import CANCELLED, DONE, FAILED, FIRED, LIVE, PENDING
from liveness.core.uids import MAX_INTEGER
from liveness.service.common.threads import in_thread
from liveness.service.engine.engine import Engine
from liveness.service.http.api import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    ApiError,
    Endpoint,
    answering,
    body_of,
    json_text,
    number_in,
    query_of,
    written,
)
from liveness.service.storage import timer_reader
from liveness.service.storage.database import reading
from liveness.service.storage.log_writer import LogWriter

# Pages of a listing that are in memory at a time for a door, until their clients have read
# them: of a thousand timers, if all in them has to be escaped, 60 MiB each. More wait.
PAGES_AT_ONCE: Final = 4
# Threads that read for these pages. Gateways' own reading must not wait for them.
READERS: Final = 2

T = TypeVar("T")


class _Change(NamedTuple):
    """What an operator can have done to a timer."""

    order: Callable[[str, str], None]
    done: str  # what it then is, in words
    states: Collection[str]  # in which it can be done
    results: Collection[str]  # states that a timer may be in after it


class TimersApi:
    """The pages.

    Args:
        engine: Carries out what is ordered.
        log_writer: Says when that is on disk, and has the table.
    """

    def __init__(self, engine: Engine, log_writer: LogWriter) -> None:
        self._engine = engine
        self._log_writer = log_writer
        self._readers = trio.CapacityLimiter(READERS)
        self._changes = {
            "cancel": _Change(engine.cancel_timer, "cancelled", LIVE, (CANCELLED,)),
            # It is due at once, so that anything may have become of it by now.
            "retry": _Change(
                engine.retry_timer,
                "tried again",
                (PENDING, FAILED),
                (PENDING, FIRED, DONE, FAILED),
            ),
        }

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door; those that change something only if it may."""
        turns = trio.CapacityLimiter(PAGES_AT_ONCE)
        routes = [
            Route(path, _InTurn(answering(page), turns), methods=["GET"])
            for path, page in (
                ("/v1/timers", self._list),
                ("/v1/timers/newest", self._newest),
            )
        ]
        if may_change:
            routes += [
                Route(
                    f"/v1/timers/{name}",
                    answering(partial(self._change, change)),
                    methods=["POST"],
                )
                for name, change in self._changes.items()
            ]
            path = "/v1/timers/cancel-damaged"
            routes.append(
                Route(path, answering(self._cancel_damaged), methods=["POST"])
            )
        return routes

    # --- pages ----------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        query = query_of(
            request, "gateway", "state", "ext", "key", "id", "before", "limit"
        )
        limit = number_in(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        before = number_in(query, "before", MAX_INTEGER, MAX_INTEGER)
        wanted: dict[str, Any] = query
        if "id" in query:
            wanted = {"id": number_in(query, "id", 0, MAX_INTEGER), **query}
        page = await self._read(
            partial(timer_reader.listed, wanted=wanted, before=before, limit=limit)
        )
        following = json.dumps(None if page.next is None else str(page.next))
        return json_text(f'{{"timers": {page.timers}, "next": {following}}}')

    async def _newest(self, request: Request) -> Response:
        query = query_of(request, "key", "gateway", "limit")
        limit = number_in(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        if "key" not in query:
            raise ApiError(400, "the query has no key; say whose timer it is by key=…")
        key, gateway = query["key"], query.get("gateway")
        timers = await self._read(
            partial(timer_reader.newest, key=key, gateway=gateway, limit=limit)
        )
        return json_text(f'{{"timers": {timers}}}')

    async def _change(self, change: _Change, request: Request) -> Response:
        asked = await body_of(request, "gateway", "key")
        gateway, key = asked["gateway"], asked["key"]
        nothing = "nothing was changed, ask again"
        await written(self._log_writer, nothing, gateway=gateway)
        # Of a run whose record is on disk by now the table may not have heard yet.
        self._log_writer.timers.hurry(gateway, key, ticket=self._log_writer.ticket)
        await written(self._log_writer, nothing, gateway=gateway)
        timer = await self._one(gateway, key)
        named = f"the timer {key!r} of {gateway!r}"
        if "damaged" in timer:
            todo = f"`liveness timers cancel --damaged {timer['damaged']}` ends it"
            raise ApiError(409, f"{named} is damaged on disk: {todo}")
        if timer["state"] not in change.states:
            can = " or ".join(change.states)
            told = f"{named} is {timer['state']}; only one that is {can} can be"
            raise ApiError(409, f"{told} {change.done}")
        change.order(gateway, key)
        otherwise = f"{named} will be {change.done} when it can be"
        await written(self._log_writer, otherwise, gateway=gateway)
        timer = await self._one(gateway, key)
        if timer["state"] not in change.results:
            told = f"{named} changed meanwhile, and is {timer['state']} now"
            raise ApiError(409, f"{told}; look at it, and ask again")
        return JSONResponse(timer)

    async def _cancel_damaged(self, request: Request) -> Response:
        asked = await body_of(request, "id")
        number = number_in(asked, "id", 0, MAX_INTEGER, where="body")
        end = partial(self._log_writer.timers.table.end_damaged, number)
        timetable = self._engine.timetable
        at = timetable.ms(trio.current_time())
        try:
            less = await self._log_writer.timers.writer.once(partial(end, at=at))
        except sqlite3.Error as error:
            told = f"the timers' table cannot be written: {error}"
            raise ApiError(503, f"{told}; nothing was changed, ask again") from error
        if less is None:
            told = f"no timer {number} is damaged: `liveness timers list` shows those"
            raise ApiError(404, f"{told} that are")
        timetable.forgot(less)
        read = partial(timer_reader.listed, wanted={"id": number}, before=MAX_INTEGER)
        page = await self._read(partial(read, limit=1))
        return json_text(page.timers[1:-1])

    # --- table and disk -------------------------------------------------------

    async def _one(self, gateway: str, key: str) -> dict[str, Any]:
        """The newest timer of a gateway with a key."""
        read = partial(timer_reader.newest, key=key, gateway=gateway, limit=1)
        for timer in json.loads(await self._read(read)):
            found: dict[str, Any] = timer
            return found
        told = (
            f"{gateway!r} has no timer {key!r}: `liveness timers list` shows those that "
            "there are"
        )
        raise ApiError(404, told)

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        def read_in_thread() -> T:
            with reading(self._log_writer.timers.table.path) as db:
                return read(db)

        try:
            return await in_thread(read_in_thread, limiter=self._readers)
        except sqlite3.Error as error:
            told = f"the timers cannot be read ({error}); mend the disk, and ask again"
            raise ApiError(503, told) from error


class _InTurn:
    """An endpoint whose answers are made, and read, only so many at a time."""

    def __init__(self, endpoint: Endpoint, turns: trio.CapacityLimiter) -> None:
        self._endpoint = endpoint
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._turns:
            answer = await self._endpoint(Request(scope, receive))
            await answer(scope, receive, send)
