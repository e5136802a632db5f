"""The socket of a link."""

import socket
from array import array
from contextlib import suppress
from fcntl import ioctl
from termios import FIONREAD
from typing import Final

from liveness.core.links.link import Link
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import Refusal
from liveness.errors import Code
from liveness.service.common.notifier import Notifier
from liveness.service.links.link_writer import LinkWriter

# Bytes read at once: as many as take `PIECE_S` to process, from some hundred logins to some
# two thousand keepalives.
PIECE_BYTES: Final = 4_096
MOST_PIECE_BYTES: Final = 65_536
PIECE_S: Final = 0.002


class LinkSocket:
    """A connected socket, its link, and its writer.

    Args:
        sock: Non-blocking; this owns it.
        link: The link.
        writer: Writes what is in the link's outbox.
    """

    def __init__(self, sock: socket.socket, link: Link, writer: LinkWriter) -> None:
        self.sock = sock
        self.link = link
        self.writer = writer
        self.piece_bytes = PIECE_BYTES
        self.drained = Notifier()

    def receive(self, most: int) -> bytes | None:
        """Read at most *most* bytes; None if there are none now, b"" at the end."""
        try:
            return self.sock.recv(most)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def unread(self) -> int:
        """How many bytes have arrived and are unread."""
        count = array("i", [0])
        ioctl(self.sock, FIONREAD, count)
        return count[0]

    def measure(self, took_s: float, *, was_full: bool) -> None:
        """Adapt how much to read at once to how long the last piece took.

        Only a full piece raises it: otherwise the first burst of a quiet link would be read
        whole, and its thousands of requests would delay all others.
        """
        if took_s > PIECE_S:
            self.piece_bytes = max(PIECE_BYTES, self.piece_bytes // 2)
        elif was_full:
            self.piece_bytes = min(MOST_PIECE_BYTES, self.piece_bytes * 2)

    def send_fault(self) -> None:
        """Send a refusal without the outbox, which may have failed, if there is room."""
        message = "a fault of the sidecar, see its log; connect anew"
        n = self.link.conversation.n
        refusal = Refusal(Code.INTERNAL, message, n, fatal=True)
        with suppress(OSError):
            self.sock.send(encode(refusal.as_frame()))
