"""Bytes to frames: the pieces do not matter, and nothing but our error escapes."""

import tracemalloc
from collections import deque
from collections.abc import Iterable

import pytest

from liveness.core.wire.framing import (
    BATCHES_OF_VALUES,
    LEAST_VALUES,
    PIECE_BYTES,
    Frame,
    Reader,
    decode,
    encode,
)
from liveness.errors import Code, WireError
from tests.helpers.strategies import singly

# So small that many an example is at a limit.
FRAME_BYTES, BATCH = 60, 5


Answer = tuple[list[Frame], Code | None]


def read(
    reader_class: type[Reader],
    cut: Iterable[bytes],
    *,
    max_frame_bytes: int = FRAME_BYTES,
    max_batch: int = BATCH,
) -> Answer:
    """Read a stream: its frames, and the code of the error that ended it."""
    reader = reader_class(max_frame_bytes=max_frame_bytes, max_batch=max_batch)
    frames: list[Frame] = []
    try:
        for piece in cut:
            for frame in reader.feed(piece):
                frames.append(frame)  # noqa: PERF402  (those before an error count)
    except WireError as error:
        return frames, error.code
    return frames, None


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91"])
def test_decoding_what_was_not_stored_so_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data)


@pytest.mark.parametrize("before", [0, 1, 2, 7_000])
@pytest.mark.parametrize("step", [1_000, PIECE_BYTES, 99_999, 10**6], ids=str)
def test_a_frame_may_have_the_limits_size_and_not_a_byte_more(
    reader_class: type[Reader], before: int, step: int
) -> None:
    limit = 3 * PIECE_BYTES // 2
    head = encode(["list"]) * before
    for size, code in ((limit, None), (limit + 1, Code.TOO_LARGE)):
        body = encode(["x", b"\0" * 65_000, b"\0" * 30_000])
        body = encode(["x", b"\0" * 65_000, b"\0" * (30_000 + size - len(body))])
        assert len(body) == size
        data = head + body + encode(["list"])
        cut = (data[at : at + step] for at in range(0, len(data), step))
        taken, ended = read(reader_class, cut, max_frame_bytes=limit, max_batch=4)
        assert ended == code
        if code is None:
            assert len(taken) == before + 2


@pytest.mark.parametrize("step", [4_096, PIECE_BYTES, 10**7], ids=str)
def test_an_unfinished_frame_takes_memory_by_its_bytes_and_none_once_it_is_whole(
    reader_class: type[Reader], step: int
) -> None:
    frame = encode(["x", b"\0" * 2**20])
    sent = frame * 3 + frame[: 2**19]
    tracemalloc.start()
    try:
        reader = reader_class(max_frame_bytes=2**21, max_batch=4)
        for at in range(0, len(sent), step):
            end = min(len(sent), at + step)
            deque(reader.feed(sent[at:end]), maxlen=0)
            assert reader.unfinished_bytes == end % len(frame)
            held, _ = tracemalloc.get_traced_memory()
            # Around it are the two buffers of a new reader, and a piece in each.
            assert held <= 4 * (reader.unfinished_bytes + 2 * PIECE_BYTES)
    finally:
        tracemalloc.stop()


CLAIMS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "string": b"\xdb\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x01",
}


def peak_of(
    reader_class: type[Reader], data: bytes, *, max_batch: int
) -> tuple[int, Code | None]:
    """The most bytes of memory taken while *data* is read, and how it ended."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        _, code = read(reader_class, [data], max_frame_bytes=2**20, max_batch=max_batch)
        return tracemalloc.get_traced_memory()[1] - before, code
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("head", [b"", b"\x92\xa1x"], ids=["first", "inside"])
def test_a_value_that_claims_to_be_enormous_is_refused_without_memory_for_it(
    reader_class: type[Reader], claim: bytes, head: bytes
) -> None:
    data = head + claim + bytes(2**20)
    assert read(reader_class, [data])[1] is Code.TOO_LARGE
    peak, code = peak_of(reader_class, data, max_batch=4_000)
    assert code is Code.TOO_LARGE
    assert peak < 2**22


LONGEST_EXTENSION = b"\xc9\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("data", "ended"),
    [
        pytest.param(b"\x92\xa1x" + LONGEST_EXTENSION, Code.TOO_LARGE, id="the last"),
        pytest.param(b"\x93\xa1x" + LONGEST_EXTENSION, None, id="one is to come"),
        pytest.param(b"\x92\xa1x\xc9\xff\xff\xff\xfe\x01", None, id="a byte less"),
    ],
)
def test_the_longest_extension_ends_its_frame(
    reader_class: type[Reader], data: bytes, ended: Code | None
) -> None:
    for cut in ([data], singly(data)):
        assert read(reader_class, cut) == ([], ended)


# The content of a frame, repeated, and the number of values in each.
HELD = {
    "integers": (b"\x07", 1),
    "strings": (b"\xd9\x03abc", 1),
    "small arrays": (b"\x91\x07", 2),
    "small maps": (b"\x81\xa1a\x07", 3),
    "long headers": (b"\xdf\0\0\0\x01\xa1a\xdd\0\0\0\x01\x07", 4),
}


@pytest.mark.parametrize(("held", "values"), HELD.values(), ids=HELD)
@pytest.mark.parametrize("max_batch", [1, 100])
def test_a_frame_may_hold_the_values_of_many_batches_and_not_one_more(
    reader_class: type[Reader], max_batch: int, held: bytes, values: int
) -> None:
    most = max(BATCHES_OF_VALUES * max_batch, LEAST_VALUES)
    count, rest = divmod(most - 2, values)  # beside a name, and the array of these
    for more, code in ((0, None), (1, Code.TOO_LARGE)):
        items = held * count + b"\x07" * (rest + more)
        length = (count + rest + more).to_bytes(2)
        data = b"\x92\xa1x\xdc" + length + items
        for cut in ([data], singly(data), [data + encode(["list"])]):
            taken, ended = read(
                reader_class, cut, max_batch=max_batch, max_frame_bytes=2**20
            )
            assert ended is code
            assert bool(taken) is (code is None)
