"""Which users have gone silent? The layered wheel: the readable reference.

Time is counted in buckets of at most 10 ms. The ring has (by default) 30 slots,
together one timeout long; a layer above has as many slots, each one revolution of the
layer below. Below the lowest layer lies the ground: the buckets of the slot that is
current and of the one that comes next. An entry waits in the lowest layer that
reaches its deadline; every event moves it, in constant time. With a timeout of 30 s:

    ground   200 buckets of 10 ms      who is due within two slots, to 10 ms
    layer 0  30 slots of 1 s           the ring everyone knows
    layer 1  30 slots of 30 s          who is due beyond one revolution
    ...                                until more than a year is spanned

With a timeout of a day a slot is 48 minutes wide, and two layers lie below the ring.

One slot before its time, a slot is detached as a whole and cascaded into the layer
below in bounded steps. A bucket is detached once it has wholly passed, and its
entries are laid on their gateway's *due list*. There they stay, still untouched by
judgement, until `fire` takes them or a sign of life moves them away: whether a
gateway's users may fire now is not the wheel's business. Those that `renew` has given a
fresh timeout come to a second due list of their gateway, as other rules hold for them:
none of either kind waits behind one of the other.

The wheel has no clock: `now` is attended seconds, told by the caller, and never
goes back. Entries and lists live in a `Table`, not in objects.

Always true between calls:
    1. an entry is in exactly one list: a bucket, a slot, one being cascaded, or a
       due list of its gateway;
    2. an entry on a due list has a deadline strictly before the last `now`;
    3. a slot's list holds entries of one revolution only.

Source: Varghese & Lauck, SOSP 1987, schemes 6 and 7.
"""

# array.array cannot be subscripted when it runs, before Python 3.12.
from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator
from math import inf
from typing import Final, NamedTuple

from liveness.core.intervals import SAMPLED, Silences
from liveness.core.records import SignsOfLife, Uid
from liveness.core.table import (
    EXACT_START,
    NO_CONN,
    OWN_TIMEOUT,
    RENEWED,
    Entry,
    EntryFields,
    Table,
)
from liveness.core.uids import is_uid

# The promise is 50 ms at the 99th percentile. Ten for the bucket leave forty for
# the loop, and a finer one would wake the process more often for nothing.
BUCKET_S: Final = 0.010

# A slot of more buckets than this is divided by layers of its own, so that a timeout
# of a day does not need a hundred thousand buckets.
GROUND_MOST: Final = 500

# The longest anything may be asked to wait, with room: 400 days.
HORIZON_S: Final = 400 * 86_400

# Why `touch` left a position alone.
UNKNOWN: Final = 1
BAD_UID: Final = 2
OTHER_GATEWAY: Final = 3
OTHER_CONN: Final = 4


class Snapshot(NamedTuple):
    """Every user's clock at one moment, in columns; see `Wheel.snapshot`."""

    sessions: array[int]
    timeouts: array[float]
    remaining: array[float]
    seen: array[float]
    events: array[int]


class Slot(NamedTuple):
    """Where a user waits: the layer, lowest first, and the slot's place on it."""

    layer: int
    slot: int


