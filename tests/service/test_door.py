"""What a client may take of a door, on a real socket; time is virtual."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import structlog
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from liveness.metrics import HttpRefusal
from liveness.service.accepting import Acceptor
from liveness.service.door import HEALTH_PLACES, DoorLimits, serve_door
from liveness.service.gate import Gate, only_health
from liveness.service.pacing import Turnstile
from liveness.service.sockets import listening

CONNECTIONS = 3
REQUEST_S = 10.0
HEAD_BYTES = 500
BODY_BYTES = 1_000
GRACE_S = 0.5
LARGE = b"x" * 4_000_000  # far more than sockets hold
# An answer that takes longer than a request may; nobody gets it for being slow.
THINKING_S = 3 * REQUEST_S
GET = b"GET /%s HTTP/1.1\r\nhost: localhost\r\n\r\n"
_WHOLE = re.compile(rb".*?content-length: (\d+).*?\r\n\r\n(.*)", re.S)
CLOSE = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def pages(scope: Scope, receive: Receive, send: Send) -> None:
    """What was sent, or as the path has it a large answer or a late one."""
    body = await Request(scope, receive).body()
    if scope["path"] == "/late":
        await trio.sleep(THINKING_S)
    answer = LARGE if scope["path"] == "/large" else b"got " + body
    await Response(answer)(scope, receive, send)


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Door:
    """A door that is open.

    Args:
        path: Of its socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.refused: list[HttpRefusal] = []
        self.asked: list[socket.socket] = []
        self.passes = Passes()
        self.began_at: list[int] = []  # the pass in which each request reached the gate
        self.clients: list[Client] = []
        self.stop = trio.Event()
        self.limits = DoorLimits(
            connections=CONNECTIONS, request_s=REQUEST_S, head_bytes=HEAD_BYTES
        )

    async def serve(self, listener: socket.socket) -> None:
        gate = Gate(pages, [self.note], self.refused.append, max_body_bytes=BODY_BYTES)

        def app_for(sock: socket.socket) -> Gate:
            self.asked.append(sock)
            return gate

        await serve_door(
            app_for,
            Acceptor(listener, "http", {}),  # type: ignore[arg-type]  # nothing is put off
            self.stop.wait,
            limits=self.limits,
            refused=self.refused.append,
            grace_s=GRACE_S,
            only_health=partial(
                Gate,
                checks=[only_health(CONNECTIONS)],
                refused=self.refused.append,
                max_body_bytes=BODY_BYTES,
            ),
            turnstile=Turnstile(),
        )

    def note(self, _: Request) -> None:
        self.began_at.append(self.passes.count)

    async def connect(self) -> "Client":
        client = Client(await trio.open_unix_socket(str(self._path)))
        self.clients.append(client)
        return client

    async def answer(self, request: bytes) -> bytes:
        """What a connection gets for this, up to its end."""
        client = await self.connect()
        with suppress(
            trio.BrokenResourceError
        ):  # who is turned away is answered unasked
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
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with opened(tmp_path / "s") as door:
        yield door


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Door]:
    door = Door(path)
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


# --- time ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3e7\r\n",
    ],
    ids=["head", "body", "chunk"],
)
async def test_a_request_that_comes_a_byte_a_second_is_cut_in_time(
    door: Door, autojump_clock: MockClock, begun: bytes
) -> None:
    client = await door.connect()
    began = trio.current_time()
    if begun:
        await client.send(begun)
    sent = await client.drip(b"G" * 999, 1)
    assert sent <= REQUEST_S + 1
    answer = await client.to_end()
    assert status(answer) == 408
    assert b"did not come whole within 10 s; http.request_s" in answer
    assert door.refused == [HttpRefusal.SLOW]
    assert REQUEST_S <= trio.current_time() - began <= REQUEST_S + 2


