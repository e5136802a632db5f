"""The HTTP doors of a running sidecar: what only real sockets and processes show."""

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection

import pytest

from tests.helpers.tree import ROOT
from tests.system.conftest import Start
from tests.system.sidecar import SOON_S, Sidecar, eventually

DOORS = ["http", "admin"]
GET = b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
HEAD_BYTES, BODY_BYTES, CONNECTIONS = 16 * 1024, 64 * 1024, 3
# Each of its characters is six in JSON: a page is of 24 MB, far more than sockets hold.
PAYLOAD = "\x07" * 4_096
TIMERS, UNREAD = 1_000, 5


@contextmanager
def connected(sidecar: Sidecar, door: str = "http") -> Iterator[socket.socket]:
    """A connection to a door, over which nothing was said yet."""
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


# --- requests ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/healthz", 200),
        ("HTTP://127.0.0.1:9874/healthz?", 200),
        ("http://localhost/nothing", 404),
        ("http://localhost?", 200),  # the live page
        ("http://evil.example/healthz", 421),
        ("http:///healthz", 400),
        ("http://user@localhost/healthz", 400),
    ],
)
def test_a_request_as_to_a_proxy_is_answered_for_the_host_in_its_target(
    sidecar: Sidecar, target: str, status: int
) -> None:
    for host in ("localhost", "evil.example"):  # which does not count
        response, _ = sidecar.ask("http", "GET", target, host=host)
        assert (host, response.status) == (host, status)


def test_an_old_request_without_a_host_is_refused(sidecar: Sidecar) -> None:
    status, body = answer(sidecar, "http", b"GET /metrics HTTP/1.0\r\n\r\n")
    assert status == 400
    assert "no Host" in json.loads(body)["error"]


@pytest.mark.parametrize("door", DOORS)
def test_no_answer_tells_what_serves_it_and_head_has_no_body(
    sidecar: Sidecar, door: str
) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        response, body = sidecar.ask(door, "HEAD", path)
        assert (response.status, body) == (200, b"")
        assert response.headers["server"] is None


