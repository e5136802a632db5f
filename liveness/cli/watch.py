"""`liveness watch`: shows the live records, across restarts of the sidecar."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import trio
from cyclopts import CycloptsError, Parameter

from liveness.cli.options import Json, Kinds, Socket, as_written, declared, number
from liveness.client.dialer import LinkLost
from liveness.client.record_link import LOG
from liveness.client.watcher import Watch
from liveness.cluster.cluster_watch import ClusterWatch
from liveness.config.cluster import ClusterSettings
from liveness.config.sources import socket_path
from liveness.console.admin_client import CommandError, not_a_sidecar, unreachable
from liveness.console.cluster_lines import (
    cluster_errors,
    configured_cluster,
    event_line,
)
from liveness.console.record_lines import json_line, text_line
from liveness.console.terminal import report_line
from liveness.core.records import TIMER
from liveness.core.sessions.damping import MOST_SETTLE_S
from liveness.errors import Refused, ReportError, WireError


class LineOutput:
    """Where a watch is shown, a line for each record, until *left* are; None: without end."""

    def __init__(self, out: TextIO, *, as_json: bool, left: int | None) -> None:
        self.out, self.as_json, self._left = out, as_json, left

    @property
    def is_complete(self) -> bool:
        return self._left == 0

    def write(self, lines: Iterable[str]) -> None:
        for line in islice(lines, self._left):
            self.out.write(f"{line}\n")
            if self._left is not None:
                self._left -= 1


async def watch(path: Path, output: LineOutput, **options: Any) -> None:
    """Shows the records of the sidecar at a socket; *options* are those of `liveness.watch`.

    Raises:
        CommandError: There is no sidecar, or it refuses this watcher.
    """
    line = json_line if output.as_json else text_line
    records = Watch(path, strict=True, **options)
    with _command_errors(path):
        async with records:
            async for batch in records.batches():
                output.write(line(record) for record in batch if record["kind"] != LOG)
                output.out.flush()
                if output.is_complete:
                    return


@contextmanager
def _command_errors(path: Path) -> Iterator[None]:
    """Turn what a strict watch of a socket raises into a CommandError."""
    try:
        yield
    except OSError as error:
        raise unreachable(path, error) from None
    except WireError:
        raise not_a_sidecar(path) from None
    except LinkLost as lost:
        raise CommandError(f"{path}: {lost}; see the sidecar's log") from None
    except Refused as refused:
        raise CommandError(f"{path}: it says {refused}; see its log") from None
    except ReportError as mistake:
        raise CommandError(f"--{mistake}") from None  # only `after` can be wrong


async def watch_cluster(
    settings: ClusterSettings, output: LineOutput, **options: Any
) -> None:
    """Shows the events of all hosts, and in the end the position to continue from.

    Raises:
        CommandError: Redis did not answer at first, or refuses this user.
    """
    with cluster_errors():
        events = ClusterWatch(settings, strict=True, **options)
    try:
        with cluster_errors():
            async with events:
                async for event in events:
                    as_json = output.as_json
                    line = json_line(event.as_map()) if as_json else event_line(event)
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
    output = LineOutput(sys.stdout, as_json=json, left=count)
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
