"""What a host publishes: the changes of its sessions, and lists of all of them.

A list is true at one seq, and packed until it is sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Tally:
    """How many sessions a host has in a partition, and the sum of their numbers.

    It is counted from the log, apart from what Redis was sent, so that the two can be
    compared.
    """

    reached: int  # every record up to this seq is counted
    sessions: int = 0
    total: int = 0

    def begin(self, session: int) -> None:
        self.sessions += 1
        self.total += session

    def end(self, session: int) -> None:
        self.sessions -= 1
        self.total -= session

    @property
    def answer(self) -> tuple[int, int]:
        return self.sessions, self.total % 2**32


class Piece(NamedTuple):
    """A piece of the list of all sessions, in a partition that asserts them."""

    changes: Sequence[Change]
    seq: int  # the list is true at this seq
    tally: Tally | None = None  # of the whole list, with the last piece


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
