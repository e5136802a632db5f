"""Traffic as lines of JSON, and back to the same bytes.

    {"traffic": 1, "began": "2026-11-26T01:20:00.000Z", "clock": [5081.2, 1795656000.0], …}
    {"t": 0.0, "link": 1, "event": "open"}
    {"t": 0.002, "link": 1, "from": "gateway", "frame": ["hello", {"protocol": 1, …}]}
    {"t": 0.9, "link": 1, "from": "gateway", "hex": "93a9"}
    {"t": 1.2, "link": 1, "from": "gateway", "event": "eof"}
    {"t": 1.2, "link": 1, "event": "close"}
    {"t": 5.0, "event": "end", "why": "stopped"}

`t` is in seconds since the recording began. `frame` is the frame as JSON. An integer
beyond 2^53 is the string `int:N`, since many readers of JSON would round it; a string that
reads like one is `str:int:7`. `hex` has the bytes. It stands alone where they are no
frame, or one that JSON cannot hold. It stands beside a `frame` whose sender encodes it
otherwise than in the shortest form, and counts for as long as it decodes to that frame: so
a person can edit the frame.
"""

import json
import re
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, NamedTuple, NoReturn

from liveness.core.framing import decode, encode
from liveness.core.records import HostTime
from liveness.text import EXACT_IN_JSON

FORMAT: Final = 1
GATEWAY, SIDECAR = SIDES = ("gateway", "sidecar")
OPEN, EOF, CLOSE, END = EVENTS = ("open", "eof", "close", "end")
# Frames have four levels; a deeper value is kept as bytes.
MAX_DEPTH: Final = 32
MAX_LINKS: Final = 10_000_000  # a larger number is a mistake
_LIKE_AN_INTEGER: Final = re.compile(r"(str:)*int:-?[0-9]{1,20}")


class LineError(ValueError):
    """A line is none of a recording. Its text says what is wrong, and what to do."""


class Header(NamedTuple):
    """The first line: when the recording began, on the clocks of its host."""

    clock: HostTime


class TrafficLine(NamedTuple):
    """What happened on a link."""

    at: float  # seconds since the recording began
    link: int = 0  # 0: of none, at the end of the recording
    side: str = ""  # who sent or ended it
    event: str = ""
    data: bytes = b""
    frame: list[Any] | None = None  # of which *data* is the encoding


# --- bytes to lines -------------------------------------------------------------------


def header_line(clock: HostTime, **places: str) -> str:
    """The first line of a recording that begins at *clock*."""
    began = datetime.fromtimestamp(clock.unix_s, UTC).isoformat(timespec="milliseconds")
    return _text(
        {
            "traffic": FORMAT,
            "began": began.replace("+00:00", "Z"),
            "clock": [clock.monotonic_s, clock.unix_s],
            **places,
        }
    )


def event_line(at: float, link: int, event: str, **more: str) -> str:
    """An event of a link; of none if *link* is 0."""
    of_link = {"link": link} if link else {}
    return _text({"t": round(at, 6), **of_link, **more, "event": event})


def data_line(
    at: float, link: int, side: str, data: bytes, *, is_frame: bool = True
) -> str:
    """What *side* sent; as a frame if it is one and JSON can hold it."""
    line: dict[str, Any] = {"t": round(at, 6), "link": link, "from": side}
    shown, is_shortest = _frame_in(data) if is_frame else (None, False)
    if shown is not None:
        line["frame"] = shown
    if not is_shortest:
        line["hex"] = data.hex()
    return _text(line)


def _frame_in(data: bytes) -> tuple[list[Any] | None, bool]:
    """The frame that *data* encodes, as JSON, and whether in the shortest form.

    None if it is no frame, or JSON cannot hold it.
    """
    try:
        frame = decode(data)
        if type(frame) is tuple:
            return _shown(frame), encode(frame) == data
    except ValueError:
        pass
    return None, False


