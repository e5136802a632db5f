"""`liveness log`: the records of all users, read from the state directory.

Each record is written as it is found, so a log of any size takes no more memory than a
small one.
"""

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
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
from liveness.core.records import KINDS
from liveness.service.storage.log_reader import LogReader, RecordFilter, open_log

_AGO: Final = re.compile(r"-?(\d{1,9}) ?(s|m|min|h|d)( ago)?", re.ASCII)
_UNIT_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)


def log(folder: Path, selection: RecordFilter, *, as_json: bool, out: TextIO) -> None:
    """Writes all records that match, the oldest first, a line each; *out* is not flushed.

    Raises:
        StateError: The log cannot be read.
        CommandError: Records are damaged and left out; all others were written.
    """
    line = json_line if as_json else text_line
    with open_log(folder) as reader:
        for record in reader.records(selection):
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


command: Final = declared("log", "log --since 15min --kind offline --json")


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
) -> None:
    """Show the records in the log, the oldest first; no sidecar has to run."""
    if since is not None and until is not None and since >= until:
        raise CycloptsError(
            msg="--since is not before --until: nothing lies between",
            command_chain=("log",),
        )
    kinds = frozenset(kind or KINDS)
    separator = "" if uid is None else device_separator()
    selection = RecordFilter(uid, kinds, gateway, since, until, separator)
    log(state_folder(state), selection, as_json=json, out=sys.stdout)
