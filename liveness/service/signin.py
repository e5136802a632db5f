"""Who is let in at the TCP door where there is a token, and how a browser signs in.

A program says the token with each request. A browser that has not signed in is shown a
page that asks for it, whatever it came for; what that page sends is answered with a
cookie that no script can read and no other site's page can have sent. Some pages are
open to all: those that a scraper and a supervisor read, and what the sign-in needs.

The right token is let in whatever others try; wrong ones are only let try so often.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import structlog
import trio
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from liveness.metrics import HttpRefusal
from liveness.service.gate import STILL_ALLOWED, Refusal, Refused, refusal
from liveness.service.logs import Every
from liveness.service.tokens import SIGNED_IN_S, Token, Tries

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

    def check(self, request: Request) -> Refusal | None:
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
        if isinstance(found, Refusal):
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

    async def _read(self, request: Request) -> Refusal | None:
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

    def _wrong(self, request: Request) -> Refusal:
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

    def _from_elsewhere(self, request: Request) -> Refusal | None:
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
    ) -> Refusal:
        """What is refused, in the form that is asked for; who asks for a page may sign in."""
        headers = {"www-authenticate": "Bearer"} if status == 401 else headers
        if "text/html" not in request.headers.get("accept", ""):
            return refusal(why, status, told, headers)
        alert = f'<p role="alert">{escape(told)}.</p>' if is_news else ""
        page = self._page.replace(_TOLD, alert)
        return Refusal(why, HTMLResponse(page, status, headers))
