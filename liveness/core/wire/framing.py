"""Bytes to frames and back: msgpack values, one after the other.

A `Reader` takes bytes in pieces of any size, and yields the frames that they complete. It
checks the stream (well-formed msgpack and UTF-8, string keys, no extension types, limits
of size and depth) and nothing else: `conversation` checks what a frame means. After an
error nothing more is read, since msgpack-python yields garbage after invalid UTF-8.

A frame is decoded once it is whole. An unpacker that only skips, and builds nothing,
finds its end. Decoding bytes as they arrive would allocate what nested headers claim
before any element is there; a whole frame holds what it claims. The values of a frame are
counted before it is decoded: a megabyte may hold half a million arrays of one small
integer, which take a third of a second to build.

msgpack's exceptions have no common base; only `wire_error_for` turns them into ours.

This is the version in pure Python. `_wire.pyx` finds frames the same way, without the
first unpacker, and keeps keepalives and messages in C.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgpack

from liveness.core.records import KEEPALIVE, LOGIN, LOGOUT, MESSAGE
from liveness.core.wire.link_requests import ActivityBatch
from liveness.errors import Code, WireError

Frame: TypeAlias = tuple[Any, ...]

MAX_DEPTH: Final = 4

MAX_FRAME: Final = "limits.max_frame_bytes"
MAX_BATCH: Final = "limits.max_batch"

# An unpacker's buffer must hold a whole frame and the piece that completes it, or valid
# frames that span two pieces would be refused. It begins at the size of a piece
# (msgpack's default is 1 MiB for each link), and grows for a larger frame.
PIECE_BYTES: Final = 65_536

# A frame may hold the values of this many full batches, in all its arrays and maps, with
# the maps' keys: twice what a batch with its conns holds.
BATCHES_OF_VALUES: Final = 4
# Even if batches are small: enough for hello's options, and for those of later versions.
LEAST_VALUES: Final = 64

_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
_STRINGS: Final = frozenset({str})
# In these a uid may have broken UTF-8: it comes from a user, and must not end the link.
_WITH_UIDS: Final = frozenset({LOGIN, KEEPALIVE, MESSAGE, LOGOUT, "where"})


def encode(frame: object) -> bytes:
    encoded: bytes = msgpack.packb(frame)
    return encoded


def decode(data: bytes) -> Any:
    """Return the value in *data*, which `encode` made.

    Raises:
        ValueError: It is incomplete, or was not made by `encode`.
    """
    try:
        return msgpack.unpackb(data, use_list=False)
    except msgpack.UnpackException as error:
        raise ValueError(str(error) or type(error).__name__) from error


def encode_notices(count: int, records: bytes) -> bytes:
    head = msgpack.Packer()
    start: bytes = head.pack_array_header(2) + encode("notices")
    return b"".join((start, head.pack_array_header(count), records))


class Reader:
    """The receiving end of one stream.

    Args:
        max_frame_bytes: Most bytes of a frame. It may be changed after any frame.
        max_batch: Most uids of a frame, from which follow the most values it may hold.
    """

    def __init__(self, *, max_frame_bytes: int, max_batch: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._most_values = most_values(max_batch)
        self._room = max_frame_bytes + 2 * PIECE_BYTES
        self.n = 0  # the number of the last frame, from 1
        self.packs = False
        self._begin(b"")

    def _begin(self, data: bytes) -> None:
        """Start over with *data* in new buffers, since a grown buffer never shrinks."""
        size, room = PIECE_BYTES, self._room
        self._finder = msgpack.Unpacker(read_size=size, max_buffer_size=room)
        # Returns the bytes of a frame, and decodes nothing.
        self._held = msgpack.Unpacker(read_size=size, max_buffer_size=room)
        self._finder.feed(data)
        self._held.feed(data)
        self._fed = len(data)
        self._ended = 0  # how many of the bytes fed belong to whole frames

    @property
    def unfinished_bytes(self) -> int:
        """How many bytes of an incomplete frame are held.

        They take up to four times as much memory, in two buffers that double; in the
        compiled reader an eighth more.
        """
        return self._fed - self._ended

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield each frame that *data* completes; keep an incomplete one.

        Raises:
            WireError: After the frames before the fault. Do not feed this reader again.
        """
        for start in range(0, len(data), PIECE_BYTES):
            yield from self._piece(data[start : start + PIECE_BYTES])

    def feed_packing(self, data: bytes) -> Iterator[Frame | ActivityBatch]:
        """As `feed`; if `packs` is set, batches may come in place of plain frames.

        This reader never packs. `packs` may be set after any frame.
        """
        return self.feed(data)

    def _piece(self, piece: bytes) -> Iterator[Frame]:
        self._fed += len(piece)
        try:
            self._finder.feed(piece)
            self._held.feed(piece)
            while True:
                self._finder.skip()
                # Right after a whole frame: later `tell` also counts what was consumed
                # of an incomplete one.
                ended, self._ended = self._ended, self._finder.tell()
                size = self._ended - ended
                self._check_size(size)
                data = self._held.read_bytes(size)
                if size > PIECE_BYTES:
                    self._begin(self._held.read_bytes(self.unfinished_bytes))
                # A value takes a byte or more, so only a large frame can have too many.
                if size > self._most_values and has_more_values(
                    data, self._most_values
                ):
                    raise too_many_values(self._most_values)
                frame = decoded(data)
                self.n += 1
                yield frame
        except msgpack.OutOfData:
            self._check_size(self.unfinished_bytes)
        except (ValueError, msgpack.UnpackException) as error:
            # A frame over the limit is refused for its size, wherever its fault is.
            # After a fault in `skip`, `tell` is one byte before its end.
            self._check_size(self._finder.tell() + 1 - self._ended)
            raise wire_error_for(error) from error

    def _check_size(self, size: int) -> None:
        if size > self.max_frame_bytes:
            raise too_large(size, self.max_frame_bytes)


