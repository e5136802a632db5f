"""A client of `admin.sock`: one HTTP request, its answer, and what can go wrong."""

import http.client
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from liveness.config.checks import ADMIN_SOCKET
from liveness.errors import LivenessError

# For answers that the sidecar has in memory. Callers allow more where it reads its disk.
TIMEOUT_S: Final = 2.0
# A hundred timers, with every character of their texts escaped, are 6 MiB.
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024


class CommandError(LivenessError):
    """A command cannot go on. The user can remove the cause; the sidecar is unchanged."""


def unreachable(
    socket_path: Path, error: OSError, *, at: Path | None = None
) -> CommandError:
    """The error for a failed connection to a sidecar's socket, or to the one beside it."""
    tried = at or socket_path
    if isinstance(error, PermissionError):
        return CommandError(
            f"not allowed to connect to {tried}: run this as its user, or in its group"
        )
    if isinstance(error, TimeoutError):
        return CommandError(
            f"what listens at {tried} does not answer: see the sidecar's log, or name "
            "another with --socket"
        )
    message = f"no sidecar at {socket_path}"
    if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
        message += f" ({os.strerror(error.errno or 0)})"
    return CommandError(
        f"{message}: start it with `liveness serve`, or name another with --socket"
    )


def not_a_sidecar(path: Path) -> CommandError:
    """The error for a socket at which another program, or another version, answers."""
    return CommandError(
        f"what answers at {path} is not a liveness sidecar: name the right socket with "
        "--socket"
    )


def unexpected_answer(socket_path: Path) -> CommandError:
    return not_a_sidecar(socket_path.with_name(ADMIN_SOCKET))


@contextmanager
def reading_answer(socket_path: Path) -> Iterator[None]:
    """Raises a `CommandError` if an answer, read within it, has not the form it should."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError):
        raise unexpected_answer(socket_path) from None


class AdminConnection(http.client.HTTPConnection):
    """HTTP to the `admin.sock` beside a gateways' socket."""

    def __init__(self, socket_path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = socket_path.with_name(ADMIN_SOCKET)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def send_request(
    socket_path: Path,
    page: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, bytes]:
    """Sends a GET for *page*, or a POST of *body*; returns the answer's status and text.

    Raises:
        CommandError: There is no answer.
    """
    connection = AdminConnection(socket_path, timeout_s)
    try:
        # A sidecar that refuses the connection answers without reading the request.
        with suppress(BrokenPipeError):
            if body is None:
                connection.request("GET", page)
            else:
                connection.request("POST", page, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER_BYTES)
    except OSError as error:
        at = socket_path.with_name(ADMIN_SOCKET)
        raise unreachable(socket_path, error, at=at) from None
    except http.client.HTTPException:
        raise unexpected_answer(socket_path) from None
    finally:
        connection.close()


def request_json(
    socket_path: Path,
    page: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Sends a request as `send_request` does; returns the JSON object in the answer.

    Raises:
        CommandError: There is no answer, or it is a refusal.
    """
    status, text = send_request(socket_path, page, body, timeout_s=timeout_s)
    answer = parse_object(socket_path, text)
    if status == HTTPStatus.OK:
        return answer
    if "error" not in answer:
        raise unexpected_answer(socket_path)
    raise CommandError(str(answer["error"]))


def parse_object(socket_path: Path, text: bytes) -> dict[str, Any]:
    """The JSON object in an answer.

    Raises:
        CommandError: There is none.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise unexpected_answer(socket_path)
    return answer
