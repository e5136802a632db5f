"""How users, times and numbers look to a person, and on one line.

Two users must never look alike: the integer 7 is `int:7`, the string is `7`. A string
that reads like an integer so written is told apart by `str:` in front.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from liveness.core.uids import MAX_UID_BYTES, is_uid

# The largest integer below which every double is exact: what JSON's readers can hold.
EXACT_IN_JSON: Final = 2**53
_LIKE_AN_INTEGER: Final = re.compile(r"(str:)*int:[0-9]+")


def escaped(text: str) -> str:
    """*text* with all that would steer a terminal, or look like nothing, escaped."""
    return printable(text.replace("\\", "\\\\"))


def printable(text: str) -> str:
    """The same, but for backslashes: of what it names some may be escaped already."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def uid_text(uid: str | int) -> str:
    """The user's name on the command line; a terminal needs it `escaped` as well."""
    if isinstance(uid, int):
        return f"int:{uid}"
    return f"str:{uid}" if _LIKE_AN_INTEGER.fullmatch(uid) else uid


def uid_of(text: str) -> str | int:
    """The user whom somebody names so: what `uid_text` gives, read back.

    Raises:
        ValueError: No user can have this name.
    """
    found: str | int = text
    if _LIKE_AN_INTEGER.fullmatch(text):
        name, _, number = text.partition(":")
        found = number if name == "str" else int(number) if len(number) < 20 else -1
        if f"{found}" != number:  # one user has one name
            found = -1
    if not is_uid(found):
        raise ValueError(
            f"{text!r:.80} is no uid: a string of 1 to {MAX_UID_BYTES} bytes of UTF-8 "
            "without control characters, or int:N with N from 0 to 2^63-1"
        )
    return found


def json_ready(record: Mapping[str, object]) -> dict[str, object]:
    """A record whose uid survives every reader of JSON: beyond 2^53 it is a string."""
    ready = dict(record)
    uid = ready.get("uid")
    if isinstance(uid, str) or (isinstance(uid, int) and uid > EXACT_IN_JSON):
        ready["uid"] = uid_text(uid)
    return ready


def json_line(value: object) -> str:
    """*value* as JSON on one line, without blanks, and readable in any script."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def utc_offset_s(at_ms: int) -> int:
    """How many seconds the clock of this host is ahead of UTC, at a moment."""
    offset = datetime.fromtimestamp(at_ms / 1000).astimezone().utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


def local_time(at_ms: int) -> str:
    """A record's stamp as the reader's clock shows it, to the millisecond."""
    moment = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return moment.isoformat(" ", "milliseconds")[:-6]


def utc_time(at_ms: int) -> str:
    """A moment as every clock's reader understands it, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError):  # of what is damaged on disk
        return f"{at_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def relative(seconds: float) -> str:
    """How far off a moment is, in the largest unit of which there are about two."""
    distance = round(abs(seconds))
    if not distance:
        return "now"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit, length = next(one for one in units if distance > 1.95 * one[1] or one[1] == 1)
    many = f"{round(distance / length)} {unit}"
    return f"in {many}" if seconds > 0 else f"{many} ago"


def duration(seconds: float | None) -> str:
    """Days, hours, minutes and seconds, from the largest unit that is needed on."""
    if seconds is None:
        return "?"
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        many, left = divmod(left, length)
        if many or parts or unit == "s":
            parts.append(f"{many} {unit}")
    return " ".join(parts)
