"""Which users have gone silent? The layered timing wheel in pure Python.

Each user is an entry, which waits in the list of its deadline: a bucket of at most 10 ms,
or a slot of one of the layers above (`wheel_layers`). Every event moves it to the list of
its new deadline, in constant time.

When a bucket has passed, its entries move to their gateway's *due list*. There they wait
until `fire` ends their sessions or an event moves them away; the caller decides when to
`fire`. Users that `renew` has given a fresh timeout wait on a second due list, as other
rules hold for them.

The wheel has no clock: the caller passes `now` in attended seconds, which never goes
back. Entries and lists live in a `Table`, not in objects.

Always true between calls:
    1. an entry is in exactly one list: a bucket, a slot, a detached list, or a due list
       of its gateway;
    2. an entry on a due list has a deadline strictly before the last `now`;
    3. a slot's list holds entries of one revolution only.

`wheel` has what users and gateways report, and the records. `_timing_wheel.pyx` does
the same as this module, compiled. A test compares the two step by step.
"""

# array.array cannot be subscripted when it runs, before Python 3.12.
from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator
from math import inf
from typing import Final

from liveness.core.records import Uid, identity
from liveness.core.wheel.devices import Devices
from liveness.core.wheel.restart import Clocks
from liveness.core.wheel.table import (
    NOT_COUNTED,
    RENEWED,
    Entry,
    EntryFields,
    Table,
    UserDevices,
)
from liveness.core.wheel.wheel_layers import Layers

# An offline is promised within 50 ms at the 99th percentile. A bucket of 10 leaves 40 for
# the event loop; finer ones would wake the process more often for nothing.
BUCKET_S: Final = 0.010

# A slot of more buckets than this is divided by further layers: otherwise a timeout of a
# day would need a hundred thousand buckets.
MAX_BUCKETS_PER_SLOT: Final = 500

# No deadline is further ahead than this: 400 days, for timers of up to 366.
HORIZON_S: Final = 400 * 86_400


