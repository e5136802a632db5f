"""A client of `admin.sock`: one HTTP request, its answer, and what can go wrong."""

import http.client
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from liveness.config.checks import ADMIN_SOCKET
from liveness.console.terminal import report_line
from liveness.errors import LivenessError

# For answers that the sidecar has in memory. Callers allow more where it reads its disk.
TIMEOUT_S: Final = 2.0
# A hundred timers, with every character of their texts escaped, are 6 MiB.
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
PAGE: Final = 100  # items of a list in one answer


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
    at = socket_path.with_name(ADMIN_SOCKET)
    connection = http.client.HTTPConnection("localhost")
    connection.sock = sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout_s)
        sock.connect(str(at))
        # A sidecar that refuses the connection answers without reading the request.
        with suppress(BrokenPipeError):
            if body is None:
                connection.request("GET", page)
            else:
                connection.request("POST", page, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER_BYTES)
    except OSError as error:
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


def print_list(
    socket_path: Path,
    page: str,
    name: str,
    query: Mapping[str, str],
    *,
    line: Callable[[Any], str],
    timeout_s: float,
    limit: int | None = None,
    cursor: str = "before",
) -> None:
    """Prints a list, a line for each item, as its pages arrive.

    Args:
        socket_path: The sidecar's socket.
        page: The list, such as `/v1/timers`.
        name: The key of the items in an answer.
        query: Filters, as the page takes them.
        line: An item as text.
        timeout_s: For each page.
        limit: The most that are printed. If there may be more, stderr says so.
        cursor: The filter that takes `next` of the page before.
    Raises:
        CommandError: As `request_json`, or no sidecar answers.
    """
    left, query = limit, dict(query)
    while left != 0:
        query["limit"] = str(PAGE if left is None else min(left, PAGE))
        found = request_json(
            socket_path, f"{page}?{urlencode(query)}", timeout_s=timeout_s
        )
        with reading_answer(socket_path):
            lines = [line(item) for item in found[name]]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
        if found.get("next") is None:
            return
        left = None if left is None else left - len(lines)
        query[cursor] = found["next"]
    report_line(f"there may be more than these {limit}: see them with a larger --limit")
