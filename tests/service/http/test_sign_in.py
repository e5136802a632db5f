"""Signing in with a token, and how long that lasts; time is virtual."""

from urllib.parse import urlencode

import pytest
import trio
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.testing import capture_logs
from trio.testing import MockClock

from liveness.metrics.counts import Counts, HttpRefusal
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.event_stream import (
    NOT_ALLOWED,
    QUIET_S,
    StreamKind,
    Streams,
    StreamWriter,
)
from liveness.service.http.middleware import Middleware
from liveness.service.http.routes import build_pages
from liveness.service.http.sign_in import (
    MAX_FORM_BYTES,
    OPEN,
    SIGNED_IN_S,
    TRIES_AT_ONCE,
    SignIn,
    Token,
)
from tests.service.http.asgi import Answer, ask
from tests.service.http.reading import Event, reading

WORDS = "correct-horse/battery+staple=="
BEARER = {"authorization": f"Bearer {WORDS}"}
WRONG = {"authorization": "Bearer another-token-of-the-same-length"}
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Door:
    """Pages behind a sign-in, at a wall clock that is the loop's."""

    def __init__(self) -> None:
        self.refused: list[HttpRefusal] = []
        names = {"localhost", "gateway-1.example"}
        sign_in = SignIn(
            Token(WORDS), names, self.refused.append, now_s=trio.current_time
        )
        streams = Streams(most=1, counts=Counts(), turnstile=Turnstile())

        async def stream(_: Request) -> Response:
            return streams.events(StreamKind.FEED, StreamWriter.wait)

        pages = build_pages(
            CollectorRegistry(),
            [*sign_in.routes(), Route("/stream", stream)],
            why_unhealthy=list,
            why_not_ready=list,
            has_sign_out=True,
            turnstile=Turnstile(),
        )
        self.app = Middleware(
            pages, [sign_in.check], self.refused.append, max_body_bytes=65_536
        )

    async def get(self, path: str, **headers: str) -> Answer:
        return await ask(self.app, "GET", path, headers=headers)

    async def sign_in(self, token: str, **headers: str) -> Answer:
        body = urlencode({"token": token}).encode()
        return await self.post("/sign-in", body, **headers)

    async def post(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        headers = {**FORM, **headers}
        return await ask(self.app, "POST", path, pieces=[body], headers=headers)


@pytest.fixture
def door() -> Door:
    return Door()


def cookie_of(answer: Answer) -> str:
    assert (answer.status, answer.headers["location"]) == (303, "/")
    pair, _, rest = answer.headers["set-cookie"].partition("; ")
    attributes = {name.lower() for name in rest.split("; ")}
    assert attributes == {
        f"max-age={SIGNED_IN_S}", "httponly", "path=/", "samesite=strict"
    }  # fmt: skip
    assert WORDS not in pair
    return pair


async def test_a_stream_ends_with_the_sign_in_that_opened_it(
    door: Door, autojump_clock: MockClock
) -> None:
    cookie = cookie_of(await door.sign_in(WORDS))
    async with reading(door.app, "/stream", headers={"cookie": cookie}) as reader:
        with trio.fail_after(SIGNED_IN_S + 2 * QUIET_S):
            end = await reader._event()
        assert end == Event("end", {"why": NOT_ALLOWED}, None)
        assert SIGNED_IN_S <= trio.current_time() <= SIGNED_IN_S + QUIET_S


# --- by the token ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/timers",
        "/page/index.html",
        "/nothing",
        # These only look open.
        "/metrics/../",
        "/healthz/",
        "//metrics",
        "/page/style.css/../index.html",
    ],
)
async def test_without_the_token_nothing_is_shown_and_it_is_said_what_to_do(
    door: Door, path: str
) -> None:
    answer = await door.get(path)
    assert (answer.status, door.refused) == (401, [HttpRefusal.TOKEN])
    assert answer.headers["www-authenticate"] == "Bearer"
    assert 'send "Authorization: Bearer TOKEN", or sign in at /sign-in' in answer.error


@pytest.mark.parametrize("path", sorted(OPEN))
@pytest.mark.parametrize("headers", [{}, WRONG, HTML])
async def test_what_is_open_is_open_to_all(
    door: Door, path: str, headers: dict[str, str]
) -> None:
    assert (await door.get(path, **headers)).status == 200
    assert door.refused == []


def test_no_more_is_open_than_has_to_be() -> None:
    sign_in = {"/sign-in", "/page/style.css"}
    assert {"/metrics", "/healthz", "/readyz", *sign_in} == OPEN


async def test_the_token_counts_and_not_a_cookie_beside_it(door: Door) -> None:
    assert (await door.get("/", **BEARER)).status == 200
    assert (await door.get("/nothing", **BEARER)).status == 404
    assert (await door.get("/", cookie="liveness=1.2", **BEARER)).status == 200
    cookie = cookie_of(await door.sign_in(WORDS))
    assert (await door.get("/", cookie=cookie, **WRONG)).status == 401


async def test_two_tokens_are_none(door: Door) -> None:
    said = ("authorization", BEARER["authorization"])
    headers = [("host", "localhost"), said, said]
    assert (await ask(door.app, "GET", "/", headers=headers)).status == 401


# --- by the page ----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/v1/timers", "/nothing"])
async def test_a_browser_gets_the_sign_in_page_on_any_path(
    door: Door, path: str
) -> None:
    answer = await door.get(path, **HTML)
    assert (answer.status, door.refused) == (401, [HttpRefusal.TOKEN])
    assert answer.headers["content-type"].startswith("text/html")
    assert b'<form method="post" action="/sign-in">' in answer.body
    assert b"alert" not in answer.body
    assert b"/v1/timers" not in answer.body


