"""The middleware of a listener: it checks each request before any page sees it.

Checks run in order, and the first that refuses the request answers it. Then the whole body
is read. It is small, so a page need not bound it or wait for it, and a page that ends early
leaves no unread body in front of the next request.

A refusal is counted by listener and reason. Its answer is
`{"error": "what, where, and what to do"}`. Every answer gets the security headers.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from ipaddress import ip_address
from typing import Final

import structlog
import trio
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from liveness.metrics.counts import HttpRefusal
from liveness.service.common.logs import LogThrottle
from liveness.service.http.api import ApiError

LOG_S: Final = 10.0
# Supervisors kill a process that does not answer these, so other clients must not be able
# to block them: they have connections of their own.
HEALTH: Final = frozenset({"/healthz", "/readyz"})
_VERSIONS: Final = ("1.0", "1.1")
# A name or an IPv4 address, or an IPv6 one in brackets, and perhaps a port.
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::[0-9]{0,5})?")

# Our pages load nothing from other sites, are not shown in frames, and are not cached.
_HEADERS: Final = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
        b"img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]

_log = structlog.get_logger("http")


# A key of the scope: a function that says whether the request's token is still valid. Long
# answers call it.
STILL_ALLOWED: Final = "liveness.still_allowed"

# Counts a refusal.
Refused = Callable[[HttpRefusal], None]


# Raises an `ApiError` with its refusal.
Check = Callable[[Request], None]


class Middleware:
    """An ASGI application that passes on requests that pass all checks.

    The checks run in this order on each request. *refused* is called with the reason of
    each refusal. *larger_bodies* has the most bytes of each path that takes more, and
    *at_once* the most unanswered requests to a path: further ones wait, unread. A request
    is answered once its client has read the answer.
    """

    def __init__(
        self,
        pages: ASGIApp,
        checks: Sequence[Check],
        refused: Refused,
        *,
        max_body_bytes: int,
        larger_bodies: Mapping[str, int] | None = None,
        at_once: Mapping[str, int] | None = None,
    ) -> None:
        self._pages = pages
        self._checks = checks
        self._refused = refused
        self._max_body_bytes = max_body_bytes
        self._larger_bodies = larger_bodies or {}
        # A limit per path: one path may wait for other hosts.
        self._at_once = {
            path: trio.CapacityLimiter(most) for path, most in (at_once or {}).items()
        }
        self._log_throttled = LogThrottle(LOG_S, clock=trio.current_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = _with_headers(send)
        try:
            most = self._check(Request(scope))
            async with self._at_once.get(scope["path"], nullcontext()):
                body = await self._read(receive, most)
                if body is not None:  # else the client has disconnected
                    await self._answer(scope, _replay(body, receive), send)
        except ApiError as error:
            if error.refusal is not None:
                self._refused(error.refusal)
            await error.answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._pages(scope, receive, send)
        except Exception as error:
            self._log_throttled(
                _log.error,
                "a page failed, and was answered with 500; the others go on",
                key=type(error).__name__,
                exc_info=error,
            )

    def _check(self, request: Request) -> int:
        """Check a request but its body, and return how many bytes that may have."""
        if (version := request.scope["http_version"]) not in _VERSIONS:
            message = f"HTTP/{version} is not supported here; use HTTP/1.1"
            raise ApiError(505, message, HttpRefusal.MALFORMED)
        for check in self._checks:
            check(request)
        most = self._larger_bodies.get(request.scope["path"], self._max_body_bytes)
        if int(request.headers.get("content-length", "0")) > most:
            raise self._too_large(most)
        return most

    async def _read(self, receive: Receive, most: int) -> bytes | None:
        """The body; None if the client has disconnected."""
        body = bytearray()  # one buffer: a list of tiny pieces could be large
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message["body"]
            if len(body) > most:
                raise self._too_large(most)
            if not message["more_body"]:
                return bytes(body)

    def _too_large(self, most: int) -> ApiError:
        message = f"the body has more than {most} bytes; send less"
        return ApiError(413, message, HttpRefusal.BODY)


# --- checks -------------------------------------------------------------------------


def allow_hosts(names: Collection[str]) -> Check:
    """Refuse a request whose Host is neither an IP address nor a lower-case name of these.

    This stops DNS rebinding: a web page that makes its own name resolve to this host, to
    read what only this host may read, sends that name as Host.
    """

    def check(request: Request) -> None:
        given = request.headers.getlist("host")
        found = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if found is None or (found[1] and not is_address(found[1])):
            message = (
                "the request has no Host, or a malformed one; send the host of its URL"
            )
            raise ApiError(400, message, HttpRefusal.HOST)
        # The root's dot at the end makes no difference.
        name = (found[1] or found[2]).removesuffix(".")
        if name in names or is_address(name):
            return
        message = f"Host is {name!r:.80}, which is not a name of this sidecar"
        message += "; use its address, or add the name to http.hosts"
        raise ApiError(421, message, HttpRefusal.HOST)

    return check


def only_health(most: int) -> Check:
    """Refuse all but health checks, on the connections beyond the *most* for all pages."""

    def check(request: Request) -> None:
        if request.scope["path"] in HEALTH:
            return
        message = (
            f"all {most} connections are in use, and none is idle; ask again later"
        )
        headers = {"connection": "close", "retry-after": "1"}
        raise ApiError(503, message, HttpRefusal.CONNECTIONS, headers)

    return check


def read_only(posts: Collection[str]) -> Check:
    """Refuse methods other than GET and HEAD, except POST to the paths in *posts*."""

    def check(request: Request) -> None:
        may_post = request.scope["path"] in posts
        allowed = ["GET", "HEAD"] + ["POST"] * may_post
        if request.method in allowed:
            return
        message = (
            f"{request.method:.20} is not allowed at this address, which only reads"
        )
        message += "; use admin.sock for changes"
        headers = {"allow": ", ".join(allowed)}
        raise ApiError(405, message, HttpRefusal.METHOD, headers)

    return check


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# --- bodies and answers -------------------------------------------------------------


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was read, then the client's disconnect."""
    messages: list[Message] = [
        {"type": "http.request", "body": body, "more_body": False}
    ]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_HEADERS]
        await send(message)

    return send_with_headers
