"""Becomes a command that is handed a socket, as a service manager's child does.

    python -S activated.py FD NAME COMMAND...

The descriptor becomes the first of those that sd_listen_fds(3) describes.
"""

import os
import sys
from typing import NoReturn

FIRST = 3


def main(handed: str, name: str, *command: str) -> NoReturn:
    """Hand over, and become the command."""
    os.dup2(int(handed), FIRST)
    told = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": name, "LISTEN_PID": str(os.getpid())}
    os.execve(command[0], command, os.environ | told)


if __name__ == "__main__":
    main(*sys.argv[1:])
