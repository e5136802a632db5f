"""systemd's journal behind stderr, and the priority of a line there (sd-daemon(3)).

It needs no package: with it `liveness serve` reports that its packages are missing.
"""

import json
import os
from datetime import UTC, datetime
from typing import Final, TextIO

# The prefix of a line of each level. journald removes it and keeps it as the priority of
# the entry, which is 6 for a line without a prefix.
PREFIXES: Final = {
    "debug": "<7>",
    "info": "<6>",
    "warning": "<4>",
    "error": "<3>",
    "critical": "<2>",
}


def is_journal(stream: TextIO) -> bool:
    """Whether *stream* leads to the journal, by the number of its file (systemd.exec(5)).

    The variable alone is no proof: a program started by systemd may have given this one
    another stderr.
    """
    file = os.fstat(stream.fileno())
    return os.environ.get("JOURNAL_STREAM") == f"{file.st_dev}:{file.st_ino}"


def failed_line(error: str, exit_code: int, stream: TextIO) -> str:
    """The line `failed` of the log, as JSON, for *stream*."""
    line = {
        "error": error,
        "exit_code": exit_code,
        "event": "failed",
        "level": "error",
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
    }
    return (PREFIXES["error"] if is_journal(stream) else "") + json.dumps(line)
