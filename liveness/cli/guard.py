"""`liveness guard`: an operator's say in what the storm guard holds."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

from cyclopts import App, Parameter

from liveness.cli.options import Socket, name_of
from liveness.config.sources import socket_path
from liveness.console.admin_client import asked, no_sidecar
from liveness.text import escaped

StormMap = dict[str, Any]


def release(socket_path: Path, gateway: str | None, *, out: TextIO) -> None:
    """Has users judged whom the guard holds, and writes whose they were.

    Args:
        socket_path: The sidecar's socket.
        gateway: Theirs; None: those of all.
        out: Where each gateway is a line.
    Raises:
        CommandError: It was refused, or nobody of that gateway is held.
    """
    named = {} if gateway is None else {"gateway": gateway}
    released, more = _read(socket_path, asked(socket_path, "/v1/guard/release", named))
    for storm in released:
        users = "1 user" if storm["users"] == 1 else f"{storm['users']:,} users"
        out.write(f"released {users} of {escaped(storm['gateway'])}\n")
    if more:
        out.write(f"released those of {more:,} more gateways\n")
    if not released:
        out.write("no users are held by a storm\n")


def _read(socket_path: Path, found: StormMap) -> tuple[list[StormMap], int]:
    """What an answer says, which must have the form of one."""
    try:
        shown = [
            {
                "gateway": str(storm["gateway"]),
                "users": int(storm["users"]),
                "left_s": float(storm["left_s"]),
            }
            for storm in found["storms"]
        ]
        return shown, int(found["more"])
    except (KeyError, TypeError, ValueError):
        raise no_sidecar(socket_path) from None


command: Final = App(
    name="guard",
    help="Have a say in whom the storm guard holds; status shows who that is.",
    help_epilogue="Example: liveness guard release gw-1",
    version_flags=[],
)


@command.command(name="release", help_epilogue="Example: liveness guard release gw-1")
def release_command(
    name: Annotated[
        str | None,
        Parameter(
            help="the gateway whose users are meant (default: those of all)",
            metavar="NAME",
            converter=name_of,
        ),
    ] = None,
    /,
    *,
    socket: Socket = None,
) -> None:
    """Have users judged now who are held because too many came due at once."""
    path = socket_path(socket)

    release(path, name, out=sys.stdout)
