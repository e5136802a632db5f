"""`liveness gateways`: who has connected, and an operator's word that one will not again."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TextIO
from urllib.parse import urlencode

from cyclopts import App, Parameter

from liveness.cli.options import Json, Role, Socket, name_of
from liveness.config.sources import socket_path
from liveness.console.admin_client import asked, no_sidecar
from liveness.core.records import GATEWAY
from liveness.text import escaped, relative

PAGE: Final = 1_000
# The sidecar waits 5 s for its disk before it says that it cannot write.
TIMEOUT_S: Final = 10.0

Name = dict[str, Any]


def list_gateways(socket_path: Path, role: str, *, as_json: bool, out: TextIO) -> None:
    """Writes every name of a role that is known, one a line.

    Raises:
        CommandError: They could not be had.
    """
    after: str | None = ""
    while after is not None:
        query = {"role": role, "limit": str(PAGE)} | ({"after": after} if after else {})
        found = asked(
            socket_path, f"/v1/gateways?{urlencode(query)}", timeout_s=TIMEOUT_S
        )
        if not isinstance(found.get("gateways"), list):
            raise no_sidecar(socket_path)
        line = _json_line if as_json else text_line
        out.writelines(f"{line(name)}\n" for name in found["gateways"])
        out.flush()
        after = found.get("next")


def forget_gateway(socket_path: Path, role: str, name: str, *, out: TextIO) -> None:
    """Has a name forgotten, and writes what was known of it.

    Raises:
        CommandError: It was refused, or there is none.
    """
    body = {"role": role, "name": name}
    page = "/v1/gateways/forget"
    gone = asked(socket_path, page, body, timeout_s=TIMEOUT_S)
    out.write(f"{text_line(gone)}\n")


def text_line(name: Name) -> str:
    """A name as one line for a person."""
    parts = [f"{'linked' if name['linked'] else 'away':<6}", escaped(name["name"])]
    if "users" in name:
        parts.append(f"{name['users']} users")
    if name.get("mutes"):
        parts.append(f"mute {name['mutes']} times (ping {name['ping']:g} s)")
    if "pid" in name:
        parts.append(f"pid {name['pid']}, uid {name['uid']}, {name['unacked']} unacked")
    if "seq" in name:
        parts.append(f"seq {name['seq']}")
        if not name["linked"]:
            ago = name["used"] / 1000 - datetime.now(UTC).timestamp()
            parts.append(f"last here {relative(ago)}")
    return "  ".join(parts)


def _json_line(name: Name) -> str:
    return json.dumps(name, separators=(",", ":"))


command: Final = App(
    name="gateways",
    help="List the names that are known, or have one forgotten.",
    help_epilogue="Example: liveness gateways list",
    version_flags=[],
)


@command.command(
    name="list", help_epilogue="Example: liveness gateways list --role watcher"
)
def list_command(
    *, socket: Socket = None, role: Role = GATEWAY, json: Json = False
) -> None:
    """List who is connected, and who was within the retention; with --json one a line."""
    path = socket_path(socket)

    list_gateways(path, role, as_json=json, out=sys.stdout)


@command.command(name="forget", help_epilogue="Example: liveness gateways forget gw-7")
def forget_command(
    name: Annotated[str, Parameter(help="the name", metavar="NAME", converter=name_of)],
    /,
    *,
    socket: Socket = None,
    role: Role = GATEWAY,
) -> None:
    """Give up a name that will not come back, and its place in the log."""
    path = socket_path(socket)

    forget_gateway(path, role, name, out=sys.stdout)
