"""The HTTP doors of a running sidecar: what they show, to whom, and what they refuse."""

import json
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from liveness import __version__
from liveness.build import WHEEL
from tests.e2e.client import packed
from tests.e2e.conftest import Start
from tests.e2e.sidecar import SOON_S, Sidecar

DOORS = ["http", "admin"]
PAGES = ["/metrics", "/healthz", "/readyz"]
# What Prometheus sends: OpenMetrics first.
OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
)


def families(text: bytes) -> dict[str, Metric]:
    parsed = text_string_to_metric_families(text.decode())
    return {family.name: family for family in parsed}


def refusals(sidecar: Sidecar, door: str, why: str) -> float:
    return sidecar.metric("liveness_http_refused_total", door=door, why=why)


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


def read_to_end(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65_536), b""))


def refused(sidecar: Sidecar, request: str, status: int, door: str = "http") -> str:
    """What a request is refused with; the connection ends after that."""
    with connected(sidecar, door) as sock:
        sock.sendall(request.encode())
        sock.shutdown(socket.SHUT_WR)
        head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    told: str = json.loads(body)["error"]
    return told


def can_serve(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# --- metrics -----------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_metrics_come_as_text_or_as_openmetrics_as_the_scraper_likes(
    sidecar: Sidecar, door: str
) -> None:
    response, body = sidecar.ask(door, "GET", "/metrics")
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    text = families(body).values()
    response, body = sidecar.ask(door, "GET", "/metrics", accept=OPENMETRICS)
    assert response.headers["content-type"].startswith("application/openmetrics-text;")
    assert body.endswith(b"# EOF\n")
    parsed: Iterable[Metric] = openmetrics.text_string_to_metric_families(  # type: ignore[no-untyped-call]
        body.decode()
    )
    by_name, in_text = (
        # The suffix belongs to the name in one format and to the sample in the other.
        {family.name.removesuffix("_info") for family in found}
        for found in (parsed, text)
    )
    assert by_name == in_text


def test_both_doors_show_the_same_each_metric_explained_and_named_by_rule(
    sidecar: Sidecar,
) -> None:
    by_http, by_admin = (
        families(sidecar.ask(door, "GET", "/metrics")[1]) for door in DOORS
    )
    assert by_http.keys() == by_admin.keys()
    ours = [one for name, one in by_http.items() if name.startswith("liveness_")]
    assert len(ours) > 20
    for family in ours:
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")


def test_no_user_is_a_series(sidecar: Sidecar) -> None:
    def series() -> set[str]:
        _, body = sidecar.ask("http", "GET", "/metrics")
        lines = body.decode().splitlines()
        return {line.rsplit(" ", 1)[0] for line in lines if line.startswith("liveness")}

    gateway = sidecar.gateway("of many")
    gateway.send("login", ["one"])
    gateway.settle()
    before = series()
    gateway.send("login", [f"secret{n}" for n in range(1_000)])
    gateway.send("logout", [f"secret{n}" for n in range(500)])
    gateway.settle()
    assert series() == before
    assert "secret" not in str(before)


def test_the_process_and_its_build_show_themselves(sidecar: Sidecar) -> None:
    _, body = sidecar.ask("http", "GET", "/metrics")
    assert {"process_resident_memory_bytes", "process_cpu_seconds"} <= families(
        body
    ).keys()
    build = {"version": __version__, "wheel": WHEEL}
    assert sidecar.metric("liveness_build_info", **build) == 1


# --- health ------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("path", "word"), [("/healthz", "healthy"), ("/readyz", "ready")]
)
def test_a_sidecar_that_runs_is_healthy_and_ready(
    sidecar: Sidecar, door: str, path: str, word: str
) -> None:
    response, body = sidecar.ask(door, "GET", path)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert json.loads(body) == {word: True, "why": []}


# --- what is refused ---------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil", "localhost.evil", "x" * 99],
)
@pytest.mark.parametrize("path", [*PAGES, "/", "/v1/timers", "/page/style.css"])
def test_a_host_that_is_not_ours_gets_nothing_from_the_tcp_door(
    sidecar: Sidecar, host: str, path: str
) -> None:
    before = refusals(sidecar, "http", "host")
    response, body = sidecar.ask("http", "GET", path, host=host)
    assert response.status == 421
    told = json.loads(body)["error"]
    assert told.startswith(f"Host is '{host.partition(':')[0][:70]}")
    assert told.endswith("; ask by its address, or add the name to http.hosts")
    assert refusals(sidecar, "http", "host") == before + 1


@pytest.mark.parametrize(
    "lines",
    [
        "host:",
        "host: a b",
        "host: ::1",
        "host: [::1",
        "host: [evil]",
        "host: [12:34]",
        "host: localhost:port",
        "host: user@localhost",
        "host: localhost/",
        "host: löcal",
    ],
)
def test_a_host_that_cannot_be_is_refused_with_what_to_do(
    sidecar: Sidecar, lines: str
) -> None:
    before = refusals(sidecar, "http", "host")
    told = refused(sidecar, f"GET /metrics HTTP/1.1\r\n{lines}\r\n\r\n", 400)
    assert "no Host, or a malformed one; ask by a URL" in told
    assert refusals(sidecar, "http", "host") == before + 1


@pytest.mark.parametrize("lines", ["", "host: localhost\r\nhost: localhost\r\n"])
def test_no_host_or_two_are_refused_with_what_to_do(
    sidecar: Sidecar, lines: str
) -> None:
    before = refusals(sidecar, "http", "malformed")
    told = refused(sidecar, f"GET /metrics HTTP/1.1\r\n{lines}\r\n", 400)
    assert (
        "HTTP/1.1 request with one Host, and one length if it has a body; ask by a URL"
        in told
    )
    assert refusals(sidecar, "http", "malformed") == before + 1


