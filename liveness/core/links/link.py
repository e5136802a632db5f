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
