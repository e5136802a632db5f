"""The token of the TCP listener, and how a browser signs in with it.

The token is read from a file and stored nowhere else. A program sends it with each request.
A browser without it is shown a form that asks for it, whatever page it requested, and gets
a cookie in return, which no script can read and no other site can send. The cookie is an
expiry date and its signature, by a key derived from the token. So the sidecar keeps no
sessions, a cookie does not reveal the token, and a new token ends all cookies. Secrets are
compared in constant time. The pages for scrapers and supervisors, and those of the form,
need no token.

Wrong tokens are rate-limited. The right token is always accepted, whatever others try.
"""

import hmac
from collections.abc import Callable, Collection, Sequence
from functools import partial
from html import escape
from math import ceil
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import structlog
import trio
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from liveness.config.secret_file import SecretFile
from liveness.metrics.counts import HttpRefusal
from liveness.service.common.logs import LogThrottle
from liveness.service.http.middleware import STILL_ALLOWED, Refused, Rejection, refusal

PAGE: Final = Path(__file__).with_name("page")
SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
OPEN: Final = frozenset({"/metrics", "/healthz", "/readyz", SIGN_IN, "/page/style.css"})
COOKIE: Final = "liveness"
# Enough for any token that is typed or pasted, but not for the largest one with every
# character escaped.
MAX_FORM_BYTES: Final = 4096
LOG_S: Final = 10.0
_FORM: Final = "application/x-www-form-urlencoded"
_ERROR: Final = "<!-- error -->"  # its place in the form's page
# 16 characters as `openssl rand -base64` writes them are 96 bits: too many to guess.
MIN_CHARACTERS: Final = 16
# A working day: people sign in once a day.
SIGNED_IN_S: Final = 12 * 3600
# For the wrong tokens of all clients together. This bounds their work and log lines; it
# does not protect the token.
TRIES_PER_S: Final = 2.0
TRIES_AT_ONCE: Final = 5
# Part of every cookie's signature: a change signs everyone out.
_KEY_FOR: Final = b"liveness: the cookie of who signed in"
_log = structlog.get_logger("http")


