"""The clocks file, `stopped`: each user's remaining time over a planned stop.

After a crash only the users that were online are known, and each gets a fresh timeout. A
planned stop also writes how much of its timeout each user has left, how long it has been
silent, and its last event. The file names the log and the newest seq that it belongs to.
The next start deletes it, even if it cannot use it.
"""

import os
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from liveness.core.wheel.restart import Clocks, no_clocks
from liveness.core.wire.framing import decode, encode
from liveness.errors import StateError
from liveness.service.storage.private_folders import open_own, sync_folder

NAME: Final = "stopped"
NEW: Final = f"{NAME}.new"  # while it is written
MODE: Final = 0o600
_VERSION: Final = 3

_log = structlog.get_logger("start")


def write(folder: Path, *, log: str, seq: int, at_ms: int, clocks: Clocks) -> None:
    """Write the file, synced, with the clocks of the wheel.

    A start can use it only if the log ends with *seq*. *at_ms* is now, by the state's
    clock.
    """
    body = encode([column.tobytes() for column in clocks.columns])
    head = encode([_VERSION, log, seq, at_ms])
    path = folder / NEW
    try:
        # An interrupted write may have left it, or another user planted a symlink.
        path.unlink(missing_ok=True)
        created = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(created, "wb") as out:
            os.fchmod(created, MODE)  # whatever the umask is
            out.write(encode([head, body, zlib.crc32(head + body)]))
            out.flush()
            os.fsync(out.fileno())
        path.replace(folder / NAME)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    sync_folder(folder)


@contextmanager
def taken(
    folder: Path, *, logs: Collection[str], seq: int, at_ms: int
) -> Iterator[Clocks]:
    """Use the file in the block, and delete it at its end; an error leaves the file.

    *logs* are the ids that the log has, or had while it ended with *seq*. Gives the
    clocks; empty if there is no file, or it cannot be used for this log and seq.

    Raises:
        StateError: The file cannot be read.
    """
    path = folder / NAME
    packed, clocks = _read(path), no_clocks()
    if packed is None:
        yield clocks
        return
    try:
        stopped_ms, body = _unpack(packed, logs, seq)
        found = no_clocks()._replace(away=max(0.0, (at_ms - stopped_ms) / 1000))
        for column, content in zip(found.columns, decode(body), strict=True):
            column.frombytes(content)
        found.check()
        clocks = found
    except (ValueError, TypeError) as error:
        _log.warning(
            "the file of the last stop is not used; everyone gets a fresh timeout",
            path=str(path),
            error=str(error),
        )
    yield clocks
    path.unlink()
    # Without a sync, a power failure could bring the file back, with outdated clocks.
    sync_folder(folder)


def stopped_at(folder: Path, *, log: str, seq: int) -> int | None:
    """When the sidecar was stopped, by the file; leaves the file in place.

    Returns:
        Milliseconds of the state's clock; None if the sidecar runs or crashed, or the
        file is no use.
    Raises:
        StateError: The file cannot be read.
    """
    packed = _read(folder / NAME)
    try:
        return None if packed is None else _unpack(packed, {log}, seq)[0]
    except (ValueError, TypeError):
        return None  # the next start logs why it cannot use the file


def _read(path: Path) -> bytes | None:
    # Do not follow a symlink, or block on a pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"{path} cannot be read ({error.strerror}); make it readable, or remove it "
            "to give everyone a fresh timeout"
        ) from error


def _unpack(packed: bytes, logs: Collection[str], seq: int) -> tuple[int, bytes]:
    """The time of writing, and the columns, still packed.

    Raises:
        ValueError, TypeError: The file is damaged, or of another version, log or seq.
    """
    head, body, crc = decode(packed)
    version, log, its_seq, stopped_ms = decode(head)
    if zlib.crc32(head + body) != crc or version != _VERSION:
        raise ValueError("it is damaged or of another version")
    if log not in logs or its_seq != seq:
        raise ValueError("it belongs to another log or seq")
    return stopped_ms, body
