"""The token of the TCP listener: who is let in with it, and how a browser signs in.

The token is read from a file and kept nowhere else. A program sends it with each request.
A browser that has not signed in is shown a page that asks for it, whatever it came for;
what that page sends is answered with a cookie that no script can read and no page of
another site can have sent. The cookie is a date and a signature of it, by a key derived
from the token: nothing is kept of who signed in, no cookie gives the token away, and a new
token ends them all. Secrets are compared in a time that does not depend on where they
differ. Some pages are open to all: those that a scraper and a supervisor read, and what the
sign-in needs.

The right token is let in whatever others try; wrong ones may be tried only so often.
"""

import hmac
import os
import stat
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

from liveness.errors import StartError
from liveness.metrics import HttpRefusal
from liveness.service.common.logs import Every
from liveness.service.http.middleware import STILL_ALLOWED, Refused, Rejection, refusal

PAGE: Final = Path(__file__).with_name("page")
SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
OPEN: Final = frozenset({"/metrics", "/healthz", "/readyz", SIGN_IN, "/page/style.css"})
COOKIE: Final = "liveness"
# The largest token, with every character of it escaped, is three times as much; one that
# anybody types or pastes is far below.
MAX_FORM_BYTES: Final = 4096
LOG_S: Final = 10.0
_FORM: Final = "application/x-www-form-urlencoded"
_TOLD: Final = "<!-- told -->"  # the place for it in the page
_log = structlog.get_logger("http")
# 16 characters of those that `openssl rand -base64` writes are 96 bits: none is guessed.
LEAST_CHARACTERS: Final = 16
MOST_BYTES: Final = 4096
# A working day, so that one signs in once a day.
SIGNED_IN_S: Final = 12 * 3600
# Who has the token is let in whatever others try: this bounds what those cost, and what
# they have us say.
TRIES_PER_S: Final = 2.0
TRIES_AT_ONCE: Final = 5
_KEY_FOR: Final = b"liveness: the cookie of who signed in"


