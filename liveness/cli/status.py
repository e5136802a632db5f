"""`liveness status`: the state of the sidecar, on one screen."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

from cyclopts import Group, Parameter, Token
from cyclopts.validators import MutuallyExclusive

from liveness.cli.options import Json, Socket, declared, number
from liveness.cli.status_screen import as_text, look
from liveness.config.sources import socket_path
from liveness.console.admin_client import CommandError, readiness
from liveness.console.terminal import report_line


def status(socket_path: Path, *, as_json: bool, out: TextIO) -> bool:
    """Writes the state of the sidecar at *socket_path*; returns whether it is ready.

    Raises:
        CommandError: It did not answer.
    """
    found = look(socket_path)
    out.write(f"{json.dumps(asdict(found), indent=2)}\n" if as_json else as_text(found))
    return found.ready


# Flags that exclude each other.
EXCLUSIVE: Final = (
    Group.create_default_parameters(),
    Group(show=False, validator=MutuallyExclusive()),  # type: ignore[no-untyped-call]  # it has no types
)


def seconds_of(_kind: Any, tokens: Sequence[Token]) -> list[float]:
    """The seconds between two refreshes; a list, as the flag's value may be left out."""
    convert = number(float, "SECONDS", "", 0.1, 86_400).converter
    assert callable(convert)
    return [convert(float, tokens)]


command: Final = declared("status", "status --quiet || echo not ready")


@command.default
def show_status(
    *,
    socket: Socket = None,
    json: Json = False,
    quiet: Annotated[
        bool,
        Parameter(help="print nothing; only set the exit code", group=EXCLUSIVE),
    ] = False,
    watch: Annotated[
        list[float] | None,
        Parameter(
            help="refresh every SECONDS (2 if left out) until Ctrl-C, with events and "
            "offlines per second",
            metavar="[SECONDS]",
            consume_multiple=(0, 1),
            allow_repeating=False,
            converter=seconds_of,
            group=EXCLUSIVE,
        ),
    ] = None,
) -> int:
    """Show the state of the sidecar; the exit code is 0 if it is ready, else 1."""
    path = socket_path(socket)
    if watch is not None:
        import trio

        from liveness.cli.status_watch import watch_status

        (every_s,) = watch or [2.0]
        trio.run(
            partial(
                watch_status,
                path,
                every_s=every_s,
                as_json=json,
                out=sys.stdout,
                report_line=report_line,
            )
        )

    if not quiet:
        return 0 if status(path, as_json=json, out=sys.stdout) else 1
    try:
        return 0 if readiness(path)[0] else 1
    except CommandError:
        return 1
