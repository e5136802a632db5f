"""`liveness watch`: shows the records as they are written, across restarts of the sidecar."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TextIO

import trio
from cyclopts import CycloptsError, Parameter

from liveness.cli.options import Json, Kinds, Socket, as_written, declared, number
from liveness.client.reader_position import LOG
from liveness.client.watcher import Watch
from liveness.cluster.cluster_watch import ClusterWatch
from liveness.config.cluster import ClusterSettings
from liveness.config.sources import socket_path
from liveness.console.cluster_lines import (
    cluster_errors,
    configured_cluster,
    event_line,
)
from liveness.console.record_lines import (
    in_colours,
    json_line,
    plain,
    text_line,
)
from liveness.console.terminal import AUTO, COLORS, report_line, wants_colours
from liveness.console.watching import command_errors
from liveness.core.records import TIMER
from liveness.core.sessions.damping import MOST_SETTLE_S


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
    settle_s: float = 0.0,
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
        settle_s: How long a user must be away before its offline is shown.
        color: When text is coloured: one of `COLORS`.
    Raises:
        CommandError: There is no sidecar, or it refuses this watcher.
    """
    paint = in_colours if wants_colours(out, color) else plain
    line = json_line if as_json else partial(text_line, paint=paint)
    left = count

    records = Watch(
        path,
        after=after,
        kinds=kinds,
        users=users,
        settle_s=settle_s,
        strict=True,
        report_line=report_line,
    )
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


async def watch_cluster(
    settings: ClusterSettings,
    *,
    position: str | None,
    kinds: Sequence[str],
    as_json: bool,
    count: int | None,
    out: TextIO,
    report_line: Callable[[str], None],
    color: str = AUTO,
) -> None:
    """Writes each event of all hosts as one line to *out*, until *count* are written.

    In the end it reports the position from which another command goes on.

    Args:
        settings: Where Redis is.
        position: As an earlier command reported it; "oldest"; None: from now on.
        kinds: The kinds of records to show; none: all.
        as_json: Whether a line is JSON, or text for a person.
        count: None: without end.
        out: Flushed after what was at hand.
        report_line: Called with one line for a person about each change of the connection.
        color: When text is coloured: one of `COLORS`.
    Raises:
        CommandError: Redis did not answer at first, or refuses this user.
    """
    paint = in_colours if wants_colours(out, color) else plain
    left = sys.maxsize if count is None else count
    with cluster_errors():
        watch = ClusterWatch(
            settings,
            position=position,
            kinds=kinds,
            strict=True,
            report_line=report_line,
        )
    try:
        with cluster_errors():
            async with watch:
                async for event in watch:
                    as_map = event.as_map()
                    out.write(
                        f"{json_line(as_map) if as_json else event_line(event, paint=paint)}\n"
                    )
                    left -= 1
                    if not (left and watch.has_event):
                        out.flush()
                        watch.finish()
                    if not left:
                        return
    finally:
        if watch.position is not None:
            report_line(f"go on from here with --from {watch.position}")


Cluster = Annotated[
    bool, Parameter(help="the users of all hosts, from Redis (cluster.url) itself")
]
Position = Annotated[
    str | None,
    Parameter(
        name="--from",
        help="with --cluster: where an earlier one ended, or oldest (default: new records)",
        metavar="POSITION",
        converter=as_written,
    ),
]
After = Annotated[
    int | None,
    number(int, "SEQ", "show the records above SEQ (default: new ones)", 0, 2**63 - 1),
]
Users = Annotated[
    bool,
    Parameter(
        help="one record when a user's first device comes and one when the last goes; "
        "needs presence.device_separator"
    ),
]
Settle = Annotated[
    float | None,
    number(
        float,
        "SECONDS",
        "show an offline when its user was away for so long, and nothing of one who was "
        "back before (default: 0)",
        0,
        MOST_SETTLE_S,
    ),
]
Count = Annotated[int | None, number(int, "N", "end after N records", 1, 2**63 - 1)]
Color = Annotated[
    str,
    Parameter(
        help="when lines are coloured: auto (default) is on a terminal, unless NO_COLOR is "
        "set",
        choices=COLORS,
        metavar="WHEN",
    ),
]
command: Final = declared("watch", "watch --kind offline --json")


@command.default
def watch_records(
    *,
    socket: Socket = None,
    cluster: Cluster = False,
    from_: Position = None,
    after: After = None,
    kind: Kinds = None,
    users: Users = False,
    settle: Settle = None,
    json: Json = False,
    count: Count = None,
    color: Color = AUTO,
) -> None:
    """Show each record as it is written, across restarts of the sidecar, without a gap."""
    of_sidecars: dict[str, object] = {"--socket": socket, "--after": after}
    of_sidecars |= {"--users": users or None, "--settle": settle}
    given = [flag for flag, value in of_sidecars.items() if value is not None]
    given += ["--kind timer"] * (TIMER in (kind or ()))
    if cluster and given:
        raise _usage_error(f"{given[0]} is of one sidecar: leave it out with --cluster")
    if from_ is not None and not cluster:
        raise _usage_error("--from is of all hosts: add --cluster, or use --after SEQ")
    show = (
        partial(watch_cluster, configured_cluster(), position=from_)
        if cluster
        else partial(
            watch, socket_path(socket), after=after, users=users, settle_s=settle or 0.0
        )
    )
    trio.run(
        partial(
            show,
            kinds=kind or (),
            as_json=json,
            count=count,
            out=sys.stdout,
            report_line=report_line,
            color=color,
        ),
        # Elsewhere it would leave a task half begun, and Python would warn of that.
        restrict_keyboard_interrupt_to_checkpoints=True,
    )


def _usage_error(message: str) -> CycloptsError:
    return CycloptsError(msg=message, command_chain=("watch",))