@pytest.mark.parametrize("typed", [WORDS, f" {WORDS}\r\n"])
async def test_signing_in_lets_a_browser_in_for_a_time(
    door: Door, mock_clock: MockClock, typed: str
) -> None:
    cookie = cookie_of(await door.sign_in(typed, **HTML))
    answer = await door.get("/", cookie=f"other=1; {cookie}", **HTML)
    assert answer.status == 200
    assert b'action="/sign-out"' in answer.body
    mock_clock.jump(SIGNED_IN_S - 1)
    assert (await door.get("/", cookie=cookie)).status == 200
    mock_clock.jump(1)
    assert (await door.get("/", cookie=cookie)).status == 401


async def test_signing_out_takes_the_cookie_from_the_browser(door: Door) -> None:
    cookie = cookie_of(await door.sign_in(WORDS))
    answer = await door.post("/sign-out", cookie=cookie)
    assert (answer.status, answer.headers["location"]) == (303, "/sign-in")
    gone = answer.headers["set-cookie"].lower()
    assert gone.startswith('liveness=""; ')
    assert "max-age=0" in gone


@pytest.mark.parametrize("accept", [HTML, {}])
async def test_a_wrong_token_is_refused_on_the_sign_in_page(
    door: Door, accept: dict[str, str]
) -> None:
    answer = await door.sign_in("<b>wrong</b>", **accept)
    assert (answer.status, door.refused) == (401, [HttpRefusal.TOKEN])
    assert "set-cookie" not in answer.headers
    assert b"that is not the token" in answer.body
    assert b"<b>" not in answer.body
    assert answer.headers["content-type"].startswith(
        "text/html" if accept else "application/json"
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", FORM),
        (b"token", FORM),
        (b"token=", FORM),
        (f"tokens={WORDS}".encode(), FORM),
        (f"token={WORDS}&token={WORDS}".encode(), FORM),
        (WORDS.encode(), FORM),
        (b"\xff\0%ff%", FORM),
        (urlencode({"token": WORDS}).encode(), {"content-type": "text/plain"}),
        (urlencode({"token": WORDS}).encode(), {"content-type": ""}),
    ],
)
async def test_a_form_without_the_token_signs_nobody_in(
    door: Door, body: bytes, kind: dict[str, str]
) -> None:
    answer = await door.post("/sign-in", body, **kind)
    assert (answer.status, "set-cookie" in answer.headers) == (401, False)


async def test_a_form_may_have_the_most_bytes_and_not_one_more(door: Door) -> None:
    form = urlencode({"token": WORDS}).encode() + b"&pad="
    form += b"x" * (MAX_FORM_BYTES - len(form))
    cookie_of(await door.post("/sign-in", form))
    answer = await door.post("/sign-in", form + b"x")
    assert (answer.status, door.refused) == (413, [HttpRefusal.BODY])


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("http://localhost:9874", True),
        ("https://LOCALHOST:9874", True),
        ("https://gateway-1.example", True),  # the proxy's name, in the settings
        ("http://localhost:9874.evil.example", False),
        ("http://evil.example", False),
        ("http://localhost:3000", False),
        ("localhost:9874", False),
        ("null", False),
        ("", False),
        ("http://[", False),
    ],
)
async def test_forms_are_taken_from_our_own_page_only(
    door: Door, path: str, origin: str, is_ours: bool
) -> None:
    form = urlencode({"token": WORDS}).encode()
    hosts = {"host": "localhost:9874", "origin": origin}
    answer = await door.post(path, form, **BEARER, **hosts)
    assert answer.status == (303 if is_ours else 403)
    assert door.refused == ([] if is_ours else [HttpRefusal.ORIGIN])
    assert ("set-cookie" in answer.headers) == is_ours


# --- tries ----------------------------------------------------------------------------


async def test_wrong_tokens_are_bounded_and_the_right_one_is_not(
    door: Door, mock_clock: MockClock
) -> None:
    ways = [door.get("/", **WRONG), door.sign_in("wrong"), door.get("/x", **WRONG)]
    ways += [door.sign_in("wrong") for _ in range(TRIES_AT_ONCE - len(ways))]
    assert [(await way).status for way in ways] == [401] * TRIES_AT_ONCE
    for answer in (await door.get("/", **WRONG), await door.sign_in("wrong")):
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert "try again in 1 s" in answer.error
    assert (await door.get("/", **BEARER)).status == 200
    cookie = cookie_of(await door.sign_in(WORDS))
    assert (await door.get("/", cookie=cookie)).status == 200
    assert (await door.get("/")).status == 401  # who says none has not tried
    mock_clock.jump(1)
    assert (await door.sign_in("wrong")).status == 401
    tokens = [HttpRefusal.TOKEN] * TRIES_AT_ONCE
    assert door.refused == [
        *tokens, *[HttpRefusal.TRIES] * 2, *[HttpRefusal.TOKEN] * 2
    ]  # fmt: skip


async def test_wrong_tokens_are_logged_rarely_and_never_shown(
    door: Door, mock_clock: MockClock
) -> None:
    with capture_logs() as lines:
        for _ in range(50):
            await door.get("/", **WRONG)
            await door.sign_in("secret-as-well")
    assert [line["event"] for line in lines] == ["a wrong token was refused"]
    assert lines[0]["client"] == "192.0.2.1"
    assert "another-token" not in str(lines)
    assert "secret" not in str(lines)
