"""An operator's view of timers, over HTTP: they are listed, cancelled and tried again.

    GET  /v1/timers          those that meet a query, newest first, a page at a time
    GET  /v1/timers/newest   of each gateway that has a key, the newest with it
    POST /v1/timers/cancel   {"gateway": …, "key": …}
    POST /v1/timers/retry    the same

What is read comes from the table, in threads of which there are few, so that a page
waits for the disk and nothing else does. A change goes the way of a gateway's own frame,
through the engine and the journal, and is answered once it is on disk. Until then the
table may not yet know what a gateway asked for a moment ago; so it is also waited for
before it is looked at whether the change can be made.

What cannot be done is told as `{"error": "what, where, and what to do"}`.
"""

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.frames import MAX_KEY_BYTES, MAX_NAME_BYTES
from liveness.core.timers import CANCELLED, DONE, FAILED, FIRED, LIVE, PENDING, STATES
from liveness.core.uids import MAX_INTEGER, is_text
from liveness.errors import LivenessError
from liveness.service import timerlist
from liveness.service.database import reading
from liveness.service.engine import Engine
from liveness.service.journal import Journal

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
# Both names, with every character of theirs escaped, are 2 KiB.
MAX_BODY_BYTES: Final = 16_384
# Threads that read for these pages. Gateways' own reading must not wait for them.
READERS: Final = 2
# A disk that writes at all has done so by then.
DISK_S: Final = 5.0

_TEXTS: Final = {"gateway": MAX_NAME_BYTES, "key": MAX_KEY_BYTES, "ext": MAX_KEY_BYTES}

