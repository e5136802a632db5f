"""The lines that another detector writes: JSON, one offline a line.

    {"uid": "ada", "at": 1789000030004}

Pure: bytes come in as they are read. A line that is wrong raises an error that says how.
"""

import json
from datetime import datetime
from typing import Final

from liveness.core.records import Uid
from liveness.core.uids import is_uid
from liveness.text import uid_of

# Room for a uid, a time, and whatever else a detector logs with them.
MAX_LINE_BYTES: Final = 65_536
# From September 2001 to 2286 Unix seconds have ten digits and milliseconds thirteen: the
# number shows which of the two it is.
_MOST_S: Final = 10**10
_LEAST_S: Final = 10**9
_AT: Final = (
    "Unix milliseconds (1789000030004), Unix seconds (1789000030.004), or ISO 8601 with "
    'a zone ("2026-09-10T00:27:10.004Z")'
)


class LineSplitter:
    """Splits bytes into lines, and buffers at most one line."""

    def __init__(self) -> None:
        self._buffer = b""
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that *data* completes, without newlines; None: one was too long."""
        *pieces, rest = data.split(b"\n")
        lines = [self._complete(piece) for piece in pieces]
        self._append(rest)
        return lines

    def end(self) -> list[bytes | None]:
        """The last line, if it has no newline."""
        return [self._complete(b"")] if self._buffer or self._is_too_long else []

    def _complete(self, piece: bytes) -> bytes | None:
        self._append(piece)
        line = None if self._is_too_long else self._buffer
        self._buffer, self._is_too_long = b"", False
        return line

    def _append(self, piece: bytes) -> None:
        if len(self._buffer) + len(piece) > MAX_LINE_BYTES:
            self._is_too_long = True
        self._buffer = b"" if self._is_too_long else self._buffer + piece


def offline_in(line: bytes | None) -> tuple[Uid, int]:
    """The user on a line, and when it went offline, in Unix milliseconds.

    Args:
        line: Without its newline; None: it was too long.
    Raises:
        ValueError: Says what is wrong with the line.
    """
    if line is None:
        raise ValueError(f"it has more than {MAX_LINE_BYTES} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            'it is not a JSON object such as {"uid": "ada", "at": 1789000030004}'
        )
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
