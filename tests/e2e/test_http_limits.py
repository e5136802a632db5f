"""What the doors of a running sidecar let a client take, and how it is told."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.sidecar import ROOT, SOON_S, Sidecar, eventually

DOORS = ["http", "admin"]
GET = b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
HEAD_BYTES, BODY_BYTES = 1_024, 4_096
# Each of its characters is six in JSON: a page is of 24 MB, far more than sockets hold.
PAYLOAD = "\x07" * 4_096
CROWD = 1_000


@contextmanager
def connected(sidecar: Sidecar, door: str) -> Iterator[socket.socket]:
    if door == "admin":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(sidecar.admin))
    else:
        host, port = sidecar.line("ready")["http"].rsplit(":", 1)
        sock = socket.create_connection((host, int(port)))
    sock.settimeout(SOON_S)
    with sock:
        yield sock


def to_end(sock: socket.socket) -> bytes:
    """All that comes, however the connection ends."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := sock.recv(1 << 20):
            data += piece
    return data


def answer(sidecar: Sidecar, door: str, request: bytes) -> tuple[int, bytes]:
    with connected(sidecar, door) as sock:
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(request)
        head, _, body = to_end(sock).partition(b"\r\n\r\n")
    return int(head[9:12]), body


def refusals(sidecar: Sidecar, door: str, why: str) -> float:
    return sidecar.metric("liveness_http_refused_total", door=door, why=why)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One for the whole file, whose heads and bodies are small."""
    limits = {"http_max_header_bytes": HEAD_BYTES, "http_max_body_bytes": BODY_BYTES}
    with Sidecar(tmp_path_factory.mktemp("s"), **limits) as running:
        yield running.start()


@pytest.mark.parametrize("door", DOORS)
def test_a_head_may_have_the_most_bytes_and_not_one_more(
    small: Sidecar, door: str
) -> None:
    begin = GET % b"/healthz" + b"x: "
    head = begin + b"x" * (HEAD_BYTES - len(begin) - 4) + b"\r\n\r\n"
    assert answer(small, door, head)[0] == 200
    before = refusals(small, door, "head")
    status, body = answer(small, door, head[:-4] + b"x\r\n\r\n")
    assert status == 431
    assert "1024 bytes; http.max_header_bytes" in json.loads(body)["error"]
    assert refusals(small, door, "head") == before + 1


def test_a_body_may_have_the_most_bytes_and_not_one_more(small: Sidecar) -> None:
    change = json.dumps({"gateway": "nobody", "key": "k"}).encode()
    for size, status in ((BODY_BYTES, 404), (BODY_BYTES + 1, 413)):
        body = change + b" " * (size - len(change))
        response, told = small.ask("admin", "POST", "/v1/timers/cancel", body)
        assert response.status == status
    assert "raise http.max_body_bytes" in json.loads(told)["error"]
    assert refusals(small, "admin", "body") == 1
    # Where nothing is to be said, it may be said at no greater length.
    for size, status in ((BODY_BYTES, 200), (BODY_BYTES + 1, 413)):
        assert small.ask("http", "GET", "/healthz", b" " * size)[0].status == status


@pytest.mark.parametrize("door", DOORS)
def test_one_connection_too_many_is_told_so_and_counted(
    start: Start, door: str
) -> None:
    sidecar = start(http_max_connections=3)
    other = "admin" if door == "http" else "http"
    with ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(connected(sidecar, door))
            # Behind a request that is answered part of the next one: it is not idle.
            sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET")
            assert sock.recv(65_536).startswith(b"HTTP/1.1 200")
        asked = GET % b"/v1/guard" + b"\r\n"
        status, body = answer(sidecar, door, asked)
        assert status == 503
        assert "there are 3 connections here" in json.loads(body)["error"]
        if door == "admin":
            told = command(sidecar, "status")
            assert told.startswith("liveness: there are 3 connections here")
        # The other door has as many of its own.
        assert sidecar.get("/healthz", admin=other == "admin")[0] == 200
        # Health has places of its own.
        assert answer(sidecar, door, GET % b"/healthz" + b"\r\n")[0] == 200
        sock.close()
        eventually(lambda: answer(sidecar, door, asked)[0] == 200)
        _, metrics = sidecar.get("/metrics", admin=other == "admin")
    counted = rf'refused_total{{door="{door}",why="connections"}} (\d+)'
    (count,) = re.findall(counted, metrics)
    assert int(count) >= 1


def command(sidecar: Sidecar, name: str) -> str:
    """What a command that fails says."""
    done = subprocess.run(
        [sys.executable, "-m", "liveness", name, "--socket", str(sidecar.socket)],
        cwd=ROOT,
        env=sidecar.environment(),
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "begun",
    [b"", b"POST /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n"],
    ids=["head", "body"],
)
def test_a_request_without_end_is_cut_however_often_a_byte_of_it_comes(
    start: Start, door: str, begun: bytes
) -> None:
    sidecar = start(http_request_s=1.5)
    # On TCP a POST is refused before its body is waited for.
    begun = begun if door == "admin" else begun.replace(b"POST", b"GET")
    with connected(sidecar, door) as sock:
        sock.sendall(begun)
        sock.settimeout(0.05)

        def is_cut() -> bool:
            with suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(b"G")
            try:
                return sock.recv(65_536).startswith(b"HTTP/1.1 408")
            except TimeoutError:
                return False

        eventually(is_cut)
    assert refusals(sidecar, door, "slow") == 1


def many_timers(sidecar: Sidecar) -> None:
    gateway = sidecar.gateway("g")
    for number in range(CROWD):
        gateway.send("after", f"k{number}", 3_600, {"payload": PAYLOAD})
    gateway.settle()


def unread(stack: ExitStack, sidecar: Sidecar, door: str) -> socket.socket:
    """A connection that asks for a large page and reads nothing of it."""
    sock = stack.enter_context(connected(sidecar, door))
    sock.sendall(GET % b"/v1/timers?limit=1000" + b"\r\n")
    return sock


@pytest.mark.parametrize("door", DOORS)
def test_an_answer_that_is_not_read_is_cut_and_others_get_theirs(
    start: Start, door: str
) -> None:
    sidecar = start(http_request_s=1.5)
    many_timers(sidecar)
    with ExitStack() as stack:
        # More than are made at a time: the last ones begin when the first are cut.
        socks = [unread(stack, sidecar, door) for _ in range(10)]
        assert sidecar.get("/healthz", admin=door == "admin")[0] == 200
        sidecar.metric_until(
            lambda count: count == 10,
            "liveness_http_refused_total",
            door=door,
            why="slow",
        )
        assert all(len(to_end(sock)) < 6 * 4_096 * CROWD for sock in socks)
    status, page = answer(sidecar, door, GET % b"/v1/timers?limit=10" + b"\r\n")
    timers: list[dict[str, Any]] = json.loads(page)["timers"]
    assert (status, len(timers)) == (200, 10)


def test_a_stop_does_not_wait_for_who_does_not_read(start: Start) -> None:
    sidecar = start(http_request_s=600)
    many_timers(sidecar)
    with ExitStack() as stack:
        for door in DOORS:
            assert unread(stack, sidecar, door).recv(4).startswith(b"HTTP")
        assert sidecar.stop(within_s=SOON_S) == 0


def test_who_asks_for_another_protocol_is_answered_in_http_1(small: Sidecar) -> None:
    for upgrade in (b"websocket", b"h2c"):
        asked = b"connection: close, upgrade\r\nupgrade: " + upgrade
        request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + asked
        request += b"\r\nhttp2-settings: AAMAAABkAAQAAP__\r\nsec-websocket-version: 13"
        request += b"\r\nsec-websocket-key: bKdPyn3u98cTfZJSh4TNeQ==\r\n\r\n"
        status, body = answer(small, "http", request)
        assert (status, json.loads(body)) == (200, {"healthy": True, "why": []})
    for door in DOORS:
        assert answer(small, door, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")[0] == 505