def frame_of(data: bytes) -> list[Any] | None:
    """The frame that *data* encodes, if it is one."""
    try:
        value = decode(data)
    except ValueError:
        return None
    return [*value] if type(value) is tuple and value else None


def _shown(value: object, levels: int = MAX_DEPTH) -> Any:
    """The value for JSON.

    Raises:
        ValueError: JSON cannot hold it.
    """
    match value:
        case bool() | None:
            return value
        case str():
            return f"str:{value}" if _LIKE_AN_INTEGER.fullmatch(value) else value
        case int():
            return value if abs(value) <= EXACT_IN_JSON else f"int:{value}"
        case float() if isfinite(value):
            return value
        case dict() if levels and all(type(key) is str for key in value):
            return {key: _shown(item, levels - 1) for key, item in value.items()}
        case tuple() if levels and type(value) is tuple:  # an extension type is another
            return [_shown(item, levels - 1) for item in value]
    raise ValueError(f"JSON has no {type(value).__name__}")


def _text(value: object) -> str:
    """One line, all ASCII: nothing in it can steer a terminal."""
    return json.dumps(value, separators=(",", ":")) + "\n"


# --- and back -------------------------------------------------------------------------


def parsed(text: str) -> Header | TrafficLine:
    """Read a line.

    Raises:
        LineError: It is none of a recording.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise LineError(f"it is not JSON ({error}); correct or delete it") from None
    if type(value) is not dict:
        raise LineError("it is no JSON object; correct or delete it")
    if "traffic" in value:
        return _header(value)
    at = _number(value.get("t"), "t", "seconds since the recording began, from 0")
    event = value.get("event", "")
    if event == END:
        return TrafficLine(at, event=END)
    link, side = value.get("link"), value.get("from", "")
    if type(link) is not int or not 1 <= link <= MAX_LINKS:
        raise LineError("link must be the number of a link, from 1; correct it")
    if event:
        if event not in EVENTS or (side not in SIDES) == (event == EOF):
            raise LineError(
                "event must be open, eof (with from), close or end; correct or delete it"
            )
        return TrafficLine(at, link, side, event)
    if side not in SIDES:
        raise LineError("from must be gateway or sidecar; correct it")
    return _sent(value, TrafficLine(at, link, side))


def _header(value: dict[str, Any]) -> Header:
    if value["traffic"] != FORMAT:
        raise LineError(
            f"the format {value['traffic']!r:.20} is not known here; use the version of "
            "liveness that recorded it"
        )
    clock = value.get("clock")
    if type(clock) is not list or len(clock) != 2:
        raise LineError("clock must be [monotonic, unix], in seconds; correct it")
    meaning = "two times in seconds"
    return Header(HostTime(*(_number(time, "clock", meaning) for time in clock)))


def _sent(value: dict[str, Any], line: TrafficLine) -> TrafficLine:
    shown, digits, data = value.get("frame"), value.get("hex"), b""
    try:
        if digits is not None:
            data = bytes.fromhex(digits)
        if type(shown) is list:
            if data and _text(shown) == _text(_frame_in(data)[0]):
                return line._replace(data=data, frame=_meant(shown))
            frame = _meant(shown)
            return line._replace(data=encode(frame), frame=frame)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise LineError(f"what was sent cannot be read ({error}); correct it") from None
    if shown is not None or not data:
        raise LineError("it needs a frame (an array), or bytes as hex; correct it")
    return line._replace(data=data)


def _meant(value: Any) -> Any:
    """The value that `_shown` made *value* from."""
    match value:
        case str() if _LIKE_AN_INTEGER.fullmatch(value):
            kind, _, rest = value.partition(":")
            return int(rest) if kind == "int" else rest
        case list():
            return [_meant(item) for item in value]
        case dict():
            return {key: _meant(item) for key, item in value.items()}
        case _:
            return value


def _number(value: object, name: str, meaning: str) -> float:
    match value:
        case bool():
            pass
        case int() | float() if 0 <= value < 1e12:
            return float(value)
    raise LineError(f"{name} must be {meaning}; correct it")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is none of JSON")
