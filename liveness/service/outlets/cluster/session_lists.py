"""Lists of all sessions of some partitions, true at one seq, packed until they are sent."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgpack

from liveness.core.records import OnlineRow
from liveness.service.outlets.cluster.host_state import CALL_CHANGES
from liveness.service.outlets.cluster.session_changes import Change, Piece, Tally
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.online_list import read_rows


@dataclass(slots=True)
class SessionList:
    """The sessions of one partition, in pieces of the size of a call.

    A session takes some 80 bytes: 2 MB for four partitions of 100,000 users in 16.
    """

    number: int  # `Partition.lists`, as it was made
    tally: Tally
    _pieces: deque[bytes] = field(default_factory=deque)
    _waiting: list[Change] = field(default_factory=list)

    def add(self, change: Change) -> None:
        self._waiting.append(change)
        if len(self._waiting) == CALL_CHANGES:
            self.pack()

    def pack(self) -> None:
        """Pack what was added since."""
        if self._waiting:
            self._pieces.append(msgpack.packb(self._waiting))
            self._waiting.clear()

    def next_piece(self) -> Piece:
        """The next piece; the last one has the tally of the list."""
        packed = self._pieces.popleft() if self._pieces else b"\x90"
        changes = [Change(*fields) for fields in msgpack.unpackb(packed)]
        return Piece(changes, self.tally.reached, None if self._pieces else self.tally)


def make_lists(
    store: LogStore,
    session_of: Callable[[OnlineRow], tuple[int, Change]],
    listed: dict[int, int],
    counted: Sequence[int],
) -> tuple[dict[int, SessionList], dict[int, Tally]]:
    """List the sessions of some partitions, and count those of others, in one scan.

    *session_of* returns the partition of a row, and the session as its change. *listed* has
    the number of each list. Call it in a thread.

    Raises:
        OSError, sqlite3.Error: The disk failed.
    """
    tallies = {partition: Tally(0) for partition in (*listed, *counted)}
    lists = {
        part: SessionList(number, tallies[part]) for part, number in listed.items()
    }

    def take(rows: Sequence[OnlineRow]) -> None:
        for row in rows:
            partition, change = session_of(row)
            if partition in tallies:
                tallies[partition].begin(change.session)
            if partition in lists:
                lists[partition].add(change)

    seq = read_rows(store, take)
    for made in lists.values():
        made.pack()
    for tally in tallies.values():
        tally.reached = seq
    return lists, {partition: tallies[partition] for partition in counted}
