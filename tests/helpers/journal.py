"""Programs whose stderr leads to systemd's journal, as far as they can see."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.processes import environment

Entry = tuple[int, dict[str, Any]]


def file_number(descriptor: int) -> str:
    """A file's device and inode, as JOURNAL_STREAM has those of the journal's socket."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def entry(line: str) -> Entry:
    """A line as journald reads it: its priority, and the JSON object behind that."""
    found = re.fullmatch(r"<([0-7])>(\{.*\})", line)
    assert found, line
    return int(found[1]), json.loads(found[2])


def journaled(*command: str | Path, **environ: str) -> tuple[int, list[Entry]]:
    with tempfile.TemporaryFile("w+") as stderr:
        stream = file_number(stderr.fileno())
        done = subprocess.run(
            command,
            env=environment(JOURNAL_STREAM=stream, **environ),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            timeout=120,
            check=False,
        )
        stderr.seek(0)
        return done.returncode, [entry(line) for line in stderr.read().splitlines()]
