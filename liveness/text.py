"""Formats users and times for a person, on one line.

Two users must never look alike: the string `int:7` gets `str:` in front, as `int:7` is the
integer 7.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from liveness.core.records import identity
from liveness.core.wire.uids import MAX_UID_BYTES, is_uid

# Many readers of JSON use doubles, in which larger integers are not exact.
EXACT_IN_JSON: Final = 2**53
# The keys of a record whose integers may be larger.
ID_KEYS: Final = ("uid", "user", "conn", "from_conn")
_UNITS: Final = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_LIKE_AN_INTEGER: Final = re.compile(r"(str:)*int:[0-9]+")
_PREFIXES: Final = ("int:", "str:")  # of such a text; few others begin so
# JSON allows them in a string without escapes; Python's `splitlines` and older JavaScript
# end a line there.
_LINE_ENDS: Final = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
# Kept: `json.dumps` makes one for each call with options.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def escaped(text: str) -> str:
    """Escape control and invisible characters, and backslashes."""
    return printable(text.replace("\\", "\\\\"))


def shortened(text: str, most: int) -> str:
    """At most the first *most* characters, escaped; "…" stands for the others."""
    return escaped(text[:most]) + ("…" if len(text) > most else "")


def printable(text: str) -> str:
    """Like `escaped`, but keep backslashes: for text with parts already escaped."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable()
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def uid_text(uid: str | int) -> str:
    """A uid in the form of the command line. To print it, use `escaped` as well."""
    text = identity(uid)
    if text.startswith(_PREFIXES) and _LIKE_AN_INTEGER.fullmatch(text):
        return f"str:{text}"
    return text


def id_for_json(value: str | int) -> str | int:
    """A uid or a conn for JSON: text, or an integer that any reader can hold."""
    if isinstance(value, str):
        return uid_text(value)
    return value if value <= EXACT_IN_JSON else f"int:{value}"


def uid_of(text: str) -> str | int:
    """The uid that is written as *text*, on the command line or in JSON.

    Raises:
        ValueError: It is not the text of a uid.
    """
    found: str | int = text
    if _LIKE_AN_INTEGER.fullmatch(text):
        name, _, number = text.partition(":")
        found = number if name == "str" else int(number) if len(number) < 20 else -1
        if f"{found}" != number:  # `int:007` would be a second name of `int:7`
            found = -1
    if not is_uid(found):
        raise ValueError(
            f"{text!r:.80} is no uid: a string of 1 to {MAX_UID_BYTES} bytes of UTF-8 "
            "without control characters, or int:N with N from 0 to 2^63-1"
        )
    return found


def json_ready(record: Mapping[str, object]) -> dict[str, object]:
    """A record for JSON, whose uid and conns any reader can hold.

    They are text, or integers up to 2^53; a larger one is the text `int:N`.
    """
    ready = dict(record)
    for key in ID_KEYS:
        value = ready.get(key)
        if isinstance(value, str | int):
            ready[key] = id_for_json(value)
    return ready


def from_json(ready: Mapping[str, object]) -> dict[str, object]:
    """The record from which `json_ready` made *ready*.

    Raises:
        ValueError: A uid or a conn has not the form that `json_ready` writes.
    """
    record = dict(ready)
    for key in ID_KEYS:
        value = record.get(key)
        if isinstance(value, str):
            record[key] = uid_of(value)
    return record


def json_line(value: object) -> str:
    """*value* as JSON on one line, without blanks; non-ASCII characters as they are."""
    return on_one_line(_ENCODER.encode(value))


def on_one_line(text: str) -> str:
    """JSON text with line separators in its strings escaped."""
    if not text.isascii():
        for char, code in _LINE_ENDS.items():
            if char in text:  # `replace` alone takes far longer to find none
                text = text.replace(char, code)
    return text


def utc_offset_s(at_ms: int) -> int:
    """How many seconds local time is ahead of UTC at a moment."""
    offset = datetime.fromtimestamp(at_ms / 1000).astimezone().utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


def local_time(at_ms: int) -> str:
    """A moment in local time, to the millisecond."""
    moment = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return moment.isoformat(" ", "milliseconds")[:-6]


def local_moment(at_ms: int, now_ms: int) -> str:
    """A moment in local time, to the second, with the date if it is not today's."""
    today = local_time(now_ms)[:11]
    return local_time(at_ms)[:-4].removeprefix(today)


def utc_time(at_ms: int) -> str:
    """A moment in UTC, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError):  # a damaged record
        return f"{at_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def relative(seconds: float) -> str:
    """The distance of a moment, in the largest unit that fits into it about twice."""
    distance = round(abs(seconds))
    if not distance:
        return "now"
    unit, length = next(
        u for u in _UNITS.items() if distance > 1.95 * u[1] or u[1] == 1
    )
    many = f"{round(distance / length)} {unit}"
    return f"in {many}" if seconds > 0 else f"{many} ago"


def duration(seconds: float | None) -> str:
    """Days, hours, minutes and seconds, without leading units that are 0."""
    if seconds is None:
        return "?"
    left = int(seconds)
    parts: list[str] = []
    for unit, length in _UNITS.items():
        many, left = divmod(left, length)
        if many or parts or unit == "s":
            parts.append(f"{many} {unit}")
    return " ".join(parts)
