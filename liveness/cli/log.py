"""`liveness log`: the records of all users, read from the state directory.

Each record is written as it is found, so a log of any size takes no more memory than a
small one.
"""

import csv
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final, TextIO

from cyclopts import CycloptsError, Parameter, Token

from liveness.cli.options import (
    GatewayName,
    Json,
    Kinds,
    State,
    declared,
    device_separator,
    user_of,
)
from liveness.config.sources import state_folder
from liveness.console.admin_client import CommandError
from liveness.console.record_lines import json_line, text_line
from liveness.console.terminal import write_utf_8
from liveness.core.records import KINDS, Logged
from liveness.service.storage.log_reader import LogReader, open_log
from liveness.service.storage.record_filter import RecordFilter
from liveness.text import ID_KEYS, escaped, uid_text

_AGO: Final = re.compile(r"-?(\d{1,9}) ?(s|m|min|h|d)( ago)?", re.ASCII)
_UNIT_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
# Every key that a record may have: a column each.
COLUMNS: Final = (
    "seq", "at", "kind", "uid", "gateway", "session", "conn", "reason", "seen", "last",
    "silence", "restored", "from", "from_session", "from_conn", "user", "devices", "key",
    "due", "attempt", "payload", "ext",
)  # fmt: skip
# A spreadsheet reads text that begins with one of these as a formula.
_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
_FIRST: Final = (*_FORMULA, "'")


def log(folder: Path, selection: RecordFilter, *, form: str, out: TextIO) -> None:
    """Writes all records that match, the oldest first.

    Args:
        folder: The state directory.
        selection: Which records to write.
        form: `text`, `json` (one a line) or `csv` (a row of names first).
        out: Is not flushed between records.
    Raises:
        StateError: The log cannot be read.
        CommandError: Records are damaged and left out; all others were written.
    """
    with open_log(folder, clock=perf_counter) as reader:
        records = reader.records(selection)
        if form == "csv":
            write_utf_8(out)
            table = csv.DictWriter(
                out, COLUMNS, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
            )
            table.writeheader()
            table.writerows(map(_cells, records))
        else:
            line = json_line if form == "json" else text_line
            for record in records:
                out.write(f"{line(record.as_map())}\n")
        if damaged := damaged_records(reader):
            raise CommandError(f"the log in {folder} is not whole: {damaged}")


def damaged_records(reader: LogReader) -> str:
    """Names the records that *reader* left out because they are damaged, if any."""
    if not reader.damaged:
        return ""
    first, last = min(reader.damaged)
    message = f"records {first} to {last}"
    if len(reader.damaged) > 1:
        message += f", and of {len(reader.damaged) - 1} more places,"
    return f"{message} are damaged on disk and left out: see `liveness check-state`"


def _cells(record: Logged) -> dict[str, object]:
    """A record for a spreadsheet, which must not round ids or read text as a formula.

    Integers that are ids are `int:N`: a spreadsheet keeps 15 digits of a number, and a conn
    of the client library has 16.

    Text that begins like a formula gets an apostrophe in front. So does text that begins
    with an apostrophe, so that the original can be restored. Control characters are
    escaped. The writer puts all text in quotes: a semicolon in it would otherwise begin a
    cell where the spreadsheet separates cells by semicolons.
    """
    cells = record.as_map()
    for name in ID_KEYS:
        if isinstance(value := cells.get(name), str | int):
            cells[name] = uid_text(value) if isinstance(value, str) else f"int:{value}"
    for name, value in cells.items():
        if isinstance(value, str):
            text = value if value.isprintable() else escaped(value)
            cells[name] = f"'{text}" if text.startswith(_FIRST) else text
    return cells


def moment(text: str, now: datetime) -> int:
    """The moment that *text* names, in Unix milliseconds.

    Args:
        text: `2026-11-21T14:03`, also with seconds, with a zone, or without a time;
            `14:03`, today or else yesterday; `15min` ago, or s, m, h, d.
        now: The current time in the host's zone, which applies where *text* names none.
    Raises:
        ValueError: It has none of these forms.
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
        raise ValueError(
            f"{text!r:.80} is not a time: write 2026-11-21T14:03, 14:03, or 15min for 15 "
            "minutes ago"
        ) from None


def _moment_of(_kind: Any, tokens: Sequence[Token]) -> int:
    return moment(tokens[0].value, datetime.now(UTC).astimezone())


def _moment_flag(which: str) -> Parameter:
    return Parameter(
        help=f"{which}: 2026-11-21T14:03, 14:03, or 15min for 15 minutes ago",
        metavar="T",
        converter=_moment_of,
        allow_leading_hyphen=True,  # of -15min
    )


command: Final = declared("log", "log --since 15min --kind offline --csv")


@command.default
def show_log(
    *,
    state: State = None,
    since: Annotated[int | None, _moment_flag("from then on")] = None,
    until: Annotated[int | None, _moment_flag("before then")] = None,
    kind: Kinds = None,
    gateway: GatewayName = None,
    uid: Annotated[
        str | int | None,
        Parameter(
            help="only of this user",
            metavar="UID",
            converter=user_of,
            n_tokens=1,
        ),
    ] = None,
    json: Json = False,
    csv: Annotated[
        bool, Parameter(help="CSV, a column for each key that a record may have")
    ] = False,
) -> None:
    """Show the records in the log, the oldest first; no sidecar has to run."""
    if json and csv:
        raise _usage_error("--json and --csv exclude each other: choose one")
    if since is not None and until is not None and since >= until:
        raise _usage_error("--since is not before --until: nothing lies between")
    kinds = frozenset(kind or KINDS)
    separator = "" if uid is None else device_separator()
    selection = RecordFilter(uid, kinds, gateway, since, until, separator)
    form = "json" if json else "csv" if csv else "text"
    log(state_folder(state), selection, form=form, out=sys.stdout)


def _usage_error(message: str) -> CycloptsError:
    return CycloptsError(msg=message, command_chain=("log",))