class Token:
    """The token, as it is asked about.

    Args:
        secret: ASCII that can be printed, without spaces.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("ascii")
        self._key = hmac.digest(self._secret, _KEY_FOR, "sha256")

    def become(self, other: "Token") -> bool:
        """Be *other* from now on: whoever signed in with this one has to do so again.

        Returns:
            Whether that is another.
        """
        is_new = not hmac.compare_digest(self._secret, other._secret)
        self._secret, self._key = other._secret, other._key
        return is_new

    def is_it(self, text: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(text.encode(), self._secret)

    def is_said_by(self, authorization: str) -> bool:
        """Whether the header of this name says it: `Bearer TOKEN`."""
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.is_it(text.strip())

    def sign(self, now_s: float) -> str:
        """The cookie of one who signs in, good for `SIGNED_IN_S`.

        Args:
            now_s: Unix seconds.
        """
        until = str(int(now_s) + SIGNED_IN_S)
        return f"{until}.{self._signature(until)}"

    def is_signed(self, cookie: str, now_s: float) -> bool:
        """Whether a cookie is one of ours, and still good at *now_s*, Unix seconds."""
        until, _, signature = cookie.partition(".")
        ours = self._signature(until)
        if not hmac.compare_digest(signature.encode(), ours.encode()):
            return False
        return now_s < int(until)  # ours, so it is a number

    def _signature(self, until: str) -> str:
        return hmac.digest(self._key, until.encode(), "sha256").hex()


class Tries:
    """How often all together may be wrong: so often at once, and then so often a second."""

    def __init__(self) -> None:
        self._left = float(TRIES_AT_ONCE)
        self._at = 0.0

    def fail(self, now: float) -> int:
        """Take one more that was wrong.

        Args:
            now: Seconds of any clock that does not go back.
        Returns:
            0, or in how many whole seconds there is room for it.
        """
        self._left += (now - self._at) * TRIES_PER_S
        self._left = min(self._left, float(TRIES_AT_ONCE))
        self._at = now
        if self._left < 1:
            return ceil((1 - self._left) / TRIES_PER_S)
        self._left -= 1
        return 0


def read_token(path: Path | None) -> Token | None:
    """Read the token that a file holds; without a file there is none.

    Raises:
        StartError: The file cannot be read, others can read it, or it holds no token.
    """
    if path is None:
        return None
    try:
        data, mode = _read(path)
    except OSError as error:
        raise _refused(
            path, f"cannot be read ({error.strerror}); correct the path or its mode"
        ) from None
    if not stat.S_ISREG(mode):
        raise _refused(path, "is no file; name one that holds the token")
    if mode & 0o007:
        raise _refused(path, "is open to others than owner and group; chmod o= it")
    if len(data) > MOST_BYTES:
        raise _refused(path, f"has more than {MOST_BYTES} bytes; it must be the token")
    secret = data.decode("latin-1").strip()
    if len(secret) < LEAST_CHARACTERS:
        told = f"has {len(secret)} characters; a token has {LEAST_CHARACTERS} or more"
        raise _refused(path, f"{told} (openssl rand -base64 24)")
    if not all("!" <= character <= "~" for character in secret):
        raise _refused(
            path, "has characters other than printable ASCII; a token has no others"
        )
    return Token(secret)


def _read(path: Path) -> tuple[bytes, int]:
    """A little more than a token may have, and the mode, of one and the same file."""
    # Whatever it is that was named, nobody is waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        data = os.read(descriptor, MOST_BYTES + 1) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    return data, mode


def _refused(path: Path, why: str) -> StartError:
    return StartError(f"http.token_file: {path} {why}")


class SignIn:
    """The check of the token, and the pages by which a browser signs in and out.

    Args:
        token: The token.
        names: Names by which the door may be asked.
        refused: Counts what is refused.
        wall_s: The wall clock, in Unix seconds.
    """

    def __init__(
        self,
        token: Token,
        names: Collection[str],
        refused: Refused,
        *,
        wall_s: Callable[[], float],
    ) -> None:
        self._token = token
        self._names = names
        self._refused = refused
        self._wall_s = wall_s
        self._tries = Tries()
        self._every = Every(LOG_S, clock=trio.current_time)
        self._page = (PAGE / "sign-in.html").read_text()

    def check(self, request: Request) -> Rejection | None:
        """Refuses who has no token and has not signed in, but for what is open to all."""
        if request.scope["path"] in OPEN:
            return None
        said = request.headers.getlist("authorization")
        is_allowed = partial(self._is_allowed, said, request.cookies.get(COOKIE, ""))
        if is_allowed():
            request.scope[STILL_ALLOWED] = is_allowed
            return None
        if said:
            return self._wrong(request)
        told = "this page needs the token that is in the file of http.token_file: send "
        told += f'"Authorization: Bearer TOKEN", or sign in at {SIGN_IN} in a browser'
        return self._told(request, HttpRefusal.TOKEN, 401, told, is_news=False)

    def _is_allowed(self, said: Sequence[str], cookie: str) -> bool:
        """Whether somebody has the token or has signed in with it, as of now."""
        if said:
            return len(said) == 1 and self._token.is_said_by(said[0])
        return self._token.is_signed(cookie, self._wall_s())

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
        found = self._from_elsewhere(request) or await self._read(request)
        if isinstance(found, Rejection):
            self._refused(found.why)
            return found.answer
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            self._token.sign(self._wall_s()),
            max_age=SIGNED_IN_S,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        if found := self._from_elsewhere(request):
            self._refused(found.why)
            return found.answer
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def _read(self, request: Request) -> Rejection | None:
        """What is wrong with a form that was sent."""
        body = await request.body()
        if len(body) > MAX_FORM_BYTES:
            told = f"the form has more than {MAX_FORM_BYTES} bytes; send token=TOKEN"
            return self._told(request, HttpRefusal.BODY, 413, told)
        kind = request.headers.get("content-type", "").partition(";")[0]
        form = parse_qs(body.decode("latin-1")) if kind.strip().lower() == _FORM else {}
        if self._token.is_it("".join(form.get("token", [])).strip()):
            return None
        return self._wrong(request)

    def _wrong(self, request: Request) -> Rejection:
        client = request.client.host if request.client else None
        self._every(
            _log.warning, "a wrong token was refused", key="token", client=client
        )
        wait_s = self._tries.fail(trio.current_time())
        if not wait_s:
            told = "that is not the token; it is in the file of http.token_file"
            return self._told(request, HttpRefusal.TOKEN, 401, told)
        told = f"too many wrong tokens were tried; try again in {wait_s} s"
        after = {"retry-after": str(wait_s)}
        return self._told(request, HttpRefusal.TRIES, 429, told, after)

    def _from_elsewhere(self, request: Request) -> Rejection | None:
        """Refuses a form that is not of our own page."""
        origin = request.headers.get("origin")
        if origin is None:
            return None  # no browser, or an old one
        site = origin.partition("://")[2].lower()
        # A proxy may ask by another Host than it was asked by.
        if site == request.headers.get("host", "").lower() or site in self._names:
            return None
        told = (
            f"Origin is {origin!r:.80}, another site; sign in and out on our own page"
        )
        told += "; behind a proxy, add the name that that is asked by to http.hosts"
        return self._told(request, HttpRefusal.ORIGIN, 403, told)

    def _told(
        self,
        request: Request,
        why: HttpRefusal,
        status: int,
        told: str,
        headers: dict[str, str] | None = None,
        *,
        is_news: bool = True,
    ) -> Rejection:
        """What is refused, in the form that is asked for; who asks for a page may sign in."""
        headers = {"www-authenticate": "Bearer"} if status == 401 else headers
        if "text/html" not in request.headers.get("accept", ""):
            return refusal(why, status, told, headers)
        alert = f'<p role="alert">{escape(told)}.</p>' if is_news else ""
        page = self._page.replace(_TOLD, alert)
        return Rejection(why, HTMLResponse(page, status, headers))
