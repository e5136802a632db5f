"""The servers of the sidecar's outlets, and the network to them.

The sidecar opens sockets of TCP. Here they are pairs of Unix sockets, over which the
kernel delivers at once: otherwise virtual time would jump ahead while bytes are under way.
"""

import errno
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from random import Random
from typing import Any, ClassVar, Final, Generic, TypeVar

import trio
from trio._socket import _SocketType

from tests.promises.run_history import ClusterOutbound, Outbound
from tests.simulation.situations import reached

# How each may fail, for a while in which every connection and request meets it.
SERVER_FAILURES: Final = (
    "refuses to connect",
    "cannot be reached",
    "resets connections",
    "says nothing",
    "is late",
    "sends answers without end",
    "cuts its answers off",
)
# So little is read at once that a larger request comes in pieces.
READ_BYTES: Final = 1_024

T = TypeVar("T")


class Server(ABC, Generic[T]):
    """A server, which gets requests of some type.

    Args:
        port: Its own.
        random: Draws what a request meets.
        timeout_s: The sidecar waits so long for an answer.
    """

    outbound: Outbound | ClusterOutbound
    endless: ClassVar[tuple[tuple[bytes, bytes], ...]]  # what begins, and goes on

    def __init__(self, port: int, random: Random, timeout_s: float) -> None:
        self.port = port
        self.failure = ""
        self.random = random
        self.timeout_s = timeout_s
        self.until = 0.0  # when the failure ends; inf: there is none any more
        self._streams: list[trio.SocketStream] = []

    @abstractmethod
    def first_of(self, data: bytes) -> tuple[T, bytes] | None:
        """The request that *data* begins with, and the rest; None: it is not whole."""

    @abstractmethod
    async def answer(self, stream: trio.SocketStream, request: T) -> bool:
        """Answer a request; say whether the connection stays open."""

    def note(self, request: T, sent: bytes) -> None:
        """Note how what was sent as an answer begins."""

    async def serve(self, stream: trio.SocketStream) -> None:
        self._streams.append(stream)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._serve(stream)
        self._streams.remove(stream)
        await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        data = b""
        while True:
            if self.failure == "resets connections":
                await trio.lowlevel.checkpoint()  # it is sent to, and does not read
                reached("outlets: a server resets a connection")
                return
            if (first := self.first_of(data)) is not None:
                request, data = first
                if not await self.answer(stream, request):
                    return
            elif more := await stream.receive_some(READ_BYTES):
                data += more
            else:
                return

    async def send(self, stream: trio.SocketStream, request: T, answer: bytes) -> bool:
        """Answer, well if there is no failure; say whether the connection stays open."""
        random, failure, again = self.random, self.failure, b""
        # As fast as it is read, or slowly.
        pace_s = random.choice([0.005, 0.1, 0.7]) * self.timeout_s
        if failure == "says nothing":
            await stream.receive_some()
            reached("outlets: a server says nothing as long as it is waited for")
            return False
        if failure == "is late":
            await trio.sleep(random.uniform(0, 3) * self.timeout_s)
        elif failure == "sends answers without end":
            answer, again = random.choice(self.endless)
        elif failure == "cuts its answers off":
            answer = answer[: random.randrange(len(answer))]
            reached("outlets: an answer ends in its middle")
        try:
            await stream.send_all(answer)
            self.note(request, answer)
            while again:
                await stream.send_all(again)
                await trio.sleep(pace_s)
        except trio.BrokenResourceError:
            if again:
                reached("outlets: an answer without end is cut off")
            elif failure == "is late":
                reached("outlets: an answer comes after it was waited for")
            raise
        return failure != "cuts its answers off"

    def inject(self, failure: str, seconds: float) -> Callable[[], None]:
        """Begin a failure that lasts so long; return what ends it."""
        self.failure, self.until = failure, trio.current_time() + seconds
        return partial(self.mend, self.until)

    def mend(self, until: float = inf) -> None:
        if until < self.until:
            return
        self.failure, self.until = "", until
        for stream in self._streams:
            stream.socket.close()

    async def be_reached(self) -> None:
        while self.failure == "cannot be reached":
            try:
                await trio.sleep(1)
            except trio.Cancelled:
                reached("outlets: a server is not reached in time")
                raise
        if self.failure == "refuses to connect":
            reached("outlets: a server refuses to connect")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


class Network(trio.abc.SocketFactory):
    """Leads to each server, by its port, and has it served in a nursery."""

    def __init__(self, servers: Sequence[Server[Any]], nursery: trio.Nursery) -> None:
        self.servers = servers
        self.nursery = nursery

    def socket(
        self, family: int = socket.AF_INET, type: int = 0, proto: int = 0
    ) -> trio.socket.SocketType:
        if family == socket.AF_UNIX:  # that of the sidecar
            return trio.socket.from_stdlib_socket(socket.socket(family))
        return _Line(self)


class _Line(_SocketType):
    """A socket of TCP, as far as the sidecar knows."""

    def __init__(self, network: Network) -> None:
        super().__init__(socket.socket(socket.AF_UNIX))
        self._network = network

    def setsockopt(self, *_option: object) -> None:
        """Take an option of TCP."""

    async def connect(self, address: Any) -> None:
        server = next(it for it in self._network.servers if it.port == address[1])
        await server.be_reached()
        near, far = socket.socketpair()
        with near:
            near.setblocking(False)
            os.dup2(near.fileno(), self.fileno(), inheritable=False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(far))
        self._network.nursery.start_soon(server.serve, stream)
