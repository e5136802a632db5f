# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which users have gone silent? The layered timing wheel, compiled.

It behaves as `timing_wheel`, which documents it; `_table` has the users and lists.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t

from liveness.core.wheel._restart cimport clocks_of
from liveness.core.wheel._table cimport NONE, List, Table, User, fetch, more_room, resize
from liveness.core.wheel._wheel_layers cimport Layers, Queue
from liveness.core.wire._wire cimport NO_CONN
from liveness.core.wheel.devices import Devices
from liveness.core.wheel.table import NOT_COUNTED, RENEWED
from liveness.core.wheel.timing_wheel import (
    BUCKET_S, HORIZON_S, MAX_BUCKETS_PER_SLOT,
)

cdef enum:
    STRIDE = 8192  # slots of the table's old index moved with each `advance`
    MOST_GATEWAYS = 1 << 24

assert AGAIN == RENEWED
cdef double HORIZON = HORIZON_S


@cython.no_gc  # its objects, the table, the devices and the layers, do not refer to it
cdef class TimingWheel:
    """Entries by their deadlines; see `timing_wheel.TimingWheel`."""

    def __cinit__(
        self, *, double timeout, int slots, double now=0.0, str separator=""
    ):
        cdef double width_s
        cdef int64_t per_slot
        cdef int ring = 0
        if not (2 <= slots <= 3_600 and 1e-6 * slots <= timeout <= HORIZON):
            raise ValueError(f"no wheel has {slots} slots for {timeout} s")
        self.table = Table()
        self.devices = Devices(separator) if separator else None
        width_s = timeout / slots
        self.slots = slots
        while width_s > <double> MAX_BUCKETS_PER_SLOT * BUCKET_S and width_s / slots >= BUCKET_S:
            width_s /= slots
            ring += 1
        per_slot = max(1, round(width_s / BUCKET_S + 0.499))
        self.bucket_s = width_s / per_slot
        self.layers = Layers(
            self.table, slots=slots, per_slot=per_slot, bucket_s=self.bucket_s, ring=ring,
            origin=now, horizon_s=HORIZON,
        )

    def __dealloc__(self):
        PyMem_Free(self.due_lists)

    def __len__(self):
        return self.table.count

    # --- entries ---------------------------------------------------------------

    def add_gateway(self):
        cdef int32_t room = max(16, 2 * self.gateway_room)
        if self.gateways == MOST_GATEWAYS:
            raise OverflowError("there is no room for so many gateways")
        cdef int32_t due, renewed
        if self.gateways == self.gateway_room:
            self.due_lists = <int32_t *> more_room(
                self.due_lists, 2 * room, sizeof(int32_t)
            )
            self.gateway_room = room
        due = self.table.new_list()
        try:
            renewed = self.table.new_list()
        except MemoryError:
            self.table.drop_list(due)
            raise
        self.due_lists[2 * self.gateways] = due
        self.due_lists[2 * self.gateways + 1] = renewed
        self.gateways += 1
        return self.gateways - 1

    def find(self, uid):
        cdef Table table = self.table
        cdef int32_t place = table.place_of(uid)
        if place == NONE:
            return None
        if self.devices is None:
            return table.entry(place, NOT_COUNTED)
        return table.entry(place, self.devices.count(uid))

    def devices_of(self, user, int64_t limit):
        return [] if self.devices is None else self.devices.of(user, limit)

    @property
    def users(self):
        return self.table.count if self.devices is None else len(self.devices)

    def put(self, entry):
        cdef User user
        uid, gateway, user.session, conn, user.start, user.timeout, user.deadline, \
            user.seen, event, flags = entry
        user.gateway, user.event, user.flags = self.checked(gateway), event, flags
        user.conn = NO_CONN if conn is None else conn
        return self.add(uid, &user)

    def close(self, uid):
        return self.remove(self.table.known(uid))

    # --- the hand -------------------------------------------------------------

    def advance(self, double now, int64_t steps):
        cdef int layer
        self.layers.detach(now)
        self.cascade(&self.layers.passed, steps)
        for layer in range(self.layers.layers):
            steps = self.cascade(&self.layers.cascading[layer], steps)
        resize(&self.table.places, self.table.count, STRIDE)

    def next_due(self):
        return self.layers.next_due()

    def waiting(self):
        cdef int32_t gateway
        return [
            gateway
            for gateway in range(self.gateways)
            if self.table.lists[self.due_lists[2 * gateway]].count
            or self.table.lists[self.due_lists[2 * gateway + 1]].count
        ]

    def due(self, int32_t gateway):
        cdef int32_t due = self.due_list(gateway, False)
        cdef int32_t renewed = self.due_list(gateway, True)
        return self.table.lists[due].count + self.table.lists[renewed].count

    def longest_due(self, int32_t gateway, *, bint renewed=False):
        cdef List *due = self.table.lists + self.due_list(gateway, renewed)
        return self.table.user(due.first).deadline if due.count else INFINITY

    def fire(
        self, int32_t gateway, *, double until, int64_t limit, bint renewed=False
    ):
        cdef Table table = self.table
        cdef List *due = table.lists + self.due_list(gateway, renewed)
        gone = []
        while limit > 0 and due.count and table.user(due.first).deadline <= until:
            gone.append(self.remove(due.first))
            limit -= 1
        return gone

    def renew(
        self, int32_t gateway, *, double until, int64_t limit, double most=INFINITY
    ):
        cdef int32_t due = self.due_list(gateway, False), place
        cdef int64_t number = 0
        cdef Table table = self.table
        cdef User *user
        limit = min(limit, table.lists[due].count)
        while number < limit:
            place = table.lists[due].first
            user = table.user(place)
            if user.deadline > until:
                break
            user.deadline = min(until + user.timeout, user.deadline + most)
            user.flags |= AGAIN
            table.move(place, user, self.current_list(user))
            number += 1
        return number

    # --- views ----------------------------------------------------------------

    def owned(self, gateways, int64_t place, int64_t limit):
        """Look for users of *gateways*, in one stretch; see `timing_wheel.TimingWheel.owned`.

        From the last entry down, since the last one replaces each that is removed.
        """
        cdef int64_t at, top, bottom
        cdef Table table = self.table
        top = min(place, table.count) if place else table.count
        bottom = max(0, top - max(1, limit))
        found = [
            table.uid_at(at)
            for at in range(bottom, top)
            if table.user(at).gateway in gateways
        ]
        return found, bottom or -1

    def slot_of(self, uid):
        cdef User *user = self.table.user(self.table.known(uid))
        if self.layers.has_passed(user.deadline):
            return None
        return self.layers.slot_of(user.deadline)

    def slot_users(self):
        return self.layers.counts().slot_users()

    @property
    def hand(self):
        return self.layers.counts().hand

    def clocks(self, double now, double mono):
        return clocks_of(self.table, now, mono)

    # --- within ---------------------------------------------------------------

    cdef int32_t checked(self, int64_t gateway) except -1:
        if not 0 <= gateway < self.gateways:
            raise IndexError(f"there is no gateway {gateway}")
        return gateway

    cdef object add(self, object uid, User *user):
        """Add a user with this uid, to the list that it belongs in; see `open`."""
        self.insert(uid, user)
        return NOT_COUNTED if self.devices is None else self.devices.add(uid)

    cdef int32_t insert(self, object uid, User *user) except -1:
        """Add a user to table and list, without its device."""
        cdef Table table = self.table
        cdef int32_t target = self.current_list(user), place = table.add(uid, user)
        table.append(place, table.user(place), target)
        return 0

    cdef object remove(self, int32_t place):
        """Remove the user at a place; return its entry."""
        left = NOT_COUNTED
        if self.devices is not None:
            left = self.devices.remove(self.table.uid_at(place))
        entry = self.table.entry(place, left)
        self.table.remove(place)
        return entry

    cdef int64_t cascade(self, Queue *queue, int64_t steps) except -1:
        """Move up to *steps* entries of queued lists down; return the steps left."""
        cdef int32_t number, place
        cdef Table table = self.table
        cdef User *user
        while queue.first != NONE and steps:
            number = queue.first
            while steps and table.lists[number].count:
                place = table.lists[number].first
                user = table.user(place)
                if user.next != NONE:
                    fetch(table.user(user.next))
                table.move(place, user, self.current_list(user))
                steps -= 1
            if not table.lists[number].count:
                queue.first = table.lists[number].after
                if queue.first == NONE:
                    queue.last = NONE
                table.drop_list(number)
        return steps