Endpoint = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class _Refusal(LivenessError):
    """What was asked for is not done; *status* is HTTP's word for why."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


class _Change(NamedTuple):
    """What an operator can have done to a timer."""

    order: Callable[[str, str], None]
    done: str  # what it then is, in words
    states: Collection[str]  # in which it can be done
    results: Collection[str]  # states that a timer may be in after it


class TimerPages:
    """The pages.

    Args:
        engine: Carries out what is ordered.
        journal: Says when that is on disk, and has the table.
    """

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._journal = journal
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
        routes = [
            Route("/v1/timers", _told(self._list)),
            Route("/v1/timers/newest", _told(self._newest)),
        ]
        if may_change:
            routes += [
                Route(
                    f"/v1/timers/{name}",
                    _told(partial(self._change, change)),
                    methods=["POST"],
                )
                for name, change in self._changes.items()
            ]
        return routes

    # --- pages ----------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        query = _query(request, "gateway", "state", "ext", "key", "before", "limit")
        limit = _number(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        before = _number(query, "before", MAX_INTEGER, MAX_INTEGER)
        page = await self._read(
            partial(timerlist.listed, wanted=query, before=before, limit=limit)
        )
        following = json.dumps(None if page.next is None else str(page.next))
        return _json(f'{{"timers": {page.timers}, "next": {following}}}')

    async def _newest(self, request: Request) -> Response:
        query = _query(request, "key", "gateway", "limit")
        limit = _number(query, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        if "key" not in query:
            raise _Refusal(400, "the query has no key; say whose timer it is by key=…")
        key, gateway = query["key"], query.get("gateway")
        timers = await self._read(
            partial(timerlist.newest, key=key, gateway=gateway, limit=limit)
        )
        return _json(f'{{"timers": {timers}}}')

    async def _change(self, change: _Change, request: Request) -> Response:
        gateway, key = await _named(request)
        nothing = "nothing was changed, ask again"
        await self._written(nothing)
        # Of a run whose record is on disk by now the table may not have heard yet.
        self._journal.timers.hurry(gateway, key, mark=self._journal.mark)
        await self._written(nothing)
        timer = await self._one(gateway, key)
        named = f"the timer {key!r} of {gateway!r}"
        if timer["state"] not in change.states:
            can = " or ".join(change.states)
            told = f"{named} is {timer['state']}; only one that is {can} can be"
            raise _Refusal(409, f"{told} {change.done}")
        change.order(gateway, key)
        await self._written(f"{named} will be {change.done} when it can be")
        timer = await self._one(gateway, key)
        if timer["state"] not in change.results:
            told = f"{named} changed meanwhile, and is {timer['state']} now"
            raise _Refusal(409, f"{told}; look at it, and ask again")
        return JSONResponse(timer)

    # --- table and disk -------------------------------------------------------

    async def _one(self, gateway: str, key: str) -> dict[str, Any]:
        """The newest timer of a gateway with a key."""
        read = partial(timerlist.newest, key=key, gateway=gateway, limit=1)
        for timer in json.loads(await self._read(read)):
            found: dict[str, Any] = timer
            return found
        told = (
            f"{gateway!r} has no timer {key!r}; /v1/timers lists those that there are"
        )
        raise _Refusal(404, told)

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        def read_in_thread() -> T:
            with reading(self._journal.timers.table.path) as db:
                return read(db)

        try:
            return await trio.to_thread.run_sync(read_in_thread, limiter=self._readers)
        except sqlite3.Error as error:
            told = f"the timers cannot be read ({error}); mend the disk, and ask again"
            raise _Refusal(503, told) from error

    async def _written(self, otherwise: str) -> None:
        """Wait until all that was ordered so far is on disk."""
        with trio.move_on_after(DISK_S) as waiting:
            await self._journal.settled()
        if waiting.cancelled_caught:
            late = f"the timers' table was not written within {DISK_S:g} s"
            raise _Refusal(503, f"{self._journal.failure or late}; {otherwise}")


# --- what is asked, and what is answered --------------------------------------


def _told(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with what it refuses told as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except _Refusal as refusal:
            return JSONResponse({"error": str(refusal)}, refusal.status)

    return answer


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _query(request: Request, *names: str) -> dict[str, str]:
    """What the query says, each of *names* at most once and nothing else."""
    text = request.scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict"
        )
    except ValueError:
        told = "the query cannot be read; write name=value&name=value, UTF-8 as %XX"
        raise _Refusal(400, told) from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            known = ", ".join(names)
            raise _Refusal(400, f"the query has {name!r:.80}; it may have {known}")
        if name in found:
            raise _Refusal(400, f"the query has {name} twice; give it once")
        found[name] = _checked(name, value, "query")
    return found


async def _named(request: Request) -> tuple[str, str]:
    """The gateway and the key that a body names."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            told = f"the body has more than {MAX_BODY_BYTES} bytes; it must be "
            raise _Refusal(413, told + '{"gateway": "…", "key": "…"}')
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.keys() != {"gateway", "key"}:
        told = (
            'the body must be JSON with these and no more: {"gateway": "…", "key": "…"}'
        )
        raise _Refusal(400, told)
    gateway, key = (_checked(name, found[name], "body") for name in ("gateway", "key"))
    return gateway, key


def _checked(name: str, value: object, where: str) -> str:
    """A value that may be what it is said to be."""
    told = f"{name} is {value!r:.80} in the {where}; it must be"
    if name == "state" and value not in STATES:
        raise _Refusal(400, f"{told} one of {', '.join(STATES)}")
    if name in _TEXTS and not is_text(value, _TEXTS[name]):
        told += f" a string of 1 to {_TEXTS[name]} bytes of UTF-8"
        raise _Refusal(400, f"{told} without control characters")
    return str(value)


def _number(query: dict[str, str], name: str, default: int, most: int) -> int:
    """Take a number out of the query."""
    text = query.pop(name, None)
    if text is None:
        return default
    if re.fullmatch("[0-9]{1,19}", text) and 1 <= int(text) <= most:
        return int(text)
    told = (
        f"{name} is {text!r:.80} in the query; it must be a whole number, 1 to {most}"
    )
    raise _Refusal(400, told)
