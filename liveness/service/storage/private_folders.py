"""Checks that only root and this user can have put a file or folder in place.

The sidecar may run as root. If another user could write to the state folder, a symlink
there in place of one of our files would make the sidecar write elsewhere, and a planted
file would be used at the next start. So the state folder must be writable by its owner
alone, and files in it are opened without following symlinks.

The checks look at owners and permission bits. The folders above the state folder are only
checked for being writable by everyone without a sticky bit: group-writable homes are
common (a umask of 002), and so are volumes that belong to a pod's group. The root of a
mounted volume is not checked: the orchestrator of a container creates it, often with mode
0777, and decides who else can reach it.

One sidecar owns a state folder by two locks: of the folder itself, as a lock file could be
deleted, and of the file `lock` in it, as the folder's content could be moved to another one.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from liveness.errors import StartError, StateError

# The device and inode of a file.
Identity = tuple[int, int]
LOCK: Final = "lock"
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make_own_folder(folder: Path) -> None:
    """Make the state folder, private, if it is missing.

    Raises:
        StartError: Other users could change its content, or replace it.
        OSError: It cannot be made, or is not a folder.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if not _is_ours(found):
        raise StartError(
            f"state directory {folder}: it belongs to user {found.st_uid}; start as that "
            "user, chown it and what is in it, or name another with --state"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StartError(
            f"state directory {folder}: users other than its owner may write to it; "
            "check its content, then chmod go-w it, or name a folder within it with "
            "--state"
        )
    for parent in {*folder.absolute().parents, *folder.resolve().parents}:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not parent.is_mount():
            raise StartError(
                f"state directory {folder}: every user can replace it, as all may write "
                f"to {parent}; chmod o-w that, or name another with --state"
            )


@contextmanager
def locked_folder(folder: Path) -> Iterator[Identity]:
    """Make a state directory if it is missing, and lock it; give the lock's identity.

    Raises:
        StartError: It cannot be used, or another sidecar uses it.
    """
    with ExitStack() as locks:
        try:
            make_own_folder(folder)
            locks.enter_context(_locked(os.open(folder, _FOLDER_FLAGS)))
            lock = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
            locks.enter_context(_locked(lock))
        except BlockingIOError as error:
            raise StartError(
                f"state directory {folder} is in use by another sidecar; stop that "
                "one or name another with --state"
            ) from error
        except OSError as error:
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            reason = "it is not a folder" if is_file else error.strerror
            raise StartError(
                f"state directory {folder}: {reason}; make it a folder that this user "
                "may write to, or name another with --state"
            ) from error
        found = os.fstat(lock)
        yield found.st_dev, found.st_ino


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Lock an open file, or raise BlockingIOError; at the end close it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def check_own(path: Path) -> None:
    """Raise StartError if a file is not regular, or not of this user or root."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _check(path, found)


def check_regular(path: Path) -> None:
    """Raise StateError if a file is not regular; any user may own it."""
    try:
        found = path.lstat()
    except OSError:
        return  # opening the file will fail, with the reason
    if fault := _wrong_type(found):
        raise StateError(
            f"{path} {fault}; it was not read: find out who put it there, then put the "
            "sidecar's own file in its place, or name another --state"
        )


def open_own(path: Path, flags: int) -> int:
    """Open a file of this user or root, or with O_CREAT in *flags* make it, private.

    Raises:
        StartError: As `check_own`.
    """
    check_own(path)
    # A symlink or a pipe may be put there after the check: do not follow it, or block.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        _check(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries, after a rename or a deletion."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bytes_left(folder: Path) -> int:
    """How many bytes this user may still write to the disk of a folder."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def identity(path: Path) -> Identity | None:
    """Device and inode of the file at *path*; None if it is missing or out of reach."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check(path: Path, found: os.stat_result) -> None:
    fault = _wrong_type(found)
    if fault is None and not _is_ours(found):
        fault = f"belongs to user {found.st_uid}"
    if fault is not None:
        raise StartError(
            f"{path} {fault}; it was left alone: find out who put it there, then put the "
            "sidecar's own file in its place, or name another --state"
        )


def _wrong_type(found: os.stat_result) -> str | None:
    if stat.S_ISREG(found.st_mode):
        return None
    return "is a link" if stat.S_ISLNK(found.st_mode) else "is not a regular file"


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in {0, os.geteuid()}
