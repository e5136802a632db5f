"""`liveness explain`: why a user is online or offline, in one sentence.

Where there is a cluster, a second line says where the user is online on all hosts.

A running sidecar answers, from its memory and its log. Where none runs, the answer is
made from the log in the state directory alone.
"""

from datetime import UTC, datetime
from http import HTTPStatus
from json import dumps
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from urllib.parse import quote

from liveness.cli.options import (
    Json,
    Socket,
    State,
    UserName,
    declared,
    device_separator,
)
from liveness.config.sources import socket_path, state_folder
from liveness.console.admin_client import (
    CommandError,
    NoSidecar,
    parse_object,
    request_json,
    send_request,
    unexpected_answer,
)
from liveness.console.terminal import report_line
from liveness.core.records import LogPosition, Uid, identity
from liveness.core.wheel.devices import user_of
from liveness.errors import StateError
from liveness.explanation import (
    DEVICES,
    RECORDS,
    Known,
    UserDevices,
    answer,
    cluster_sentence,
)
from liveness.text import local_time, printable, uid_text

# The sidecar searches its log for 2 s, after the requests that came before.
TIMEOUT_S: Final = 10.0


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
    """A user on all hosts, as in `/v1/cluster/users/UID`, or why that is not known.

    None: the sidecar is in no cluster, or too old to know one.
    """
    page = f"/v1/cluster/users/{quote(uid_text(uid), safe='')}"
    try:
        status, text = send_request(path, page, timeout_s=TIMEOUT_S)
        if status == HTTPStatus.NOT_FOUND:
            return None
        view = parse_object(path, text)
    except CommandError as error:
        return {"error": str(error)}
    if status == HTTPStatus.OK:
        return {"online": view["online"], "hosts": view["hosts"]}
    return {"error": str(view.get("error", f"status {status}"))}


def _user_in_log(folder: Path, uid: Uid) -> tuple[dict[str, Any], LogPosition | None]:
    """A user's records in the log of the state directory, and where the log ends."""
    # Imported only here: it is not needed where a sidecar answers.
    from liveness.service.storage.log_reader import open_log

    separator = device_separator()
    devices: UserDevices | None = None
    with open_log(folder, clock=perf_counter, separator=separator) as log:
        row, end = log.online(uid), log.newest()
        session = None if row is None else row.session
        found, opening = log.newest_with_opening(uid, session, limit=RECORDS)
        if separator:
            user = user_of(uid, separator)
            rows = log.online_devices(user)
            shown = {row.uid: row for row in rows[:DEVICES]}
            is_asked = identity(user) == identity(uid)
            devices = UserDevices(user, is_asked, len(rows), shown)
        waits = log.unacknowledged(found.records[0]) if found.records else None
    known = Known(
        row, found.records, opening, found.back_to, found.oldest, devices, waits
    )
    return answer(uid, known, now_ms=_now_ms()), end


def _now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


command: Final = declared("explain", "explain ada")


@command.default
def explain_user(
    uid: UserName,
    /,
    *,
    socket: Socket = None,
    state: State = None,
    json: Json = False,
) -> int:
    """Say in one sentence why a user is online or offline; with --json all that is known.

    Where no sidecar runs, the answer is from the log in the state directory. The exit code
    is 1 if the user is not online, on any host, and no record of it was found.
    """
    path, folder = socket_path(socket), state_folder(state)
    cluster: dict[str, Any] | None = None
    try:
        found = user_in_sidecar(path, uid)
        cluster = _user_in_cluster(path, uid)
    except NoSidecar as error:
        try:
            found, end = _user_in_log(folder, uid)
        except StateError as unread:
            raise CommandError(
                f"{error}; the log cannot answer either: {unread}"
            ) from None
        report_line(str(error))
        ending = "is empty"
        if end is not None:
            found["log_ends"] = end._asdict()
            ending = f"ends at {local_time(end.at)} (seq {end.seq})"
        report_line(f"this is from the log in {folder}, which {ending}")
    if cluster is not None:
        found["cluster"] = cluster
    if json:
        print(dumps(found, indent=2))
    else:
        print(printable(found["told"]))  # names in it are escaped already
        if cluster is not None:
            print(printable(cluster_sentence(cluster, now_ms=_now_ms())))
    is_online = found.get("online") or (cluster or {}).get("online")
    return 0 if is_online or found.get("records") else 1
