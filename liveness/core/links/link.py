"""The server's view of a link: one connection of a gateway or watcher."""

from liveness.core.access import Peer
from liveness.core.links.conversation import Conversation
from liveness.core.links.outbox import Outbox
from liveness.core.sessions.clearance import GatewayState
from liveness.core.wire.link_requests import Hello


class Link:
    """One connection, with its conversation and its outbox."""

    def __init__(
        self,
        number: int,
        peer: Peer,
        opened_at: float,
        conversation: Conversation,
        outbox: Outbox,
    ) -> None:
        self.number = number
        self.peer = peer
        self.opened_at = opened_at
        self.conversation = conversation
        self.outbox = outbox
        self.gateway: GatewayState | None = None
        self.is_open = True  # bytes are read from it
        # Unread bytes that arrived before a pause, or before the start.
        self.must_read_bytes = 0
        self.read_at = 0.0  # when bytes were last read from it, in monotonic seconds
        self.why_closed = "closed by the other side"

    @property
    def is_held_back(self) -> bool:
        """Whether it is not read, as too many of its timer commands wait for the disk."""
        return self.gateway is not None and self.gateway.reading_paused_at is not None

    @property
    def can_read_on(self) -> bool:
        return not self.outbox.is_full and not self.is_held_back

    @property
    def hello(self) -> Hello | None:
        return self.conversation.hello

    @property
    def name(self) -> str | None:
        return None if self.hello is None else self.hello.name


class PartialFrames:
    """Limits the incomplete frames of all links; the link with the oldest one ends first.

    A working link completes its frame within milliseconds, so the oldest frame is soon that
    of a link that sends byte by byte. *most_bytes* is at least the size of one frame.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self.bytes = 0
        self.most_bytes = most_bytes
        # By link, oldest first: the complete frames before it, and its bytes.
        self._frames: dict[Link, tuple[int, int]] = {}

    def update(self, link: Link) -> None:
        frames, size = link.conversation.n, link.conversation.unfinished_bytes
        frames_before, counted = self._frames.get(link, (frames, 0))
        self.bytes += size - counted
        if not size or frames != frames_before:
            self._frames.pop(link, None)
        if size:
            self._frames[link] = frames, size

    def excess(self) -> Link | None:
        """The link with the oldest incomplete frame, if there are too many bytes."""
        return next(iter(self._frames)) if self.bytes > self.most_bytes else None
