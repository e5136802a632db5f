"""`liveness history`: the newest records of one user, read from the state directory."""

import sys
from typing import Annotated, Final

from liveness.cli.log import damaged_records
from liveness.cli.options import (
    Json,
    State,
    UserName,
    declared,
    device_separator,
    number,
)
from liveness.config.sources import state_folder
from liveness.console.admin_client import CommandError
from liveness.console.record_lines import json_line, text_line
from liveness.console.terminal import report_line
from liveness.service.storage.log_reader import open_log
from liveness.text import local_time, uid_text

command: Final = declared("history", "history ada --limit 10")


@command.default
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
    """Show a user's records, the newest last; no sidecar has to run."""
    folder = state_folder(state)
    separator = device_separator()
    with open_log(folder, separator=separator) as log:
        found = log.newest_of(uid, limit=limit)
    damaged = damaged_records(log)
    if not found.records:
        oldest = found.oldest
        extent = "is empty" if oldest is None else f"begins at {local_time(oldest.at)}"
        remark = f"; {damaged}" if damaged else ""
        raise CommandError(
            f"no record of {uid_text(uid)} in the log of {folder}, which {extent}: correct "
            f"the name, or --state{remark}"
        )
    if damaged:
        report_line(damaged)
    line = json_line if json else text_line
    records = reversed(found.records)
    sys.stdout.writelines(f"{line(record.as_map())}\n" for record in records)
    if found.back_to is not None:
        report_line(
            f"there may be more than these {limit}: see them with a larger --limit"
        )
