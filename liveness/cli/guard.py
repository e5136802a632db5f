"""`liveness guard`: releases the users that the storm guard holds."""

from typing import Annotated, Any, Final

from cyclopts import Parameter

from liveness.cli.options import Socket, declared, name_of
from liveness.config.sources import socket_path
from liveness.console.admin_client import reading_answer, request_json
from liveness.text import escaped


def _line(storm: dict[str, Any]) -> str:
    count = int(storm["users"])
    users = "1 user" if count == 1 else f"{count:,} users"
    return f"released {users} of {escaped(storm['gateway'])}"


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
    answer = request_json(path, "/v1/guard/release", body)
    with reading_answer(path):
        released, more = [*map(_line, answer["storms"])], int(answer["more"])
    for line in released:
        print(line)
    if more:
        print(f"released the users of {more:,} more gateways")
    if not released:
        print("no users are held by a storm")
