"""The limits of a listener's clients, on a real socket; time is virtual."""

import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.config.settings import HttpSettings
from liveness.core.access import Allowed
from liveness.metrics.counts import HttpRefusal
from liveness.service.common.turnstile import Turnstile
from liveness.service.http.listener import (
    DENIED_CONNECTIONS,
    HEALTH_CONNECTIONS,
    STOP_S,
    HttpListener,
)
from liveness.service.http.middleware import Middleware, only_health
from liveness.service.links.acceptor import Acceptor
from liveness.service.links.sockets import listening
from tests.helpers.parsing import Parsing
from tests.service.rig import Rig

CONNECTIONS = 3
CROWD = 30
REQUEST_S = 10.0
HEAD_BYTES = 500
BODY_BYTES = 1_000
POSTED = b"POST / HTTP/1.1\r\nhost: h\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
LARGE = b"x" * 4_000_000  # far more than sockets hold
# An answer that takes longer than a request may; nobody gets it for being slow.
THINKING_S = 3 * REQUEST_S
GET = b"GET /%s HTTP/1.1\r\nhost: localhost\r\n\r\n"
_WHOLE = re.compile(rb".*?content-length: (\d+).*?\r\n\r\n(.*)", re.S)
CLOSE = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def pages(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body, or by the path with a large or a late answer."""
    body = await Request(scope, receive).body()
    if scope["path"] in ("/late", "/alone"):
        await trio.sleep(THINKING_S)
    answer = LARGE if scope["path"] == "/large" else b"got " + body
    await Response(answer)(scope, receive, send)


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Door:
    """A door that is open, for so many connections."""

    def __init__(self, path: Path, connections: int) -> None:
        self._path = path
        self.refused: list[HttpRefusal] = []
        self.passes = Passes()
        self.began_at: list[int] = []  # the pass in which each request reached the gate
        self.clients: list[Client] = []
        self.stop = trio.Event()
        self.settings = HttpSettings(
            request_s=REQUEST_S,
            max_connections=connections,
            max_header_bytes=HEAD_BYTES,
        )

    async def serve(self, listener: socket.socket) -> None:
        refused = self.refused.append
        bound = partial(Middleware, max_body_bytes=BODY_BYTES)
        gate = bound(pages, [self.note], refused, at_once={"/alone": 1})
        health = bound(gate, [only_health(CONNECTIONS)], refused)
        served = HttpListener(gate, health, self.settings, refused, Turnstile())
        await served.run(Acceptor(listener, "http", Counter()), self.stop.wait)

    def note(self, _: Request) -> None:
        self.began_at.append(self.passes.count)

    async def connect(self) -> "Client":
        client = Client(await trio.open_unix_socket(str(self._path)))
        self.clients.append(client)
        return client

    async def answer(self, request: bytes) -> bytes:
        """The answer to these bytes on a connection, up to its end."""
        client = await self.connect()
        with suppress(trio.BrokenResourceError):  # it may be refused before it asks
            await client.send(request)
        answer = await client.to_end()
        await client.stream.aclose()
        return answer


class Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self) -> bytes:
        """The next answer, whole."""
        data = b""
        while not (found := _WHOLE.match(data)) or len(found[2]) < int(found[1]):
            piece = await self.stream.receive_some()
            assert piece, "it ended before its answer did"
            data += piece
        return data

    async def to_end(self) -> bytes:
        """All that comes, however the connection ends."""
        pieces = []
        with suppress(trio.BrokenResourceError):  # it was cut
            while piece := await self.stream.receive_some():
                pieces.append(piece)
        return b"".join(pieces)

    async def drip(self, data: bytes, every_s: float) -> int:
        """Send a byte at a time; how many were taken before the connection ended."""
        for number in range(len(data)):
            try:
                await self.stream.send_all(data[number : number + 1])
            except trio.BrokenResourceError:
                return number
            await trio.sleep(every_s)
        return len(data)


@pytest.fixture
async def door(tmp_path: Path, jumping: MockClock) -> AsyncIterator[Door]:
    async with opened(tmp_path / "s") as door:
        yield door


@asynccontextmanager
async def opened(path: Path, connections: int = CONNECTIONS) -> AsyncIterator[Door]:
    door = Door(path, connections)
    with listening(path) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.serve, listener)  # noqa: ASYNC113 - it listens already
            try:
                yield door
            finally:
                door.stop.set()
        for client in door.clients:
            client.stream.socket.close()


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer[9:12])


def posted(size: int, chunk: int) -> bytes:
    """A request with a body of this size, in chunks of this many bytes."""
    head = b"POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n"
    if not chunk:
        return head + b"content-length: %d\r\n\r\n" % size + b"x" * size
    sizes = [min(chunk, size - at) for at in range(0, size, chunk)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (size, b"x" * size) for size in sizes)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


# --- time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [b"", posted(999, 0)[:-999], posted(999, 999)[:-1_006]],
    ids=["head", "body", "chunk"],
)
async def test_a_request_that_comes_a_byte_a_second_is_cut_in_time(
    door: Door, begun: bytes
) -> None:
    client = await door.connect()
    began = trio.current_time()
    await client.send(begun)
    sent = await client.drip(b"G" * 999, 1)
    assert sent <= REQUEST_S + 1
    answer = await client.to_end()
    assert status(answer) == 408
    assert b"did not arrive whole within 10 s; send it faster" in answer
    assert door.refused == [HttpRefusal.SLOW]
    assert REQUEST_S <= trio.current_time() - began <= REQUEST_S + 2


async def test_a_silent_connection_ends_and_nothing_is_refused(door: Door) -> None:
    client = await door.connect()
    await client.send(GET % b"")
    await client.answer()
    began = trio.current_time()
    assert await client.to_end() == b""
    assert trio.current_time() - began == pytest.approx(REQUEST_S, abs=0.1)
    assert await (await door.connect()).to_end() == b""
    assert door.refused == []


async def test_a_body_that_waits_for_another_request_is_in_time(door: Door) -> None:
    first, second = await door.connect(), await door.connect()
    await first.send(GET % b"alone")
    await wait_all_tasks_blocked()
    body = b"x" * BODY_BYTES  # more than is read with the head
    head = b"POST /alone HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n"
    await second.send(head % len(body) + body)
    assert status(await first.answer()) == 200
    assert (await second.answer()).endswith(b"\r\n\r\ngot " + body)
    assert door.refused == []


@pytest.mark.parametrize("bytes_a_second", [0, 1_000])
async def test_an_answer_that_is_not_read_is_cut_in_time(
    door: Door, bytes_a_second: int
) -> None:
    client = await door.connect()
    await client.send(GET % b"large")
    with trio.fail_after(REQUEST_S + 2):
        while door.refused == []:
            if bytes_a_second:
                await client.stream.receive_some(bytes_a_second)
            await trio.sleep(1)
    assert door.refused == [HttpRefusal.SLOW]
    assert len(await client.to_end()) < len(LARGE)
    assert status(await door.answer(CLOSE)) == 200


@pytest.mark.parametrize(
    "request_bytes",
    [b"", posted(9, 0)[:-8], GET % b"late", GET % b"large"],
    ids=["silent", "body", "late", "unread"],
)
async def test_a_stop_waits_for_nobody_longer_than_its_grace(
    tmp_path: Path, autojump_clock: MockClock, request_bytes: bytes
) -> None:
    async with opened(tmp_path / "s") as door:
        client = await door.connect()
        await client.send(request_bytes)
        await trio.sleep(1)
        began = trio.current_time()
    assert trio.current_time() - began <= STOP_S + 0.1
    assert door.refused == []


# --- sizes ----------------------------------------------------------------------------


def head_of(size: int) -> bytes:
    begin, end = b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx: ", b"\r\n\r\n"
    return begin + b"x" * (size - len(begin) - len(end)) + end


async def test_a_head_may_have_the_most_bytes_and_not_one_more(door: Door) -> None:
    assert status(await door.answer(head_of(HEAD_BYTES))) == 200
    assert door.refused == []
    answer = await door.answer(GET % b"" + head_of(HEAD_BYTES + 1))
    first, answer = answer.split(b"\r\n\r\ngot ")
    assert (status(first), status(answer)) == (200, 431)
    assert b"larger than 500 bytes; send less" in answer
    assert door.refused == [HttpRefusal.HEAD]


@pytest.mark.parametrize("chunk", [0, 1])
async def test_a_body_that_is_too_large_is_refused_before_its_end(
    door: Door, chunk: int
) -> None:
    whole = await door.answer(posted(BODY_BYTES, chunk))
    assert whole.endswith(b"\r\n\r\ngot " + b"x" * BODY_BYTES)
    assert door.refused == []
    client = await door.connect()
    began = trio.current_time()
    await client.send(posted(100 * BODY_BYTES, chunk)[:50_000])
    assert status(await client.to_end()) == 413
    assert door.refused == [HttpRefusal.BODY]
    assert trio.current_time() == began  # it did not wait for the rest


# --- connections ----------------------------------------------------------------------


async def busy(door: Door, begun: bytes = GET % b"late") -> list[Client]:
    """As many connections as there may be, none of them idle."""
    clients = [await door.connect() for _ in range(CONNECTIONS)]
    for client in clients:
        await client.send(begun)
    await wait_all_tasks_blocked()
    return clients


async def test_one_connection_too_many_is_refused_until_one_leaves(door: Door) -> None:
    clients = await busy(door)
    answer = await door.answer(GET % b"")
    assert status(answer) == 503
    assert b"\r\nconnection: close\r\n" in answer
    assert b"all 3 connections are in use" in answer
    assert door.refused == [HttpRefusal.CONNECTIONS]
    assert status(await clients[0].answer()) == 200  # the others go on
    await clients[1].stream.aclose()
    await wait_all_tasks_blocked()  # it was noticed
    assert status(await door.answer(CLOSE)) == 200
    assert door.refused == [HttpRefusal.CONNECTIONS]


@pytest.mark.parametrize("has_asked", [True, False])
async def test_the_connection_that_is_idle_longest_makes_room(
    door: Door, has_asked: bool
) -> None:
    clients = [await door.connect() for _ in range(CONNECTIONS)]
    for client in clients[::-1]:
        await wait_all_tasks_blocked()
        if has_asked:
            await client.send(GET % b"")
            assert status(await client.answer()) == 200
    longest = clients.pop(-1 if has_asked else 0)
    assert status(await door.answer(CLOSE)) == 200
    assert await longest.to_end() == b""
    for client in clients:
        await client.send(GET % b"")
        assert status(await client.answer()) == 200
    assert door.refused == []


async def test_a_connection_with_part_of_a_request_is_not_idle(door: Door) -> None:
    request = GET % b""
    clients = await busy(door, request + request[:9])  # behind one that was answered
    assert status(await door.answer(GET % b"")) == 503
    for client in clients:
        assert status(await client.answer()) == 200
        await client.send(request[9:])
        assert status(await client.answer()) == 200


@pytest.mark.parametrize("path", [b"healthz", b"readyz"])
@pytest.mark.parametrize("begun", [GET % b"late", b"GET"], ids=["late", "head"])
async def test_health_is_answered_however_many_connections_are_kept(
    door: Door, path: bytes, begun: bytes
) -> None:
    await busy(door, begun)
    for _ in range(3):
        for _ in range(2 * HEALTH_CONNECTIONS):
            await (await door.connect()).send(b"GET")
        await wait_all_tasks_blocked()
        client = await door.connect()
        await client.send(GET % path)
        assert status(await client.answer()) == 200
    assert door.refused == []


async def test_whatever_a_crowd_sends_is_parsed_in_pieces_and_one_request_per_pass(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = b"1;" + b"e" * 90 + b"\r\nx\r\n"
    async with opened(tmp_path / "s", CROWD) as door:
        clients = [await door.connect() for _ in range(CROWD)]
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(door.passes)
        parsing = Parsing(monkeypatch)
        async with trio.open_nursery() as nursery:
            for client in clients:
                request = POSTED + CHUNKED + b"\r\n" + chunk * 20 + b"0\r\n\r\n"
                nursery.start_soon(client.send, request + CLOSE)
                nursery.start_soon(client.to_end)
        assert len(door.began_at) == len(set(door.began_at)) >= CROWD
        assert parsing.most_bytes_in_a_pass <= HEAD_BYTES
        assert parsing.most_events_in_a_pass <= CROWD


# --- protocols ------------------------------------------------------------------------


async def test_a_connection_that_begins_with_http_2_is_refused(door: Door) -> None:
    answer = await door.answer(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9)
    assert status(answer) == 505
    assert set(door.refused) == {HttpRefusal.MALFORMED}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\0\r\n",
        POSTED + b"transfer-encoding: gzip\r\n",
        POSTED + CHUNKED + b"\r\nzz\r\n",
        # Bodies whose end others may see elsewhere.
        pytest.param(POSTED + b"content-length: 5\r\n" + CHUNKED, id="both lengths"),
        POSTED.replace(b"1.1", b"1.0") + CHUNKED,
    ],
)
async def test_what_is_no_http_is_refused_with_all_behind_it(
    door: Door, garbage: bytes
) -> None:
    with capture_logs() as lines:
        answer = await door.answer(garbage + b"\r\n0\r\n\r\n" + GET % b"")
    assert status(answer) == (501 if b"gzip" in garbage else 400)
    assert b"send HTTP/1.1 with one Host and, if there is a body, one length" in answer
    assert b"HTTP/1.1 200" not in answer
    assert door.refused == [HttpRefusal.MALFORMED]
    assert len(door.began_at) == (b"zz" in garbage)  # whose head was good
    assert lines == []


async def test_a_client_that_waits_before_its_body_is_told_to_go_on(door: Door) -> None:
    expecting = POSTED + b"expect: 100-continue\r\ncontent-length: "
    client = await door.connect()
    await client.send(expecting + b"3\r\n\r\n")
    assert await client.stream.receive_some() == b"HTTP/1.1 100 \r\n\r\n"
    await client.send(b"abc")
    assert (await client.answer()).endswith(b"\r\n\r\ngot abc")
    # One that is refused gets the answer at once.
    assert (
        status(await door.answer(expecting + b"%d\r\n\r\n" % (BODY_BYTES + 1))) == 413
    )


async def test_an_answer_to_head_has_no_body_and_the_next_one_has(door: Door) -> None:
    answers = await door.answer(b"HEAD / HTTP/1.1\r\nhost: h\r\n\r\n" + CLOSE)
    first, rest = answers.split(b"\r\n\r\n", 1)
    assert (status(first), b"content-length: 4" in first) == (200, True)
    assert (status(rest), rest.endswith(b"\r\n\r\ngot ")) == (200, True)


async def test_what_a_client_still_sends_does_not_cost_it_the_refusal(
    tmp_path: Path, jumping: MockClock
) -> None:
    """Over TCP, where closing with unread bytes resets the connection."""
    door = Door(tmp_path, CONNECTIONS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.serve, listener)  # noqa: ASYNC113 - it listens already
            stream = await trio.open_tcp_stream(*listener.getsockname())
            client = Client(stream)
            for _ in range(5):
                await client.send(posted(100 * BODY_BYTES, 0))
            assert status(await client.to_end()) == 413
            await stream.aclose()
            door.stop.set()


# --- what a listener decides by the connection and the target -------------------------


Asks = Callable[[str, bytes], Awaitable[bytes]]


@pytest.fixture
async def request_at(rig: Rig, tmp_path: Path) -> AsyncIterator[Asks]:
    """Sends a request's head to the listener of this name; how its answer begins."""
    stop = trio.Event()

    async def answer(door: str, head: bytes) -> bytes:
        async with await trio.open_unix_socket(str(tmp_path / door)) as stream:
            await stream.send_all(head + b"\r\nconnection: close\r\n\r\n")
            return await stream.receive_some()

    async with trio.open_nursery() as nursery:
        with (
            listening(tmp_path / "http") as http,
            listening(tmp_path / "admin") as admin,
        ):
            for door, sock in {"http": http, "admin": admin}.items():
                nursery.start_soon(
                    partial(rig.sidecar.http.serve, door, sock, stop.wait)
                )
            yield answer
            stop.set()


async def test_only_who_has_the_right_may_use_the_admin_socket(
    rig: Rig, request_at: Asks, said: list[Any]
) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost"
    assert (await request_at("admin", head)).startswith(b"HTTP/1.1 200 ")
    access = rig.registry.access
    rig.registry.access = replace(access, admin=Allowed())
    assert (await request_at("admin", head)).startswith(b"HTTP/1.1 403 ")
    assert [line["event"] for line in said] == ["admin refused"]
    assert (await request_at("http", head)).startswith(b"HTTP/1.1 200 ")


async def test_of_clients_without_the_right_the_oldest_is_disconnected(
    rig: Rig, request_at: Asks, tmp_path: Path
) -> None:
    rig.registry.access = replace(rig.registry.access, admin=Allowed())
    oldest, *others = [
        Client(await trio.open_unix_socket(str(tmp_path / "admin")))
        for _ in range(DENIED_CONNECTIONS + 1)
    ]
    with trio.fail_after(REQUEST_S):
        assert (await oldest.to_end()).startswith(b"HTTP/1.1 403 ")
    for client in others:
        assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 403 ")
    with trio.move_on_after(REQUEST_S) as waiting:
        await others[0].stream.receive_some()
    assert waiting.cancelled_caught
    assert (await request_at("admin", b"GET / HTTP/1.1")).startswith(b"HTTP/1.1 403 ")
    assert await others[0].to_end() == b""
    for client in (oldest, *others):
        await client.stream.aclose()


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/healthz", b"elsewhere", b"200"),
        (b"http://elsewhere/healthz", b"localhost", b"421"),
        (b"http://localhost?x", b"elsewhere", b"200"),  # the live page
    ],
    ids=["served", "refused", "without a path"],
)
async def test_a_request_as_to_a_proxy_is_answered_for_the_host_in_its_target(
    request_at: Asks, target: bytes, host: bytes, status: bytes
) -> None:
    answer = await request_at("http", b"GET %s HTTP/1.1\r\nhost: %s" % (target, host))
    assert answer.split()[1] == status
