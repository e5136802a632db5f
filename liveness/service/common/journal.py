"""systemd's journal behind stderr, and the priority of a line there (sd-daemon(3))."""

import os
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
