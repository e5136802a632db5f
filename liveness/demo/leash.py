"""Runs a command that the kernel kills as soon as the process that began it ends.

    python leash.py PARENT COMMAND [ARGUMENT ...]

However that process ends, by kill -9 too: then nobody is left who could end a child. A
pipe to the child's stdin would tell as much, but a child that is stopped (SIGSTOP) does
not read, and would stay for ever; SIGKILL ends it as it is.

The wish is this process' own and outlasts the exec into the command. It is bound to the
parent's thread, which therefore has to be the main one.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, *command: str) -> None:
    """Becomes the *command*, bound to the process *parent*."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() == int(parent):  # else it has ended before the wish was made
        os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
