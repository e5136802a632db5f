"""Reads a secret from the file that a setting names."""

import os
import stat
from codecs import BOM_UTF8
from pathlib import Path
from typing import Final

from liveness.errors import StartError

MAX_BYTES: Final = 4_096  # far more than any secret has


def read_secret(setting: str, path: Path, what: str) -> bytes:
    """The content of the file of a setting, which only its owner and group may read.

    *what* is a noun for errors, such as "token".

    Raises:
        StartError: It cannot be read, is open to other users, or is too large.
    """
    try:
        data, mode = _read(path)
    except OSError as error:
        raise StartError(
            f"{setting}: {path} cannot be read ({error.strerror}); correct the path or its "
            "mode"
        ) from None
    why = ""
    if not stat.S_ISREG(mode):
        why = f"is not a regular file; name a file with the {what}"
    elif mode & 0o007:
        why = "is open to users other than its owner and group; run chmod o= on it"
    elif len(data) > MAX_BYTES:
        why = f"has more than {MAX_BYTES} bytes; put only the {what} there"
    if why:
        raise StartError(f"{setting}: {path} {why}")
    return data.removeprefix(BOM_UTF8)


def _read(path: Path) -> tuple[bytes, int]:
    """Up to one byte more than the longest secret, and the mode of the same file."""
    # O_NONBLOCK: a FIFO or a device must not block the start, or the event loop.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        data = os.read(descriptor, MAX_BYTES + 1) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    return data, mode
