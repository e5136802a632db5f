"""A link of a scripted sidecar: its socket, and what the script may see of it."""

import socket
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fcntl import ioctl
from termios import FIONREAD

from liveness.core.cursors import ReadPosition
from liveness.core.links.link import Link


class LinkTap:
    """Sees the bytes of all links, as they pass; this one looks away."""

    def opened(self, link: int, sock: socket.socket) -> None:
        """A link was accepted."""

    def received(self, link: int, data: bytes) -> None:
        """The peer has sent these bytes; b"": it has closed the link."""

    def sent(self, link: int, data: bytes) -> None:
        """These bytes were written to the peer."""

    def closed(self, link: int) -> None:
        """The sidecar has closed the link."""


@dataclass(slots=True)
class LinkCounters:
    """What is counted of links; nobody reads it."""

    refused: Counter[str] = field(default_factory=Counter)
    limits_met: Counter[str] = field(default_factory=Counter)
    notices_acked: int = 0


@dataclass(slots=True, eq=False)
class ScriptedSocket:
    """A connected socket, and what is to be written to it."""

    sock: socket.socket
    link: Link
    unsent: bytes = b""
    position: ReadPosition | None = None
    sent: Callable[[], object] = bool  # to be called once `unsent` is written
    watched: int = 0  # the events that the selector waits for
    is_shut: bool = False
    extra: bytes = b""  # frames of the script, before the next of the server
    most_bytes: int | None = None  # of one write; None: as many as the socket takes

    @property
    def unread_bytes(self) -> int:
        """How many bytes the peer has written that were not read."""
        count = array("i", [0])
        ioctl(self.sock, FIONREAD, count)
        return count[0]
