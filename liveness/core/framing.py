"""Bytes to frames and back: plain msgpack values, back to back.

A `Reader` takes bytes in pieces of any size and gives the frames they complete; the
pieces do not matter. It vouches for the stream (well-formed msgpack and UTF-8, string
keys, no extension types, size and depth within bounds) and for nothing else: what a
frame means is `conversation`'s. After an error it is closed: msgpack-python goes on with
garbage values after invalid UTF-8, so nothing after the fault is looked at.

A frame is decoded once it is whole. An unpacker that only skips, which builds nothing,
finds where it ends. Decoding as the bytes come would make room for all that the headers
claim, a thousand of them deep, before one element was seen; a whole frame holds what it
claims.

A megabyte may hold half a million arrays of one small integer, which take a third of a
second to build. So the values of a frame are counted before it is decoded.

msgpack's exceptions have no common base; `blaming_the_sender` is the one place where
they become ours.

This is the readable reference. `_wire`, compiled where it could be, finds frames the
same way without a first unpacker, and keeps signs of life as C does.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgpack

from liveness.core.records import SignsOfLife
from liveness.errors import Code, WireError

Frame: TypeAlias = tuple[Any, ...]

MAX_DEPTH: Final = 4

MAX_FRAME: Final = "limits.max_frame_bytes"
MAX_BATCH: Final = "limits.max_batch"

# An unpacker's buffer must hold one whole frame and the piece that completes it, or
# honest traffic that straddles two pieces is cut off. It begins with room for a piece
# (msgpack's default is 1 MiB a link) and grows where a frame needs it.
PIECE_BYTES: Final = 65_536

# A frame may hold the values of so many full batches, in all its arrays and maps: twice
# what a batch with its conns holds. A map's keys count.
BATCHES_OF_VALUES: Final = 4
# However small the batches are: the options of hello, and some that are unknown here.
LEAST_VALUES: Final = 64

_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
_STRINGS: Final = frozenset({str})


def encode(frame: object) -> bytes:
    """Return *frame* as msgpack."""
    encoded: bytes = msgpack.packb(frame)
    return encoded


def decode(data: bytes) -> Any:
    """Return the one value in *data*, which we encoded ourselves.

    Raises:
        ValueError: It is not whole, or not what we encode.
    """
    try:
        return msgpack.unpackb(data, use_list=False)
    except msgpack.UnpackException as error:
        raise ValueError(str(error) or type(error).__name__) from error


def encode_notices(records: list[bytes]) -> bytes:
    """Return a `notices` frame of records that are encoded already."""
    head = msgpack.Packer()
    start: bytes = head.pack_array_header(2) + encode("notices")
    return b"".join((start, head.pack_array_header(len(records)), *records))


class Reader:
    """The receiving end of one stream.

    Args:
        max_frame_bytes: A frame may have this many bytes, and no more. May be lowered,
            and raised again, after any frame.
        max_batch: What `conversation` allows in an array; bounds the values of a frame.
    """

    def __init__(self, *, max_frame_bytes: int, max_batch: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._most_values = most_values(max_batch)
        self._room = max_frame_bytes + 2 * PIECE_BYTES
        self.n = 0  # frames given so far: the number of the last one
        self.packs = False
        self._begin(b"")

    def _begin(self, data: bytes) -> None:
        """Begin with *data*, in new buffers: one that has grown never shrinks."""
        size, room = PIECE_BYTES, self._room
        self._finder = msgpack.Unpacker(read_size=size, max_buffer_size=room)
        # Gives back the bytes of a frame, and decodes nothing.
        self._held = msgpack.Unpacker(read_size=size, max_buffer_size=room)
        self._finder.feed(data)
        self._held.feed(data)
        self._fed = len(data)
        self._ended = 0  # where in what was fed the last whole frame ended

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of a frame that is not whole yet.

        They take up to four times as much memory here, as there are two buffers that
        double; compiled, an eighth more.
        """
        return self._fed - self._ended

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Give each frame that *data* completes; keep an unfinished one for later.

        Raises:
            WireError: After the frames before the fault were given. The reader must
                not be fed again.
        """
        for start in range(0, len(data), PIECE_BYTES):
            yield from self._piece(data[start : start + PIECE_BYTES])

    def feed_packing(self, data: bytes) -> Iterator[Frame | SignsOfLife]:
        """As `feed`; once `packs` is set, plain signs of life may come packed as one.

        Here none ever do. `packs` may be set after any frame.
        """
        return self.feed(data)

    def _piece(self, piece: bytes) -> Iterator[Frame]:
        self._fed += len(piece)
        try:
            self._finder.feed(piece)
            self._held.feed(piece)
            while True:
                self._finder.skip()
                # Asked after each frame: between frames `tell` also counts what was
                # consumed of an unfinished one.
                ended, self._ended = self._ended, self._finder.tell()
                size = self._ended - ended
                self._check_size(size)
                data = self._held.read_bytes(size)
                if size > PIECE_BYTES:
                    self._begin(self._held.read_bytes(self.unfinished_bytes))
                # A value has at least a byte.
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
            # A fault beyond the limit is not looked at, however the pieces are cut.
            # `tell` stands one byte before the end of a fault that `skip` met.
            self._check_size(self._finder.tell() + 1 - self._ended)
            raise blaming_the_sender(error) from error

    def _check_size(self, size: int) -> None:
        if size > self.max_frame_bytes:
            raise too_large(size, self.max_frame_bytes)


def most_values(max_batch: int) -> int:
    """How many values a frame may hold."""
    return max(BATCHES_OF_VALUES * max_batch, LEAST_VALUES)


def too_large(size: int, most: int) -> WireError:
    """The complaint about a frame of *size* bytes, of which *most* are taken."""
    return WireError(
        Code.TOO_LARGE,
        f"a frame of {size} bytes or more: at most {most} (welcome.max_frame) are "
        "taken; send smaller batches",
        limit=MAX_FRAME,
    )


def too_many_values(most: int) -> WireError:
    """The complaint about a frame of more values than *most*."""
    return WireError(
        Code.TOO_LARGE,
        f"a frame of more than {most} values in all its arrays and maps "
        f"({BATCHES_OF_VALUES} times welcome.max_batch); send smaller batches",
        limit=MAX_BATCH,
    )


# By a value's first byte: its bytes without what a length says, the bytes of that length,
# and how many values it contains, with a length for each of it.
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
    """Whether the arrays and maps of a frame, which is whole, hold more than *most*."""
    at = values = 0
    while at < len(frame) and values <= most:
        size, width, inner = _HEADERS[frame[at]]
        if width:
            length = int.from_bytes(frame[at + 1 : at + 1 + width])
            if frame[at] == 0xC9:  # counted with its type, by msgpack, in 32 bits
                length = (length + 1) % 2**32 - 1
            inner *= length
            size += 0 if inner else length
        values += inner
        at += size
    return values > most


def decoded(frame: bytes) -> Frame:
    """Decode and check a frame, which is whole.

    Raises:
        WireError: It is broken.
    """
    try:
        return checked(msgpack.unpackb(frame, use_list=False, strict_map_key=True))
    except (ValueError, msgpack.UnpackException) as error:
        raise blaming_the_sender(error) from error


def checked(value: object) -> Frame:
    """Check one top-level value; plain frames, nearly all, take the short way."""
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


def blaming_the_sender(error: Exception) -> WireError:
    """What msgpack's complaint means to whoever sent the bytes."""
    if "max_ext_len" in str(error):  # of 4 GiB: shorter ones are met as they come
        return WireError(
            Code.TOO_LARGE,
            "an extension type of 4 GiB; use plain msgpack types",
            limit=MAX_FRAME,
        )
    if isinstance(error, msgpack.BufferFull) or "exceeds max" in str(error):
        return WireError(
            Code.TOO_LARGE,
            f"more than is taken ({error}); send smaller batches",
            limit=MAX_FRAME,
        )
    if isinstance(error, msgpack.StackError):
        return WireError(Code.TOO_DEEP, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(error, UnicodeDecodeError):
        return WireError(Code.BAD_MSGPACK, f"a string is not UTF-8 ({error.reason})")
    return WireError(
        Code.BAD_MSGPACK,
        f"bytes that are not msgpack ({str(error) or type(error).__name__}); nothing after "
        "them can be trusted: connect anew",
    )
