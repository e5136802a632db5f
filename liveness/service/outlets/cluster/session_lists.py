"""Lists of all sessions of some partitions, true at one seq, on disk until they are sent."""

from collections.abc import Callable, Sequence

import msgpack
import trio

from liveness.core.records import OnlineRow
from liveness.service.outlets.cluster.host_state import CALL_CHANGES
from liveness.service.outlets.cluster.session_changes import Change, Piece, Tally
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.online_list import read_rows
from liveness.service.storage.spools import Spool, Spools


class SessionList:
    """The sessions of one partition, in pieces of the size of a call."""

    def __init__(self, spool: Spool, tally: Tally, number: int) -> None:
        self.number = number  # `Partition.lists`, as it was made
        self.close = spool.close
        self._spool = spool
        self._tally = tally

    async def next_piece(self) -> Piece:
        """The next piece; the last one has the tally of the list."""
        packed = await self._spool.read()
        changes = [Change(*fields) for fields in msgpack.unpackb(packed or b"\x90")]
        tally = self._tally if self._spool.is_read else None
        return Piece(changes, self._tally.reached, tally)


class SessionLists:
    """Makes the lists, one scan of the online set at a time.

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
        self._limiter = trio.CapacityLimiter(1)

    async def make(
        self, listed: dict[int, int], counted: Sequence[int], offset_ms: int
    ) -> tuple[dict[int, SessionList], dict[int, Tally]]:
        """List the sessions of some partitions, and count those of others, in one scan.

        *listed* has the number of each list. *offset_ms* makes milliseconds of the
        monotonic clock of Unix milliseconds.

        Raises:
            SpoolFull, TooLarge, OSError, sqlite3.Error: The disk has no room, or failed.
        """
        tallies = {partition: Tally(0) for partition in (*listed, *counted)}
        waiting: dict[int, list[Change]] = {partition: [] for partition in listed}

        def fill(spools: Sequence[Spool]) -> None:
            spool_of = dict(zip(listed, spools, strict=True))

            def take(rows: Sequence[OnlineRow]) -> None:
                for row in rows:
                    partition, change = self._session_of(row, offset_ms)
                    if partition in tallies:
                        tallies[partition].begin(change.session)
                    if partition in waiting:
                        waiting[partition].append(change)
                        if len(waiting[partition]) == CALL_CHANGES:
                            write(partition)

            def write(partition: int) -> None:
                spool_of[partition].write(msgpack.packb(waiting[partition]))
                waiting[partition].clear()

            seq = read_rows(self._store, take)
            for partition in waiting:
                if waiting[partition]:
                    write(partition)
            for tally in tallies.values():
                tally.reached = seq

        spools = await self._spools.make_all(len(listed), fill, self._limiter)
        lists = {
            partition: SessionList(spool, tallies[partition], number)
            for (partition, number), spool in zip(listed.items(), spools, strict=True)
        }
        return lists, {partition: tallies[partition] for partition in counted}
