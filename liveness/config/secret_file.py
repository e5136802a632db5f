"""Reads a secret from the file that a setting names."""

import os
import stat
from codecs import BOM_UTF8
from pathlib import Path
from typing import Final, NamedTuple

from liveness.errors import StartError

MAX_BYTES: Final = 4_096  # far more than any secret has


class NotReadable(StartError):
    """This user may not read a file; another one may."""


class SecretFile(NamedTuple):
    """The file of a setting, which only its owner and group may read."""

    setting: str
    path: Path
    what: str  # a noun for errors, such as "token"

    def read(self) -> bytes:
        """Its current content.

        Raises:
            StartError: It cannot be read, is open to other users, or is too large.
        """
        try:
            data, mode = self._read()
        except PermissionError as error:
            why = f"cannot be read ({error.strerror}); correct the path or its mode"
            raise NotReadable(str(self.refused(why))) from None
        except OSError as error:
            why = f"cannot be read ({error.strerror}); correct the path or its mode"
            raise self.refused(why) from None
        if not stat.S_ISREG(mode):
            raise self.refused(
                f"is not a regular file; name a file with the {self.what}"
            )
        if mode & 0o007:
            raise self.refused(
                "is open to users other than its owner and group; run chmod o= on it"
            )
        if len(data) > MAX_BYTES:
            raise self.refused(
                f"has more than {MAX_BYTES} bytes; put only the {self.what} there"
            )
        return data.removeprefix(BOM_UTF8)

    def refused(self, why: str) -> StartError:
        """The error about this file."""
        return StartError(f"{self.setting}: {self.path} {why}")

    def _read(self) -> tuple[bytes, int]:
        """Up to one byte more than the longest secret, and the mode of the same file."""
        # O_NONBLOCK: a FIFO or a device must not block the start, or the event loop.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            data = os.read(descriptor, MAX_BYTES + 1) if stat.S_ISREG(mode) else b""
        finally:
            os.close(descriptor)
        return data, mode