class TimingWheel:
    """Entries by their deadlines, and the lists of those that are due.

    Args:
        timeout: Seconds of one revolution of the ring.
        slots: Slots of the ring and of each layer above, 2 to 3,600.
        now: Attended seconds at the start.
        separator: Separates a device from its user in a uid (see `devices`); "": the
            devices of users are not counted.
    """

    def __init__(
        self, *, timeout: float, slots: int, now: float = 0.0, separator: str = ""
    ) -> None:
        self.slots = slots
        width_s, ring = timeout / slots, 0
        while width_s > MAX_BUCKETS_PER_SLOT * BUCKET_S and width_s / slots >= BUCKET_S:
            width_s /= slots
            ring += 1
        per_slot = max(1, round(width_s / BUCKET_S + 0.499))
        self.bucket_s = width_s / per_slot
        self._table = Table()
        self._devices = Devices(separator) if separator else None
        self._layers = Layers(
            self._table,
            slots=slots,
            per_slot=per_slot,
            bucket_s=self.bucket_s,
            ring=ring,
            origin=now,
            horizon_s=HORIZON_S,
        )
        # Two lists of each gateway, from twice its number on: not renewed, and renewed.
        self._due: list[int] = []
        self._waiting: dict[int, None] = {}  # gateways that may have due users

    def __len__(self) -> int:
        return len(self._table.index)

    # --- entries ---------------------------------------------------------------

    def add_gateway(self) -> int:
        self._due += [self._table.new_list(), self._table.new_list()]
        return len(self._due) // 2 - 1

    def find(self, uid: Uid) -> Entry | None:
        place = self._table.index.get(identity(uid))
        if place is None:
            return None
        entry = self._table.entry(place)
        if self._devices is None:
            return entry
        return entry._replace(user_devices=self._devices.count(uid))

    def devices_of(self, user: Uid, limit: int) -> list[Uid]:
        """Return the uids of a user's devices, at most *limit*, the oldest login first.

        Without a separator there are none.
        """
        return [] if self._devices is None else self._devices.of(user, limit)

    @property
    def users(self) -> int:
        """How many users have a device online; without a separator, how many uids."""
        return len(self) if self._devices is None else len(self._devices)

    def put(self, entry: EntryFields) -> UserDevices:
        """Add the entry of a uid that has none; return the devices of its user."""
        place = self._table.add(entry)
        self._table.append(place, self._current_list(place))
        return NOT_COUNTED if self._devices is None else self._devices.add(entry[0])

    def close(self, uid: Uid) -> Entry:
        """End the session of *uid*, which has one; return its entry."""
        return self._remove(self._table.index[identity(uid)])

    # --- the hand -------------------------------------------------------------

    def advance(self, now: float, steps: int) -> None:
        """Move the hand to *now*, and users that came due to the due lists.

        Args:
            now: Attended seconds, never lower than before.
            steps: How many entries of passed buckets to move, and how many to cascade.
                The next call does what is left over.
        """
        layers = self._layers
        layers.detach(now)
        self._cascade(layers.passed, steps)
        for queue in layers.cascading:
            # The lowest layer first: its entries come due soonest.
            steps = self._cascade(queue, steps)

    def next_due(self) -> float:
        """The attended moment at which `advance` will next have something to do."""
        return self._layers.next_due()

    def waiting(self) -> list[int]:
        """Return the numbers of the gateways that have due users, in a stable order."""
        self._waiting = {number: None for number in self._waiting if self.due(number)}
        return sorted(self._waiting)

    def due(self, gateway: int) -> int:
        count = self._table.count
        return count[self._due[2 * gateway]] + count[self._due[2 * gateway + 1]]

    def longest_due(self, gateway: int, *, renewed: bool = False) -> float:
        """The deadline of the user of *gateway* that fires next; infinity without one.

        There is a due list of renewed users, and one of the others.
        """
        table, sentinel = self._table, self._due[2 * gateway + renewed]
        return table.deadline[table.next[sentinel]] if table.count[sentinel] else inf

    def fire(
        self, gateway: int, *, until: float, limit: int, renewed: bool = False
    ) -> list[Entry]:
        """End the sessions of due users of *gateway*; return them, longest due first.

        These are at most *limit* users of one due list, with deadlines at or before
        *until*, in attended seconds.
        """
        places = self._due_places(2 * gateway + renewed, until, limit)
        return [self._remove(place) for place in places]

    def renew(
        self, gateway: int, *, until: float, limit: int, most: float = inf
    ) -> int:
        """Give due users of *gateway* a fresh timeout from *until* on, once each.

        These are at most *limit* users, with deadlines at or before *until*, in attended
        seconds. No deadline is put off by more than *most* seconds. Returns how many
        users.
        """
        table, number = self._table, 0
        for place in self._due_places(2 * gateway, until, limit):
            deadline = min(until + table.timeout[place], table.deadline[place] + most)
            table.deadline[place] = deadline
            table.flags[place] |= RENEWED
            table.move(place, self._current_list(place))
            number += 1
        return number

    # --- views ----------------------------------------------------------------

    def owned(
        self, gateways: Collection[int], place: int, limit: int
    ) -> tuple[list[Uid], int]:
        """Look for users of some gateways, in one stretch of the table.

        Args:
            gateways: Their numbers; they open no sessions before the end of the table.
            place: Where to start: 0 at first, then what the last call returned.
            limit: How many places to look at.
        Returns:
            The users, and where to go on, or -1 at the end of the table.
        """
        owner, uid_of = self._table.gateway, self._table.uid
        stop = min(place + limit, len(uid_of))
        found = [
            uid
            for at in range(place, stop)
            if owner[at] in gateways and (uid := uid_of[at]) is not None
        ]
        return found, -1 if stop == len(uid_of) else stop

    def slot_of(self, uid: Uid) -> tuple[int, int] | None:
        """The layer and slot in which *uid*, which has a session, waits; None: it is due.

        A bucket counts as part of its slot of the lowest layer, which is layer 0.
        """
        table = self._table
        place = table.index[identity(uid)]
        deadline = table.deadline[place]
        if self._layers.has_passed(deadline):
            return None
        return self._layers.slot_of(deadline)

    def slot_users(self) -> list[int]:
        return self._layers.counts().slot_users()

    @property
    def hand(self) -> float:
        return self._layers.counts().hand

    def clocks(self, now: float, mono: float) -> Clocks:
        """Return every user's clock, in the order of their sessions, at one moment."""
        table = self._table
        places = sorted(table.index.values(), key=table.session.__getitem__)
        return Clocks(
            array("q", (table.session[place] for place in places)),
            array("d", (table.timeout[place] for place in places)),
            array("d", (max(0.0, table.deadline[place] - now) for place in places)),
            array("d", (mono - table.seen[place] for place in places)),
            array("b", (table.event[place] for place in places)),
        )

    # --- within ---------------------------------------------------------------

    def _remove(self, place: int) -> Entry:
        entry = self._table.remove(place)
        if self._devices is None:
            return entry
        return entry._replace(user_devices=self._devices.remove(entry.uid))

    def _current_list(self, place: int) -> int:
        """The list an entry belongs in now: a due list once its bucket has passed."""
        deadline = self._table.deadline[place]
        if self._layers.has_passed(deadline):
            gateway = self._table.gateway[place]
            self._waiting[gateway] = None
            return self._due[2 * gateway + bool(self._table.flags[place] & RENEWED)]
        return self._layers.list_for(deadline)

    def _cascade(self, queue: deque[int], steps: int) -> int:
        """Move up to *steps* entries of detached lists down; return the steps left."""
        table = self._table
        while queue and steps:
            sentinel = queue[0]
            for _ in range(min(steps, table.count[sentinel])):
                place = table.next[sentinel]
                table.move(place, self._current_list(place))
                steps -= 1
            if not table.count[sentinel]:
                table.drop_list(queue.popleft())
        return steps

    def _due_places(self, due: int, until: float, limit: int) -> Iterator[int]:
        """Yield the head of a due list again and again; the caller removes it."""
        table, sentinel = self._table, self._due[due]
        for _ in range(min(limit, table.count[sentinel])):
            place = table.next[sentinel]
            if table.deadline[place] > until:
                return
            yield place
