"""`liveness explain`: why a user is online or offline, in one sentence.

Where there is a cluster, a second line says where the user is online on all hosts.
"""

from datetime import UTC, datetime
from http import HTTPStatus
from json import dumps
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from liveness.cli.options import Json, Socket, UserName, declared
from liveness.config.sources import socket_path
from liveness.console.admin_client import (
    CommandError,
    parse_object,
    request_json,
    send_request,
    unexpected_answer,
)
from liveness.core.records import Uid, identity
from liveness.text import escaped, local_moment, printable, uid_text

# The sidecar searches its log for 2 s, after the requests that came before.
TIMEOUT_S: Final = 10.0
HOSTS_IN_SENTENCE: Final = 5


def user_in_sidecar(path: Path, uid: Uid, query: str = "") -> dict[str, Any]:
    """Everything that the sidecar at the socket *path* knows about a user: `/v1/users/UID`.

    Raises:
        CommandError: There is no sidecar, or it did not answer.
    """
    page = f"/v1/users/{quote(uid_text(uid), safe='')}{query}"
    found = request_json(path, page, timeout_s=TIMEOUT_S)
    if not isinstance(found.get("told"), str):
        raise unexpected_answer(path)
    return found


def _user_in_cluster(path: Path, uid: Uid) -> dict[str, Any] | None:
    """The sessions of a user on all hosts, or why they are not known.

    None: the sidecar is in no cluster, or too old to know one.
    """
    body = {"uids": [uid]}
    try:
        status, text = send_request(
            path, "/v1/cluster/where", body, timeout_s=TIMEOUT_S
        )
        if status == HTTPStatus.NOT_FOUND:
            return None
        view = parse_object(path, text)
    except CommandError as error:
        return {"error": str(error)}
    if status == HTTPStatus.OK:
        return {"online": bool(view["users"]), "hosts": view["users"]}
    return {"error": str(view.get("error", f"status {status}"))}


def cluster_sentence(uid: Uid, view: dict[str, Any], *, now_ms: int) -> str:
    """Where a user is online on all hosts, without control characters.

    *view* has its sessions, as `/v1/cluster/where` has them; or `error`, the reason why
    they are not known.
    """
    if "error" in view:
        return f"on all hosts: not known now: {escaped(str(view['error']))}"
    parts, sessions = list[str](), view["hosts"]
    for row in sessions[:HOSTS_IN_SENTENCE]:
        part = f"on {escaped(row['host'])} through {escaped(row['gateway'])}"
        if row["since"] is not None:
            part += f" since {local_moment(row['since'], now_ms)}"
        if identity(row["uid"]) != identity(uid):  # a device of the user
            part += f" ({escaped(uid_text(row['uid']))})"
        parts.append(part)
    if len(sessions) > len(parts):
        parts.append(f"and {len(sessions) - len(parts)} more")
    shown = f"online {'; '.join(parts)}" if parts else "offline"
    return f"on all hosts: {shown}"


command: Final = declared("explain", "explain ada")


@command.default
def explain_user(
    uid: UserName,
    /,
    *,
    socket: Socket = None,
    json: Json = False,
) -> int:
    """Say in one sentence why a user is online or offline; with --json all that is known.

    The exit code is 1 if the user is not online, on any host, and no record of it was found.
    """
    path = socket_path(socket)
    found = user_in_sidecar(path, uid)
    cluster = _user_in_cluster(path, uid)
    if cluster is not None:
        found["cluster"] = cluster
    if json:
        print(dumps(found, indent=2))
    else:
        print(printable(found["told"]))  # names in it are escaped already
        if cluster is not None:
            now_ms = round(datetime.now(UTC).timestamp() * 1000)
            print(printable(cluster_sentence(uid, cluster, now_ms=now_ms)))
    is_online = found.get("online") or (cluster or {}).get("online")
    return 0 if is_online or found.get("records") else 1
