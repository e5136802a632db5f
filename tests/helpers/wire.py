"""The wire contract as clients see it: frames to bytes and back, nothing of this package."""

from collections.abc import Iterator
from typing import Any

import msgpack

Frame = list[Any]
Record = dict[str, Any]


def packed(*frames: Frame) -> bytes:
    return b"".join(map(msgpack.packb, frames))


def hello(name: str, **options: Any) -> Frame:
    return ["hello", {"protocol": 1, "name": name, **options}]


def contents(frame: Frame | None, name: str) -> list[Any]:
    assert frame is not None, f"the stream ended before {name}"
    assert frame[0] == name, f"{frame} in place of {name}"
    return frame[1:]


class Frames:
    """The frames of one direction of a link, read from its bytes as they arrive.

    Each frame is checked for what holds on every link: a frame is an array that begins
    with a name, notices carry 1 to 1,000 records, and their `seq` rises.
    """

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=1 << 26)
        self._last_seq = 0

    def feed(self, data: bytes | bytearray) -> None:
        self._unpacker.feed(data)

    def __iter__(self) -> Iterator[Frame]:
        """The frames that are complete; the next iteration goes on behind them."""
        for frame in self._unpacker:
            self._check(frame)
            yield frame

    def next(self) -> Frame | None:
        return next(iter(self), None)

    def _check(self, frame: Any) -> None:
        assert isinstance(frame, list), frame
        assert isinstance(frame[0], str), frame
        if frame[0] == "notices":
            (records,) = frame[1:]
            assert 1 <= len(records) <= 1_000
            for record in records:
                assert record["seq"] > self._last_seq, (self._last_seq, record)
                self._last_seq = record["seq"]


def unpacked(data: bytes) -> list[Frame]:
    frames = Frames()
    frames.feed(data)
    return [*frames]
