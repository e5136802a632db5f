"""Runs a command that ends with its parent, and may inherit a socket as from systemd.

    python -I -S launch.py PARENT FD COMMAND [ARGUMENT ...]

The kernel kills it as soon as the process PARENT ends: also by kill -9, when no code of
ours can end the child. A pipe to its stdin would not do: a child that is stopped (SIGSTOP)
does not read. The setting outlasts the exec. It is bound to the thread that started this
process, which therefore has to be the parent's main thread.

FD is a listening socket that becomes `gateway` of sd_listen_fds(3), or `-`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
FIRST_FD = 3


def main(parent: str, fd: str, *command: str) -> None:
    """Replaces this process by the *command*, bound to the process *parent*."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    environ = dict(os.environ)
    if fd != "-":
        os.dup2(int(fd), FIRST_FD)
        environ |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "gateway"}
        environ["LISTEN_PID"] = str(os.getpid())
    if os.getppid() == int(parent):  # it has not ended before the setting was made
        os.execve(command[0], command, environ)


if __name__ == "__main__":
    main(*sys.argv[1:])
