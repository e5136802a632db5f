"""Frames that links have begun and not finished: bounded in all, the oldest end first.

An honest sender's frame is whole within milliseconds; one that drips its frame soon has the
oldest.
"""

from liveness.service.links.link import SocketLink


class Unfinished:
    """What all links together have sent of frames that are not whole yet.

    Args:
        most_bytes: The most bytes of them, at least those of one frame.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self.bytes = 0
        self.most_bytes = most_bytes
        # By link, oldest first: how many frames came before it, and its bytes.
        self._frames: dict[SocketLink, tuple[int, int]] = {}

    def note(self, link: SocketLink) -> None:
        """Note how much of a frame a link has sent by now."""
        n, size = link.conversation.n, link.conversation.unfinished_bytes
        before, counted = self._frames.get(link, (n, 0))
        self.bytes += size - counted
        if not size or n != before:
            self._frames.pop(link, None)
        if size:
            self._frames[link] = n, size

    def excess(self) -> SocketLink | None:
        """The link whose frame is the oldest, if there is more than may be."""
        return next(iter(self._frames)) if self.bytes > self.most_bytes else None
