"""The HTTP doors of a running sidecar: what they show, to whom, and what they refuse."""

import json
import socket
import stat
from collections.abc import Iterable
from contextlib import closing
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
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil", ""]
)
@pytest.mark.parametrize("path", [*PAGES, "/"])
def test_a_host_that_is_not_ours_gets_nothing_from_the_tcp_door(
    sidecar: Sidecar, host: str, path: str
) -> None:
    response, body = sidecar.ask("http", "GET", path, host=host)
    assert response.status == 400
    assert b"liveness" not in body


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9874", "localhost:1"])
def test_our_own_names_are_answered(sidecar: Sidecar, host: str) -> None:
    response, _ = sidecar.ask("http", "GET", "/healthz", host=host)
    assert response.status == 200


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
        for name, status in ((f"[{host}]:{port}", 200), ("evil.example", 400)):
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
    "path", ["/", "/metric", "/metrics/x", "/../etc/passwd", "/%00"]
)
def test_what_is_not_there_is_not_found(sidecar: Sidecar, door: str, path: str) -> None:
    response, _ = sidecar.ask(door, "GET", path)
    assert response.status == 404


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
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert sidecar.ask("http", "GET", "/healthz")[0].status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        # Nothing may follow this before it is answered.
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
