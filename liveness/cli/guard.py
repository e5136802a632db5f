"""`liveness guard`: releases the users that the storm guard holds."""

from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter

from liveness.cli.options import Socket, declared, name_of
from liveness.config.sources import socket_path
from liveness.console.admin_client import request_json, unexpected_answer
from liveness.text import escaped

StormMap = dict[str, Any]


def _storms_in(path: Path, answer: StormMap) -> tuple[list[StormMap], int]:
    try:
        found = [
            {
                "gateway": str(storm["gateway"]),
                "users": int(storm["users"]),
                "left_s": float(storm["left_s"]),
            }
            for storm in answer["storms"]
        ]
        return found, int(answer["more"])
    except (KeyError, TypeError, ValueError):
        raise unexpected_answer(path) from None


command: Final = declared(
    "guard",
    "guard release gw-1",
    help="Release users that the storm guard holds; status shows them.",
)


@command.command(name="release", help_epilogue="Example: liveness guard release gw-1")
def release_command(
    name: Annotated[
        str | None,
        Parameter(
            help="the gateway whose users are released (default: those of all)",
            metavar="NAME",
            converter=name_of,
        ),
    ] = None,
    /,
    *,
    socket: Socket = None,
) -> None:
    """Release now the users that are held because too many came due at once."""
    path = socket_path(socket)
    body = {} if name is None else {"gateway": name}
    released, more = _storms_in(path, request_json(path, "/v1/guard/release", body))
    for storm in released:
        users = "1 user" if storm["users"] == 1 else f"{storm['users']:,} users"
        print(f"released {users} of {escaped(storm['gateway'])}")
    if more:
        print(f"released the users of {more:,} more gateways")
    if not released:
        print("no users are held by a storm")
