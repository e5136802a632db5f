"""`liveness gateways`: lists the names of gateways and watchers, and forgets one."""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from cyclopts import Parameter

from liveness.cli.options import Json, Role, Socket, declared, name_of
from liveness.config.sources import socket_path
from liveness.console.admin_client import (
    print_list,
    request_json,
)
from liveness.console.record_lines import ascii_json
from liveness.core.records import GATEWAY
from liveness.text import escaped, relative

# The sidecar waits 5 s for its disk before it answers that it cannot write.
TIMEOUT_S: Final = 10.0


def text_line(name: dict[str, Any]) -> str:
    parts = [f"{'linked' if name['linked'] else 'away':<6}", escaped(name["name"])]
    if "users" in name:
        parts.append(f"{name['users']} users")
    if name.get("mutes"):
        parts.append(f"mute {name['mutes']} times (ping {name['ping']:g} s)")
    if "pid" in name:
        peer = f"pid {name['pid']}, unix_user {name['unix_user']}"
        parts.append(f"{peer}, {name['unacked']} unacked")
    if "seq" in name:
        parts.append(f"seq {name['seq']}")
        if not name["linked"]:
            ago = name["used"] / 1000 - datetime.now(UTC).timestamp()
            parts.append(f"last linked {relative(ago)}")
    return "  ".join(parts)


command: Final = declared(
    "gateways", "gateways list", help="List the known names, or forget one."
)


@command.command(
    name="list", help_epilogue="Example: liveness gateways list --role watcher"
)
def list_command(
    *, socket: Socket = None, role: Role = GATEWAY, json: Json = False
) -> None:
    """List the names that are connected, or were within the retention.

    With --json, an object a line.
    """
    print_list(
        socket_path(socket),
        "/v1/gateways",
        "gateways",
        {"role": role},
        line=ascii_json if json else text_line,
        timeout_s=TIMEOUT_S,
        cursor="after",
    )


@command.command(name="forget", help_epilogue="Example: liveness gateways forget gw-7")
def forget_command(
    name: Annotated[str, Parameter(help="the name", metavar="NAME", converter=name_of)],
    /,
    *,
    socket: Socket = None,
    role: Role = GATEWAY,
) -> None:
    """Forget a name that will not come back, and its place in the log."""
    body = {"role": role, "name": name}
    page = "/v1/gateways/forget"
    forgotten = request_json(socket_path(socket), page, body, timeout_s=TIMEOUT_S)
    print(text_line(forgotten))
