"""Traffic as lines: every byte comes back, and a person can read and edit a frame."""

import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.records import HostTime
from liveness.traffic.frame_splitter import MAX_FRAME_BYTES, FrameSplitter
from liveness.traffic.traffic_lines import (
    GATEWAY,
    Header,
    LineError,
    TrafficLine,
    data_line,
    event_line,
    header_line,
    parsed,
)
from tests.helpers.strategies import BOUNDED
from tests.helpers.wire import packed

TEXTS = st.text(max_size=8) | st.from_regex(r"(str:)*int:-?[0-9]{1,25}", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | TEXTS
    | st.binary(max_size=8)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4)),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=12,
)
STREAMS = st.lists(
    st.lists(VALUES, max_size=4).map(msgpack.packb) | st.binary(max_size=12), max_size=6
).map(b"".join)


def line_of(data: bytes, *, is_frame: bool = True) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(data_line(0, 1, GATEWAY, data, is_frame=is_frame))
    return line


def sent_by(line: dict[str, Any]) -> bytes:
    found = parsed(json.dumps(line))
    assert isinstance(found, TrafficLine)
    return found.data


@BOUNDED
@given(STREAMS, st.lists(st.integers(0, 40)), st.sets(st.integers(0, 5)))
def test_every_byte_comes_back_in_its_place(
    stream: bytes, cuts: list[int], flushes: set[int]
) -> None:
    splitter, back = FrameSplitter(), b""
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for number, (begin, end) in enumerate(pairwise(places)):
        chunks = [*splitter.feed(stream[begin:end])]
        if number in flushes:
            chunks += splitter.flush()
        for data, is_frame in chunks:
            back += sent_by(line_of(data, is_frame=is_frame))
    back += b"".join(data for data, _ in splitter.flush())
    assert back == stream


@BOUNDED
@given(st.lists(st.lists(st.integers() | TEXTS, min_size=1, max_size=3), max_size=5))
def test_a_frame_in_any_pieces_comes_out_whole(frames: list[list[Any]]) -> None:
    frames = [[f"{frame[0]}", *map(str, frame[1:])] for frame in frames]
    splitter = FrameSplitter()
    found = [
        chunk for byte in packed(*frames) for chunk in splitter.feed(bytes([byte]))
    ]
    assert found == [(packed(frame), True) for frame in frames]
    assert splitter.is_between_frames


def test_the_rest_of_a_frame_that_was_given_out_is_no_frame() -> None:
    splitter, frame = FrameSplitter(), packed(["ping", 1])
    assert [*splitter.feed(frame[:3]), *splitter.flush()] == [(frame[:3], False)]
    assert not splitter.is_between_frames
    assert [*splitter.feed(frame[3:] + frame)] == [(frame[3:], False), (frame, True)]


def test_a_frame_that_is_too_long_is_passed_on_as_bytes() -> None:
    splitter = FrameSplitter()
    head = b"\x91\xc6" + (2**31).to_bytes(4)
    given_out = [*splitter.feed(head)]
    piece = bytes(MAX_FRAME_BYTES // 4)
    for _ in range(8):
        given_out += splitter.feed(piece)
    assert splitter.is_broken
    assert b"".join(data for data, _ in given_out) == head + 8 * piece


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7, 7),
        ("7", "7"),
        (2**53, 2**53),
        (2**53 + 1, "int:9007199254740993"),
        (2**63 - 1, "int:9223372036854775807"),
        ("int:7", "str:int:7"),
        ("str:int:7", "str:str:int:7"),
        (1.0, 1.0),
    ],
)
def test_a_frame_is_shown_as_records_are(value: object, shown: object) -> None:
    line = line_of(packed(["login", value, {"conn": value}]))
    assert line["frame"] == ["login", shown, {"conn": shown}]
    assert "hex" not in line


# Integers in nine bytes, as some encoders write all of them.
WIDE = b"\x92\xa3ack\xcf" + (5).to_bytes(8)


def test_another_encoding_stands_beside_its_frame() -> None:
    line = line_of(WIDE)
    assert (line["frame"], line["hex"]) == (["ack", 5], WIDE.hex())
    assert sent_by(line) == WIDE


def test_a_frame_that_was_edited_wins_over_its_bytes() -> None:
    line = line_of(WIDE)
    line["frame"][1] = 6
    assert sent_by(line) == packed(["ack", 6])


@pytest.mark.parametrize(
    "data",
    [b"\x07", packed(["ping", b"\xff"]), packed(["ping", float("nan")]), b"\x91" * 99],
    ids=["no array", "bytes", "nan", "deep"],
)
def test_what_json_cannot_hold_is_hex(data: bytes) -> None:
    assert line_of(data).keys() == {"t", "link", "from", "hex"}


def test_lines_of_a_recording_are_read_as_written() -> None:
    assert parsed(header_line(HostTime(5.5, 9.25), to="/s")) == Header(
        HostTime(5.5, 9.25)
    )
    line = parsed(event_line(1.25, 3, "eof", **{"from": "sidecar"}))
    assert line == TrafficLine(1.25, 3, "sidecar", "eof")
    assert parsed(event_line(2, 0, "end", why="stopped")) == TrafficLine(2, event="end")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is no JSON object"),
        ('{"traffic":2}', "the format 2 is not known here; use the version"),
        ('{"traffic":1,"clock":[1]}', "clock must be"),
        ('{"traffic":1,"clock":[1,"x"]}', "clock must be two times"),
        ('{"t":-1,"link":1,"event":"open"}', "t must be seconds"),
        ('{"t":NaN,"link":1,"event":"open"}', "NaN is none of JSON"),
        ('{"t":0,"event":"open"}', "link must be"),
        ('{"t":0,"link":true,"event":"open"}', "link must be"),
        ('{"t":0,"link":1,"event":"begin"}', "event must be"),
        ('{"t":0,"link":1,"event":"eof"}', "event must be"),
        ('{"t":0,"link":1,"frame":["ack",1]}', "from must be"),
        ('{"t":0,"link":1,"from":"gateway"}', "it needs a frame"),
        ('{"t":0,"link":1,"from":"gateway","frame":{}}', "it needs a frame"),
        ('{"t":0,"link":1,"from":"gateway","hex":"9"}', "what was sent cannot be read"),
        ('{"t":0,"link":1,"from":"gateway","hex":5}', "what was sent cannot be read"),
        (
            '{"t":0,"link":1,"from":"gateway","frame":["ack",18446744073709551616]}',
            "what was sent cannot be read",
        ),
        ('{"t":0,"link":1,"from":"gateway","frame":["\\ud800"]}', "what was sent"),
    ],
)
def test_a_line_that_is_none_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(LineError) as caught:
        parsed(text)
    assert said in str(caught.value)


@BOUNDED
@given(st.text(max_size=30) | VALUES.map(lambda value: json.dumps(value, default=repr)))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(LineError):
        parsed(text)