def can_serve(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# Not a skip: where there is no IPv6 there is nothing to be tested.
@pytest.mark.parametrize("host", ["::1"] if can_serve("::1") else [])
def test_a_door_on_ipv6_is_found_by_its_address_and_by_no_foreign_name(
    tmp_path_factory: pytest.TempPathFactory, host: str
) -> None:
    with Sidecar(tmp_path_factory.mktemp("s")) as sidecar:
        sidecar.http = f"[{host}]:0"
        port = int(sidecar.start().line("ready")["http"].rsplit(":", 1)[1])
        for name, status in ((f"[{host}]:{port}", 200), ("evil.example", 421)):
            connection = HTTPConnection(host, port, timeout=SOON_S)
            with closing(connection):
                headers = {"host": name, "connection": "close"}
                connection.request("GET", "/healthz", headers=headers)
                assert connection.getresponse().status == status


@pytest.mark.parametrize(
    "request_bytes",
    [
        # The websocket that is asked for is not there; what follows is no request.
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: bKdPyn3u98cTfZJSh4TNeQ==\r\n\r\nx",
        # A body that does not come: the refusal and the end cross each other.
        b"POST /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{",
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n{",
    ],
    ids=["websocket", "post", "get"],
)
def test_a_connection_that_is_dropped_amid_its_request_harms_no_other(
    sidecar: Sidecar, request_bytes: bytes
) -> None:
    gateway = sidecar.gateway("beside faults")
    for _ in range(50):
        with connected(sidecar) as sock:
            sock.sendall(request_bytes)
    assert sidecar.ask("http", "GET", "/healthz")[0].status == 200
    gateway.sync()


def test_sockets_are_for_owner_and_group_and_the_state_for_its_owner(
    sidecar: Sidecar,
) -> None:
    paths = (sidecar.socket, sidecar.admin, sidecar.state)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in paths]
    assert modes == [0o660, 0o660, 0o700]


# --- limits ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One for the whole file, with few connections."""
    with Sidecar(
        tmp_path_factory.mktemp("s"),
        http_max_connections=CONNECTIONS,
    ) as running:
        yield running.start()


@pytest.mark.parametrize("door", DOORS)
def test_heads_and_bodies_have_a_largest_size(small: Sidecar, door: str) -> None:
    head = GET[:-2] % b"/healthz" + b"x: "
    head += b"x" * (HEAD_BYTES - len(head) - 4) + b"\r\n\r\n"
    assert answer(small, door, head)[0] == 200
    before = refusals(small, door, "head"), refusals(small, door, "body")
    status, body = answer(small, door, head[:-4] + b"x\r\n\r\n")
    assert status == 431
    assert f"{HEAD_BYTES} bytes; send less" in json.loads(body)["error"]
    # Where nothing is to be said, it may be said at no greater length.
    assert small.ask(door, "GET", "/healthz", b" " * BODY_BYTES)[0].status == 200
    response, body = small.ask(door, "GET", "/healthz", b" " * (BODY_BYTES + 1))
    assert response.status == 413
    assert f"{BODY_BYTES} bytes; send less" in json.loads(body)["error"]
    after = refusals(small, door, "head"), refusals(small, door, "body")
    assert after == (before[0] + 1, before[1] + 1)


def test_a_body_without_end_is_refused_before_its_end(sidecar: Sidecar) -> None:
    head = b"POST /v1/timers/cancel HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999"
    with connected(sidecar, "admin") as sock:
        sock.sendall(head + b"\r\n\r\n" + b" " * 20_000)
        assert sock.recv(4_096).startswith(b"HTTP/1.1 413")


def test_one_connection_too_many_is_told_so_and_counted(small: Sidecar) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            sock = stack.enter_context(connected(small, "admin"))
            # Behind a request that is answered part of the next one: it is not idle.
            sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET")
            assert sock.recv(65_536).startswith(b"HTTP/1.1 200")
        told = said_by_status(small)
        assert told.startswith("liveness: all 3 connections are in use")
        # The other door has as many of its own, and health has places of its own.
        assert refusals(small, "admin", "connections") == 1
        assert answer(small, "admin", GET % b"/healthz")[0] == 200
        sock.close()
        eventually(lambda: answer(small, "admin", GET % b"/v1/wheel")[0] == 200)


def said_by_status(sidecar: Sidecar) -> str:
    """What `liveness status` says as it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "liveness", "status", "--socket", str(sidecar.socket)],
        cwd=ROOT,
        env=sidecar.environment(),
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


def unread(stack: ExitStack, sidecar: Sidecar, door: str) -> socket.socket:
    """A connection that asks for a large page and reads nothing of it."""
    sock = stack.enter_context(connected(sidecar, door))
    sock.sendall(GET % b"/v1/timers?limit=1000")
    return sock


def test_slow_requests_and_unread_answers_are_cut_and_a_stop_waits_for_neither(
    start: Start,
) -> None:
    sidecar = start(http_request_s=1.5)
    gateway = sidecar.gateway("g")
    for number in range(TIMERS):
        gateway.send("after", f"k{number}", 3_600, {"payload": PAYLOAD})
    gateway.sync()
    for door in DOORS:
        with connected(sidecar, door) as sock:
            sock.sendall(b"G")
            assert to_end(sock).startswith(b"HTTP/1.1 408")
        assert refusals(sidecar, door, "slow") == 1
        with ExitStack() as stack:
            # More than are made at a time: the last ones begin when the first are cut.
            socks = [unread(stack, sidecar, door) for _ in range(UNREAD)]
            assert sidecar.get("/healthz", admin=door == "admin")[0] == 200
            sidecar.metric_until(
                lambda count: count == 1 + UNREAD,
                "liveness_http_refused_total",
                door=door,
                why="slow",
            )
            assert all(len(to_end(sock)) < 6 * 4_096 * TIMERS for sock in socks)
        status, page = answer(sidecar, door, GET % b"/v1/timers?limit=10")
        assert (status, len(json.loads(page)["timers"])) == (200, 10)
    sidecar.stop()
    sidecar.start(http_request_s=600)
    with ExitStack() as stack:
        for door in DOORS:
            assert unread(stack, sidecar, door).recv(4) == b"HTTP"
        assert sidecar.stop(within_s=SOON_S) == 0
