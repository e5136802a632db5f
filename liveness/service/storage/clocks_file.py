"""The clocks file, `stopped`: each user's remaining time over a planned stop.

After a crash only the users that were online are known, and each gets a fresh timeout. A
planned stop also writes how much of its timeout each user has left, how long it has been
silent, and its last event. The file names the log and the newest seq that it belongs to.
The next start deletes it, even if it cannot use it.
"""

# array.array cannot be subscripted at run time before Python 3.12.
from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from liveness.core.framing import decode, encode
from liveness.core.records import Stopped
from liveness.core.wheel import Snapshot
from liveness.errors import StateError

NAME: Final = "stopped"
NEW: Final = f"{NAME}.new"  # while it is written
MODE: Final = 0o600
_VERSION: Final = 3

_log = structlog.get_logger("start")


class Clocks:
    """Each user's clock at a stop, in the order of their sessions.

    Stored in columns, as there may be a million users: session, timeout in seconds,
    seconds left of it, seconds of silence, index of the last event.
    """

    def __init__(self, packs: Sequence[bytes] = (), *, away: float = 0.0) -> None:
        """Unpack the columns; add *away*, the seconds since the stop, to each silence.

        Raises:
            ValueError: The columns are of different lengths.
        """
        columns: list[array[Any]] = [array(code) for code in "qdddb"]
        for column, pack in zip(columns, packs, strict=bool(packs)):
            column.frombytes(pack)
        self.sessions, self.timeouts, self.remaining, silences, self.events = columns
        self.silences = array("d", (silence + away for silence in silences))
        if any(len(column) != len(self) for column in columns):
            raise ValueError("its columns are of different lengths")

    def __len__(self) -> int:
        return len(self.sessions)

    def __iter__(self) -> Iterator[Stopped]:
        return zip(
            self.sessions, self.timeouts, self.remaining, self.silences, self.events,
            strict=True,
        )  # fmt: skip


def write(
    folder: Path, *, log: str, seq: int, mono: float, wall_ms: int, everyone: Snapshot
) -> None:
    """Write the file, synced.

    Args:
        folder: The state directory.
        log: The log's id.
        seq: Its newest record. A start can use the file only if the log ends there.
        mono: Monotonic seconds now.
        wall_ms: Unix milliseconds now.
        everyone: The wheel's snapshot.
    """
    silences = array("d", (mono - seen for seen in everyone.seen))
    columns = (
        everyone.sessions, everyone.timeouts, everyone.remaining, silences,
        everyone.events,
    )  # fmt: skip
    # Nearly sorted already, as the wheel's order is close to that of the logins.
    order = sorted(range(len(silences)), key=everyone.sessions.__getitem__)
    body = encode(
        [
            array(column.typecode, map(column.__getitem__, order)).tobytes()
            for column in columns
        ]
    )
    head = encode([_VERSION, log, seq, wall_ms])
    path = folder / NEW
    try:
        # An interrupted write may have left it, or another user planted a symlink.
        path.unlink(missing_ok=True)
        created = _open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(created, "wb") as out:
            os.fchmod(created, MODE)  # whatever the umask is
            out.write(encode([head, body, zlib.crc32(head + body)]))
            out.flush()
            os.fsync(out.fileno())
        path.replace(folder / NAME)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    _sync(folder)


def take(folder: Path, *, log: str, seq: int, wall_ms: int) -> Clocks:
    """Read the file and delete it.

    Returns:
        The clocks; empty if there is no file, or it cannot be used for this log and seq.
    Raises:
        StateError: The file cannot be read.
    """
    path = folder / NAME
    packed = _read(path)
    if packed is None:
        return Clocks()
    path.unlink()
    # Without a sync, a power failure could bring the file back, with outdated clocks.
    _sync(folder)
    try:
        stopped_ms, body = _unpack_for(packed, log, seq)
        clocks = Clocks(decode(body), away=max(0.0, (wall_ms - stopped_ms) / 1000))
    except (ValueError, TypeError) as error:
        _log.warning(
            "the file of the last stop is not used; everyone gets a fresh timeout",
            path=str(path),
            error=str(error),
        )
        return Clocks()
    return clocks


def stopped_at(folder: Path, *, log: str, seq: int) -> int | None:
    """When the sidecar was stopped, by the file; leaves the file in place.

    Returns:
        Unix milliseconds; None if the sidecar runs or crashed, or the file is no use.
    Raises:
        StateError: The file cannot be read.
    """
    packed = _read(folder / NAME)
    if packed is None:
        return None
    try:
        return _unpack_for(packed, log, seq)[0]
    except (ValueError, TypeError):
        return None  # the next start logs why it cannot use the file


def is_whole(folder: Path) -> bool | None:
    """Whether the file is undamaged; None if there is none."""
    packed = _read(folder / NAME)
    if packed is None:
        return None
    try:
        _unpack(packed)
    except (ValueError, TypeError):
        return False
    return True


def _read(path: Path) -> bytes | None:
    try:
        with os.fdopen(_open_no_link(path, os.O_RDONLY), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"{path} cannot be read ({error.strerror}); make it readable, or remove it "
            "to give everyone a fresh timeout"
        ) from error


def _open_no_link(path: Path, flags: int) -> int:
    """Open or create a private file; do not follow a symlink, or block on a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, MODE)


def _unpack_for(packed: bytes, log: str, seq: int) -> tuple[int, bytes]:
    """The time of writing, and the columns; ValueError if of another log or seq."""
    its_log, its_seq, stopped_ms, body = _unpack(packed)
    if (its_log, its_seq) != (log, seq):
        raise ValueError("it belongs to another log or seq")
    return stopped_ms, body


def _unpack(packed: bytes) -> tuple[str, int, int, bytes]:
    """The log's id, its newest seq, the time of writing, and the columns, still packed.

    Raises:
        ValueError, TypeError: The file is damaged, or of another version.
    """
    head, body, crc = decode(packed)
    if zlib.crc32(head + body) != crc:
        raise ValueError("it is damaged or of another version")
    version, log, seq, stopped_ms = decode(head)
    if version != _VERSION:
        raise ValueError("it is of another version")
    return log, seq, stopped_ms, body


def _sync(folder: Path) -> None:
    """Sync a folder's entries, after a rename or a deletion."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
