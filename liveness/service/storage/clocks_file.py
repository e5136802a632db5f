"""Everyone's clock over a planned stop: one packed file, used once.

After a crash all that is known is who was online, so everyone gets a fresh timeout.
A planned stop knows more: how long each user has been silent, since when, and what
was heard last. It is written beside the database, named after the log's end, and
taken away by the next start, whether that could use it or not.
"""

# array.array cannot be subscripted when it runs, before Python 3.12.
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
NEW: Final = f"{NAME}.new"  # until it is whole
_VERSION: Final = 3

_log = structlog.get_logger("start")


class Clocks:
    """Everyone's clock at a stop, in order of their sessions.

    In columns, as there may be a million: session, whole timeout, seconds left of it,
    seconds of silence, index of the last event.
    """

    def __init__(self, packs: Sequence[bytes] = (), *, away: float = 0.0) -> None:
        """Read the columns; *away* is the seconds since the stop, a silence of all.

        Raises:
            ValueError: They are of different lengths.
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
        seq: Its newest record; the file is good for exactly this end of it.
        mono: Monotonic seconds now.
        wall_ms: Unix milliseconds now.
        everyone: The wheel's snapshot.
    """
    silences = array("d", (mono - seen for seen in everyone.seen))
    columns = (
        everyone.sessions, everyone.timeouts, everyone.remaining, silences,
        everyone.events,
    )  # fmt: skip
    # Nearly in order already: the wheel keeps users much as they came.
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
        # Left by a write that was interrupted, or a link that somebody put there.
        path.unlink(missing_ok=True)
        made = _open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(made, "wb") as out:
            out.write(encode([head, body, zlib.crc32(head + body)]))
            out.flush()
            os.fsync(out.fileno())
        path.replace(folder / NAME)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    _sync(folder)


def take(folder: Path, *, log: str, seq: int, wall_ms: int) -> Clocks:
    """Read the file and remove it.

    Returns:
        What was known at the stop; nothing if there is no file, or none for this end
        of this log.
    """
    path = folder / NAME
    packed = _packed(path)
    if packed is None:
        return Clocks()
    path.unlink()
    # Used twice, after a loss of power, it would take users back to an earlier clock.
    _sync(folder)
    try:
        stopped_ms, body = _opened(packed, log, seq)
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
    """When the sidecar was stopped that wrote this end of this log; the file stays.

    Returns:
        Unix milliseconds; None if it runs, or ended without being able to say so.
    Raises:
        StateError: The file cannot be read.
    """
    packed = _packed(folder / NAME)
    if packed is None:
        return None
    try:
        return _opened(packed, log, seq)[0]
    except (ValueError, TypeError):
        return None  # the next start says why it is of no use


def is_whole(folder: Path) -> bool | None:
    """Whether the file is as it was written; None if there is none."""
    packed = _packed(folder / NAME)
    if packed is None:
        return None
    try:
        _parts(packed)
    except (ValueError, TypeError):
        return False
    return True


def _packed(path: Path) -> bytes | None:
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
    """Open a file, a new one for us alone; wait for nobody at the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def _opened(packed: bytes, log: str, seq: int) -> tuple[int, bytes]:
    """When it was written, and the clocks, still packed.

    Raises:
        ValueError: It is of no use for this end of this log.
    """
    of_log, of_seq, stopped_ms, body = _parts(packed)
    if (of_log, of_seq) != (log, seq):
        raise ValueError("it belongs to another end of the log")
    return stopped_ms, body


def _parts(packed: bytes) -> tuple[str, int, int, bytes]:
    """The log, its newest record, when it was written, and the clocks, still packed.

    Raises:
        ValueError, TypeError: It is not as it was written.
    """
    head, body, crc = decode(packed)
    if zlib.crc32(head + body) != crc:
        raise ValueError("it is damaged or of another version")
    version, log, seq, stopped_ms = decode(head)
    if version != _VERSION:
        raise ValueError("it is of another version")
    return log, seq, stopped_ms, body


def _sync(folder: Path) -> None:
    """Have what was renamed or removed in *folder* on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