class Wheel:
    """The timing wheel and the table of all users on it.

    Args:
        timeout: Seconds of silence the ring is divided by; a gateway's default.
        slots: Slots of the ring and of each layer above, 2 to 3,600.
        now: Attended seconds at the start.
    """

    # What `advance` may be asked for at once: some milliseconds of work.
    steps: Final = 4_000

    def __init__(self, *, timeout: float, slots: int, now: float = 0.0) -> None:
        self.slots = slots
        self._origin = now
        width_s, self._ring = timeout / slots, 0
        while width_s > GROUND_MOST * BUCKET_S and width_s / slots >= BUCKET_S:
            width_s /= slots
            self._ring += 1
        self._per_slot = max(1, round(width_s / BUCKET_S + 0.499))
        self.bucket_s = width_s / self._per_slot
        self._scale = 1 / self.bucket_s
        self._bucket = 0  # the newest bucket that has wholly passed

        self._table = Table()
        self._due: list[
            int
        ] = []  # by twice the gateway's number, and 1 for the renewed
        self._waiting: dict[int, None] = {}  # gateways that may have due users
        self._gateway_timeout: list[float] = []
        self._silences: list[Silences] = []
        self._default_timeout = timeout

        self._buckets = [self._table.new_list() for _ in range(2 * self._per_slot)]
        self._layers: list[list[int]] = []
        self._widths: list[int] = []  # in buckets, by layer
        self._cascaded: list[int] = []  # by layer: the newest slot detached
        width = self._per_slot
        while width * self.bucket_s <= HORIZON_S:
            self._layers.append([self._table.new_list() for _ in range(slots)])
            self._widths.append(width)
            self._cascaded.append(1 if width == self._per_slot else 0)
            width *= slots
        # Detached lists: passed buckets first, then a queue for each layer.
        self._passed: deque[int] = deque()
        self._cascading: list[deque[int]] = [deque() for _ in self._layers]

    def __len__(self) -> int:
        return len(self._table.index)

    # --- who is known ---------------------------------------------------------

    def add_gateway(self) -> int:
        """Make room for one more gateway; return its number, from 0."""
        self._due += [self._table.new_list(), self._table.new_list()]
        self._gateway_timeout.append(self._default_timeout)
        self._silences.append(Silences())
        return len(self._silences) - 1

    def set_timeout(self, gateway: int, timeout: float) -> None:
        """Set the silence timeout of *gateway*'s users, from each one's next event."""
        self._gateway_timeout[gateway] = timeout

    def find(self, uid: Uid) -> Entry | None:
        """Return what is known of *uid*, or None."""
        place = self._table.index.get(uid)
        return None if place is None else self._table.entry(place)

    def touch(
        self,
        gateway: int,
        signs: SignsOfLife,
        *,
        now: float,
        mono: float,
    ) -> list[tuple[int, int]]:
        """Move those of *signs* that are *gateway*'s to the slot that comes due last.

        Args:
            gateway: Number of the gateway that reports them.
            signs: As they came.
            now: Attended seconds, at or after all of them were received.
            mono: Monotonic seconds of the same moment.
        Returns:
            The positions left alone, each with why, in order. Usually empty.
        """
        table = self._table
        index, owner, conn_of = table.index, table.gateway, table.conn
        timeout = self._gateway_timeout[gateway]
        default = now + timeout
        default_list = self._list_for(default)
        silences = self._silences[gateway]
        conns, events = signs.conns, signs.events
        left: list[tuple[int, int]] = []
        for position, uid in enumerate(signs.uids):
            kind = type(uid)
            if kind is not str and kind is not int:
                # Asked before the table is: True and 1.0 would be found as 1.
                left.append((position, BAD_UID))
                continue
            place = index.get(uid)
            if place is None:
                left.append((position, UNKNOWN if is_uid(uid) else BAD_UID))
                continue
            if owner[place] != gateway:
                left.append((position, OTHER_GATEWAY))
                continue
            conn = conns[position]
            if conn is not None and conn_of[place] not in (conn, NO_CONN):
                left.append((position, OTHER_CONN))
                continue
            is_sampled = position % SAMPLED == 0
            flags = table.flags[place] & ~EXACT_START
            if is_sampled and table.event[place] and not flags:
                silences.count(now - table.deadline[place] + table.timeout[place])
            table.flags[place] &= ~RENEWED
            if flags & OWN_TIMEOUT:
                deadline = now + table.timeout[place]
                target = self._list_for(deadline)
                table.deadline[place] = deadline
            else:
                table.timeout[place] = timeout
                table.deadline[place] = default
                target = default_list
            table.seen[place] = mono
            table.event[place] = events[position]
            if table.list[place] != target:
                table.move(place, target)
        return left

    def open(
        self,
        uid: Uid,
        *,
        gateway: int,
        session: int,
        conn: int | None,
        start: float,
        timeout: float | None,
        event: int,
        now: float,
        mono: float,
        exact: bool = False,
    ) -> None:
        """Begin a session of *uid*, which must not be known.

        Args:
            uid: A valid uid.
            gateway: Number of its gateway.
            session: Its session, the seq of the record that began it.
            conn: Its connection, where known.
            start: Monotonic seconds at which that connection began.
            timeout: Its own timeout in seconds, or None for its gateway's.
            event: Index into `records.EVENTS`; 0 when restored unheard.
            now: Attended seconds.
            mono: Monotonic seconds of its last event.
            exact: Whether *start* does not depend on when a login was read.
        """
        whole = self._gateway_timeout[gateway] if timeout is None else timeout
        self.put(
            Entry(
                uid,
                gateway,
                session,
                conn,
                start,
                whole,
                now + whole,
                mono,
                event,
                EXACT_START * exact | OWN_TIMEOUT * (timeout is not None),
            )
        )

    def put(self, entry: EntryFields) -> None:
        """Take in a user, who must not be known, just as *entry* says."""
        place = self._table.add(entry)
        self._table.append(place, self._current_list(place))

    def timeout_of(self, gateway: int) -> float:
        """The silence timeout of *gateway*'s users."""
        return self._gateway_timeout[gateway]

    def amend(
        self,
        uid: Uid,
        *,
        conn: int | None,
        timeout: float | None,
        start: float | None = None,
    ) -> None:
        """Set the connection and own timeout of *uid*, from its next touch on.

        And the exact monotonic second at which the connection began, if it is given.
        """
        table = self._table
        place = table.index[uid]
        table.conn[place] = NO_CONN if conn is None else conn
        if timeout is None:
            table.flags[place] &= ~OWN_TIMEOUT
        else:
            table.flags[place] |= OWN_TIMEOUT
            table.timeout[place] = timeout
        if start is not None:
            table.flags[place] |= EXACT_START
            table.start[place] = start

    def close(self, uid: Uid) -> Entry:
        """End the session of *uid*, which must be known; return what was known."""
        return self._table.remove(self._table.index[uid])

    # --- how often users speak --------------------------------------------------

    def usual(self, gateway: int) -> tuple[int, float]:
        """How often *gateway*'s users speak, as `cadence.Silences.usual` tells it."""
        return self._silences[gateway].usual()

    def halve_silences(self, gateway: int) -> None:
        """Have what *gateway*'s users were heard to do so far count half."""
        self._silences[gateway].halve()

    def forget_silences(self, gateway: int) -> None:
        """Begin anew to count, as for a gateway that was just added."""
        self._silences[gateway] = Silences()

    # --- the hand -------------------------------------------------------------

    def advance(self, now: float, steps: int) -> None:
        """Move the hand to *now*; lay whoever came due on the due lists.

        Args:
            now: Attended seconds, never lower than before. A gap is swept in full.
            steps: How many passed entries may be laid, and how many cascaded, over all
                layers. What is left over is done at the next call.
        """
        self._detach(int((now - self._origin) * self._scale))
        self._cascade(self._passed, steps)
        for queue in self._cascading:
            # The lowest layer first: what lies in it is wanted soonest.
            steps = self._cascade(queue, steps)

    def next_due(self) -> float:
        """The attended moment at which `advance` will next find something to do."""
        if self._passed or any(self._cascading):
            return self._passes_at(self._bucket)
        boundary = (self._bucket // self._per_slot + 1) * self._per_slot
        ground, count, size = self._buckets, self._table.count, len(self._buckets)
        for bucket in range(self._bucket + 1, boundary):
            if count[ground[bucket % size]]:
                return self._passes_at(bucket)
        return self._passes_at(boundary)

    def waiting(self) -> list[int]:
        """The numbers of the gateways of which users are due, in a stable order."""
        self._waiting = {one: None for one in self._waiting if self.due(one)}
        return sorted(self._waiting)

    def due(self, gateway: int) -> int:
        """How many users of *gateway* are due and wait for judgement."""
        count = self._table.count
        return count[self._due[2 * gateway]] + count[self._due[2 * gateway + 1]]

    def longest_due(self, gateway: int, *, renewed: bool = False) -> float:
        """The deadline of who fires next of *gateway*; infinity if nobody is due.

        Args:
            gateway: Its number.
            renewed: Of those who had a fresh timeout; otherwise of the others.
        """
        table, sentinel = self._table, self._due[2 * gateway + renewed]
        return table.deadline[table.next[sentinel]] if table.count[sentinel] else inf

    def fire(
        self, gateway: int, *, until: float, limit: int, renewed: bool = False
    ) -> list[Entry]:
        """End the sessions of due users of *gateway*; return them, longest due first.

        Args:
            gateway: Its number.
            until: Only deadlines at or before this, in attended seconds.
            limit: At most this many.
            renewed: Those who had a fresh timeout; otherwise the others.
        """
        places = self._due_places(2 * gateway + renewed, until, limit)
        return [self._table.remove(place) for place in places]

    def renew(
        self,
        gateway: int,
        *,
        until: float,
        limit: int,
        most: float = inf,
    ) -> int:
        """Give due users of *gateway* a whole fresh timeout counted from *until*.

        Not those who had one already.

        Args:
            gateway: Its number.
            until: Only deadlines at or before this, in attended seconds.
            limit: At most this many.
            most: No deadline is put off by more seconds than this.
        Returns:
            How many.
        """
        table, number = self._table, 0
        for place in self._due_places(2 * gateway, until, limit):
            deadline = min(until + table.timeout[place], table.deadline[place] + most)
            table.deadline[place] = deadline
            table.flags[place] |= RENEWED
            table.move(place, self._current_list(place))
            number += 1
        return number

    # --- looking at it --------------------------------------------------------

    def owned(
        self, gateways: Collection[int], place: int, limit: int
    ) -> tuple[list[Uid], int]:
        """Look for users of some gateways, a stretch of the table at a time.

        Args:
            gateways: Their numbers; they open no sessions before the end of the table.
            place: Where to go on: 0 at first, then what was returned.
            limit: How many places to look at.
        Returns:
            Those found, and where to go on, or -1 at the end of the table.
        """
        owner, uid_of = self._table.gateway, self._table.uid
        stop = min(place + limit, len(uid_of))
        found = [
            uid
            for at in range(place, stop)
            if owner[at] in gateways and (uid := uid_of[at]) is not None
        ]
        return found, -1 if stop == len(uid_of) else stop

    def slot_of(self, uid: Uid) -> Slot | None:
        """Where *uid*, who must be known, waits; None for one who is due.

        On the ground it is the lowest layer's slot.
        """
        table = self._table
        place = table.index[uid]
        within, due = table.list[place], self._due_bucket(table.deadline[place])
        if due <= self._bucket:
            return None
        for number, (layer, width, queue) in enumerate(
            zip(self._layers, self._widths, self._cascading, strict=True)
        ):
            slot = (due - 1) // width % self.slots
            is_on_ground = not number and within in self._buckets
            if is_on_ground or layer[slot] == within or within in queue:
                return Slot(number, slot)
        raise AssertionError(f"{uid!r} is in no list")

    def slot_users(self) -> list[int]:
        """How many users are due in each slot of the ring, by place on the ring.

        Those cascaded below already count for their slot; those due beyond one
        revolution, or due already, count for none.
        """
        count, slots = self._table.count, self.slots
        ring = self._widths[self._ring]
        users = [0] * slots
        size = len(self._buckets)
        for bucket in range(self._bucket + 1, self._bucket + size + 1):
            users[(bucket - 1) // ring % slots] += count[self._buckets[bucket % size]]
        for layer, width, queue in zip(
            self._layers[: self._ring + 1], self._widths, self._cascading, strict=False
        ):
            current = self._bucket // width
            for slot in range(current + 1, current + slots + 1):
                users[slot * width // ring % slots] += count[layer[slot % slots]]
            for sentinel in queue:
                users[(current + 1) * width // ring % slots] += count[sentinel]
        return users

    @property
    def hand(self) -> float:
        """Where on the ring the hand is, in slots: from 0 to below `slots`."""
        return self._bucket / self._widths[self._ring] % self.slots

    def layer_users(self) -> list[int]:
        """How many users lie in each layer, lowest first, whose buckets are part of it.

        Who is due already lies in none.
        """
        count = self._table.count
        users = [
            sum(count[it] for it in (*layer, *queue))
            for layer, queue in zip(self._layers, self._cascading, strict=True)
        ]
        users[0] += sum(count[it] for it in (*self._buckets, *self._passed))
        return users

    def snapshot(self, now: float) -> Snapshot:
        """Every user's clock at *now*, in columns.

        Timeouts and remaining are seconds, the latter never negative; seen is
        monotonic seconds.
        """
        table = self._table
        places = table.index.values()
        return Snapshot(
            array("q", (table.session[place] for place in places)),
            array("d", (table.timeout[place] for place in places)),
            array("d", (max(0.0, table.deadline[place] - now) for place in places)),
            array("d", (table.seen[place] for place in places)),
            array("b", (table.event[place] for place in places)),
        )

    # --- within ---------------------------------------------------------------

    def _due_bucket(self, deadline: float) -> int:
        # The first bucket border strictly after the deadline; bucket n holds what is
        # due from border n-1 on. The same expression
        # as in `advance`: multiplication keeps order, so no rounding can put a
        # deadline into a bucket that has passed before the deadline has.
        return int((deadline - self._origin) * self._scale) + 1

    def _passes_at(self, bucket: int) -> float:
        """The first moment at which `advance` takes *bucket* for passed."""
        moment = self._origin + bucket * self.bucket_s
        while int((moment - self._origin) * self._scale) < bucket:
            # Rounding has left it on the near side; without this the hand would be
            # woken again and again for a bucket that is never over.
            moment += max(self.bucket_s * 1e-6, moment * 2**-52)
        return moment

    def _list_for(self, deadline: float) -> int:
        """The bucket or slot for a deadline that has not passed."""
        bucket = max(self._due_bucket(deadline), self._bucket + 1)
        if bucket - self._bucket <= len(self._buckets):
            return self._buckets[bucket % len(self._buckets)]
        for layer, width, cascaded in zip(
            self._layers, self._widths, self._cascaded, strict=True
        ):
            slot = (bucket - 1) // width
            # What was cascaded is empty, so its place is free for the slot a whole
            # revolution ahead: exactly 30 slots hold exactly 30 slots.
            if slot - cascaded <= self.slots:
                return layer[slot % self.slots]
        raise ValueError(f"a deadline {deadline - self._origin} s ahead is too far")

    def _current_list(self, place: int) -> int:
        """Where an entry belongs now: its due list once its bucket has passed."""
        deadline = self._table.deadline[place]
        if self._due_bucket(deadline) <= self._bucket:
            gateway = self._table.gateway[place]
            self._waiting[gateway] = None
            return self._due[2 * gateway + bool(self._table.flags[place] & RENEWED)]
        return self._list_for(deadline)

    def _detach(self, bucket: int) -> None:
        """Let the hand reach *bucket*; queue all lists that this makes ready."""
        passed = bucket - self._bucket
        if passed <= 0:
            return
        size = len(self._buckets)
        for step in range(min(passed, size)):
            self._queue(self._buckets, (self._bucket + 1 + step) % size, self._passed)
        self._bucket = bucket
        # A slot may be cascaded once all of it fits below. For layer 0 that is one
        # slot ahead, since the ground spans two; above, one slot of the layer below
        # ahead, since a ring holds just one revolution.
        ready = bucket // self._per_slot + 1
        for number, layer in enumerate(self._layers):
            if number:
                ready = (bucket // self._widths[number - 1] + 1) // self.slots
            last = self._cascaded[number]
            for slot in range(max(last, ready - self.slots) + 1, ready + 1):
                self._queue(layer, slot % self.slots, self._cascading[number])
            self._cascaded[number] = max(last, ready)

    def _queue(self, ring: list[int], at: int, queue: deque[int]) -> None:
        """Swap the list at a ring's place for an empty one and queue it."""
        if self._table.count[ring[at]]:
            queue.append(ring[at])
            ring[at] = self._table.new_list()

    def _cascade(self, queue: deque[int], steps: int) -> int:
        """Move up to *steps* entries of queued lists home; return the steps left."""
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
        """The head of a due list, again and again, while it may be taken away."""
        table, sentinel = self._table, self._due[due]
        for _ in range(min(limit, table.count[sentinel])):
            place = table.next[sentinel]
            if table.deadline[place] > until:
                return
            yield place
