"""An HTTP server on loopback that gives each request the answer that the test chose."""

import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, NamedTuple, TypeAlias

import trio
from standardwebhooks import Webhook

SECRET: Final = "whsec_bGl2ZW5lc3MgZXhhbXBsZSBzZWNyZXQgMDEyMw=="
SECOND_SECRET: Final = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDC2FVsBQI"
LOOPBACK: Final = "127.0.0.1"
_secret_file = NamedTemporaryFile()  # noqa: SIM115 - it is there until the end
_secret_file.write(SECRET.encode())
_secret_file.flush()
SECRET_FILE: Final = Path(_secret_file.name)


class Received(NamedTuple):
    """A request."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int  # the number of its connection, from 1
    at: float  # when it was whole, by the event loop's clock

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(json.loads(self.body))

    @property
    def seqs(self) -> list[int]:
        return [event["data"]["seq"] for event in self.events]

    def verify(self, secret: str = SECRET) -> None:
        """As a receiver does; an error if the signature is not right."""
        Webhook(secret).verify(self.body, self.headers)


Answer: TypeAlias = Callable[[trio.abc.Stream, Received], Awaitable[object]]


def answering(status: int, body: bytes = b"", **headers: str) -> Answer:
    """A whole answer."""
    lines = [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    lines = [f"HTTP/1.1 {status} x", *lines, f"Content-Length: {len(body)}", "", ""]
    return saying("\r\n".join(lines).encode() + body)


def saying(data: bytes) -> Answer:
    """These bytes, and no more."""

    async def answer(stream: trio.abc.Stream, _request: Received) -> None:
        await stream.send_all(data)

    return answer


def ending(data: bytes = b"") -> Answer:
    """These bytes, and the end of the connection."""

    async def answer(stream: trio.abc.Stream, _request: Received) -> None:
        await stream.send_all(data)
        await stream.aclose()

    return answer


def flooding(begin: bytes, again: bytes) -> Answer:
    """These bytes, and then a megabyte of the second ones."""

    async def answer(stream: trio.abc.Stream, _request: Received) -> None:
        await stream.send_all(begin + again * (2**20 // len(again)))

    return answer


async def resetting(stream: trio.abc.Stream, _request: Received) -> None:
    """A connection reset."""
    assert isinstance(stream, trio.SocketStream)
    linger = struct.pack("ii", 1, 0)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await stream.aclose()


async def hanging(_stream: trio.abc.Stream, _request: Received) -> None:
    """No answer."""
    await trio.sleep_forever()


async def endless(stream: trio.abc.Stream, _request: Received) -> None:
    """An answer without end."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    for block in repeat(bytes(65_536)):
        await stream.send_all(block)


def refusing(poison: int) -> Answer:
    """A refusal of each request that has a record of this seq; others are accepted."""

    async def answer(stream: trio.abc.Stream, request: Received) -> None:
        refused = answering(422, b"poison")
        await (refused if poison in request.seqs else OK)(stream, request)

    return answer


OK: Final = answering(204)


class Receiver:
    """The server. `next` has the answers to the next requests; `usually`, to all others."""

    def __init__(
        self, listener: trio.SocketListener, tls: ssl.SSLContext | None
    ) -> None:
        self.port = int(listener.socket.getsockname()[1])
        self.scheme = "https" if tls else "http"
        self.next = deque[Answer]()
        self.usually: Answer = OK
        self.received: list[Received] = []
        self.connections = 0
        self._tls = tls

    @property
    def url(self) -> str:
        return self.url_of(LOOPBACK)

    def url_of(self, host: str) -> str:
        """Its url by another name of this host."""
        return f"{self.scheme}://{host}:{self.port}/hook?x=1"

    @property
    def seqs(self) -> list[list[int]]:
        """The records of each request."""
        return [request.seqs for request in self.received]

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection."""
        self.connections += 1
        number = self.connections
        if self._tls is not None:
            stream = trio.SSLStream(
                stream, self._tls, server_side=True, https_compatible=True
            )
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    if not (more := await stream.receive_some()):
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                line, *lines = head.decode().split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines)
                }
                size = int(headers["content-length"])
                while len(data) < size:
                    data += await stream.receive_some()
                now = trio.current_time()
                request = Received(line, headers, data[:size], number, now)
                data = data[size:]
                self.received.append(request)
                answer = self.next.popleft() if self.next else self.usually
                await answer(stream, request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the sidecar hung up, or an answer closed it
        finally:
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver that serves."""
    (listener,) = await trio.open_tcp_listeners(0, host=LOOPBACK)
    receiver = Receiver(listener, tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_listeners, receiver.serve, [listener]))
        try:
            yield receiver
        finally:
            nursery.cancel_scope.cancel()