def most_values(max_batch: int) -> int:
    return max(BATCHES_OF_VALUES * max_batch, LEAST_VALUES)


def too_large(size: int, most: int) -> WireError:
    return WireError(
        Code.TOO_LARGE,
        f"a frame of {size} bytes or more: at most {most} are allowed "
        "(welcome.max_frame); send smaller batches",
        limit=MAX_FRAME,
    )


def too_many_values(most: int) -> WireError:
    return WireError(
        Code.TOO_LARGE,
        f"a frame of more than {most} values in all its arrays and maps "
        f"({BATCHES_OF_VALUES} times welcome.max_batch); send smaller batches",
        limit=MAX_BATCH,
    )


# For each first byte of a value: the bytes of its header and of a fixed size; the bytes
# of its length field; and the values it contains, or that each unit of the length stands
# for.
_HEADERS: Final = (
    *((1, 0, 0) for _ in range(0x80)),  # integers
    *((1, 0, 2 * pairs) for pairs in range(16)),
    *((1, 0, items) for items in range(16)),
    *((1 + size, 0, 0) for size in range(32)),
    *((1, 0, 0) for _ in range(4)),  # nil, never used, false, true
    *((2, 1, 0), (3, 2, 0), (5, 4, 0)),  # bytes
    *((3, 1, 0), (4, 2, 0), (6, 4, 0)),  # extensions
    *((5, 0, 0), (9, 0, 0)),  # floats
    *((1 + size, 0, 0) for size in (1, 2, 4, 8)),  # integers without sign
    *((1 + size, 0, 0) for size in (1, 2, 4, 8)),  # and with one
    *((2 + size, 0, 0) for size in (1, 2, 4, 8, 16)),  # extensions
    *((2, 1, 0), (3, 2, 0), (5, 4, 0)),  # strings
    *((3, 2, 1), (5, 4, 1)),  # arrays
    *((3, 2, 2), (5, 4, 2)),  # maps
    *((1, 0, 0) for _ in range(0x20)),  # integers below 0
)


