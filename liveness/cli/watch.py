"""`liveness watch`: shows the records as they are written, across restarts of the sidecar."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import trio
from cyclopts import Parameter

from liveness.cli.options import Json, Kinds, Socket, declared, number
from liveness.client.watcher import LOG
from liveness.client.watcher import watch as watch_sidecar
from liveness.config.sources import socket_path
from liveness.console.record_lines import (
    in_colours,
    json_line,
    plain,
    text_line,
)
from liveness.console.terminal import AUTO, COLORS, report_line, wants_colours
from liveness.console.watching import command_errors


async def watch(
    path: Path,
    *,
    after: int | None,
    kinds: Sequence[str],
    users: bool,
    as_json: bool,
    count: int | None,
    out: TextIO,
    report_line: Callable[[str], None],
    color: str = AUTO,
) -> None:
    """Writes each record as one line to *out*, until *count* are written.

    Args:
        path: The sidecar's socket.
        after: Show records above this `seq`; None: from now on.
        kinds: The kinds to show; none: all. A gap is always shown.
        users: Whether to show users, not their devices.
        as_json: Whether a line is JSON, or text for a person.
        count: None: without end.
        out: Flushed after each frame's records.
        report_line: Called with one line for a person about each change of the connection.
        color: When text is coloured: one of `COLORS`.
    Raises:
        CommandError: There is no sidecar, or it refuses this watcher.
    """
    paint = in_colours if wants_colours(out, color) else plain
    line = json_line if as_json else partial(text_line, paint=paint)
    left = count

    options: dict[str, Any] = {"after": after, "kinds": kinds, "users": users}
    records = watch_sidecar(path, strict=True, report_line=report_line, **options)
    with command_errors(path):
        async with records:
            async for batch in records.batches():
                shown = [record for record in batch if record["kind"] != LOG][:left]
                out.writelines(f"{line(record)}\n" for record in shown)
                out.flush()
                if left is not None:
                    left -= len(shown)
                    if not left:
                        return


command: Final = declared("watch", "watch --kind offline --json")


@command.default
def watch_records(
    *,
    socket: Socket = None,
    after: Annotated[
        int | None,
        number(
            int, "SEQ", "show the records above SEQ (default: new ones)", 0, 2**63 - 1
        ),
    ] = None,
    kind: Kinds = None,
    users: Annotated[
        bool,
        Parameter(
            help="one record when a user's first device comes and one when the last goes; "
            "needs presence.device_separator"
        ),
    ] = False,
    json: Json = False,
    count: Annotated[
        int | None, number(int, "N", "end after N records", 1, 2**63 - 1)
    ] = None,
    color: Annotated[
        str,
        Parameter(
            help="when lines are coloured: auto (default) is on a terminal, unless "
            "NO_COLOR is set",
            choices=COLORS,
            metavar="WHEN",
        ),
    ] = AUTO,
) -> None:
    """Show each record as it is written, across restarts of the sidecar, without a gap."""
    trio.run(
        partial(
            watch,
            socket_path(socket),
            after=after,
            kinds=kind or (),
            users=users,
            as_json=json,
            count=count,
            out=sys.stdout,
            report_line=report_line,
            color=color,
        )
    )
