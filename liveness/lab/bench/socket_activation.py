"""Runs a command with an inherited socket, as a service manager does.

    python -S socket_activation.py FD NAME COMMAND...

The descriptor becomes the first of those that sd_listen_fds(3) describes.
"""

import os
import sys
from typing import NoReturn

FIRST = 3


def main(fd: str, name: str, *command: str) -> NoReturn:
    """Replaces this process by the command."""
    os.dup2(int(fd), FIRST)
    added = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": name, "LISTEN_PID": str(os.getpid())}
    os.execve(command[0], command, os.environ | added)


if __name__ == "__main__":
    main(*sys.argv[1:])
