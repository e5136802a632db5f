"""`liveness watch`: shows the live records, across restarts of the sidecar."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

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
    Paint,
    in_colours,
    json_line,
    plain,
    text_line,
)
from liveness.console.terminal import AUTO, COLORS, report_line, wants_colours
from liveness.console.watching import command_errors
from liveness.core.records import TIMER
from liveness.core.sessions.damping import MOST_SETTLE_S


@dataclass(slots=True)
class LineOutput:
    """Where a watch is shown, a line for each record.

    Args:
        out: Flushed after what was at hand.
        as_json: Whether a line is JSON, or text for a person.
        left: Lines that are still to be written; None: without end.
        color: When text is coloured: one of `COLORS`.
    """

    out: TextIO
    as_json: bool
    left: int | None
    color: str = AUTO

    @property
    def paint(self) -> Paint:
        """Colours text for a person, if that is wanted."""
        return in_colours if wants_colours(self.out, self.color) else plain

    @property
    def is_complete(self) -> bool:
        """Whether all lines are written."""
        return self.left == 0

    def write(self, lines: Iterable[str]) -> None:
        """Write lines, as many as are still to be written."""
        for line in islice(lines, self.left):
            self.out.write(f"{line}\n")
            if self.left is not None:
                self.left -= 1


async def watch(path: Path, output: LineOutput, **options: Any) -> None:
    """Shows the records of a sidecar, until enough are shown.

    Args:
        path: The sidecar's socket.
        output: Where they are shown.
        options: Those of `liveness.watch`.
    Raises:
        CommandError: There is no sidecar, or it refuses this watcher.
    """
    line = json_line if output.as_json else partial(text_line, paint=output.paint)
    records = Watch(path, strict=True, **options)
    with command_errors(path):
        async with records:
            async for batch in records.batches():
                output.write(line(record) for record in batch if record["kind"] != LOG)
                output.out.flush()
                if output.is_complete:
                    return


async def watch_cluster(
    settings: ClusterSettings, output: LineOutput, **options: Any
) -> None:
    """Shows the events of all hosts, until enough are shown.

    At the end it reports the position from which another command can continue.

    Args:
        settings: Where Redis is.
        output: Where they are shown.
        options: Those of `liveness.watch` with a cluster.
    Raises:
        CommandError: Redis did not answer at first, or refuses this user.
    """
    paint, as_json = output.paint, output.as_json
    with cluster_errors():
        events = ClusterWatch(settings, strict=True, **options)
    try:
        with cluster_errors():
            async with events:
                async for event in events:
                    if as_json:
                        line = json_line(event.as_map())
                    else:
                        line = event_line(event, paint=paint)
                    output.write([line])
                    if output.is_complete or not events.has_event:
                        output.out.flush()
                        events.finish()
                    if output.is_complete:
                        return
    finally:
        if events.position is not None:
            report_line(f"go on from here with --from {events.position}")


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
        "show an offline once its user was away this long, and nothing if it was back "
        "before (default: 0)",
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
    """Show each record once it is durable, across restarts of the sidecar, without a gap."""
    of_sidecars: dict[str, object] = {"--socket": socket, "--after": after}
    of_sidecars |= {"--users": users or None, "--settle": settle}
    given = [flag for flag, value in of_sidecars.items() if value is not None]
    given += ["--kind timer"] * (TIMER in (kind or ()))
    if cluster and given:
        raise _usage_error(f"{given[0]} is of one sidecar: leave it out with --cluster")
    if from_ is not None and not cluster:
        raise _usage_error("--from is of all hosts: add --cluster, or use --after SEQ")
    output = LineOutput(sys.stdout, as_json=json, left=count, color=color)
    options: dict[str, Any] = {"kinds": kind or (), "report_line": report_line}
    if cluster:
        show = partial(watch_cluster, configured_cluster())
        options["position"] = from_
    else:
        show = partial(watch, socket_path(socket))
        options |= {"after": after, "users": users, "settle_s": settle or 0.0}
    trio.run(
        partial(show, output, **options),
        # Elsewhere it would leave a task half begun, and Python would warn of that.
        restrict_keyboard_interrupt_to_checkpoints=True,
    )


def _usage_error(message: str) -> CycloptsError:
    return CycloptsError(msg=message, command_chain=("watch",))
