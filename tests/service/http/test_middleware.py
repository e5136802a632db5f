"""The checks of the middleware and the token, without a server or a socket."""

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs
from trio.testing import MockClock

from liveness.config.secret_file import MAX_BYTES
from liveness.errors import StartError
from liveness.metrics.counts import HttpRefusal
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.api import PAUSE_S, SharedPages
from liveness.service.http.bearer import MIN_CHARACTERS, Token, read_token
from liveness.service.http.middleware import Middleware, allow_hosts, read_only
from tests.service.http.asgi import Answer, ask

MOST = 1_000


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body, which has to come at once."""
    message = await receive()
    assert message["more_body"] is False
    await Response(message["body"])(scope, receive, send)


def gate(refused: list[HttpRefusal], app: ASGIApp = echo, *checks: Any) -> Middleware:
    return Middleware(app, checks, refused.append, max_body_bytes=MOST)


def in_pieces(size: int, piece: int) -> list[bytes]:
    return [b"x" * min(piece, size - at) for at in range(0, size, piece)]


@pytest.mark.parametrize(
    ("pieces", "headers"),
    [
        *((in_pieces(MOST + 1, piece), {}) for piece in (1, 300, MOST + 1)),
        ([], {"content-length": str(MOST + 1)}),  # which is not read
    ],
    ids=["bytes", "pieces", "at once", "unread"],
)
async def test_a_byte_more_is_refused(
    pieces: list[bytes], headers: dict[str, str]
) -> None:
    refused: list[HttpRefusal] = []
    answer = await ask(gate(refused), "POST", "/", pieces=pieces, headers=headers)
    assert (answer.status, refused) == (413, [HttpRefusal.BODY])
    assert answer.error == "the body has more than 1000 bytes; send less"


async def test_a_path_may_take_a_larger_body_and_a_few_are_in_memory_at_a_time() -> (
    None
):
    refused, statuses = list[HttpRefusal](), list[int]()
    at_once = most_at_once = 0

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal at_once, most_at_once
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        await trio.testing.wait_all_tasks_blocked()
        at_once -= 1
        await echo(scope, receive, send)

    bounds: Any = {"larger_bodies": {"/large": 5_000}, "at_once": {"/large": 8}}
    large = Middleware(slow, (), refused.append, max_body_bytes=MOST, **bounds)

    async def send(size: int) -> None:
        answer = await ask(large, "POST", "/large", pieces=in_pieces(size, 300))
        statuses.append(answer.status)

    async with trio.open_nursery() as nursery:
        for _ in range(3 * 8):
            nursery.start_soon(send, 5_000)
    assert (most_at_once, statuses) == (8, [200] * 24)
    await send(5_001)
    assert (statuses[-1], refused) == (413, [HttpRefusal.BODY])


async def test_every_answer_says_what_a_browser_may_do_with_it() -> None:
    checks = (read_only(set()),)
    for method, status in (("GET", 200), ("POST", 405)):
        answer = await ask(gate([], echo, *checks), method, "/")
        assert answer.status == status
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]])
async def test_a_request_has_exactly_one_host(hosts: list[str]) -> None:
    refused: list[HttpRefusal] = []
    door = gate(refused, echo, allow_hosts({"localhost"}))
    headers = [("accept", "*/*"), *(("host", host) for host in hosts)]
    answer = await ask(door, "GET", "/", headers=headers)
    assert (answer.status, refused) == (400, [HttpRefusal.HOST])


async def test_pages_that_fail_are_logged_once(autojump_clock: MockClock) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=500)(scope, receive, send)
        raise RuntimeError("out of order")

    door = gate([], page)
    with capture_logs() as lines:
        for _ in range(3):
            assert (await ask(door, "GET", "/")).status == 500
    (line,) = lines
    assert line["log_level"] == "error"
    assert str(line["exc_info"]) == "out of order"


class Maker:
    """Makes pages, and notes when."""

    def __init__(self) -> None:
        self.made: list[tuple[str, float]] = []
        self.got: list[bytes] = []
        self.pages = SharedPages(self.make, Turnstile())

    def make(self, key: str) -> bytes:
        self.made.append((key, trio.current_time()))
        return f"{key} {len(self.made)}".encode()

    async def ask(self, key: str = "a") -> None:
        self.got.append(await self.pages.page(key))


async def test_a_page_is_made_once_for_all_waiting(autojump_clock: MockClock) -> None:
    maker, began = Maker(), trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(95):
            nursery.start_soon(maker.ask)
    assert maker.got == [b"a 1"] * 95
    assert maker.made == [("a", began)]  # and nobody waits who asks seldom


async def test_a_later_request_gets_the_next_page_after_a_pause(
    autojump_clock: MockClock,
) -> None:
    maker, began = Maker(), trio.current_time()
    await maker.ask()
    await trio.sleep(PAUSE_S / 4)
    async with trio.open_nursery() as nursery:
        for key in ("a", "a", "b"):
            nursery.start_soon(maker.ask, key)
    first, *others = maker.made
    assert first == ("a", began)
    assert {key for key, _ in others} == {"a", "b"}
    assert [round(at - began, 6) for _, at in others] == [PAUSE_S, 2 * PAUSE_S]


async def test_a_turnstile_admits_one_a_pass(autojump_clock: MockClock) -> None:
    turnstile, through = Turnstile(), list[int]()
    passes = 0

    class Counting(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal passes
            passes += 1

    async def go() -> None:
        await turnstile.wait()
        through.append(passes)

    trio.lowlevel.add_instrument(Counting())
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(go)
    assert len(set(through)) == len(through) == 20


WORDS = "correct-horse/battery+staple=="
WRONG = "Bearer another-token-of-the-same-length"


@pytest.fixture
def token() -> Token:
    return Token(WORDS)


def written(folder: Path, text: bytes, mode: int = 0o640) -> Path:
    file = folder / "token"
    file.write_bytes(text)
    file.chmod(mode)
    return file


def why_refused(path: Path) -> str:
    with pytest.raises(StartError) as caught:
        read_token(path)
    told = str(caught.value)
    assert told.startswith(f"http.token_file: {path} ")
    assert "\n" not in told
    return told


@pytest.mark.parametrize("mode", [0o400, 0o660])
@pytest.mark.parametrize("text", [WORDS, f"\ufeff \t{WORDS}\r\n\r\n"])
def test_a_token_is_read_without_the_space_around_it(
    tmp_path: Path, text: str, mode: int
) -> None:
    (tmp_path / "link").symlink_to(written(tmp_path, text.encode(), mode))
    for path in (tmp_path / "token", tmp_path / "link"):
        token = read_token(path)
        assert token is not None
        assert token.matches([f"Bearer {WORDS}"])


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    told = why_refused(written(tmp_path, WORDS.encode(), mode))
    assert "is open to users other than its owner and group; run chmod o= on it" in told
    assert WORDS not in told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\n", "has 0 characters"),
        (b"x" * (MIN_CHARACTERS - 1), "has 15 characters; a token has 16 or more"),
        (b"x" * (MAX_BYTES + 1), "more than 4096 bytes"),
        *((b"x" * 16 + odd + b"x", "other than printable") for odd in (b" ", b"\xe9")),
    ],
    ids=lambda value: ascii(value)[-24:],
)
def test_a_file_that_holds_no_token_is_refused(
    tmp_path: Path, text: bytes, why: str
) -> None:
    told = why_refused(written(tmp_path, text))
    assert why in told
    assert WORDS not in told


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file" in why_refused(tmp_path / "absent")
    assert "is not a regular file" in why_refused(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)  # and nobody is waited for
    assert "is not a regular file" in why_refused(tmp_path / "pipe")


@pytest.mark.parametrize(
    "said",
    [
        "Bearer",
        WORDS,
        f"Basic {WORDS}",
        f"Bearer {WORDS[:-1]}",
        pytest.param(f"Bearer x{WORDS}", id="another token"),
        f"Bearer {WORDS} {WORDS}",
        "Bearer \xe9",
    ],
)
def test_a_header_with_anything_else_is_refused(token: Token, said: str) -> None:
    assert not token.matches([said])


def test_a_token_does_not_show_itself(token: Token) -> None:
    for shown in (repr(token), str(token)):
        assert WORDS not in shown


async def get(token: Token, path: str, *authorizations: str) -> Answer:
    """Ask for a page behind the token."""
    app = gate([], Response("in"), token.check)
    headers = [("authorization", words) for words in authorizations]
    return await ask(app, "GET", path, headers=headers)


# All but the first only look open.
@pytest.mark.parametrize("path", ["/", "/metrics/../", "/healthz/", "//metrics"])
async def test_without_the_token_nothing_is_shown_and_it_is_said_what_to_do(
    token: Token, path: str
) -> None:
    answer = await get(token, path)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert 'send "Authorization: Bearer TOKEN"; docs/live-page.md says' in answer.error


async def test_two_tokens_are_none(token: Token) -> None:
    said = f"Bearer {WORDS}"
    assert (await get(token, "/", said)).status == 200
    assert (await get(token, "/", said, said)).status == 401


async def test_wrong_tokens_are_logged_rarely_and_never_shown(
    token: Token, mock_clock: MockClock
) -> None:
    with capture_logs() as lines:
        for _ in range(50):
            answer = await get(token, "/", WRONG)
            assert (answer.status, "is not the token" in answer.error) == (401, True)
    assert [line["event"] for line in lines] == ["a wrong token was refused"]
    assert lines[0]["client"] == "192.0.2.1"
    assert "another-token" not in str(lines)
