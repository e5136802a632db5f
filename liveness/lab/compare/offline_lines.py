"""The lines that another detector writes: JSON, one offline a line.

    {"uid": "ada", "at": 1789000030004}

A line that is wrong raises an error that says how.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import BinaryIO, Final

from liveness.core.records import Uid
from liveness.core.wire.uids import is_uid
from liveness.lab.compare.comparison import Line
from liveness.text import uid_of

# A longer line is bad, and is never in memory as a whole: the file may be any.
MAX_LINE_BYTES: Final = 65_536
# The most bad lines that are reported one by one; all are counted.
MOST_REPORTED: Final = 10
# From September 2001 to 2286 Unix seconds have ten digits and milliseconds thirteen: the
# number shows which of the two it is.
_MOST_S: Final = 10**10
_LEAST_S: Final = 10**9
_AT: Final = (
    "Unix milliseconds (1789000030004), Unix seconds (1789000030.004), or ISO 8601 with "
    'a zone ("2026-09-10T00:27:10.004Z")'
)


class LineReader:
    """Reads the other detector's lines; counts the bad ones, and reports the first ten."""

    def __init__(self, report_line: Callable[[str], object]) -> None:
        self.lines = 0
        self.bad = 0
        self._report_line = report_line

    def read(self, file: BinaryIO) -> Iterator[Line]:
        is_rest = False  # of a line that is too long
        for line in iter(partial(file.readline, MAX_LINE_BYTES), b""):
            was_rest, is_rest = is_rest, not line.endswith(b"\n")
            if was_rest:
                continue
            self.lines += 1
            try:
                if line.strip():
                    uid, at = offline_in(line)
                    yield Line(self.lines, at, uid)
            except ValueError as error:
                self.bad += 1
                if self.bad <= MOST_REPORTED:
                    self._report_line(f"line {self.lines} is left out: {error}")
                if self.bad == MOST_REPORTED:
                    self._report_line(
                        "further lines that are left out are only counted"
                    )


def offline_in(line: bytes) -> tuple[Uid, int]:
    """The user on a line, and when it went offline, in Unix milliseconds.

    Raises:
        ValueError: Says what is wrong with the line.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            'it is not a JSON object such as {"uid": "ada", "at": 1789000030004}'
        )
    for name in ("uid", "at"):
        if name not in found:
            raise ValueError(f'it has no "{name}"')
    uid = found["uid"]
    if isinstance(uid, str):
        return uid_of(uid), _ms(found["at"])
    if not is_uid(uid):
        raise ValueError(
            f'"uid" is {json.dumps(uid):.80}: it must be a string, or an integer from 0 to '
            "2^63-1"
        )
    return uid, _ms(found["at"])


def _ms(at: object) -> int:
    found: float = 0
    if isinstance(at, str):
        found = _iso_s(at) * 1_000
    elif isinstance(at, int | float) and type(at) is not bool:
        found = at * 1_000 if at < _MOST_S else at
    if not _LEAST_S * 1_000 <= found < _MOST_S * 1_000:
        raise ValueError(f'"at" is {json.dumps(at):.80}: it must be {_AT}')
    return round(found)


def _iso_s(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    return 0 if moment.tzinfo is None else moment.timestamp()
