"""Answers that peers have not read yet: in memory, and spooled to files, bounded in all.

An answer to `list`, and everyone online over HTTP, may be far larger than memory should
hold for a peer that reads slowly, and has to be true at one `seq`: it is written to a
file while one snapshot of the database is open, and sent from there. The file has no
name, so that it is gone with the process or the link.

The log shares the disk, and comes first: spools take no more than a setting says, and no
more than they leave free.
"""

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final, Self

import trio

from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.storage.private_folders import bytes_left

# Spools that are filled at the same time.
AT_ONCE: Final = 2

Fill = Callable[[Callable[[bytes], None]], None]


class SpoolFull(Exception):
    """There is no room for a spool at present.

    Args:
        why: What takes it, and what to do.
        least: Bytes that the spool needs, as far as it was written.
    """

    def __init__(self, why: str, least: int) -> None:
        super().__init__(why)
        self.least = least


class TooLarge(Exception):
    """One spool alone is larger than all together may be."""


class Spool:
    """One answer on disk, in pieces as they were written.

    Args:
        spools: All of them.
    """

    def __init__(self, spools: "Spools") -> None:
        self.size = 0
        self._spools = spools
        self._pieces: deque[int] = deque()
        self._stack = ExitStack()

    def fill(self, fill: Fill, least: int) -> None:
        """Have *fill* write it, in a thread; *least* bytes are needed as far as known."""
        self._spools.check(self, least)
        with ExitStack() as stack:
            file = stack.enter_context(
                TemporaryFile(dir=self._spools.folder, buffering=0)
            )
            fill(partial(self._write, file))
            file.seek(0)
            self._file, self._stack = file, stack.pop_all()

    def _write(self, file: IO[bytes], data: bytes) -> None:
        self._spools.check(self, len(data))
        self.size += len(data)
        self._pieces.append(len(data))
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]

    async def read(self) -> bytes:
        """The next piece; b"" at the end."""
        if not self._pieces:
            return b""
        return await in_thread(partial(self._file.read, self._pieces.popleft()))

    def close(self) -> None:
        """Give the room back."""
        self._stack.close()
        self._spools.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Spools:
    """All spools, and the room that there is for them.

    Args:
        folder: Where the files are.
        most_bytes: All together have at most so many.
    """

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self.is_short = False  # one found no room since this was last looked at
        self._open: set[Spool] = set()
        self._filling = 0
        self._waiting: dict[Notifier, None] = {}

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        # Threads ask, too: a copy is made without letting another thread in.
        return sum(spool.size for spool in tuple(self._open))

    def may_fill(self, wake: Notifier) -> bool:
        """Whether another may be filled now; if not *wake* is rung when to ask again."""
        if self._filling < AT_ONCE:
            return True
        self._waiting[wake] = None
        return False

    async def make(
        self, fill: Fill, *, limiter: trio.CapacityLimiter, least: int = 0
    ) -> Spool:
        """Fill a spool, in a thread; to be closed.

        Args:
            fill: Writes it.
            limiter: Of threads.
            least: Bytes that it needs, as far as that is known.
        Raises:
            SpoolFull: There is none at present.
            TooLarge: There never will be.
            OSError, sqlite3.Error: The disk, or what *fill* met.
        """
        spool = Spool(self)
        self._open.add(spool)
        self._filling += 1
        try:
            await in_thread(partial(spool.fill, fill, least), limiter=limiter)
        except BaseException as error:
            if isinstance(error, SpoolFull):
                self.is_short = True
            spool.close()
            raise
        finally:
            self._filling -= 1
            self._notify()
        return spool

    def check(self, spool: Spool, more: int) -> None:
        """Whether so many bytes more may be written to a spool, by its thread.

        Raises:
            SpoolFull: Not now.
            TooLarge: Never.
        """
        if spool.size + more > self.most_bytes:
            raise TooLarge(
                f"one answer takes more than the {self.most_bytes} bytes that all of them "
                "on disk may; raise limits.max_spool_bytes"
            )
        after = self.bytes + more
        if after > self.most_bytes:
            raise SpoolFull(
                f"other answers take up the {self.most_bytes} bytes that all of them on "
                "disk may; ask again later, or raise limits.max_spool_bytes",
                spool.size + more,
            )
        free = bytes_left(self.folder)
        if free - more < after:
            raise SpoolFull(
                f"{free} bytes are free on the disk of state.dir, and answers may take "
                "half of them, the rest is the log's; make room there, and ask again",
                spool.size + more,
            )

    def closed(self, spool: Spool) -> None:
        """Note that one is gone."""
        self._open.discard(spool)
        self._notify()

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake.notify()


class Unread:
    """What all peers together leave unread.

    Args:
        spools: That on disk.
        most_bytes: In memory: at more who has left some is not read, and who reads
            nothing ends; at twice as much the one that has most.
    """

    def __init__(self, spools: Spools, *, most_bytes: int) -> None:
        self.spools = spools
        self.most_bytes = most_bytes
        self.memory = 0
