"""The locks by which one sidecar owns a state directory.

A sidecar locks the directory itself, as a lock file could be deleted, and the file `lock`
in it, as the directory's content could be moved to another one.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from liveness.errors import StartError
from liveness.service.storage.private_folders import (
    Identity,
    make_own_folder,
    open_own,
)

LOCK: Final = "lock"
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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