def test_an_old_request_without_a_host_is_refused(sidecar: Sidecar) -> None:
    assert "no Host" in refused(sidecar, "GET /metrics HTTP/1.0\r\n\r\n", 400)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:9874",
        "LocalHost:1",
        "localhost:",
        "192.0.2.7",
        "[::1]:80",
        "[2001:DB8::1]",
        "localhost.",
        "localhost.:80",
    ],
)
def test_addresses_and_our_own_name_are_answered(sidecar: Sidecar, host: str) -> None:
    response, _ = sidecar.ask("http", "GET", "/healthz", host=host)
    assert response.status == 200


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


def test_names_of_the_settings_are_answered_and_no_others(start: Start) -> None:
    sidecar = start(http_hosts="Gateway-1.Example, other.example")
    for host, status in {
        "gateway-1.example:80": 200,
        "OTHER.example": 200,
        "localhost": 200,
        "example": 421,
        "x.other.example": 421,
    }.items():
        response, _ = sidecar.ask("http", "GET", "/healthz", host=host)
        assert (host, response.status) == (host, status)


class OnIpv6(Sidecar):
    """The same, with its TCP door on IPv6."""

    def command(self) -> list[str]:
        return [word.replace("127.0.0.1", "[::1]") for word in super().command()]


# Not a skip: where there is no IPv6 there is nothing to be tested.
@pytest.mark.parametrize("host", ["::1"] if can_serve("::1") else [])
def test_a_door_on_ipv6_is_found_by_its_address_and_by_no_foreign_name(
    tmp_path_factory: pytest.TempPathFactory, host: str
) -> None:
    with OnIpv6(tmp_path_factory.mktemp("s")) as sidecar:
        port = int(sidecar.start().line("ready")["http"].rsplit(":", 1)[1])
        for name, status in ((f"[{host}]:{port}", 200), ("evil.example", 421)):
            connection = HTTPConnection(host, port, timeout=SOON_S)
            with closing(connection):
                headers = {"host": name, "connection": "close"}
                connection.request("GET", "/healthz", headers=headers)
                assert connection.getresponse().status == status


def test_the_admin_socket_asks_for_no_name(sidecar: Sidecar) -> None:
    response, _ = sidecar.ask("admin", "GET", "/healthz", host="whatever")
    assert response.status == 200


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"]
)
def test_nothing_can_be_changed_from_outside(
    sidecar: Sidecar, door: str, path: str, method: str
) -> None:
    response, _ = sidecar.ask(door, method, path)
    assert response.status == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize("path", PAGES)
def test_head_is_get_without_the_body(sidecar: Sidecar, path: str) -> None:
    response, body = sidecar.ask("http", "HEAD", path)
    assert (response.status, body) == (200, b"")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "path", ["/metric", "/metrics/", "/metrics/x", "//metrics", "/sign-in", "/%00"]
)
def test_what_is_not_there_is_not_found(sidecar: Sidecar, door: str, path: str) -> None:
    response, body = sidecar.ask(door, "GET", path)
    assert response.status == 404
    assert "docs/http-api.md lists those that there are" in json.loads(body)["error"]


@pytest.mark.parametrize("door", DOORS)
def test_no_answer_tells_what_serves_it(sidecar: Sidecar, door: str) -> None:
    response, _ = sidecar.ask(door, "GET", "/healthz")
    assert response.headers["server"] is None


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 100, b"GET\r\n\r\n", b"\x16\x03\x01" * 9]
)
def test_what_is_no_http_is_refused_and_the_door_stays_open(
    sidecar: Sidecar, garbage: bytes
) -> None:
    host, port = sidecar.line("ready")["http"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), SOON_S) as sock:
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert sidecar.ask("http", "GET", "/healthz")[0].status == 200


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
)
def test_whatever_a_connection_comes_to_the_sidecar_and_the_others_go_on(
    sidecar: Sidecar, request_bytes: bytes
) -> None:
    gateway = sidecar.gateway("beside faults")
    host, port = sidecar.line("ready")["http"].rsplit(":", 1)
    for _ in range(50):
        with socket.create_connection((host, int(port)), SOON_S) as sock:
            sock.sendall(request_bytes)
    assert sidecar.ask("http", "GET", "/healthz")[0].status == 200
    gateway.settle()


# --- sockets -----------------------------------------------------------------------


def test_both_sockets_are_for_owner_and_group(sidecar: Sidecar) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert (mode(sidecar.socket), mode(sidecar.admin)) == (0o660, 0o660)
    assert mode(sidecar.state) == 0o700


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_http_on_the_gateway_socket_is_refused_and_harms_nobody(
    sidecar: Sidecar, method: str
) -> None:
    gateway = sidecar.gateway("beside http")
    gateway.send("login", "u")
    gateway.settle()
    stray = sidecar.connect()
    stray.send_bytes(f"{method} /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    error = stray.refusal()
    # A capital letter is a small integer in msgpack.
    assert (error["code"], error["fatal"], error["n"]) == ("bad-frame", True, 1)
    assert stray.receive() is None
    assert gateway.where("u") != []


def test_the_wire_on_an_http_door_is_refused_and_harms_nobody(sidecar: Sidecar) -> None:
    hello: dict[str, Any] = {"protocol": 1, "name": "lost"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(SOON_S)
        sock.connect(str(sidecar.admin))
        sock.sendall(packed(["hello", hello]))
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert sidecar.ask("admin", "GET", "/healthz")[0].status == 200
