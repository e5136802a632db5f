"""`liveness explain`: one answer to why a user is online, or is not.

The sidecar gives it, which knows who is online. Where none runs the log in the state
directory does, as far as it goes.
"""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TextIO
from urllib.parse import quote

from cyclopts import App

from liveness.cli.options import Json, Socket, State, UserName
from liveness.config.sources import socket_path, state_folder
from liveness.console.admin_client import CommandError, NoSidecar, asked, no_sidecar
from liveness.console.terminal import tell
from liveness.core.records import LogPosition, Uid
from liveness.errors import StateError
from liveness.explanation import RECORDS, Known, answer
from liveness.text import local_time, printable, uid_text

# The sidecar looks back for 2 s, after those who asked before.
TIMEOUT_S: Final = 10.0

Explained = dict[str, Any]


def explain(
    socket_path: Path,
    folder: Path,
    uid: Uid,
    *,
    as_json: bool,
    out: TextIO,
    tell: Callable[[str], None],
) -> None:
    """Writes the answer.

    Args:
        socket_path: The sidecar's socket.
        folder: Its state directory, looked into if nothing answers there.
        uid: The user.
        as_json: Whether all that is known is written, and not the sentence alone.
        out: Where it is written.
        tell: Is told that there is no sidecar, and what the answer is from.
    Raises:
        CommandError: Neither sidecar nor log could be asked.
    """
    page = f"/v1/users/{quote(uid_text(uid), safe='')}"
    try:
        found = asked(socket_path, page, timeout_s=TIMEOUT_S)
    except NoSidecar as error:
        try:
            found, end = _from_log(folder, uid)
        except StateError as unread:
            raise CommandError(f"{error}; nor can the log tell: {unread}") from None
        tell(str(error))
        told = "is empty"
        if end is not None:
            found["log_ends"] = end._asdict()
            told = f"ends at {local_time(end.at)} (seq {end.seq})"
        tell(f"this is from the log in {folder}, which {told}")
    if not isinstance(found.get("told"), str):
        raise no_sidecar(socket_path)
    told = found["told"]
    # Names in it are escaped.
    out.write(f"{json.dumps(found, indent=2) if as_json else printable(told)}\n")


def _from_log(folder: Path, uid: Uid) -> tuple[Explained, LogPosition | None]:
    from liveness.service.storage.log_reader import (
        log_in,  # of no use where a sidecar answers
    )

    with log_in(folder, clock=perf_counter) as book:
        row, end = book.online(uid), book.newest()
        session = None if row is None else row.session
        look, opening = book.newest_with_opening(uid, session, limit=RECORDS)
    known = Known(row, look.records, opening, look.back_to, look.oldest)
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    return answer(uid, known, now_ms=now_ms), end


command: Final = App(
    name="explain", help_epilogue="Example: liveness explain ada", version_flags=[]
)


@command.default
def explain_user(
    uid: UserName,
    /,
    *,
    socket: Socket = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Tell in one sentence why a user is online, or offline; with --json all of it.

    Where no sidecar runs it is told from the log in the state directory.
    """
    path, folder = socket_path(socket), state_folder(state)

    explain(path, folder, uid, as_json=json, out=sys.stdout, tell=tell)
