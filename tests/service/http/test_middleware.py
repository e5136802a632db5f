"""The checks of the middleware, without a server or a socket."""

from typing import Any

import pytest
import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs
from trio.testing import MockClock

from liveness.metrics.counts import HttpRefusal
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.api import PAUSE_S, SharedPages
from liveness.service.http.middleware import Middleware, allow_hosts, read_only
from tests.service.http.asgi import ask

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


async def test_a_path_for_forms_takes_a_post() -> None:
    door = gate([], echo, read_only({"/in"}))
    assert (await ask(door, "POST", "/in", pieces=[b"x"])).body == b"x"
    answer = await ask(door, "PUT", "/in")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")


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


# --- what pages take of the event loop ------------------------------------------------


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


async def test_a_cancelled_request_delays_no_other(autojump_clock: MockClock) -> None:
    maker = Maker()
    await maker.ask()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as gone:
            gone.cancel()
            await maker.ask()
        nursery.start_soon(maker.ask)
    assert maker.got == [b"a 1", b"a 2"]
    await trio.sleep(PAUSE_S)
    await maker.ask()
    assert maker.got[2] == b"a 3"


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
