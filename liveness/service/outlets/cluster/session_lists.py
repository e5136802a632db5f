"""Lists of all sessions of some partitions, true at one seq, on disk until they are sent."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgpack
import trio

from liveness.core.records import OnlineRow
from liveness.service.outlets.cluster.session_changes import (
    CALL_CHANGES,
    Change,
    Piece,
    Tally,
)
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.spools import Spool, Spools

# One scan of the online set at a time.
SCANS: Final = 1


class SessionList:
    """The sessions of one partition, in pieces of the size of a call."""

    def __init__(self, spool: Spool, tally: Tally) -> None:
        self._spool = spool
        self._tally = tally

    async def next_piece(self) -> Piece:
        """The next piece; the last one has the tally of the list."""
        packed = await self._spool.read()
        changes = [Change(*fields) for fields in msgpack.unpackb(packed or b"\x90")]
        tally = self._tally if self._spool.is_read else None
        return Piece(changes, self._tally.reached, tally)

    def close(self) -> None:
        """Remove it from disk."""
        self._spool.close()


class SessionLists:
    """Makes the lists.

    *session_of* returns the partition of a row, and the session as its change.
    """

    def __init__(
        self,
        store: LogStore,
        spools: Spools,
        session_of: Callable[[OnlineRow, int], tuple[int, Change]],
    ) -> None:
        self._store = store
        self._spools = spools
        self._session_of = session_of
        self._limiter = trio.CapacityLimiter(SCANS)

    async def make(
        self, listed: Sequence[int], counted: Sequence[int], offset_ms: int
    ) -> tuple[dict[int, SessionList], dict[int, Tally]]:
        """List the sessions of some partitions, and count those of others, in one scan.

        *offset_ms* makes milliseconds of the monotonic clock of Unix milliseconds.

        Raises:
            SpoolFull, TooLarge, OSError, sqlite3.Error: The disk has no room, or failed.
        """
        tallies = {number: Tally(0) for number in (*listed, *counted)}
        waiting: dict[int, list[Change]] = {number: [] for number in listed}

        def fill(spools: Sequence[Spool]) -> None:
            spool_of = dict(zip(listed, spools, strict=True))

            def take(rows: Sequence[OnlineRow]) -> None:
                for number, change in self._of_interest(rows, tallies, offset_ms):
                    if number in waiting:
                        waiting[number].append(change)
                        if len(waiting[number]) == CALL_CHANGES:
                            spool_of[number].write(msgpack.packb(waiting[number]))
                            waiting[number].clear()

            seq = self._store.read_online(take)
            for number, changes in waiting.items():
                if changes:
                    spool_of[number].write(msgpack.packb(changes))
            for tally in tallies.values():
                tally.reached = seq

        spools = await self._spools.make_all(len(listed), fill, limiter=self._limiter)
        lists = {
            number: SessionList(spool, tallies[number])
            for number, spool in zip(listed, spools, strict=True)
        }
        return lists, {number: tallies[number] for number in counted}

    def _of_interest(
        self, rows: Sequence[OnlineRow], tallies: dict[int, Tally], offset_ms: int
    ) -> Iterator[tuple[int, Change]]:
        for row in rows:
            number, change = self._session_of(row, offset_ms)
            if number in tallies:
                tallies[number].begin(change.session)
                yield number, change
