"""A receiver of webhooks that costs little: it counts events, or never answers."""

import socket
import threading
from typing import Final, Self

EVENT: Final = b'"specversion"'  # once in each event
ACCEPTED: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
REFUSED: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"
READ_BYTES: Final = 2**18
_LENGTH: Final = b"content-length:"


class WebhookReceiver:
    """Listens on loopback, in threads.

    Args:
        answer: Its answer to each request; none: it reads, and leaves the sender waiting.
    """

    def __init__(self, *, answer: bytes = ACCEPTED) -> None:
        self.events = 0  # answered
        self.may_answer = threading.Event()
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # `__exit__` has shut it down
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = bytearray()
        try:
            while piece := connection.recv(READ_BYTES):
                data += piece
                while request := _request(data):
                    del data[: len(request)]
                    self.may_answer.wait()
                    if self._answer:
                        self.events += request.count(EVENT)
                        connection.sendall(self._answer)
        except OSError:  # the other side, or `__exit__`, has closed it
            return


def _request(data: bytearray) -> bytes:
    """The first request, if it has arrived as a whole."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    if not separator:
        return b""
    lines = head.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(_LENGTH))
    whole = len(head) + len(separator) + length
    return bytes(data[:whole]) if len(data) >= whole else b""