async def test_a_request_that_takes_nearly_its_time_is_answered_and_so_is_the_next(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    for _ in range(3):
        request = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n123456789"
        await client.drip(request, (REQUEST_S - 1) / len(request))
        assert (await client.answer()).endswith(b"\r\n\r\ngot 123456789")
        await trio.sleep(REQUEST_S - 2)
    assert door.refused == []


async def test_a_connection_that_is_silent_ends_and_nothing_is_refused(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    await client.send(GET % b"")
    await client.answer()
    began = trio.current_time()
    assert await client.to_end() == b""
    assert trio.current_time() - began == pytest.approx(REQUEST_S, abs=0.1)
    assert await (await door.connect()).to_end() == b""
    assert door.refused == []


async def test_who_is_answered_late_is_answered_and_what_it_sent_meanwhile_too(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    await client.send(GET % b"late" + (GET % b"")[:9])
    assert status(await client.answer()) == 200
    await trio.sleep(REQUEST_S - 1)
    await client.send((GET % b"")[9:])
    assert status(await client.answer()) == 200
    assert door.refused == []


async def test_an_answer_that_is_not_read_is_cut_in_time(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    await client.send(GET % b"large")
    await trio.sleep(REQUEST_S + 1)
    assert door.refused == [HttpRefusal.SLOW]
    assert len(await client.to_end()) < len(LARGE)
    assert status(await door.answer(CLOSE)) == 200


async def test_an_answer_that_is_read_slowly_is_cut_in_time(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    await client.send(GET % b"large")
    began = trio.current_time()
    while door.refused == []:
        await client.stream.receive_some(1_000)
        await trio.sleep(1)
    assert trio.current_time() - began <= REQUEST_S + 2
    assert door.refused == [HttpRefusal.SLOW]


async def test_a_large_answer_that_is_read_is_whole(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    await client.send((GET % b"large")[:-2] + b"connection: close\r\n\r\n")
    answer = await client.to_end()
    assert answer.endswith(LARGE)
    assert door.refused == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"GET",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n1",
        GET % b"late",
        GET % b"large",
    ],
    ids=["silent", "head", "body", "late", "unread"],
)
async def test_a_stop_waits_for_nobody_longer_than_its_grace(
    tmp_path: Path, autojump_clock: MockClock, request_bytes: bytes
) -> None:
    async with opened(tmp_path / "s") as door:
        client = await door.connect()
        await client.send(request_bytes)
        await trio.sleep(1)
        began = trio.current_time()
    assert trio.current_time() - began <= GRACE_S + 0.1
    assert door.refused == []


# --- sizes ----------------------------------------------------------------------------


def head_of(size: int) -> bytes:
    begin, end = b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx: ", b"\r\n\r\n"
    return begin + b"x" * (size - len(begin) - len(end)) + end


async def dripped(door: Door, data: bytes) -> bytes:
    client = await door.connect()
    await client.drip(data, 0.001)
    return await client.to_end()


@pytest.mark.parametrize("is_dripped", [False, True])
async def test_a_head_may_have_the_most_bytes_and_not_one_more(
    door: Door, autojump_clock: MockClock, is_dripped: bool
) -> None:
    send = partial(dripped, door) if is_dripped else door.answer
    assert status(await send(head_of(HEAD_BYTES))) == 200
    assert door.refused == []
    with structlog.testing.capture_logs() as said:
        answer = await send(head_of(HEAD_BYTES + 1))
    assert (status(answer), said) == (431, [])
    assert b"larger than 500 bytes; http.max_header_bytes" in answer
    assert door.refused == [HttpRefusal.HEAD]


async def test_a_large_head_is_refused_behind_another_request_as_well(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    answer = await door.answer(GET % b"" + head_of(HEAD_BYTES + 1))
    assert [one[:3] for one in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"431"]
    body = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n123456789"
    answer = await door.answer(body + head_of(50_000))
    assert [one[:3] for one in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"431"]


def posted(size: int, chunk: int) -> bytes:
    head = b"POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n"
    if not chunk:
        return head + b"content-length: %d\r\n\r\n" % size + b"x" * size
    sizes = [min(chunk, size - at) for at in range(0, size, chunk)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (size, b"x" * size) for size in sizes)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("chunk", [0, 1, 400])
async def test_a_body_may_have_the_most_bytes_and_not_one_more(
    door: Door, autojump_clock: MockClock, chunk: int
) -> None:
    assert (await door.answer(posted(BODY_BYTES, chunk))).endswith(
        b"got " + b"x" * 1_000
    )
    assert door.refused == []
    began = trio.current_time()
    assert status(await door.answer(posted(BODY_BYTES + 1, chunk))) == 413
    assert door.refused == [HttpRefusal.BODY]
    assert trio.current_time() == began  # nobody waits for the rest


@pytest.mark.parametrize("chunk", [0, 1])
async def test_a_body_far_too_large_is_refused_before_its_end_and_costs_no_time(
    door: Door, autojump_clock: MockClock, chunk: int
) -> None:
    client = await door.connect()
    began = trio.current_time()
    await client.send(posted(100 * BODY_BYTES, chunk)[:50_000])
    assert status(await client.to_end()) == 413
    assert trio.current_time() == began


# --- connections ----------------------------------------------------------------------


async def busy(door: Door, begun: bytes = GET % b"late") -> list[Client]:
    """As many connections as there may be, none of them idle."""
    clients = [await door.connect() for _ in range(CONNECTIONS)]
    for client in clients:
        await client.send(begun)
    await wait_all_tasks_blocked()
    return clients


async def test_one_connection_too_many_is_told_so_and_there_is_room_when_one_leaves(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    clients = await busy(door)
    answer = await door.answer(GET % b"")
    assert status(answer) == 503
    assert b"\r\nconnection: close\r\n" in answer
    assert b"there are 3 connections here" in answer
    assert door.refused == [HttpRefusal.CONNECTIONS]
    assert status(await clients[0].answer()) == 200  # the others go on
    await clients[1].stream.aclose()
    await wait_all_tasks_blocked()  # it was noticed
    assert status(await door.answer(CLOSE)) == 200
    assert door.refused == [HttpRefusal.CONNECTIONS]


@pytest.mark.parametrize("has_asked", [True, False])
async def test_the_connection_that_is_idle_longest_makes_room(
    door: Door, autojump_clock: MockClock, has_asked: bool
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


async def test_who_has_sent_part_of_a_request_is_not_idle(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    request = GET % b""
    clients = await busy(door, request + request[:9])  # behind one that was answered
    assert status(await door.answer(GET % b"")) == 503
    for client in clients:
        assert status(await client.answer()) == 200
        await client.send(request[9:])
        assert status(await client.answer()) == 200


@pytest.mark.parametrize("path", [b"healthz", b"readyz"])
@pytest.mark.parametrize("begun", [GET % b"late", b"GET"], ids=["late", "head"])
async def test_health_is_told_however_many_others_keep_their_connections(
    door: Door, autojump_clock: MockClock, path: bytes, begun: bytes
) -> None:
    await busy(door, begun)
    for _ in range(3):
        for _ in range(2 * HEALTH_PLACES):
            await (await door.connect()).send(b"GET")
        await wait_all_tasks_blocked()
        client = await door.connect()
        await client.send(GET % path)
        assert status(await client.answer()) == 200
    assert door.refused == []


async def test_of_requests_that_come_together_one_is_worked_on_in_a_pass_of_the_loop(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    clients = [await door.connect() for _ in range(CONNECTIONS)]
    await wait_all_tasks_blocked()
    door.passes = Passes()
    trio.lowlevel.add_instrument(door.passes)
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.send, GET % b"")
    for client in clients:
        assert status(await client.answer()) == 200
    assert len(door.began_at) == len(set(door.began_at)) == CONNECTIONS


async def test_an_application_is_chosen_by_the_connection(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    for _ in range(2):
        await client.send(GET % b"")
        await client.answer()
    (sock,) = door.asked
    assert sock.family is socket.AF_UNIX
    await door.answer(CLOSE)
    assert len(door.asked) == 2


# --- protocols ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: bKdPyn3u98cTfZJSh4TNeQ==\r\n",
        b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
        b"http2-settings: AAMAAABkAAQAAP__\r\n",
    ],
    ids=["websocket", "h2c"],
)
async def test_who_asks_for_another_protocol_is_answered_in_this_one(
    door: Door, autojump_clock: MockClock, asked: bytes
) -> None:
    client = await door.connect()
    request = GET % b""
    for _ in range(2):
        await client.send(request[:-2] + asked + b"\r\n")
        answer = await client.answer()
        assert status(answer) == 200
        assert b"upgrade" not in answer.lower()
    await client.send(request)
    assert status(await client.answer()) == 200


async def test_who_begins_with_http_2_is_refused(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    answer = await door.answer(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9)
    assert status(answer) == 505
    assert set(door.refused) == {HttpRefusal.MALFORMED}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\0\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_http_is_refused_and_counted(
    door: Door, autojump_clock: MockClock, garbage: bytes
) -> None:
    with capture_logs() as lines:
        answer = await door.answer(garbage)
    assert status(answer) in (400, 501)
    assert b'{"error": "this is no HTTP/1.1 request with one Host' in answer
    assert door.refused == [HttpRefusal.MALFORMED]
    assert lines == []


@pytest.mark.parametrize(
    ("version", "lengths"),
    [
        (b"1.1", b"content-length: 5\r\ntransfer-encoding: chunked"),
        (b"1.1", b"Transfer-Encoding: chunked\r\nContent-Length: 0"),
        (b"1.0", b"transfer-encoding: chunked"),
    ],
    ids=["both", "both, the other way round", "chunks in HTTP/1.0"],
)
async def test_a_body_whose_end_others_may_see_elsewhere_is_refused_and_so_is_the_rest(
    door: Door, autojump_clock: MockClock, version: bytes, lengths: bytes
) -> None:
    head = b"POST / HTTP/%s\r\nhost: h\r\n%s\r\n\r\n" % (version, lengths)
    answer = await door.answer(head + b"0\r\n\r\n" + GET % b"")
    assert status(answer) == 400
    assert b"HTTP/1.1 200" not in answer
    assert door.refused == [HttpRefusal.MALFORMED]
    assert door.began_at == []


async def test_who_ends_its_side_after_asking_is_answered(
    door: Door,
    autojump_clock: MockClock,
) -> None:
    client = await door.connect()
    await client.send(GET % b"")
    await client.stream.send_eof()
    assert status(await client.to_end()) == 200
