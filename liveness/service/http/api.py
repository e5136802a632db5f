"""Shared by the routes: parsing of queries and bodies, errors, and costly pages.

A query has each of its parameters at most once, and no unknown ones. A body is a JSON
object with exactly the expected keys. An error is
`{"error": "what, where, and what to do"}`.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import parse_qsl

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from liveness.core.records import KINDS, ROLES, Subscription, Uid
from liveness.core.timer_states import STATES
from liveness.core.wire.frames import MAX_KEY_BYTES
from liveness.core.wire.uids import MAX_NAME_BYTES, is_text
from liveness.errors import LivenessError
from liveness.metrics.counts import HttpRefusal
from liveness.service.common.turnstile import Turnstile
from liveness.service.timers.state_writer import StateWriter
from liveness.text import uid_of

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
# A working disk writes within this time.
DISK_S: Final = 5.0

_TEXTS: Final = {
    "gateway": MAX_NAME_BYTES,
    "name": MAX_NAME_BYTES,
    "after": MAX_NAME_BYTES,
    "key": MAX_KEY_BYTES,
    "ext": MAX_KEY_BYTES,
    "webhook": MAX_NAME_BYTES,
}
_CHOICES: Final = {"state": STATES, "role": ROLES, "users": ("true", "false")}
# Parameters of a query that choose records.
SUBSCRIPTION: Final = ("kind", "uid", "gateway", "users")


# Between two pages. The metrics of a hundred gateways take 4 ms to make: with this pause,
# at most a twelfth of a processor.
PAUSE_S: Final = 0.05


class ApiError(LivenessError):
    """A request cannot be met; *status* is the HTTP status of the answer.

    *refusal* is how the listener counts a request that is refused before a page sees it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        refusal: HttpRefusal | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.answer = JSONResponse({"error": message}, status, headers)


async def written(
    log_writer: StateWriter, otherwise: str, *, gateway: str | None = None
) -> None:
    """Wait until the log, and the timer requests of a gateway so far, are durable.

    Raises:
        ApiError: It took longer than `DISK_S`. *otherwise* ends the message: the state of
            the request, and what to do.
    """
    with trio.move_on_after(DISK_S) as waiting:
        await log_writer.flushed_for(gateway)
    if waiting.cancelled_caught:
        late = f"the disk did not write within {DISK_S:g} s"
        raise ApiError(503, f"{log_writer.failure or late}; {otherwise}")


def json_text(text: str | bytes) -> Response:
    return Response(text, media_type="application/json")


def query_of(request: Request, *names: str) -> dict[str, str]:
    """The parameters of the query.

    Raises:
        ApiError: A parameter is not one of *names*, is given twice, or is invalid.
    """
    text = request.scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict"
        )
    except ValueError:
        message = "the query cannot be read; write name=value&name=value, UTF-8 as %XX"
        raise ApiError(400, message) from None
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
    request: Request, *names: str, or_none: bool = False, optional: Collection[str] = ()
) -> dict[str, str]:
    """The values in a JSON body, by key.

    Its keys are *names*, and perhaps some *optional* ones; with *or_none*, `{}` is
    allowed.

    Raises:
        ApiError: The body is not such an object, or a value is invalid.
    """
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not (
        (or_none and not found) or {*names} <= found.keys() <= {*names, *optional}
    ):
        form = "{" + ", ".join(f'"{name}": "…"' for name in names) + "}"
        form += ", or {} for all" * or_none
        form += "".join(f', and "{name}" if need be' for name in optional)
        raise ApiError(400, f"the body must be JSON with exactly these keys: {form}")
    return {name: _checked(name, value, "body") for name, value in found.items()}


def _checked(name: str, value: object, where: str) -> str:
    message = f"{name} is {value!r:.80} in the {where}; it must be"
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ApiError(400, f"{message} one of {', '.join(_CHOICES[name])}")
    if name in _TEXTS and not is_text(value, _TEXTS[name]):
        message += f" a string of 1 to {_TEXTS[name]} bytes of UTF-8"
        raise ApiError(400, f"{message} without control characters")
    return str(value)


def subscription_in(query: dict[str, str]) -> Subscription:
    """Take the names of `SUBSCRIPTION` out of the query: which records a reader gets.

    Several kinds have commas between them. A uid is written as on the command line.
    `users=true` asks for the records with which a user comes or leaves.

    Raises:
        ApiError: A kind or the uid is invalid.
    """
    kinds = frozenset(query.pop("kind", ",".join(KINDS)).split(","))
    if unknown := sorted(kinds.difference(KINDS)):
        message = f"kind is {unknown[0]!r:.80} in the query; it must be one or more of"
        raise ApiError(400, f"{message} {', '.join(KINDS)}, with commas between")
    uid = query.pop("uid", None)
    return Subscription(
        query.pop("gateway", None),
        kinds,
        uid=None if uid is None else uid_in(uid),
        users=query.pop("users", "false") == "true",
    )


def uid_in(text: str) -> Uid:
    """Parse a uid as it is written on the command line.

    Raises:
        ApiError: The text is not a uid.
    """
    try:
        return uid_of(text)
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def number_in(
    query: dict[str, str], name: str, default: int, most: int, *, where: str = "query"
) -> int:
    """Take a number from 1 to *most* out of the query or the body.

    Raises:
        ApiError: The text is not such a number.
    """
    text = query.pop(name, None)
    if text is None:
        return default
    if re.fullmatch("[0-9]{1,19}", text) and 1 <= int(text) <= most:
        return int(text)
    raise ApiError(
        400,
        f"{name} is {text!r:.80} in the {where}; it must be a whole number, 1 to {most}",
    )


class SharedPages:
    """Costly pages: one is made for all requests that wait for it, with a pause after it.

    A request never gets a page that is older than itself.

    Args:
        make: Makes the page of a key. Clients must not be able to add keys at will.
        turnstile: A request that has waited for a page passes it.
    """

    def __init__(self, make: Callable[[str], bytes], turnstile: Turnstile) -> None:
        self._make = make
        self._turnstile = turnstile
        self._lock = trio.Lock()
        self._pages: dict[str, tuple[int, bytes]] = {}  # the newest, and its number
        self._made = 0
        self._free_at = 0.0  # when the next page may be made

    async def page(self, key: str) -> bytes:
        """The page of *key*, made after this was called."""
        before = self._made
        async with self._lock:
            number, page = self._pages.get(key, (0, b""))
            if number <= before:
                await trio.sleep_until(self._free_at)
                page = self._make(key)
                self._made += 1
                self._pages[key] = self._made, page
                self._free_at = trio.current_time() + PAUSE_S
        await self._turnstile.wait()
        return page
