"""Unix sockets that we listen on: made strictly, found stale or live, taken away.

One function makes them all. A file that we made is removed when we stop, if it is
still ours; that of a socket which a service manager handed over is the manager's.
"""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from liveness.errors import StartError

SOCKET_MODE: Final = 0o660
# Gateways reconnect all at once after a restart.
BACKLOG: Final = 512


@contextmanager
def listening(
    path: Path, *, mode: int = SOCKET_MODE, group: int | None = None
) -> Iterator[socket.socket]:
    """Listen on *path* until left.

    Args:
        path: Where the file is made.
        mode: The file's permissions.
        group: The file's group; None: the one that it gets by itself.
    Raises:
        StartError: Somebody else serves there, or the file cannot be made.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        ours = _bind(sock, path, mode, group)
        try:
            yield sock
        finally:
            _remove(path, ours)


def _bind(
    sock: socket.socket, path: Path, mode: int, group: int | None
) -> tuple[int, int]:
    """Bind and listen; return the identity of the file that this made."""
    try:
        _clear_stale(path)
        # Strict before the file exists: there is no moment at which others may
        # connect. The group is let in afterwards.
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        if group is not None:
            _give(path, group)
        path.chmod(mode)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        raise StartError(
            f"socket {path}: it cannot be made ({error.strerror or error}); make its "
            "folder one that this user may write to, or name another with --socket"
        ) from error
    made = path.stat()
    return made.st_dev, made.st_ino


def _give(path: Path, group: int) -> None:
    try:
        os.chown(path, -1, group)
    except PermissionError:
        path.unlink(missing_ok=True)
        raise StartError(
            f"socket {path}: it cannot be given to group {group}, of which this process "
            "is no member; make it one, or correct socket.group"
        ) from None


def _clear_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StartError(
            f"socket {path}: there is a file that is no socket; it was left alone, "
            "name another with --socket"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        answer = probe.connect_ex(str(path))
    # A full backlog (EAGAIN) is somebody alive, and so is one who may not be asked.
    if answer not in (errno.ECONNREFUSED, errno.ENOENT):
        raise StartError(
            f"socket {path}: another process serves there; stop it or name another "
            "with --socket"
        )
    path.unlink(missing_ok=True)


def _remove(path: Path, ours: tuple[int, int]) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    # A successor may have replaced it already.
    if (found.st_dev, found.st_ino) == ours:
        path.unlink(missing_ok=True)
