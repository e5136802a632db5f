"""Limits the incomplete frames of all links; the link with the oldest one ends first.

A working link completes its frame within milliseconds, so the oldest frame is soon that of
a link that sends byte by byte.
"""

from liveness.core.links.link import Link


class PartialFrames:
    """The bytes of incomplete frames of all links together.

    Args:
        most_bytes: Their limit; at least the size of one frame.
    """

    def __init__(self, *, most_bytes: int) -> None:
        self.bytes = 0
        self.most_bytes = most_bytes
        # By link, oldest first: the complete frames before it, and its bytes.
        self._frames: dict[Link, tuple[int, int]] = {}

    def update(self, link: Link) -> None:
        """Note how many bytes of an incomplete frame a link has sent."""
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
