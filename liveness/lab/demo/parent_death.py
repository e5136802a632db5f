"""Runs a command that the kernel kills as soon as the parent process ends.

    python parent_death.py PARENT COMMAND [ARGUMENT ...]

It works however the parent ends, also by kill -9, when no code of ours can end the child.
A pipe to the child's stdin would not do: a child that is stopped (SIGSTOP) does not read.
SIGKILL ends it all the same.

The setting outlasts the exec into the command. It is bound to the thread that started this
process, which therefore has to be the parent's main thread.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, *command: str) -> None:
    """Replaces this process by the *command*, bound to the process *parent*."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() == int(parent):  # it has not ended before the setting was made
        os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
