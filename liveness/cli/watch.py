"""`liveness watch`: shows the records as they are written, across restarts of the sidecar."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TextIO

import trio
from cyclopts import Parameter

from liveness.cli.options import Json, Kinds, Socket, declared, number
from liveness.config.sources import socket_path
from liveness.console.record_feed import RecordFeed
from liveness.console.record_lines import (
    RecordMap,
    in_colours,
    json_line,
    plain,
    text_line,
)
from liveness.console.terminal import AUTO, COLORS, report_line, wants_colours


async def watch(
    path: Path,
    *,
    after: int | None,
    kinds: Sequence[str],
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

    def show(records: list[RecordMap]) -> bool:
        nonlocal left
        shown = records[:left]
        out.writelines(f"{line(record)}\n" for record in shown)
        out.flush()
        if left is not None:
            left -= len(shown)
        return left == 0

    await RecordFeed(path, after=after, kinds=kinds, report_line=report_line).follow(
        show
    )


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
            as_json=json,
            count=count,
            out=sys.stdout,
            report_line=report_line,
            color=color,
        )
    )
