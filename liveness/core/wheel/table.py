"""The memory under the wheel: users in columns, linked into lists by their places.

There is no object per user: a user is a place, the same in every column. So the garbage
collector has nothing to walk, however many there are. Lists are circular and doubly
linked. A list is identified by its sentinel, a place without a user; the sentinel's
`count` is the length. Moving a user takes constant time.

Only the wheel uses this, and reads and writes the columns directly.
"""

# array.array cannot be subscripted when it runs, before Python 3.12.
from __future__ import annotations

from array import array
from typing import Final, NamedTuple, TypeAlias

from liveness.core.records import Uid, identity

NO_CONN: Final = -1

# Bits of a user's flags.
OWN_TIMEOUT: Final = 1  # the timeout came with its login; its gateway's does not apply
RENEWED: Final = 2  # has a fresh timeout after a hold, and no event since
EXACT_START: Final = 4  # `start` does not depend on when a login was read

# New places are made this many at a time, few enough to make no noticeable pause.
GROWTH: Final = 4096


# How many characters of a uid are its user (0: all), and how many devices of that user are
# online.
UserDevices: TypeAlias = tuple[int, int] | tuple[None, None]
NOT_COUNTED: Final[UserDevices] = (None, None)


class Silences(NamedTuple):
    """How long a gateway's users were silent before an event, since the start."""

    seconds: float  # their sum
    squares: float  # the sum of their squares


NO_SILENCES: Final = Silences(0.0, 0.0)


class Entry(NamedTuple):
    """A copy of what the table has of one user."""

    uid: Uid
    gateway: int
    session: int
    conn: int | None
    start: float  # monotonic: when the session's connection began
    timeout: float
    deadline: float  # attended
    seen: float  # monotonic: when the last event was received
    event: int  # index into `records.EVENTS`; 0 when restored unheard
    flags: int
    user_devices: UserDevices = NOT_COUNTED  # after a removal, those that are left


# The same as a plain tuple, without `user_devices`: a restart makes a million of them.
EntryFields: TypeAlias = tuple[
    Uid, int, int, int | None, float, float, float, float, int, int
]


class Table:
    """Columns of users, and the lists that they are in."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}  # by the identity of the uid
        self.uid: list[Uid | None] = []
        self.deadline = array("d")
        self.timeout = array("d")
        self.seen = array("d")
        self.start = array("d")
        self.session = array("q")
        self.conn = array("q")
        self.gateway = array("i")
        self.event = array("b")
        self.flags = array("b")
        self.next = array("i")
        self.prev = array("i")
        self.list = array("i")
        self.count = array("i")
        self._free = array("i")

    def add(self, fields: EntryFields) -> int:
        """Add a user, in no list yet; return its place."""
        entry, place = Entry(*fields), self._take()
        self.index[identity(entry.uid)] = place
        self.uid[place] = entry.uid
        self.gateway[place] = entry.gateway
        self.session[place] = entry.session
        self.conn[place] = NO_CONN if entry.conn is None else entry.conn
        self.start[place] = entry.start
        self.timeout[place] = entry.timeout
        self.deadline[place] = entry.deadline
        self.seen[place] = entry.seen
        self.event[place] = entry.event
        self.flags[place] = entry.flags
        return place

    def remove(self, place: int) -> Entry:
        """Remove a user, also from its list; return its entry."""
        entry = self.entry(place)
        del self.index[identity(entry.uid)]
        self._unlink(place)
        self.uid[place] = None
        self._free.append(place)
        return entry

    def entry(self, place: int) -> Entry:
        uid, conn = self.uid[place], self.conn[place]
        assert uid is not None
        return Entry(
            uid,
            self.gateway[place],
            self.session[place],
            None if conn == NO_CONN else conn,
            self.start[place],
            self.timeout[place],
            self.deadline[place],
            self.seen[place],
            self.event[place],
            self.flags[place],
        )

    def new_list(self) -> int:
        place = self._take()
        self.next[place] = self.prev[place] = place
        self.count[place] = 0
        return place

    def drop_list(self, sentinel: int) -> None:
        self._free.append(sentinel)

    def append(self, place: int, sentinel: int) -> None:
        last = self.prev[sentinel]
        self.next[last] = place
        self.prev[place] = last
        self.next[place] = sentinel
        self.prev[sentinel] = place
        self.list[place] = sentinel
        self.count[sentinel] += 1

    def move(self, place: int, sentinel: int) -> None:
        self._unlink(place)
        self.append(place, sentinel)

    def _unlink(self, place: int) -> None:
        before, after = self.prev[place], self.next[place]
        self.next[before] = after
        self.prev[after] = before
        self.count[self.list[place]] -= 1

    def _take(self) -> int:
        if not self._free:
            first = len(self.uid)
            self.uid.extend([None] * GROWTH)
            for double in (self.deadline, self.timeout, self.seen, self.start):
                double.frombytes(bytes(8 * GROWTH))
            for wide in (self.session, self.conn):
                wide.frombytes(bytes(8 * GROWTH))
            for narrow in (self.gateway, self.next, self.prev, self.list, self.count):
                narrow.frombytes(bytes(4 * GROWTH))
            for small in (self.event, self.flags):
                small.frombytes(bytes(GROWTH))
            self._free.extend(range(first + GROWTH - 1, first - 1, -1))
        return self._free.pop()