class Token:
    """The token, and the cookies signed by it.

    Args:
        secret: Printable ASCII without spaces.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("ascii")
        self._key = hmac.digest(self._secret, _KEY_FOR, "sha256")

    def replace_with(self, other: "Token") -> bool:
        """Take over the secret of *other*, which ends the cookies of a former secret.

        Returns:
            Whether the secret has changed.
        """
        is_new = not hmac.compare_digest(self._secret, other._secret)
        self._secret, self._key = other._secret, other._key
        return is_new

    def matches(self, text: str) -> bool:
        """Whether a text is the token."""
        return hmac.compare_digest(text.encode(), self._secret)

    def matches_header(self, authorization: str) -> bool:
        """Whether an Authorization header has the token: `Bearer TOKEN`."""
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.matches(text.strip())

    def sign(self, now_s: float) -> str:
        """A cookie that is valid for `SIGNED_IN_S` from *now_s*, in Unix seconds."""
        until = str(int(now_s) + SIGNED_IN_S)
        return f"{until}.{self._signature(until)}"

    def is_valid_cookie(self, cookie: str, now_s: float) -> bool:
        """Whether a cookie was signed by this token, and has not expired at *now_s*."""
        until, _, signature = cookie.partition(".")
        expected = self._signature(until)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return False
        return now_s < int(until)  # a number, as we signed it

    def _signature(self, until: str) -> str:
        return hmac.digest(self._key, until.encode(), "sha256").hex()


class WrongTokenLimit:
    """A token bucket for wrong tokens: `TRIES_AT_ONCE`, then `TRIES_PER_S`."""

    def __init__(self) -> None:
        self._left = float(TRIES_AT_ONCE)
        self._at = 0.0

    def fail(self, now: float) -> int:
        """Count one wrong token.

        Args:
            now: Seconds of any monotonic clock.
        Returns:
            0, or, beyond the limit, the whole seconds until it may be tried again.
        """
        self._left += (now - self._at) * TRIES_PER_S
        self._left = min(self._left, float(TRIES_AT_ONCE))
        self._at = now
        if self._left < 1:
            return ceil((1 - self._left) / TRIES_PER_S)
        self._left -= 1
        return 0


def read_token(path: Path | None) -> Token | None:
    """Read the token from a file; None without a path.

    Raises:
        StartError: The file cannot be read, is open to other users, or has no valid token.
    """
    if path is None:
        return None
    file = SecretFile("http.token_file", path, "token")
    secret = file.read().decode("latin-1").strip()
    if len(secret) < MIN_CHARACTERS:
        why = f"has {len(secret)} characters; a token has {MIN_CHARACTERS} or more"
        raise file.refused(f"{why} (openssl rand -base64 24)")
    if not all("!" <= character <= "~" for character in secret):
        raise file.refused(
            "has characters other than printable ASCII; a token has no others"
        )
    return Token(secret)


class SignIn:
    """The check of the token, and the pages to sign in and out.

    *names* are those of the listener in Host headers. *now_s* is the state's clock, in
    seconds: it continues over restarts, and is never set.
    """

    def __init__(
        self,
        token: Token,
        names: Collection[str],
        refused: Refused,
        *,
        now_s: Callable[[], float],
    ) -> None:
        self._token = token
        self._names = names
        self._refused = refused
        self._now_s = now_s
        self._wrong_tokens = WrongTokenLimit()
        self._log_throttled = LogThrottle(LOG_S, clock=trio.current_time)
        self._page = (PAGE / "sign-in.html").read_text(encoding="utf-8")

    def check(self, request: Request) -> Rejection | None:
        """Refuse a request without token and cookie, unless its page is open to all."""
        if request.scope["path"] in OPEN:
            return None
        headers = request.headers.getlist("authorization")
        is_allowed = partial(self._is_allowed, headers, request.cookies.get(COOKIE, ""))
        if is_allowed():
            request.scope[STILL_ALLOWED] = is_allowed
            return None
        if headers:
            return self._wrong_token(request)
        message = (
            "this page needs the token that is in the file of http.token_file: send "
        )
        message += (
            f'"Authorization: Bearer TOKEN", or sign in at {SIGN_IN} in a browser'
        )
        return self._rejection(
            request, HttpRefusal.TOKEN, 401, message, is_shown_in_form=False
        )

    def _is_allowed(self, headers: Sequence[str], cookie: str) -> bool:
        """Whether these Authorization headers, or this cookie, are valid now."""
        if headers:
            return len(headers) == 1 and self._token.matches_header(headers[0])
        return self._token.is_valid_cookie(cookie, self._now_s())

    def routes(self) -> list[Route]:
        """The pages to sign in and out."""
        return [
            Route(SIGN_IN, self._show),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(SIGN_OUT, self._sign_out, methods=["POST"]),
        ]

    async def _show(self, _: Request) -> Response:
        return HTMLResponse(self._page)

    async def _sign_in(self, request: Request) -> Response:
        rejection = self._foreign(request) or await self._check_form(request)
        if rejection is not None:
            self._refused(rejection.why)
            return rejection.answer
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            self._token.sign(self._now_s()),
            max_age=SIGNED_IN_S,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        if rejection := self._foreign(request):
            self._refused(rejection.why)
            return rejection.answer
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def _check_form(self, request: Request) -> Rejection | None:
        """Refuse a form without the right token."""
        body = await request.body()
        if len(body) > MAX_FORM_BYTES:
            message = f"the form has more than {MAX_FORM_BYTES} bytes; send token=TOKEN"
            return self._rejection(request, HttpRefusal.BODY, 413, message)
        kind = request.headers.get("content-type", "").partition(";")[0]
        form = parse_qs(body.decode("latin-1")) if kind.strip().lower() == _FORM else {}
        if self._token.matches("".join(form.get("token", [])).strip()):
            return None
        return self._wrong_token(request)

    def _wrong_token(self, request: Request) -> Rejection:
        client = request.client.host if request.client else None
        self._log_throttled(
            _log.warning, "a wrong token was refused", key="token", client=client
        )
        wait_s = self._wrong_tokens.fail(trio.current_time())
        if not wait_s:
            message = "that is not the token; it is in the file of http.token_file"
            return self._rejection(request, HttpRefusal.TOKEN, 401, message)
        message = f"too many wrong tokens were tried; try again in {wait_s} s"
        headers = {"retry-after": str(wait_s)}
        return self._rejection(request, HttpRefusal.TRIES, 429, message, headers)

    def _foreign(self, request: Request) -> Rejection | None:
        """Refuse a form that another site's page has sent."""
        origin = request.headers.get("origin")
        if origin is None:
            return None  # not a browser, or an old one
        site = origin.partition("://")[2].lower()
        # Behind a proxy Host may differ from the name that the browser asked for.
        if site == request.headers.get("host", "").lower() or site in self._names:
            return None
        message = f"Origin is {origin!r:.80}, another site; sign in and out on our own "
        message += "page; behind a proxy, add the proxy's name to http.hosts"
        return self._rejection(request, HttpRefusal.ORIGIN, 403, message)

    def _rejection(
        self,
        request: Request,
        why: HttpRefusal,
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        is_shown_in_form: bool = True,
    ) -> Rejection:
        """A rejection as JSON, or for a browser as the form to sign in."""
        headers = {"www-authenticate": "Bearer"} if status == 401 else headers
        if "text/html" not in request.headers.get("accept", ""):
            return refusal(why, status, message, headers)
        error = f'<p role="alert">{escape(message)}.</p>' if is_shown_in_form else ""
        page = self._page.replace(_ERROR, error)
        return Rejection(why, HTMLResponse(page, status, headers))
