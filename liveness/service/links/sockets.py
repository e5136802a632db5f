"""Unix sockets that we listen on: made strictly, found stale or live, taken away.

One function makes them all. A file that we made is removed when we stop, if it is
still ours; that of a socket which a service manager handed over is the manager's. While
we run each knows whether its path still leads to it, and can be made anew there.
"""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from liveness.config.paths import make_socket_folder
from liveness.errors import StartError
from liveness.service.storage.private_folders import Identity, identity

SOCKET_MODE: Final = 0o660
# Gateways reconnect all at once after a restart.
BACKLOG: Final = 512


class UnixListener(socket.socket):
    """A Unix socket that listens, and the file that leads to it.

    Args:
        path: Where clients look for it.
        fileno: One that a service manager handed over, to be made anew by that alone.
    """

    def __init__(self, path: Path, *, fileno: int | None = None) -> None:
        if fileno is None:
            super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            super().__init__(fileno=fileno)
        self.path = path
        self._is_handed_over = fileno is not None
        self._mode = SOCKET_MODE
        self._group: int | None = None
        self._file: Identity | None = None

    def make(self, mode: int, group: int | None) -> None:
        """Make its file, and listen.

        Raises:
            StartError: Somebody else serves there, or the file cannot be made.
        """
        self._mode, self._group = mode, group
        self._file = _bind(self, self.path, mode, group)

    def found(self) -> None:
        """Take the file that is at its path now for its own."""
        self._file = identity(self.path)

    def is_reachable(self) -> bool:
        """Whether its path leads to it."""
        return self._file is not None and identity(self.path) == self._file

    def make_anew(self) -> None:
        """Have its path lead to it again, as at the start; links that there are go on.

        This stays the same object, with the same descriptor. Who waits to accept waits on.

        Raises:
            StartError: Somebody else serves there, or the file cannot be made; or it is
                not ours to make.
        """
        if self._is_handed_over:
            raise StartError(
                f"socket {self.path}: its file was removed or replaced, so nobody can "
                "connect; restart its unit: systemctl restart liveness.socket"
            )
        make_socket_folder(self.path)
        with UnixListener(self.path) as other:
            other.make(self._mode, self._group)
            trio.lowlevel.notify_closing(self)
            os.dup2(other.fileno(), self.fileno(), inheritable=False)
            self._file = other._file

    def remove(self) -> None:
        """Remove its file, unless a successor has replaced it."""
        if self.is_reachable():
            self.path.unlink(missing_ok=True)


@contextmanager
def listening(
    path: Path, *, mode: int = SOCKET_MODE, group: int | None = None
) -> Iterator[UnixListener]:
    """Listen on *path* until left.

    Args:
        path: Where the file is made.
        mode: The file's permissions.
        group: The file's group; None: the one that it gets by itself.
    Raises:
        StartError: Somebody else serves there, or the file cannot be made.
    """
    with UnixListener(path) as listener:
        listener.make(mode, group)
        try:
            yield listener
        finally:
            listener.remove()


def _bind(sock: socket.socket, path: Path, mode: int, group: int | None) -> Identity:
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
        made = _open_up(path, mode, group)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        raise StartError(
            f"socket {path}: it cannot be made ({error.strerror or error}); make its "
            "folder one that this user may write to, or name another with --socket"
        ) from error
    return made


def _open_up(path: Path, mode: int, group: int | None) -> Identity:
    """Let others in at the socket that was just made at *path*; return which it is.

    By a descriptor of its file: in a folder that others may write to, whatever has taken
    its place by now, or a link to a file of root's, must not be given away. The socket's
    own descriptor is of no use, as it is none of the file.
    """
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        made = os.fstat(file)
        if not stat.S_ISSOCK(made.st_mode) or made.st_uid != os.geteuid():
            raise StartError(
                f"socket {path}: another file took its place as it was made; make its "
                "folder one that only this user may write to"
            )
        it = f"/proc/self/fd/{file}"  # chmod(2) and chown(2) take no such descriptor
        if group is not None:
            _give(it, path, group)
        os.chmod(it, mode)  # noqa: PTH101 - it is no path of a file
    finally:
        os.close(file)
    return made.st_dev, made.st_ino


def _give(file: str, path: Path, group: int) -> None:
    try:
        os.chown(file, -1, group)
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
