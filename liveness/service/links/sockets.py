"""Listening Unix sockets: made with strict permissions, checked, and removed at a stop.

At a stop, a socket file that the sidecar made is removed, unless it was replaced; one
that systemd made stays. While the sidecar runs, `is_reachable` says whether a path still
leads to its socket, and `rebind` binds the socket there again.
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

from liveness.errors import ConfigError, StartError
from liveness.service.storage.private_folders import Identity, identity

SOCKET_MODE: Final = 0o660
# All gateways reconnect at once after a restart.
BACKLOG: Final = 512


class UnixListener(socket.socket):
    """A listening Unix socket, and its file, at the *path* where clients look for it.

    *fileno* is the descriptor of a socket that systemd made.
    """

    def __init__(self, path: Path, *, fileno: int | None = None) -> None:
        if fileno is None:
            super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            super().__init__(fileno=fileno)
        self.path = path
        self._is_inherited = fileno is not None
        self._mode = SOCKET_MODE
        self._group: int | None = None
        self._file: Identity | None = None

    def make(self, mode: int, group: int | None) -> None:
        """Make its file, and listen.

        Raises:
            StartError: Another process serves there, or the file cannot be made.
        """
        self._mode, self._group = mode, group
        self._file = _bind(self, self.path, mode, group)

    def found(self) -> None:
        """Take the file at its path as its own."""
        self._file = identity(self.path)

    def is_reachable(self) -> bool:
        return self._file is not None and identity(self.path) == self._file

    def rebind(self) -> None:
        """Bind to its path again, as at the start; open links stay.

        The object and its descriptor stay the same, so a waiting `accept` keeps waiting.

        Raises:
            StartError: Another process serves there, the file cannot be made, or systemd
                made the socket.
        """
        if self._is_inherited:
            raise StartError(
                f"socket {self.path}: its file was removed or replaced, so nobody can "
                "connect; restart its unit: systemctl restart liveness.socket"
            )
        make_socket_folder(self.path)
        with UnixListener(self.path) as successor:
            successor.make(self._mode, self._group)
            trio.lowlevel.notify_closing(self)
            os.dup2(successor.fileno(), self.fileno(), inheritable=False)
            self._file = successor._file

    def remove(self) -> None:
        if self.is_reachable():
            self.path.unlink(missing_ok=True)


@contextmanager
def listening(
    path: Path, *, mode: int = SOCKET_MODE, group: int | None = None
) -> Iterator[UnixListener]:
    """Listen on *path* until the block is left; a file without a group has its folder's.

    Raises:
        StartError: Another process serves there, or the file cannot be made.
    """
    with UnixListener(path) as listener:
        listener.make(mode, group)
        try:
            yield listener
        finally:
            listener.remove()


def _bind(sock: socket.socket, path: Path, mode: int, group: int | None) -> Identity:
    """Bind and listen; return the identity of the new file."""
    try:
        _clear_stale(path)
        # The file is made without access for other users, so none can connect too early.
        # Then `_open_up` gives the group access.
        previous = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(previous)
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
    """Set group and mode of the socket file just made; return its identity.

    This uses a descriptor of the file: in a folder where others may write, the path may
    now lead to another file, even one of root, whose access must not change. The socket's
    own descriptor does not refer to the file.
    """
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        made = os.fstat(file)
        if not stat.S_ISSOCK(made.st_mode) or made.st_uid != os.geteuid():
            raise StartError(
                f"socket {path}: another file took its place as it was made; make its "
                "folder one that only this user may write to"
            )
        by_descriptor = f"/proc/self/fd/{file}"  # fchmod(2) and fchown(2) refuse O_PATH
        if group is not None:
            _set_group(by_descriptor, path, group)
        os.chmod(by_descriptor, mode)  # noqa: PTH101 - a descriptor, no path
    finally:
        os.close(file)
    return made.st_dev, made.st_ino


def _set_group(file: str, path: Path, group: int) -> None:
    try:
        os.chown(file, -1, group)
    except PermissionError:
        path.unlink(missing_ok=True)
        raise StartError(
            f"socket {path}: it cannot be given to group {group}, as this process is not "
            "a member; make it one, or correct socket.group"
        ) from None


def _clear_stale(path: Path) -> None:
    """Remove the socket file of a process that no longer runs."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StartError(
            f"socket {path}: there is a file that is not a socket; it was left alone, "
            "name another with --socket"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        result = probe.connect_ex(str(path))
    # Other errors, as EAGAIN (full backlog) and EACCES, mean that a process listens.
    if result not in (errno.ECONNREFUSED, errno.ENOENT):
        raise StartError(
            f"socket {path}: another process serves there; stop it or name another "
            "with --socket"
        )
    path.unlink(missing_ok=True)


def make_socket_folder(path: Path) -> None:
    """Make the folder of the socket at *path*, if its parent exists.

    The folder of root is open to all: its gateways run as other users, and the mode of
    the socket restricts access. Any other user's folder is private.

    Raises:
        ConfigError: It cannot be made.
    """
    folder = path.parent
    # Not by chmod afterwards: by then another folder may be at this path.
    before = os.umask(0o022)
    try:
        folder.mkdir(mode=0o700 if os.geteuid() else 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        message = f"{folder}: the socket's folder cannot be made ({error.strerror})"
        raise ConfigError(f"{message}; make it, or name another by --socket") from None
    finally:
        os.umask(before)
