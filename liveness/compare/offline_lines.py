"""Offlines as another detector tells them: JSON, one to a line.

    {"uid": "ada", "at": 1789000030004}

Pure: bytes come in as they are read, and what cannot be understood is said, not dropped.
"""

import json
from datetime import datetime
from typing import Final

from liveness.core.records import Uid
from liveness.core.uids import is_uid
from liveness.text import uid_of

# Of a uid, a time, and whatever else a detector logs beside them.
MAX_LINE_BYTES: Final = 65_536
# From September 2001 to 2286 Unix seconds have ten digits and milliseconds thirteen, so
# that nobody has to say which are meant.
_MOST_S: Final = 10**10
_LEAST_S: Final = 10**9
_AT: Final = (
    "Unix milliseconds (1789000030004), Unix seconds (1789000030.004), or ISO 8601 with "
    'a zone ("2026-09-10T00:27:10.004Z")'
)


class Lines:
    """Cuts what is read into lines, and holds no more than one of them."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that *data* ends, without their ends; None: one was too long."""
        *ended, rest = data.split(b"\n")
        lines = [self._end(piece) for piece in ended]
        self._keep(rest)
        return lines

    def end(self) -> list[bytes | None]:
        """What is left when nothing more comes: a last line without an end."""
        return [self._end(b"")] if self._kept or self._is_too_long else []

    def _end(self, piece: bytes) -> bytes | None:
        self._keep(piece)
        line = None if self._is_too_long else self._kept
        self._kept, self._is_too_long = b"", False
        return line

    def _keep(self, piece: bytes) -> None:
        if len(self._kept) + len(piece) > MAX_LINE_BYTES:
            self._is_too_long = True
        self._kept = b"" if self._is_too_long else self._kept + piece


def offline_in(line: bytes | None) -> tuple[Uid, int]:
    """Who went offline by a line, and when, in Unix milliseconds.

    Args:
        line: Without its end; None: it was too long.
    Raises:
        ValueError: What is wrong with it.
    """
    if line is None:
        raise ValueError(f"it has more than {MAX_LINE_BYTES} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError('it is no JSON object as {"uid": "ada", "at": 1789000030004}')
    missing = [name for name in ("uid", "at") if name not in found]
    if missing:
        raise ValueError(f'it has no "{missing[0]}"')
    return _uid(found["uid"]), _at(found["at"])


def _uid(value: object) -> Uid:
    if isinstance(value, str):
        return uid_of(value)
    if is_uid(value):
        return value
    raise ValueError(
        f'"uid" is {_shown(value)}: it must be a string, or an integer from 0 to 2^63-1'
    )


def _at(value: object) -> int:
    found: float = 0
    if isinstance(value, str):
        found = _iso_s(value) * 1_000
    elif type(value) in (int, float):
        assert isinstance(value, int | float)
        found = value * 1_000 if value < _MOST_S else value
    if not _LEAST_S * 1_000 <= found < _MOST_S * 1_000:
        raise ValueError(f'"at" is {_shown(value)}: it must be {_AT}')
    return round(found)


def _iso_s(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    return 0 if moment.tzinfo is None else moment.timestamp()


def _shown(value: object) -> str:
    return f"{json.dumps(value):.80}"
