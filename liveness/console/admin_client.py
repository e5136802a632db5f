"""`admin.sock` as commands and tools ask it: one request, one answer; and what can go wrong."""

import http.client
import json
import os
import socket
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from liveness.config.checks import ADMIN_SOCKET
from liveness.errors import LivenessError


# What is said from memory. What waits for the disk has longer.
class CommandError(LivenessError):
    """A command cannot go on. The person's to mend; the sidecar is as it was."""


class NoSidecar(CommandError):
    """Nothing answers where the sidecar should be."""


def unreachable(
    socket_path: Path, error: OSError, *, at: Path | None = None
) -> CommandError:
    """Why nothing could be reached at *socket_path*, and what to do about it.

    Args:
        socket_path: The sidecar's socket.
        error: What came of connecting.
        at: The socket that was tried, if it is the one beside it.
    """
    if isinstance(error, PermissionError):
        told = f"not allowed to connect to {at or socket_path}"
        return CommandError(f"{told}: be its user, or of its group")
    if isinstance(error, TimeoutError):
        told = f"what listens at {at or socket_path} does not answer"
        return CommandError(
            f"{told}: see the sidecar's log, or name another with --socket"
        )
    told = f"no sidecar at {socket_path}"
    if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
        told += f" ({os.strerror(error.errno or 0)})"
    return NoSidecar(
        f"{told}: start it with `liveness serve`, or name another with --socket"
    )


TIMEOUT_S: Final = 2.0
# Of the metrics, whose number does not depend on the number of users, a few hundred KiB;
# of a hundred timers, if all in them has to be escaped, 6 MiB.
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024


class Admin(http.client.HTTPConnection):
    """HTTP to the `admin.sock` beside a gateways' socket."""

    def __init__(self, socket_path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = socket_path.with_name(ADMIN_SOCKET)

    def connect(self) -> None:
        """Connect; as the base does over TCP."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(
    socket_path: Path,
    page: str,
    body: dict[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, bytes]:
    """Ask for a page, or with a body to have something done; its status and text.

    Raises:
        CommandError: There is no answer, no room for another connection, or no right.
    """
    path = socket_path.with_name(ADMIN_SOCKET)
    connection = Admin(socket_path, timeout_s)
    try:
        with suppress(BrokenPipeError):  # who is turned away is answered unasked
            if body is None:
                connection.request("GET", page)
            else:
                connection.request("POST", page, json.dumps(body))
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER_BYTES)
        # Whatever was asked for: nobody else is told to come again, or may not ask.
        if answer.status == HTTPStatus.FORBIDDEN or answer.getheader("retry-after"):
            raise CommandError(str(read(socket_path, text).get("error")))
        return answer.status, text
    except OSError as error:
        raise unreachable(socket_path, error, at=path) from None
    except http.client.HTTPException:
        raise no_sidecar(socket_path) from None
    finally:
        connection.close()


def asked(
    socket_path: Path,
    page: str,
    body: dict[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """What a page says, or what became of what a body asks for.

    Raises:
        CommandError: There is no answer, or it is a refusal.
    """
    status, answer = ask(socket_path, page, body, timeout_s=timeout_s)
    found = read(socket_path, answer)
    if status == http.client.OK:
        return found
    if "error" not in found:
        raise no_sidecar(socket_path)
    raise CommandError(str(found["error"]))


def read(socket_path: Path, body: bytes) -> dict[str, Any]:
    """What an answer in JSON says.

    Raises:
        CommandError: It is none.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise no_sidecar(socket_path)
    return found


def no_sidecar(socket_path: Path) -> CommandError:
    """What answers is something else, or of another age."""
    told = (
        f"what answers at {socket_path.with_name(ADMIN_SOCKET)} is no liveness sidecar"
    )
    return CommandError(f"{told}: name the right socket with --socket")


def readiness(socket_path: Path) -> tuple[bool, list[str]]:
    """Whether the sidecar is ready, and if it is not, why.

    Raises:
        CommandError: It could not be asked.
    """
    code, body = ask(socket_path, "/readyz")
    try:
        why = [str(one) for one in read(socket_path, body)["why"]]
    except (TypeError, KeyError):
        raise no_sidecar(socket_path) from None
    return code == http.client.OK, why