def has_more_values(frame: bytes, most: int) -> bool:
    at = values = 0
    while at < len(frame) and values <= most:
        size, width, inner = _HEADERS[frame[at]]
        if width:
            length = int.from_bytes(frame[at + 1 : at + 1 + width])
            if frame[at] == 0xC9:  # msgpack adds the type byte to this, in 32 bits
                length = (length + 1) % 2**32 - 1
            inner *= length
            size += 0 if inner else length
        values += inner
        at += size
    return values > most


def decoded(frame: bytes) -> Frame:
    """Decode and check a whole frame.

    Raises:
        WireError: It is broken.
    """
    try:
        return checked(_value_of(frame))
    except (ValueError, msgpack.UnpackException) as error:
        raise wire_error_for(error) from error


def _value_of(frame: bytes) -> object:
    """Decode a frame; uids in broken UTF-8 get halves of surrogate pairs, so are none."""
    try:
        return msgpack.unpackb(frame, use_list=False, strict_map_key=True)
    except UnicodeDecodeError:
        with suppress(ValueError, msgpack.UnpackException):
            value = msgpack.unpackb(
                frame,
                use_list=False,
                strict_map_key=True,
                unicode_errors="surrogateescape",
            )
            match value:
                case (str(name), str() | tuple() as uids, *more) if name in _WITH_UIDS:
                    # Raises if any other text is broken.
                    encode([more, [uid for uid in uids if type(uid) is not str]])
                    return value
        raise


def checked(value: object) -> Frame:
    """Check a top-level value; a flat one, as nearly all are, takes less time."""
    if type(value) is not tuple:
        raise WireError(
            Code.BAD_FRAME,
            f"a top-level {type(value).__name__}: this socket speaks msgpack, not HTTP, "
            "TLS or text, and every value is an array that begins with the frame's name",
        )
    for item in value:
        kind = type(item)
        if kind in _PLAIN:
            continue
        if (
            kind is dict
            and _STRINGS.issuperset(map(type, item))
            and _PLAIN.issuperset(map(type, item.values()))
        ):
            continue
        _check_nested(item, 2)
    return value


def _check_nested(value: object, depth: int) -> None:
    """Check a value that is not plain, at *depth* (the frame itself is 1)."""
    if depth > MAX_DEPTH:
        raise WireError(
            Code.TOO_DEEP,
            f"a value nested deeper than {MAX_DEPTH} levels; the frame's own array is "
            "the first",
        )
    if type(value) is tuple:
        if _PLAIN.issuperset(map(type, value)):
            return
        inner = value
    elif type(value) is dict:
        if not all(type(key) is str for key in value):
            raise WireError(
                Code.BAD_MSGPACK, "a map key that is no string; use string keys"
            )
        inner = tuple(value.values())
    else:
        raise WireError(
            Code.BAD_MSGPACK,
            "an extension type (a timestamp is one); use plain msgpack types",
        )
    for item in inner:
        if type(item) not in _PLAIN:
            _check_nested(item, depth + 1)


def wire_error_for(error: Exception) -> WireError:
    """Turn an exception of msgpack into the error to send."""
    if "max_ext_len" in str(error):  # of 4 GiB; shorter ones are refused by their size
        return WireError(
            Code.TOO_LARGE,
            "an extension type of 4 GiB; use plain msgpack types",
            limit=MAX_FRAME,
        )
    if isinstance(error, msgpack.BufferFull) or "exceeds max" in str(error):
        return WireError(
            Code.TOO_LARGE,
            f"more than is allowed ({error}); send smaller batches",
            limit=MAX_FRAME,
        )
    if isinstance(error, msgpack.StackError):
        return WireError(Code.TOO_DEEP, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(error, UnicodeDecodeError):
        return WireError(Code.BAD_MSGPACK, f"a string is not UTF-8 ({error.reason})")
    return WireError(
        Code.BAD_MSGPACK,
        f"bytes that are not msgpack ({str(error) or type(error).__name__}); nothing after "
        "them can be trusted: connect again",
    )
