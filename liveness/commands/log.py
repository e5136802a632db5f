"""`liveness history` and `liveness log`: what was decided, read from the state directory.

They need no sidecar, and do one that runs no harm. What is shown goes out as it is found,
so that a log of any size takes no more memory than a small one.
"""

import csv
import re
from collections.abc import Callable
from datetime import datetime, time, timedelta
from pathlib import Path
from time import perf_counter
from typing import Final, TextIO

from liveness.commands import CommandError
from liveness.commands.watch import json_line, text_line
from liveness.core.records import Logged, Record, Uid
from liveness.service.logbook import Logbook, Sought, log_in
from liveness.text import escaped, local_time, uid_text

# Every key that a record may have: a column each.
COLUMNS: Final = (
    "seq", "at", "kind", "uid", "gateway", "session", "conn", "reason", "seen", "last",
    "silence", "restored", "from", "from_session", "from_conn", "key", "due", "attempt",
    "payload", "ext",
)  # fmt: skip
# Text that begins so is a formula to a spreadsheet; in the wide forms, too.
_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
_FIRST: Final = (*_FORMULA, "'")
_AGO: Final = re.compile(r"-?(\d{1,9}) ?(s|m|min|h|d)( ago)?", re.ASCII)
_UNIT_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_TIME: Final = re.compile(r"\d?\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)


def moment(text: str, now: datetime) -> int:
    """The moment that somebody means, in Unix milliseconds.

    Args:
        text: `2026-11-21T14:03`, also with seconds, with a zone, or without a time;
            `14:03`, when it last was so late; `15min` ago, or s, m, h, d.
        now: This moment, in the host's zone, which is meant where none is named.
    Raises:
        ValueError: It is none of these.
    """
    try:
        if ago := _AGO.fullmatch(text):
            found = now - timedelta(seconds=int(ago[1]) * _UNIT_S[ago[2]])
        elif _TIME.fullmatch(text):
            of_day = time.fromisoformat(text if text[2] == ":" else f"0{text}")
            found = datetime.combine(now.date(), of_day)
            if found.timestamp() > now.timestamp():
                found -= timedelta(days=1)
        else:
            found = datetime.fromisoformat(text)
        return round(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        told = f"{text!r:.80} is no time: write 2026-11-21T14:03, 14:03, or 15min"
        raise ValueError(f"{told} for so long ago") from None


def history(
    folder: Path,
    uid: Uid,
    *,
    limit: int,
    as_json: bool,
    out: TextIO,
    tell: Callable[[str], None],
) -> None:
    """Writes a user's newest records, the newest last.

    Args:
        folder: The state directory.
        uid: The user.
        limit: At most this many.
        as_json: Whether a line is the record as JSON, and not for a person.
        out: Where each record is a line.
        tell: Is told that there may be more.
    Raises:
        StateError: The log cannot be read.
        CommandError: There is no record of this user.
    """
    with log_in(folder, clock=perf_counter) as book:
        look = book.newest_of(uid, limit=limit)
    if not look.records:
        oldest = look.oldest
        told = "is empty" if oldest is None else f"begins at {local_time(oldest.at)}"
        left_out = _left_out(book)
        also = f"; {left_out}" if left_out else ""
        raise CommandError(
            f"no record of {uid_text(uid)} in the log of {folder}, which {told}: correct the "
            f"name (int:7 is the integer, 7 the string), or --state{also}"
        )
    if left_out := _left_out(book):
        tell(left_out)
    line = json_line if as_json else text_line
    out.writelines(f"{line(record.as_map())}\n" for record in reversed(look.records))
    if look.back_to is not None:
        tell(f"there may be more than these {limit}: see them with a larger --limit")


def log(folder: Path, sought: Sought, *, form: str, out: TextIO) -> None:
    """Writes all records that are sought, the oldest first.

    Args:
        folder: The state directory.
        sought: Which ones.
        form: `text`, `json` (one a line) or `csv` (a row of names first).
        out: Flushed at the end alone.
    Raises:
        StateError: The log cannot be read.
        CommandError: Records are missing that are damaged; all others were written.
    """
    with log_in(folder, clock=perf_counter) as book:
        records = book.records(sought)
        if form == "csv":
            table = csv.DictWriter(
                out, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
            )
            table.writeheader()
            table.writerows(map(_cells, records))
        else:
            line = json_line if form == "json" else text_line
            for record in records:
                out.write(f"{line(record.as_map())}\n")
        if left_out := _left_out(book):
            raise CommandError(f"the log in {folder} is not whole: {left_out}")


def _left_out(book: Logbook) -> str:
    """Says which records are missing as they are damaged."""
    if not book.damaged:
        return ""
    first, last = min(book.damaged)
    told = f"records {first} to {last}"
    if len(book.damaged) > 1:
        told += f", and of {len(book.damaged) - 1} more places,"
    return f"{told} are damaged on disk and left out: see `liveness check-state`"


def _cells(record: Logged) -> dict[str, object]:
    """A record for a spreadsheet: users told apart, and no text that is taken for more.

    What could steer a terminal is escaped; before what is a formula to a spreadsheet, or
    looks as if that had been done to it, stands an apostrophe. All text is in quotes:
    where cells are parted by semicolons, one within would begin another.
    """
    cells = record.as_map()
    if isinstance(record, Record):
        cells["uid"] = uid_text(record.uid)
    for name, value in cells.items():
        if isinstance(value, str):
            text = value if value.isprintable() else escaped(value)
            cells[name] = f"'{text}" if text.startswith(_FIRST) else text
    return cells
