"""`liveness history` and `liveness log`: what was decided, read from the state directory.

They need no sidecar, and do one that runs no harm. What is shown goes out as it is found,
so that a log of any size takes no more memory than a small one.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Final, TextIO

from cyclopts import App, CycloptsError, Parameter

from liveness.cli.options import (
    UID_FORMS,
    GatewayName,
    Json,
    Kinds,
    State,
    UserName,
    moment_flag,
    number,
    user_of,
)
from liveness.config.sources import state_folder
from liveness.console.admin_client import CommandError
from liveness.console.record_lines import json_line, text_line
from liveness.console.terminal import tell
from liveness.core.records import KINDS, Logged, Record, Uid
from liveness.service.storage.log_reader import LogReader, RecordFilter, log_in
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


def log(folder: Path, sought: RecordFilter, *, form: str, out: TextIO) -> None:
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


def _left_out(book: LogReader) -> str:
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


history_command: Final = App(
    name="history",
    help_epilogue="Example: liveness history ada --limit 10",
    version_flags=[],
)


@history_command.default
def show_history(
    uid: UserName,
    /,
    *,
    state: State = None,
    limit: Annotated[
        int, number(int, "N", "at most the newest N (default 100)", 1, 100_000)
    ] = 100,
    json: Json = False,
) -> None:
    """Show a user's records, the newest last; a sidecar need not run."""
    folder = state_folder(state)

    history(folder, uid, limit=limit, as_json=json, out=sys.stdout, tell=tell)


command: Final = App(
    name="log",
    help_epilogue="Example: liveness log --since 15min --kind offline --csv",
    version_flags=[],
)


@command.default
def show_log(
    *,
    state: State = None,
    since: Annotated[int | None, moment_flag("from then on")] = None,
    until: Annotated[int | None, moment_flag("before then")] = None,
    kind: Kinds = None,
    gateway: GatewayName = None,
    uid: Annotated[
        str | int | None,
        Parameter(
            help=f"only of this user ({UID_FORMS})",
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
    """Show what the log has, the oldest first; a sidecar need not run."""
    if json and csv:
        told = "--json and --csv are two forms: choose one"
        raise CycloptsError(msg=told, command_chain=("log",))
    if since is not None and until is not None and since >= until:
        told = "--since is not before --until: nothing lies between"
        raise CycloptsError(msg=told, command_chain=("log",))
    folder = state_folder(state)

    kinds = frozenset(kind or KINDS)
    sought = RecordFilter(uid, kinds, gateway, since, until)
    form = "json" if json else "csv" if csv else "text"
    log(folder, sought, form=form, out=sys.stdout)
