"""A link: the socket of one gateway or watcher, its conversation, its outbox."""

import socket
from array import array
from contextlib import suppress
from fcntl import ioctl
from termios import FIONREAD
from typing import Final

from liveness.core.access import Peer
from liveness.core.clearance import GatewayState
from liveness.core.conversation import Conversation
from liveness.core.framing import encode
from liveness.core.records import Hello, Refusal
from liveness.errors import Code
from liveness.service.common.notifier import Notifier
from liveness.service.links.outbox import Outbox

# How much is read at once: what `PIECE_S` is enough to process, from some hundred logins
# to some two thousand keepalives.
PIECE_BYTES: Final = 4_096
MOST_PIECE_BYTES: Final = 65_536
PIECE_S: Final = 0.002


class SocketLink:
    """One connected socket, its conversation and its outbox.

    Args:
        sock: Non-blocking; the link owns it.
        conversation: Parses what is read, and checks the order of frames.
        outbox: Writes.
        peer: The process that connected.
        number: Identifies the link in logs.
        opened_at: In attended seconds.
    """

    def __init__(
        self,
        sock: socket.socket,
        conversation: Conversation,
        outbox: Outbox,
        *,
        peer: Peer,
        number: int,
        opened_at: float,
    ) -> None:
        self.sock = sock
        self.conversation = conversation
        self.outbox = outbox
        self.peer = peer
        self.number = number
        self.opened_at = opened_at
        self.gateway: GatewayState | None = None
        self.is_open = True  # bytes are read from it
        self.piece_bytes = PIECE_BYTES
        # Unread bytes that arrived before a pause, or before the start.
        self.must_read_bytes = 0
        self.read_at = 0.0  # when bytes were last read from it, in monotonic seconds
        self.why_closed = "closed by the other side"
        self.drained = Notifier()

    @property
    def hello(self) -> Hello | None:
        """Its hello; None before it has sent one."""
        return self.conversation.hello

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

    def measure(self, took_s: float) -> None:
        """Adapt how much to read at once to how long the last piece took."""
        if took_s > PIECE_S:
            self.piece_bytes = max(PIECE_BYTES, self.piece_bytes // 2)
        else:
            self.piece_bytes = min(MOST_PIECE_BYTES, self.piece_bytes * 2)

    def send_fault(self) -> None:
        """Send a refusal without the outbox, which may have failed, if there is room."""
        message = "a fault of the sidecar, see its log; connect anew"
        refusal = Refusal(Code.INTERNAL, message, self.conversation.n, fatal=True)
        with suppress(OSError):
            self.sock.send(encode(refusal.as_frame()))

    def end(self, frame: object | None = None, *, why: str) -> None:
        """Read no more; write what is queued, then *frame*, then close."""
        if self.is_open:
            self.is_open = False
            self.why_closed = why
            self.outbox.end(frame)
            self.drained.notify()
