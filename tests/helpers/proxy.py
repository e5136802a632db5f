"""A TCP proxy on loopback that can cut connections, and keep answers back."""

import selectors
import socket
import threading
from contextlib import suppress
from typing import Any, Final, Self

from liveness.config.cluster import ClusterSettings

LOOPBACK: Final = "127.0.0.1"
PIECE_BYTES: Final = 1 << 16


class Proxy:
    """Leads each connection to a port of loopback.

    Args:
        port: Where to, until `lead_to` says another.
    """

    def __init__(self, port: int) -> None:
        self._port: int | None = port
        self._drops_answers = False
        self._listener = socket.create_server((LOOPBACK, 0))
        self._pairs: dict[socket.socket, socket.socket] = {}  # each end, and its other
        self._servers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._wake.close()
        self._thread.join()
        self.cut()
        for sock in (self._listener, self._woken, self._selector):
            sock.close()

    def settings(self, **more: Any) -> ClusterSettings:
        """The settings of a host that publishes through it."""
        port = self._listener.getsockname()[1]
        return ClusterSettings(url=f"redis://{LOOPBACK}:{port}", **more)

    def lead_to(self, port: int) -> None:
        self.cut()
        self._port, self._drops_answers = port, False

    def cut(self) -> None:
        with self._lock:
            self._port = None
            for end in [*self._pairs]:
                self._close(end)

    def drop_answers(self) -> None:
        self._drops_answers = True

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        assert isinstance(key.fileobj, socket.socket)
                        self._pass_on(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self._port is None:
                raise ConnectionRefusedError
            server = socket.create_connection((LOOPBACK, self._port))
        except OSError:
            client.close()
            return
        self._servers.add(server)
        self._pairs |= {client: server, server: client}
        for end in (client, server):
            self._selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, end: socket.socket) -> None:
        other = self._pairs.get(end)
        if other is None:  # closed since the select
            return
        try:
            data = end.recv(PIECE_BYTES)
            if data and not (self._drops_answers and end in self._servers):
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close(end)

    def _close(self, end: socket.socket) -> None:
        other = self._pairs.pop(end, None)
        if other is None:
            return
        del self._pairs[other]
        for sock in (end, other):
            self._servers.discard(sock)
            with suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            sock.close()
