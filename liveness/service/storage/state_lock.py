"""The locks by which a sidecar owns a state directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# A sidecar locks two: the state directory, which cannot go without the state, and in it
# a file, which goes along where only what is in the directory is moved.
LOCK: Final = "lock"
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def is_in_use(folder: Path) -> bool:
    """Whether a sidecar has a state directory open, as far as this user may see."""
    lock_flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for path, flags in ((folder, _FOLDER_FLAGS), (folder / LOCK, lock_flags)):
        try:
            with _locked(os.open(path, flags), fcntl.LOCK_SH):
                pass
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            pass  # there is none that a sidecar could have locked
    return False


@contextmanager
def _locked(descriptor: int, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Lock a file, or raise BlockingIOError; it is closed in the end."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
