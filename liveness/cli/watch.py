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

from liveness.cli.options import Json, Kinds, Socket, declared, number
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


async def watch(
    path: Path, out: TextIO, *, as_json: bool, count: int | None = None, **options: Any
) -> None:
    """Shows the records of the sidecar at a socket, a line each; *count* at most.

    *options* are those of `liveness.watch`.

    Raises:
        CommandError: There is no sidecar, or it refuses this watcher.
    """
    line = json_line if as_json else text_line
    left = count
    records = Watch(path, strict=True, **options)
    with _command_errors(path):
        async with records:
            async for batch in records.batches():
                shown = (line(record) for record in batch if record["kind"] != LOG)
                left = _write(shown, out, left)
                out.flush()
                if left == 0:
                    return


def _write(lines: Iterable[str], out: TextIO, left: int | None) -> int | None:
    """Write at most *left* lines (None: all); return how many are left."""
    written = [f"{line}\n" for line in islice(lines, left)]
    out.writelines(written)
    return None if left is None else left - len(written)


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
    settings: ClusterSettings,
    out: TextIO,
    *,
    as_json: bool,
    count: int | None = None,
    **options: Any,
) -> None:
    """Shows the events of all hosts, a line each; *count* at most.

    Raises:
        CommandError: Redis did not answer at first, or refuses this user.
    """
    left = count
    with cluster_errors():
        async with ClusterWatch(settings, strict=True, **options) as events:
            async for event in events:
                line = json_line(event.as_map()) if as_json else event_line(event)
                left = _write([line], out, left)
                if left == 0 or not events.has_event:
                    out.flush()
                if left == 0:
                    return


Cluster = Annotated[
    bool, Parameter(help="the users of all hosts, from Redis (cluster.url) itself")
]
After = Annotated[
    int | None,
    number(
        int,
        "SEQ",
        "show the records above SEQ (default: new ones); with --cluster 0 alone",
        0,
        2**63 - 1,
    ),
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
    after: After = None,
    kind: Kinds = None,
    users: Users = False,
    settle: Settle = None,
    json: Json = False,
    count: Count = None,
) -> None:
    """Show each record once it is durable, across restarts of the sidecar, without a gap."""
    of_sidecars: dict[str, object] = {"--socket": socket, "--after": after or None}
    of_sidecars |= {"--users": users or None, "--settle": settle}
    given = [flag for flag, value in of_sidecars.items() if value is not None]
    given += ["--kind timer"] * (TIMER in (kind or ()))
    if cluster and given:
        message = f"{given[0]} is of one sidecar: leave it out with --cluster"
        raise CycloptsError(msg=message, command_chain=("watch",))
    options: dict[str, Any] = {"kinds": kind or (), "report_line": report_line}
    options |= {"as_json": json, "count": count}
    if cluster:
        show = partial(watch_cluster, configured_cluster())
        options["position"] = None if after is None else "oldest"
    else:
        show = partial(watch, socket_path(socket))
        options |= {"after": after, "users": users, "settle_s": settle or 0.0}
    trio.run(
        partial(show, sys.stdout, **options),
        # Elsewhere it would leave a task half begun, and Python would warn of that.
        restrict_keyboard_interrupt_to_checkpoints=True,
    )
