"""For the integrations: real sidecars, and gateways as processes."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.helpers.processes import environment
from tests.helpers.tcp import narrow_connection
from tests.helpers.tree import ROOT
from tests.system.conftest import make, start

__all__ = ["make", "start"]  # fixtures of the tests of processes

SOON_S: Final = 120.0


@contextmanager
def listening(*command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a gateway; it and its port, which ends the line that it prints first."""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()


def silent_websocket(port: int, uid: str) -> socket.socket:
    """Connect, send a name, and answer nothing from then on."""
    silent = narrow_connection(port, SOON_S)
    silent.sendall(
        b"GET / HTTP/1.1\r\nHost: chat\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    response = b""
    while not response.endswith(b"\r\n\r\n"):
        response += silent.recv(1)
    assert b" 101 " in response
    silent.sendall(frame(uid))
    return silent


def frame(text: str) -> bytes:
    """A message of a client: masked, by a key of zeros."""
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text.encode()
