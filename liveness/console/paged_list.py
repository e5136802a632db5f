"""Prints a list that `admin.sock` returns in pages."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from liveness.console.admin_client import reading_answer, request_json
from liveness.console.terminal import report_line

PAGE: Final = 100


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
