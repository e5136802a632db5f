"""Finds where the frames of a stream begin and end, and keeps every byte.

`core.framing.Reader` decodes and refuses; this one has to take anything that two programs
may say to each other. Bytes that are no msgpack come out as they are, and so does all that
follows them in the same direction.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgpack

# Twice the longest frame that either side sends unless `limits.max_frame_bytes` is raised.
# A longer one, and what follows it, comes out as bytes.
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
# The unpacker's buffer begins at this size, and grows; a recorder may have two thousand.
BUFFER_BYTES: Final = 4_096


class Chunk(NamedTuple):
    """Bytes of a stream: one whole frame, or any others."""

    data: bytes
    is_frame: bool


class FrameSplitter:
    """One direction of a link."""

    def __init__(self) -> None:
        self._finder = msgpack.Unpacker(
            read_size=BUFFER_BYTES, max_buffer_size=MAX_FRAME_BYTES
        )
        self._held = bytearray()
        self._given = 0  # how many bytes came out
        self._is_inside = False  # the beginning of this frame came out already
        self.is_broken = False

    @property
    def is_between_frames(self) -> bool:
        """Whether the next byte begins a frame."""
        return not (self._held or self._is_inside or self.is_broken)

    @property
    def has_unfinished(self) -> bool:
        """Whether bytes are held until their frame is complete."""
        return bool(self._held)

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The frames that *data* completes. Consume all before the next call."""
        self._held += data
        if self.is_broken:
            yield from self.flush()
            return
        try:
            self._finder.feed(data)
            while True:
                self._finder.skip()  # raises where a frame is incomplete
                end = self._finder.tell()
                yield self._taken(end - self._given, is_frame=not self._is_inside)
                self._given = end
                self._is_inside = False
        except msgpack.OutOfData:
            pass
        except (ValueError, msgpack.UnpackException):
            self.is_broken = True
            yield from self.flush()

    def flush(self) -> Iterator[Chunk]:
        """What is held, although its frame is incomplete."""
        if self._held:
            self._is_inside = True
            self._given += len(self._held)
            yield self._taken(len(self._held), is_frame=False)

    def _taken(self, size: int, *, is_frame: bool) -> Chunk:
        data = bytes(self._held[:size])
        del self._held[:size]
        return Chunk(data, is_frame)
