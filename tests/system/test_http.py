"""The HTTP doors of a running sidecar: what only real sockets and processes show."""

import socket
from contextlib import closing
from http.client import HTTPConnection

import pytest

from tests.system.sidecar import SOON_S, Sidecar


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
        host, port = sidecar.line("ready")["http"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), SOON_S) as sock:
            sock.sendall(request_bytes)
    assert sidecar.ask("http", "GET", "/healthz")[0].status == 200
    gateway.sync()
