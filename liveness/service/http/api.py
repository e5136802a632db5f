"""What questions over HTTP have in common: how they are asked, and how refused.

A query has each of its names at most once and no others; a body is JSON with exactly
the names that are wanted. What cannot be done is told as
`{"error": "what, where, and what to do"}`.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import parse_qsl

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from liveness.core.frames import MAX_KEY_BYTES, MAX_NAME_BYTES
from liveness.core.records import KINDS, ROLES, Subscription, Uid
from liveness.core.timer_states import STATES
from liveness.core.uids import is_text
from liveness.errors import LivenessError
from liveness.service.storage.log_writer import LogWriter
from liveness.text import uid_of

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
# A disk that writes at all has done so by then.
DISK_S: Final = 5.0

_TEXTS: Final = {
    "gateway": MAX_NAME_BYTES,
    "name": MAX_NAME_BYTES,
    "after": MAX_NAME_BYTES,
    "key": MAX_KEY_BYTES,
    "ext": MAX_KEY_BYTES,
}
_CHOICES: Final = {"state": STATES, "role": ROLES}

Endpoint = Callable[[Request], Awaitable[Response]]


class Api(Protocol):
    """The pages of one matter."""

    def routes(self, *, may_change: bool) -> list[Route]:
        """The routes of a door; those that change something only if it may."""


class ApiError(LivenessError):
    """What was asked for is not done; *status* is HTTP's word for why."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status

    def answer(self) -> Response:
        """As whoever asked is told."""
        return JSONResponse({"error": str(self)}, self.status)


def answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with what it refuses told as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ApiError as refusal:
            return refusal.answer()

    return answer


async def written(
    log_writer: LogWriter, otherwise: str, *, gateway: str | None = None
) -> None:
    """Wait until the log is on disk, and what a gateway has asked of timers so far.

    Raises:
        ApiError: That takes too long; *otherwise* is what is then to be done.
    """
    with trio.move_on_after(DISK_S) as waiting:
        await log_writer.flushed_for(gateway)
    if waiting.cancelled_caught:
        late = f"nothing was written within {DISK_S:g} s"
        raise ApiError(503, f"{log_writer.failure or late}; {otherwise}")


def json_text(text: str | bytes) -> Response:
    """An answer that is JSON already."""
    return Response(text, media_type="application/json")


def query_of(request: Request, *names: str) -> dict[str, str]:
    """What the query says, each of *names* at most once and nothing else.

    Raises:
        ApiError: It says anything else.
    """
    text = request.scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict"
        )
    except ValueError:
        told = "the query cannot be read; write name=value&name=value, UTF-8 as %XX"
        raise ApiError(400, told) from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            known = ", ".join(names) or "nothing"
            raise ApiError(400, f"the query has {name!r:.80}; it may have {known}")
        if name in found:
            raise ApiError(400, f"the query has {name} twice; give it once")
        found[name] = _checked(name, value, "query")
    return found


async def body_of(
    request: Request, *names: str, or_none: bool = False
) -> dict[str, str]:
    """What a body says, which must be each of *names* and nothing else.

    Args:
        request: Its body was bounded before.
        names: What there must be.
        or_none: Whether there may be none of them as well.
    Raises:
        ApiError: It says anything else.
    """
    wanted = "{" + ", ".join(f'"{name}": "…"' for name in names) + "}"
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    is_none = or_none and found == {}
    if not isinstance(found, dict) or not (is_none or found.keys() == {*names}):
        if or_none:
            wanted += ", or {} for all"
        told = f"the body must be JSON with these and no more: {wanted}"
        raise ApiError(400, told)
    return {name: _checked(name, value, "body") for name, value in found.items()}


def _checked(name: str, value: object, where: str) -> str:
    """A value that may be what it is said to be."""
    told = f"{name} is {value!r:.80} in the {where}; it must be"
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ApiError(400, f"{told} one of {', '.join(_CHOICES[name])}")
    if name in _TEXTS and not is_text(value, _TEXTS[name]):
        told += f" a string of 1 to {_TEXTS[name]} bytes of UTF-8"
        raise ApiError(400, f"{told} without control characters")
    return str(value)


def wanted_in(query: dict[str, str]) -> Subscription:
    """Take out of the query which records are wanted: by `kind`, `uid` and `gateway`.

    Kinds are one or several with commas between, users as on the command line.

    Raises:
        ApiError: There is no such kind or user.
    """
    kinds = frozenset(query.pop("kind", ",".join(KINDS)).split(","))
    if unknown := sorted(kinds.difference(KINDS)):
        told = f"kind is {unknown[0]!r:.80} in the query; it must be one or more of"
        raise ApiError(400, f"{told} {', '.join(KINDS)}, with commas between")
    uid = query.pop("uid", None)
    return Subscription(
        query.pop("gateway", None), kinds, uid=None if uid is None else uid_in(uid)
    )


def uid_in(text: str) -> Uid:
    """The user that is asked for, as on the command line.

    Raises:
        ApiError: It is nobody's name.
    """
    try:
        return uid_of(text)
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def number_in(
    query: dict[str, str], name: str, default: int, most: int, *, where: str = "query"
) -> int:
    """Take a number out of the query, or the body: from 1 to *most*.

    Raises:
        ApiError: It is none.
    """
    text = query.pop(name, None)
    if text is None:
        return default
    if re.fullmatch("[0-9]{1,19}", text) and 1 <= int(text) <= most:
        return int(text)
    told = (
        f"{name} is {text!r:.80} in the {where}; it must be a whole number, 1 to {most}"
    )
    raise ApiError(400, told)
