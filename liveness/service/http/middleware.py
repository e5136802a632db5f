"""What a request has to be before a page sees it, and what every answer says.

A gate stands before the pages of a door and asks its checks in their order; the first
that refuses answers. Then it waits for the whole body, which is small whatever is asked,
so that no page has to bound or to await one, and a page that ends early leaves nothing
in the way of the next request.

What is refused is counted by door and reason, and told as
`{"error": "what, where, and what to do"}`.
"""

import re
from collections.abc import Callable, Collection, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple

import structlog
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from liveness.metrics import HttpRefusal
from liveness.service.common.logs import Every

LOG_S: Final = 10.0
# What has places of its own; what kills or spares a process must not depend on others.
HEALTH: Final = frozenset({"/healthz", "/readyz"})
_VERSIONS: Final = ("1.0", "1.1")
# A name or an IPv4 address, or an IPv6 one in brackets, and perhaps a port.
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::[0-9]{0,5})?")

# No page of ours loads anything from elsewhere, is shown inside another, or is kept by
# anyone. Of where one was, only we are told: by `no-referrer` a form would have no origin.
_HEADERS: Final = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
        b"img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]

_log = structlog.get_logger("http")


class Rejection(NamedTuple):
    """Why a request goes no further, and what it is answered."""

    why: HttpRefusal
    answer: Response


# In the scope of a request that was let in by what it said: asks whether it still would be.
STILL_ALLOWED: Final = "liveness.still_allowed"

Check = Callable[[Request], Rejection | None]
Refused = Callable[[HttpRefusal], None]


def refusal(
    why: HttpRefusal, status: int, told: str, headers: dict[str, str] | None = None
) -> Rejection:
    """A refusal that is told as JSON."""
    return Rejection(why, JSONResponse({"error": told}, status, headers))


class Middleware:
    """Stands before the pages of a door.

    Args:
        pages: What is behind it.
        checks: What it asks of each request, in this order.
        refused: Counts what is refused.
        max_body_bytes: A body may be as large as this.
    """

    def __init__(
        self,
        pages: ASGIApp,
        checks: Sequence[Check],
        refused: Refused,
        *,
        max_body_bytes: int,
    ) -> None:
        self._pages = pages
        self._checks = checks
        self._refused = refused
        self._max_body_bytes = max_body_bytes
        self._every = Every(LOG_S, clock=trio.current_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope)
        found = self._asked(request)
        body = b""
        if found is None:
            taken = await self._body(receive)
            if taken is None:
                return  # the client has gone
            found, body = taken
        if found is not None:
            self._refused(found.why)
            await _answer_unread(found.answer, scope, receive, _with_headers(send))
            return
        try:
            await self._pages(scope, _told_once(body, receive), _with_headers(send))
        except Exception as error:
            self._every(
                _log.error,
                "a page failed, and was answered with 500; the others go on",
                key=type(error).__name__,
                exc_info=error,
            )

    def _asked(self, request: Request) -> Rejection | None:
        if (version := request.scope["http_version"]) not in _VERSIONS:
            told = f"HTTP/{version} is not spoken here; ask by HTTP/1.1"
            return refusal(HttpRefusal.MALFORMED, 505, told)
        for check in self._checks:
            if found := check(request):
                return found
        if int(request.headers.get("content-length", "0")) > self._max_body_bytes:
            return self._too_large()
        return None

    async def _body(self, receive: Receive) -> tuple[Rejection | None, bytes] | None:
        body = bytearray()  # however small the pieces are
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message["body"]
            if len(body) > self._max_body_bytes:
                return self._too_large(), b""
            if not message["more_body"]:
                return None, bytes(body)

    def _too_large(self) -> Rejection:
        return refusal(
            HttpRefusal.BODY,
            413,
            f"the body has more than {self._max_body_bytes} bytes; send less, or raise "
            "http.max_body_bytes",
        )


# --- checks -------------------------------------------------------------------------


def asked_by_a_name_in(names: Collection[str]) -> Check:
    """Refuses who does not ask by one of *names*, in small letters, or an address.

    A web page that has its own name lead here, which is how it would read what is only
    for this host, asks by that name.
    """

    def check(request: Request) -> Rejection | None:
        given = request.headers.getlist("host")
        found = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if found is None or (found[1] and not is_address(found[1])):
            told = "the request has no Host, or a malformed one; ask by a URL"
            return refusal(HttpRefusal.HOST, 400, told)
        # A name with a dot at its end is the same name.
        name = (found[1] or found[2]).removesuffix(".")
        if name in names or is_address(name):
            return None
        told = f"Host is {name!r:.80}, which is no name of this sidecar"
        told += "; ask by its address, or add the name to http.hosts"
        return refusal(HttpRefusal.HOST, 421, told)

    return check


def from_nobody(why: str) -> Check:
    """Refuses every request of a connection, whose other end may not ask; *why* says so."""

    def check(_: Request) -> Rejection | None:
        return refusal(HttpRefusal.ACCESS, 403, why)

    return check


def only_health(most: int) -> Check:
    """Refuses all but the pages of health, where there are no places for others."""

    def check(request: Request) -> Rejection | None:
        if request.scope["path"] in HEALTH:
            return None
        told = (
            f"there are {most} connections here, as many as there may be, and none is "
        )
        told += "idle; ask again later, or raise http.max_connections"
        headers = {"connection": "close", "retry-after": "1"}
        return refusal(HttpRefusal.CONNECTIONS, 503, told, headers)

    return check


def only_reads(posts: Collection[str]) -> Check:
    """Refuses what is not GET or HEAD, but for POST to the paths of *posts*."""

    def check(request: Request) -> Rejection | None:
        may_post = request.scope["path"] in posts
        allowed = ["GET", "HEAD"] + ["POST"] * may_post
        if request.method in allowed:
            return None
        told = f"{request.method:.20} is not for this address, where nothing is changed"
        told += "; what changes something is on admin.sock"
        headers = {"allow": ", ".join(allowed)}
        return refusal(HttpRefusal.METHOD, 405, told, headers)

    return check


def is_address(host: str) -> bool:
    """Whether a host is an IP address, and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# --- bodies and answers -------------------------------------------------------------


async def _answer_unread(
    answer: Response, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer while what is still sent is let go; it would stand in the way of the end."""

    async def let_go() -> None:
        while (await receive())["type"] == "http.request":
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_go)
        await answer(scope, receive, send)
        nursery.cancel_scope.cancel()


def _told_once(body: bytes, receive: Receive) -> Receive:
    """Tells the body, and after that what else there is to tell: that the client went."""
    messages: list[Message] = [
        {"type": "http.request", "body": body, "more_body": False}
    ]

    async def tell() -> Message:
        return messages.pop() if messages else await receive()

    return tell


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_HEADERS]
        await send(message)

    return send_with_headers
