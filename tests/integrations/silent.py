"""WebSocket clients that vanish: a socket on which nothing answers any more."""

import socket

from tests.helpers.tcp import narrow_connection
from tests.integrations.conftest import SOON_S


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
