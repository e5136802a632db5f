"""What a host publishes: the changes of its sessions, and lists of all of them.

A list is true at one seq, and packed until it is sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgpack

from liveness.cluster.format import Place, ending_bytes, place_bytes, session_bytes
from liveness.core.records import OnlineRow
from liveness.service.outlets.cluster.host_state import CALL_CHANGES
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.online_list import read_rows


class Change(NamedTuple):
    """A session that began or ended on this host, for its partition."""

    seq: int
    field: bytes  # of the user
    device: str  # what follows the user in the uid
    session: int
    gateway: str  # as it is stored: see `gateway_of`
    at: int  # milliseconds of this process' monotonic clock
    reason: str
    has_ended: bool = False


class Call(NamedTuple):
    """A call of a function of the library, for the keys of one partition."""

    function: str
    args: list[str | int | bytes]
    last: int = 0  # apply, beat: the seq that it ends with
    changes: int = 0
    listing: "SessionList | None" = None  # assert: whose piece it has


def packed_changes(
    changes: Sequence[Change],
    host: str,
    incarnation: int,
    *,
    clock_ms: int,
    now_ms: int,
) -> list[bytes]:
    """The arguments that name changes: all users, all values, all records.

    *clock_ms* is the partition's clock; *now_ms* is now, as `Change.at`.
    """
    values, bodies = list[bytes](), list[bytes]()
    for change in changes:
        _, field, device, session, gateway, at, reason, has_ended = change
        since = 0
        if has_ended:
            values.append(ending_bytes(session))
        else:
            # 0: the partition's clock had not begun.
            since = max(clock_ms - max(now_ms - at, 0), 0)
            value = session_bytes(
                incarnation, session, since, gateway.encode(), device.encode()
            )
            values.append(value)
        place = Place(field.decode(), host, gateway, session, since, reason, device)
        bodies.append(place_bytes(place))
    return [*(change.field for change in changes), *values, *bodies]


class SessionList:
    """The sessions of one partition, in pieces of the size of a call.

    A session takes some 80 bytes: 2 MB for four partitions of 100,000 users in 16.
    """

    def __init__(self) -> None:
        self.reached = 0  # the list is true at this seq of the log
        self._pieces = deque[bytes]()
        self._waiting = list[Change]()

    def add(self, change: Change) -> None:
        self._waiting.append(change)
        if len(self._waiting) == CALL_CHANGES:
            self.pack()

    def pack(self) -> None:
        if self._waiting:
            self._pieces.append(msgpack.packb(self._waiting))
            self._waiting.clear()

    @property
    def piece(self) -> list[Change]:
        """The first of those that Redis does not have; empty if there are no sessions."""
        packed = self._pieces[0] if self._pieces else b"\x90"
        return [Change(*fields) for fields in msgpack.unpackb(packed)]

    @property
    def is_last(self) -> bool:
        return len(self._pieces) <= 1

    def drop_piece(self) -> None:
        if self._pieces:
            self._pieces.popleft()


def make_lists(
    store: LogStore,
    session_of: Callable[[OnlineRow], tuple[int, Change]],
    listed: Sequence[int],
) -> dict[int, SessionList]:
    """List the sessions of some partitions, in one scan.

    *session_of* returns the partition of a row, and the session as its change. Call it in a
    thread.

    Raises:
        OSError, sqlite3.Error: The disk failed.
    """
    lists = {partition: SessionList() for partition in listed}

    def take(rows: Sequence[OnlineRow]) -> None:
        for row in rows:
            partition, change = session_of(row)
            if partition in lists:
                lists[partition].add(change)

    seq = read_rows(store, take)
    for made in lists.values():
        made.pack()
        made.reached = seq
    return lists
