"""What the sidecar's outlets connect to, and the network to it.

The sidecar opens sockets of TCP. Here they are sockets of Unix, over which the kernel
delivers at once: otherwise virtual time would jump ahead while bytes are under way.
"""

import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final

import trio
from trio._socket import _SocketType

from tests.simulation.situations import reached

# What may befall each, for a while in which every connection meets it.
MOODS_OF_DOORS: Final = (
    "refuses to connect",
    "cannot be reached",
    "resets connections",
)


class Door(ABC):
    """A server on a socket of its own.

    Args:
        path: Of the socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mood = ""
        self._until = 0.0
        self._mended = trio.Event()
        self.streams = dict[trio.SocketStream, int]()  # the number of each
        self._connections = 0

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing will befall it any more."""
        return self._until == inf

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept connections."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(self.path))
            sock.listen(100)
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
            task_status.started()
            await trio.serve_listeners(self._talk, [listener])

    async def _talk(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        self.streams[stream] = self._connections
        try:
            await self.serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # either side closed it
        finally:
            del self.streams[stream]
            await trio.aclose_forcefully(stream)

    @abstractmethod
    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a connection."""

    def suffer(self, mood: str, seconds: float) -> Callable[[], None]:
        """Begin a mood that lasts so long; return what ends it."""
        if not self.is_at_rest:
            self.mood, self._until = mood, trio.current_time() + seconds
        return partial(self.mend, self._until)

    def mend(self, until: float = inf) -> None:
        """End a mood that began before; what it has left hanging is closed."""
        if until < self._until:
            return
        self.mood, self._until = "", until
        self._mended.set()
        self._mended = trio.Event()
        for stream in self.streams:
            stream.socket.close()

    async def be_reached(self) -> None:
        """Take a connection, or not."""
        while self.mood == "cannot be reached":
            try:
                await self._mended.wait()
            except trio.Cancelled:
                reached("outlets: a server is not reached in time")
                raise
        if self.mood == "refuses to connect":
            reached("outlets: a server refuses to connect")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


class Network(trio.abc.SocketFactory):
    """Leads to each door, by its port."""

    def __init__(self, doors: Mapping[int, Door]) -> None:
        self.doors = doors

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
        """Connect to what listens there."""
        door = self._network.doors[address[1]]
        await door.be_reached()
        await super().connect(str(door.path))
