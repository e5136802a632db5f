"""Everyone's clock over a planned stop: one packed file, used once.

After a crash all that is known is who was online, so everyone gets a fresh timeout.
A planned stop knows more: how long each user has been silent, since when, and what
was heard last. It is written beside the database, named after the log's end, and
taken away by the next start, whether that could use it or not.
"""

import os
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from liveness.core.records import Uid
from liveness.core.wheel import Snapshot
from liveness.core.wire import decode, encode
from liveness.errors import StateError

NAME: Final = "stopped"
_VERSION: Final = 1

_log = structlog.get_logger("start")


class Stopped(NamedTuple):
    """One user's clock when the sidecar stopped."""

    session: int
    timeout: float  # the whole one that began at the last event
    remaining: float  # seconds until due
    silence: float  # seconds since the last event
    event: int


class Clocks:
    """Everyone's clock at a stop, kept in columns: a million are a second to read.

    Args:
        uids: Whose.
        away: Seconds since the stop.
    """

    def __init__(self, uids: Sequence[Uid] = (), *, away: float = 0.0) -> None:
        self.sessions = array("q")
        self.timeouts = array("d")
        self.remaining = array("d")
        self.silences = array("d")
        self.events = array("b")
        self._place = dict(zip(uids, range(len(uids)), strict=True))
        self._away = away

    def __len__(self) -> int:
        return len(self._place)

    def fill(self, packs: Sequence[bytes]) -> None:
        """Read the columns, in the order of `Stopped`.

        Raises:
            ValueError: They are not as long as there are uids.
        """
        columns: tuple[array[int] | array[float], ...] = (
            self.sessions,
            self.timeouts,
            self.remaining,
            self.silences,
            self.events,
        )
        for column, pack in zip(columns, packs, strict=True):
            column.frombytes(pack)
            if len(column) != len(self):
                raise ValueError("its columns are of different lengths")

    def get(self, uid: Uid) -> Stopped | None:
        """What was known of *uid*, the time since the stop added to its silence."""
        place = self._place.get(uid)
        if place is None:
            return None
        return Stopped(
            self.sessions[place],
            self.timeouts[place],
            self.remaining[place],
            self.silences[place] + self._away,
            self.events[place],
        )


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
    silence = array("d", (mono - seen for seen in everyone.seen))
    body = encode(
        [
            everyone.uids,
            everyone.sessions.tobytes(),
            everyone.timeouts.tobytes(),
            everyone.remaining.tobytes(),
            silence.tobytes(),
            everyone.events.tobytes(),
        ]
    )
    head = encode([_VERSION, log, seq, wall_ms, zlib.crc32(body)])
    path = folder / f"{NAME}.new"
    try:
        with path.open("wb") as out:
            out.write(encode([head, body]))
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
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        return Clocks()
    except OSError as error:
        raise StateError(
            f"{path} cannot be read ({error.strerror}); make it readable, or remove it "
            "to give everyone a fresh timeout"
        ) from error
    path.unlink()
    # Used twice, after a loss of power, it would take users back to an earlier clock.
    _sync(folder)
    try:
        head, body = decode(packed)
        version, of_log, of_seq, stopped_ms, crc = decode(head)
        if version != _VERSION or zlib.crc32(body) != crc:
            raise ValueError("it is damaged or of another version")
        if (of_log, of_seq) != (log, seq):
            raise ValueError("it belongs to another end of the log")
        uids, *packs = decode(body)
        clocks = Clocks(uids, away=max(0.0, (wall_ms - stopped_ms) / 1000))
        clocks.fill(packs)
    except (ValueError, TypeError) as error:
        _log.warning(
            "the file of the last stop is not used; everyone gets a fresh timeout",
            path=str(path),
            error=str(error),
        )
        return Clocks()
    return clocks


def _sync(folder: Path) -> None:
    """Have what was renamed or removed in *folder* on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
