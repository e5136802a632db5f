"""The log's high-water mark: how far it was shown, kept outside of the state directory.

A log that has lost its end, or was put back from a copy, would give the same seqs to other
records, and a reader that is further would miss these. The state alone cannot tell. So the
`next` of each commit is also written to a file in the runtime folder, beside the gateways'
socket, before anyone is shown the commit. A log that is not below its mark, on the same
boot of the host, continues what was shown. Without a mark, it may not.

The file is not synced: after a power failure the host has another boot id. It is named by
the log and locked, so that of two copies of a log only one continues it.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from liveness.errors import StartError
from liveness.service.storage.private_folders import open_own

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LINE: Final = re.compile(rb"([0-9a-f-]{36}) ([0-9]{19})\n")
_LINE_BYTES: Final = 36 + 1 + 19 + 1

_log = structlog.get_logger("start")


def mark_of(folder: Path, log: str) -> Path:
    """The file of a log's mark."""
    return folder / f"log-{log}.next"


class HighWaterMark:
    """The mark, in the runtime folder, of the log that this process writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = self._path = folder
        self._file: int | None = None
        self._boot = b""

    def take(self, log: str) -> int | None:
        """Open and lock the mark of a log; return the `next` up to which it was shown.

        None: that is not known, as there was no mark of this boot, or it cannot be used.
        """
        self._path = mark_of(self._folder, log)
        try:
            self._boot = BOOT_ID.read_bytes().strip()
            self._file = open_own(self._path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = _LINE.fullmatch(os.pread(self._file, _LINE_BYTES + 1, 0))
        except BlockingIOError:
            self._lose("another sidecar writes a copy of this log")
        except (StartError, OSError) as error:
            self._lose(str(error))
        else:
            if found is not None and found[1] == self._boot:
                return int(found[2])
        return None

    def raise_to(self, next_seq: int) -> None:
        """Note that the records below *next_seq* are about to be shown."""
        if self._file is None:
            return
        try:
            os.pwrite(self._file, b"%b %019d\n" % (self._boot, next_seq), 0)
        except OSError as error:
            # A mark that is too low would vouch for a log that has lost its end.
            with suppress(OSError):
                self._path.unlink()
            self._lose(str(error))

    def drop(self) -> None:
        """Remove the mark that was taken."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Leave the mark to the next start."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lose(self, why: str) -> None:
        self.close()
        _log.warning(
            "the high-water mark of the log cannot be used: at this start or the next, the "
            "log goes on with another id",
            path=str(self._path),
            error=why,
        )
