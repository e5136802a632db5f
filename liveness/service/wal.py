"""Does a WAL hide commits?

SQLite reads a WAL up to the first frame whose checksum is wrong, and takes that for the
end: after a crash it is where the last transaction was torn. A frame that was damaged
later looks the same, and all commits behind it would be dropped without a word, and
soon overwritten.

The two can be told apart. A frame's checksum goes on from that of the frame before it,
and a transaction begins only once the one before it is synced. So where a frame goes on
from a commit, that commit was on disk, and whatever lies before it too.

Source: https://sqlite.org/walformat.html
"""

import struct
from array import array
from pathlib import Path
from typing import Final

# Magic number, version, page size, checkpoint; then the salts, and a checksum.
_HEADER: Final = struct.Struct(">16x8s8s")
# Page number, pages after a commit (0: it is none); then the same.
_FRAME: Final = struct.Struct(">4xI8s8s")
_SUMS: Final = struct.Struct(">2I")
_SUMMED_BYTES: Final = 8  # of a frame's head
# Whether it was made, and how many frames it has.
_INDEX: Final = struct.Struct("=12x?3xI")

Sums = tuple[int, int]


def frames_read(index: bytes) -> int | None:
    """How many frames SQLite takes, by the file that it makes beside the WAL.

    None: that is not made yet, or was cut short. Who may not write to it reads without.
    """
    if len(index) < _INDEX.size:
        return None
    is_made, frames = _INDEX.unpack_from(index)
    return int(frames) if is_made else None


def hides_commits(path: Path, *, read: int, page_bytes: int) -> bool:
    """Whether there are commits in a WAL behind the frames that SQLite takes.

    Args:
        path: The WAL.
        read: How many frames it takes.
        page_bytes: The size of a page.
    """
    with path.open("rb", buffering=0) as wal:
        header = wal.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return False
        salts, sums = _HEADER.unpack(header)
        if _sums(header[: -_SUMS.size], (0, 0)) != _SUMS.unpack(sums):
            # Frames of an earlier use have other salts; without a header the first
            # frame says which are of the last.
            salts = wal.read(_FRAME.size)[8:16]
        commit: Sums | None = None
        frame_bytes = _FRAME.size + page_bytes
        at = _HEADER.size + read * frame_bytes
        wal.seek(at)
        while len(head := wal.read(_FRAME.size)) == _FRAME.size:
            pages, own_salts, packed = _FRAME.unpack(head)
            sums = _SUMS.unpack(packed)
            if own_salts != salts:
                commit = None
            elif commit is not None and sums == _sums(
                head[:_SUMMED_BYTES] + wal.read(page_bytes), commit
            ):
                return True
            else:
                commit = sums if pages else None
            at += frame_bytes
            wal.seek(at)
    return False


def _sums(data: bytes, before: Sums) -> Sums:
    """The checksum of whole words, going on from another.

    In this machine's order; of a WAL that one of another order wrote nothing is found.
    """
    words = array("I", data[: len(data) // 8 * 8])
    first, second = before
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second
