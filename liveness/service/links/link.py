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

# What is taken at once: as much as is worked through in so long, from some hundred logins
# to some two thousand signs of life.
PIECE_BYTES: Final = 4_096
MOST_PIECE_BYTES: Final = 65_536
PIECE_S: Final = 0.002


class SocketLink:
    """One connected socket.

    Args:
        sock: Non-blocking; owned from now on.
        conversation: The state machine that its bytes go through.
        outbox: What is to be written to it.
        peer: The process that connected.
        number: Tells it from others in logs.
        opened_at: Attended seconds.
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
        self.is_open = True  # bytes are taken from it
        self.piece_bytes = PIECE_BYTES
        self.must_read_bytes = (
            0  # bytes that lay there after an absence and were not read yet
        )
        self.read_at = 0.0  # when it last gave something, in monotonic seconds
        self.why_closed = "closed by the other side"
        self.drained = Notifier()

    @property
    def hello(self) -> Hello | None:
        """How it introduced itself, if it has."""
        return self.conversation.hello

    def receive(self, most: int) -> bytes | None:
        """Take at most so many bytes: None if the socket is empty, b"" at its end."""
        try:
            return self.sock.recv(most)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def unread(self) -> int:
        """Bytes that have come and were not taken yet."""
        count = array("i", [0])
        ioctl(self.sock, FIONREAD, count)
        return count[0]

    def measure(self, took_s: float) -> None:
        """Choose the size of the next piece by how long the last one took."""
        if took_s > PIECE_S:
            self.piece_bytes = max(PIECE_BYTES, self.piece_bytes // 2)
        else:
            self.piece_bytes = min(MOST_PIECE_BYTES, self.piece_bytes * 2)

    def tell_of_a_fault(self) -> None:
        """Past the outbox, which may be what is at fault: say so, if there is room."""
        message = "a fault of the sidecar, see its log; connect anew"
        refusal = Refusal(Code.INTERNAL, message, self.conversation.n, fatal=True)
        with suppress(OSError):
            self.sock.send(encode(refusal.as_frame()))

    def end(self, frame: object | None = None, *, why: str) -> None:
        """Take no more bytes; write what is queued, then *frame*, then close."""
        if self.is_open:
            self.is_open = False
            self.why_closed = why
            self.outbox.end(frame)
            self.drained.notify()
