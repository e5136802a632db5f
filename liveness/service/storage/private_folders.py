"""Folders and files that nobody but root and this user can have put there.

The sidecar may be root. In a folder that another user may write to, a link under a name
that we write would have it write elsewhere, and a file that was put in the place of one
that is open would take its place at the next start. So the state folder has to be ours
alone, and what is in it is opened without following links.

What is looked at are owners and permission bits. Every folder on the way there is looked
at too, though only for being open to all without a sticky bit: group-writable homes are
usual (a umask of 002), and so are volumes of pods that belong to a group. A volume's own
root is passed over: a container gets it as its orchestrator made it, often mode 0777, and
it decides who else has it.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from liveness.errors import StartError, StateError

# Which file it is: its device and inode.
Identity = tuple[int, int]


def make_own_folder(folder: Path) -> None:
    """Make the state folder, private, if it is missing.

    Raises:
        StartError: Others could change what is in it, or put another in its place.
        OSError: It cannot be made, or is no folder.
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
            f"state directory {folder}: others than its owner may write to it; look at "
            "what is in it, then chmod go-w it, or name a folder within it with --state"
        )
    for parent in {*folder.absolute().parents, *folder.resolve().parents}:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not parent.is_mount():
            raise StartError(
                f"state directory {folder}: anybody may put another in its place, as "
                f"{parent} is open to all; chmod o-w that, or name another with --state"
            )


def check_own(path: Path) -> None:
    """Refuse what is at *path* if it is no file of ours; nothing there is fine.

    Raises:
        StartError: It is a link, no regular file, or another user's.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _check(path, found)


def check_regular(path: Path) -> None:
    """Refuse what is at *path* if it is no file by itself, whoever it belongs to.

    Raises:
        StateError: It is a link, or no regular file.
    """
    try:
        found = path.lstat()
    except OSError:
        return  # whoever opens it says why
    if wrong := _wrong_form(found):
        raise StateError(
            f"{path} {wrong}; it was not read: find out who put it there, then put the "
            "sidecar's own file in its place, or name another --state"
        )


def open_own(path: Path, flags: int) -> int:
    """Open a file of ours, or make it, private, where *flags* say so; never a link.

    Raises:
        StartError: It is a link, no regular file, or another user's.
    """
    check_own(path)
    # Should somebody put a link or a pipe there in between, neither is followed.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        _check(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def bytes_left(folder: Path) -> int:
    """What the disk of a folder has left for this user.

    Raises:
        OSError: It cannot be asked.
    """
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def identity(path: Path) -> Identity | None:
    """Which file is at *path*; None if there is none, or none can be reached."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def identities(paths: Iterable[Path]) -> dict[Path, Identity]:
    """Which files these are, of those that there are."""
    found = {path: identity(path) for path in paths}
    return {path: it for path, it in found.items() if it is not None}


def _check(path: Path, found: os.stat_result) -> None:
    wrong = _wrong_form(found)
    if wrong is None and not _is_ours(found):
        wrong = f"belongs to user {found.st_uid}"
    if wrong is not None:
        raise StartError(
            f"{path} {wrong}; it was left alone: find out who put it there, then put the "
            "sidecar's own file in its place, or name another --state"
        )


def _wrong_form(found: os.stat_result) -> str | None:
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    return None if stat.S_ISREG(found.st_mode) else "is no regular file"


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in {0, os.geteuid()}
