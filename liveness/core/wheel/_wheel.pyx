# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which users have gone silent? The layered timing wheel, compiled.

It behaves as `wheel.Wheel`, which documents it; `_table` has the users and lists.

A touch waits for memory six times, some 100 ns each. So a batch is handled in blocks:
first all index slots of a block are prefetched, then all entries, then the neighbours in
the lists that they leave; then the entries are moved. All prefetches are here, not in
functions of the table, since gcc drops a function that only prefetches.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.math cimport INFINITY, NAN, rint
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from liveness.core.wheel._devices cimport Devices
from liveness.core.wheel._table cimport (
    NONE, Index, List, Table, User, fetch, hash_of, home, is_of, more_room, resize, room_for,
    sign_of,
)
from liveness.core.wheel._records cimport (
    NOTHING, OFFLINE_KIND, ONLINE_KIND, Item, RecordBatch,
)
from liveness.core.wheel._restart cimport SessionRestorer, clocks_of
from liveness.core.wire._wire cimport (
    NO_CONN, NOBODY, PackedActivity, Sign, packed, set_key,
)
from liveness.core.wheel import intervals
from liveness.core.records import EVENTS, SILENCE
from liveness.core.wheel.record_batch import Ended
from liveness.core.wheel.table import EXACT_START, NOT_COUNTED, OWN_TIMEOUT, RENEWED
from liveness.core.wheel.timing_wheel import (
    BUCKET_S, HORIZON_S, MAX_BUCKETS_PER_SLOT, Slot,
)
from liveness.core.wheel.wheel import (
    BAD_UID, EARLY_S, OTHER_CONN, OTHER_GATEWAY, UNKNOWN,
)

cdef enum:
    BLOCK = 32  # events that are prefetched at a time
    STRIDE = 8192  # slots of the table's old index moved with each `advance`
    OWN = 1
    AGAIN = 2
    EXACT = 4
    MOST_GATEWAYS = 1 << 24
    BUCKETS = 704  # of silences; see `intervals`
    SAMPLED = 8
    STEP_BITS = 5
    LOWEST = (1023 - 5) << STEP_BITS  # the top bits of the shortest silence's double

assert OWN == OWN_TIMEOUT and AGAIN == RENEWED and EXACT == EXACT_START
assert BUCKETS == intervals.BUCKETS and 1 << STEP_BITS == intervals.STEPS
assert SAMPLED == intervals.SAMPLED
assert LOWEST == (1023 + intervals.LOWEST_EXPONENT) << STEP_BITS
assert len(EVENTS) == 5
cdef double HORIZON = HORIZON_S, ROUNDING = EARLY_S
cdef int WHY_UNKNOWN = UNKNOWN, WHY_BAD_UID = BAD_UID
cdef int WHY_OTHER_GATEWAY = OTHER_GATEWAY, WHY_OTHER_CONN = OTHER_CONN

cdef struct Queue:
    int32_t first, last


cdef inline int64_t earlier_ms(int64_t now_ms, double mono, double moment) noexcept nogil:
    """As `records.Instant.unix_ms` and `records.Instant.state_ms_of`."""
    return now_ms - <int64_t> rint((mono - moment) * 1000)


cdef inline int bucket_of(double silence) noexcept nogil:
    """The exponent and the top bits of the fraction, counted from the lowest bucket."""
    cdef int64_t bits
    memcpy(&bits, &silence, sizeof(bits))
    bits = (bits >> (52 - STEP_BITS)) - LOWEST
    return <int> max(0, min(bits, BUCKETS - 1))


cdef inline double edge(int bucket) noexcept nogil:
    cdef int64_t bits = (<int64_t> bucket + LOWEST) << (52 - STEP_BITS)
    cdef double shortest
    memcpy(&shortest, &bits, sizeof(bits))
    return shortest


@cython.no_gc  # its objects, the table and the devices, have none
cdef class Wheel:
    """The timing wheel and the table of all users on it; see `wheel.Wheel`."""

    steps = 50_000

    cdef readonly int slots
    cdef readonly double bucket_s
    cdef double origin, scale, default_timeout
    cdef int ring, layers
    cdef int64_t per_slot, size, bucket
    cdef Table table
    cdef Devices devices  # None without a separator
    # Lists by their numbers in the table.
    cdef int32_t *buckets
    cdef int32_t *layer_lists
    cdef int64_t *widths
    cdef int64_t *cascaded
    cdef Queue passed
    cdef Queue *cascading
    # Gateways by number.
    cdef int32_t gateways, gateway_room
    cdef int32_t *due_lists
    cdef double *timeouts
    cdef uint64_t *silences  # counts: BUCKETS of each gateway

    def __cinit__(
        self, *, double timeout, int slots, double now=0.0, str separator=""
    ):
        cdef double width_s
        cdef int64_t width
        cdef int at
        if not (2 <= slots <= 3_600 and 1e-6 * slots <= timeout <= HORIZON):
            raise ValueError(f"no wheel has {slots} slots for {timeout} s")
        self.table = Table()
        self.devices = Devices(separator) if separator else None
        self.passed = Queue(NONE, NONE)
        width_s = timeout / slots
        self.slots, self.origin, self.default_timeout = slots, now, timeout
        while width_s > <double> MAX_BUCKETS_PER_SLOT * BUCKET_S and width_s / slots >= BUCKET_S:
            width_s /= slots
            self.ring += 1
        self.per_slot = max(1, round(width_s / BUCKET_S + 0.499))
        self.bucket_s = width_s / self.per_slot
        self.scale = 1 / self.bucket_s
        self.size = 2 * self.per_slot
        width = self.per_slot
        while width * self.bucket_s <= HORIZON:
            self.layers += 1
            width *= slots
        self.buckets = <int32_t *> room_for(self.size, sizeof(int32_t))
        self.layer_lists = <int32_t *> room_for(self.layers * slots, sizeof(int32_t))
        self.widths = <int64_t *> room_for(self.layers, sizeof(int64_t))
        self.cascaded = <int64_t *> room_for(self.layers, sizeof(int64_t))
        self.cascading = <Queue *> room_for(self.layers, sizeof(Queue))
        for at in range(self.size):
            self.buckets[at] = self.table.new_list()
        for at in range(self.layers * slots):
            self.layer_lists[at] = self.table.new_list()
        width = self.per_slot
        for at in range(self.layers):
            self.widths[at] = width
            self.cascaded[at] = 0 if at else 1
            self.cascading[at] = Queue(NONE, NONE)
            width *= slots

    def __dealloc__(self):
        for memory in (
            <uintptr_t> self.buckets, <uintptr_t> self.layer_lists,
            <uintptr_t> self.widths, <uintptr_t> self.cascaded,
            <uintptr_t> self.cascading, <uintptr_t> self.due_lists,
            <uintptr_t> self.timeouts, <uintptr_t> self.silences,
        ):
            PyMem_Free(<void *> <uintptr_t> memory)

    def __len__(self):
        return self.table.count

    # --- sessions -------------------------------------------------------------

    def add_gateway(self):
        """Make room for one more gateway; return its number, from 0."""
        cdef int32_t room = max(16, 2 * self.gateway_room)
        if self.gateways == MOST_GATEWAYS:
            raise OverflowError("there is no room for so many gateways")
        cdef int32_t due, renewed
        if self.gateways == self.gateway_room:
            self.due_lists = <int32_t *> more_room(
                self.due_lists, 2 * room, sizeof(int32_t)
            )
            self.timeouts = <double *> more_room(self.timeouts, room, sizeof(double))
            self.silences = <uint64_t *> more_room(
                self.silences, room, BUCKETS * sizeof(uint64_t)
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
        self.timeouts[self.gateways] = self.default_timeout
        self.gateways += 1
        self.forget_silences(self.gateways - 1)
        return self.gateways - 1

    def set_timeout(self, int32_t gateway, double timeout):
        """Set the silence timeout of *gateway*'s users, from each one's next event."""
        self.timeouts[self.checked(gateway)] = timeout

    def timeout_of(self, int32_t gateway):
        """The silence timeout of *gateway*'s users."""
        return self.timeouts[self.checked(gateway)]

    def find(self, uid):
        """Return the entry of *uid*, or None."""
        cdef Table table = self.table
        cdef int32_t place = table.place_of(uid)
        if place == NONE:
            return None
        if self.devices is None:
            return table.entry(place, NOT_COUNTED)
        devices = self.devices.shown(table, place, self.devices.count(table, place))
        return table.entry(place, devices)

    def devices_of(self, user, int64_t limit):
        """Return the uids of a user's devices; see `wheel.Wheel.devices_of`."""
        return [] if self.devices is None else self.devices.of(self.table, user, limit)

    @property
    def users(self):
        """How many users have a device online; see `wheel.Wheel.users`."""
        if self.devices is None:
            return self.table.count
        return self.devices.names

    def touch(self, int32_t gateway, activity, *, double now, double mono):
        """Give users that sent an event a whole timeout; see `wheel.Wheel.touch`."""
        cdef PackedActivity batch = packed(activity)
        cdef double timeout = self.timeouts[self.checked(gateway)]
        cdef int32_t target = self.list_for(now + timeout)
        cdef uint64_t *silences = self.silences_of(gateway)
        cdef Py_ssize_t start
        left = []
        for start in range(0, batch.length, BLOCK):
            self.touch_block(
                gateway, batch.items, start, min(batch.length, start + BLOCK), timeout,
                target, now, mono, silences, left,
            )
        return left

    def open(
        self, uid, *, int32_t gateway, int64_t session, conn, double start, timeout,
        uint32_t event, double now, double mono, bint exact=False,
    ):
        """Begin a session of *uid*, which has none; see `wheel.Wheel.open`."""
        cdef double whole
        cdef User user
        if timeout is None:
            whole, user.flags = self.timeouts[self.checked(gateway)], 0
        else:
            whole, user.flags = timeout, OWN
        if exact:
            user.flags |= EXACT
        user.gateway, user.session, user.event = self.checked(gateway), session, event
        user.conn = NO_CONN if conn is None else conn
        user.start, user.seen = start, mono
        user.timeout, user.deadline = whole, now + whole
        return self.add(uid, &user)

    def begin(
        self, RecordBatch batch not None, logins, Py_ssize_t first, *, int64_t limit,
        int64_t seq, at,
    ):
        """Begin the sessions of users that have none; see `wheel.Wheel.begin`."""
        cdef Table table = self.table
        cdef Sign sign
        cdef User user
        cdef Item *item
        cdef int32_t name = batch.number_of(logins.name), place
        cdef int32_t reason = batch.number_of(EVENTS[logins.event])
        cdef double now = at.now, mono = at.mono, start = logins.start, own, whole
        cdef int64_t wall_ms = at.wall_ms, state_ms = at.state_ms
        cdef int64_t number = 0, stop = len(logins.uids) - first
        cdef bint has_own = logins.timeout is not None
        uids, conns, begun = logins.uids, logins.conns, logins.begun
        user.gateway, user.event = self.checked(logins.gateway), logins.event
        own = logins.timeout if has_own else NAN
        whole = own if has_own else self.timeouts[user.gateway]
        limit = min(limit, stop)
        while number < limit:
            uid, conn, began = uids[first + number], conns[first + number], begun[first + number]
            set_key(uid, &sign)
            if sign.kind == NOBODY:
                raise ValueError(f"{uid!r} is no uid")
            if table.search(&sign, hash_of(&sign)) != NONE:
                break
            item = batch.add(seq + number, &sign)
            try:
                user.flags = (OWN if has_own else 0) | (0 if began is None else EXACT)
                user.session = seq + number
                user.conn = NO_CONN if conn is None else conn
                user.start = start if began is None else began
                user.seen, user.timeout, user.deadline = mono, whole, now + whole
                place = self.insert(uid, &user)
            except BaseException:
                batch.remove_last()
                raise
            item.kind, item.session, item.at = ONLINE_KIND, seq + number, wall_ms
            item.conn = NOTHING if conn is None else user.conn
            item.gateway, item.reason = name, reason
            item.opens = True
            item.start_ms = earlier_ms(state_ms, mono, user.start)
            item.timeout = own
            if self.devices is not None:
                item.devices = self.devices.add(table, place)
                item.user_size = self.devices.size_of_user(table, place)
            number += 1
        return number

    def put(self, entry):
        """Add an entry as it is; its user has none."""
        cdef User user
        uid, gateway, user.session, conn, user.start, user.timeout, user.deadline, \
            user.seen, event, flags = entry
        user.gateway, user.event, user.flags = self.checked(gateway), event, flags
        user.conn = NO_CONN if conn is None else conn
        self.add(uid, &user)

    def restore(self, SessionRestorer restorer not None, list rows, Py_ssize_t first):
        """Add entries of rows of the online set; see `wheel.Wheel.restore`."""
        cdef Table table = self.table
        cdef User user
        cdef Sign sign
        cdef const Index *index = &table.places.index
        cdef Py_ssize_t at, count = len(rows)
        for at in range(first, count):
            if at + BLOCK < count:
                set_key(rows[at + BLOCK][1], &sign)
                if sign.kind != NOBODY:
                    fetch(&index.slots[home(index, hash_of(&sign))])
            if table.place_of(rows[at][1]) != NONE:
                return at
            uid = restorer.entry(rows[at], &user)
            if uid is None:
                return at
            self.add(uid, &user)
        return count

    def amend(self, uid, *, conn, timeout, start=None):
        """Set the connection and own timeout of *uid*; see `wheel.Wheel.amend`."""
        cdef User *user = self.table.user(self.table.known(uid))
        user.conn = NO_CONN if conn is None else conn
        if timeout is None:
            user.flags &= ~OWN
        else:
            user.flags |= OWN
            user.timeout = timeout
        if start is not None:
            user.flags |= EXACT
            user.start = start

    def close(self, uid):
        """End the session of *uid*, which has one; return its entry."""
        return self.remove(self.table.known(uid))

    # --- how often users send events --------------------------------------------

    def median_silence(self, int32_t gateway):
        """Return the median silence of *gateway*'s users; see `wheel.Wheel.median_silence`."""
        cdef uint64_t *counts = self.silences_of(gateway)
        cdef uint64_t silences = 0
        cdef double half = 0, weight = 0
        cdef int bucket
        for bucket in range(BUCKETS):
            half += edge(bucket) * counts[bucket] / 2
        for bucket in range(BUCKETS - 1, -1, -1):
            silences += counts[bucket]
            weight += edge(bucket) * counts[bucket]
            if silences and weight >= half:
                return silences, edge(bucket)
        return 0, 0.0

    def halve_silences(self, int32_t gateway):
        """Let the silences of *gateway*'s users so far count half."""
        cdef uint64_t *counts = self.silences_of(gateway)
        cdef int bucket
        for bucket in range(BUCKETS):
            counts[bucket] >>= 1

    def forget_silences(self, int32_t gateway):
        """Forget the silences of *gateway*'s users."""
        memset(self.silences_of(gateway), 0, BUCKETS * sizeof(uint64_t))

    # --- the hand -------------------------------------------------------------

    def advance(self, double now, int64_t steps):
        """Move the hand to *now*; see `wheel.Wheel.advance`."""
        cdef int layer
        self.detach(self.border_before(now))
        self.cascade(&self.passed, steps)
        for layer in range(self.layers):
            steps = self.cascade(&self.cascading[layer], steps)
        resize(&self.table.places, self.table.count, STRIDE)
        if self.devices is not None:
            resize(&self.devices.places, self.devices.names, STRIDE)

    def next_due(self):
        """The attended moment at which `advance` will next have something to do."""
        cdef int64_t bucket, boundary
        cdef int layer
        cdef bint is_behind = self.passed.first != NONE
        for layer in range(self.layers):
            is_behind |= self.cascading[layer].first != NONE
        if is_behind:
            return self.passes_at(self.bucket)
        boundary = (self.bucket // self.per_slot + 1) * self.per_slot
        for bucket in range(self.bucket + 1, boundary):
            if self.table.lists[self.buckets[bucket % self.size]].count:
                return self.passes_at(bucket)
        return self.passes_at(boundary)

    def waiting(self):
        """Return the numbers of the gateways that have due users, in a stable order."""
        cdef int32_t gateway
        return [
            gateway
            for gateway in range(self.gateways)
            if self.table.lists[self.due_lists[2 * gateway]].count
            or self.table.lists[self.due_lists[2 * gateway + 1]].count
        ]

    def due(self, int32_t gateway):
        """Count the due users of *gateway*."""
        cdef int32_t due = self.due_list(gateway, False)
        cdef int32_t renewed = self.due_list(gateway, True)
        return self.table.lists[due].count + self.table.lists[renewed].count

    def longest_due(self, int32_t gateway, *, bint renewed=False):
        """The deadline of the user of *gateway* that fires next; infinity without one."""
        cdef List *due = self.table.lists + self.due_list(gateway, renewed)
        return self.table.user(due.first).deadline if due.count else INFINITY

    def fire(
        self, int32_t gateway, *, double until, int64_t limit, bint renewed=False
    ):
        """End the sessions of due users of *gateway*; return them, longest due first."""
        cdef Table table = self.table
        cdef List *due = table.lists + self.due_list(gateway, renewed)
        gone = []
        while limit > 0 and due.count and table.user(due.first).deadline <= until:
            gone.append(self.remove(due.first))
            limit -= 1
        return gone

    def end(self, RecordBatch batch not None, endings, *, int64_t seq, at):
        """End sessions of due users, and record their offlines; see `wheel.Wheel.end`."""
        cdef Table table = self.table
        cdef List *due = table.lists + self.due_list(endings.gateway, endings.renewed)
        cdef User *user
        cdef Item *item
        cdef Sign sign
        cdef int32_t place, left
        cdef int32_t name = batch.number_of(endings.name)
        cdef int32_t reason = batch.number_of(endings.reason)
        cdef int32_t[5] events
        cdef double mono = at.mono, until = endings.until
        cdef double held_above = endings.held_above, held_until = endings.held_until
        cdef double counted_above = endings.counted_above
        cdef int64_t wall_ms = at.wall_ms, limit = endings.limit
        cdef int64_t number = 0, early = 0, counted = 0
        cdef bint is_silence = endings.reason == SILENCE, was_held
        for event, text in enumerate(EVENTS):
            events[event] = batch.number_of(text) if event else NOTHING
        while number < limit and due.count:
            place = due.first
            user = table.user(place)
            if user.deadline > until:
                break
            sign_of(table.cell(place), &sign)
            item = batch.add(seq + number, &sign)
            item.kind, item.session, item.at = OFFLINE_KIND, user.session, wall_ms
            item.conn = NOTHING if user.conn == NO_CONN else user.conn
            item.gateway, item.reason, item.last = name, reason, events[user.event]
            item.restored = not user.event
            if user.event:
                item.seen = earlier_ms(wall_ms, mono, user.seen)
            # An integer first, as in the reference: there is no -0.0.
            item.silence = <int64_t> rint((mono - user.seen) * 1000) / 1000.0
            was_held = user.flags & AGAIN or held_above < user.deadline <= held_until
            if is_silence and not was_held:
                item.due = user.seen + user.timeout
            early += mono - user.seen < user.timeout - ROUNDING
            counted += user.deadline > counted_above
            batch.close(user.session)
            if self.devices is None:
                table.remove(place)
            else:
                item.user_size = self.devices.size_of_user(table, place)
                item.devices = self.devices.remove(table, place)
                self.devices.prepare_move(table)
                table.remove(place)
                self.devices.moved(table, table.count, place)
            number += 1
        return Ended(number, early, counted)

    def renew(
        self, int32_t gateway, *, double until, int64_t limit, double most=INFINITY
    ):
        """Give due users of *gateway* a fresh timeout; see `wheel.Wheel.renew`."""
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
        """Look for users of *gateways*, in one stretch; see `wheel.Wheel.owned`.

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
        """Where *uid* waits, or None if it is due; see `wheel.Wheel.slot_of`."""
        cdef User *user = self.table.user(self.table.known(uid))
        cdef int32_t within = user.list, queued
        cdef int64_t due = self.border_before(user.deadline) + 1, slot, bucket
        cdef int layer
        cdef bint is_there = False
        if due <= self.bucket:
            return None
        for bucket in range(self.size):
            is_there |= self.buckets[bucket] == within
        for layer in range(self.layers):
            slot = (due - 1) // self.widths[layer] % self.slots
            is_there |= self.layer_lists[layer * self.slots + slot] == within
            queued = self.cascading[layer].first
            while queued != NONE:
                is_there |= queued == within
                queued = self.table.lists[queued].after
            if is_there:
                return Slot(layer, slot)
        raise AssertionError(f"{uid!r} is in no list")

    def slot_users(self):
        """Count the users that come due in each slot of the ring; see `wheel.Wheel`."""
        cdef int64_t ring = self.widths[self.ring], width, current, slot, bucket
        cdef int layer
        cdef int32_t queued
        cdef List *lists = self.table.lists
        users = [0] * self.slots
        for bucket in range(self.bucket + 1, self.bucket + self.size + 1):
            users[(bucket - 1) // ring % self.slots] += lists[
                self.buckets[bucket % self.size]
            ].count
        for layer in range(self.ring + 1):
            width = self.widths[layer]
            current = self.bucket // width
            for slot in range(current + 1, current + self.slots + 1):
                users[slot * width // ring % self.slots] += lists[
                    self.layer_lists[layer * self.slots + slot % self.slots]
                ].count
            queued = self.cascading[layer].first
            while queued != NONE:
                users[(current + 1) * width // ring % self.slots] += lists[
                    queued
                ].count
                queued = lists[queued].after
        return users

    @property
    def hand(self):
        """Where on the ring the hand is, in slots: from 0 to below `slots`."""
        return (<double> self.bucket / <double> self.widths[self.ring]) % self.slots

    def layer_users(self):
        """Count the users in each layer, lowest first; see `wheel.Wheel`."""
        cdef int layer
        users = [
            self.users_of(
                self.layer_lists + layer * self.slots, self.slots, &self.cascading[layer]
            )
            for layer in range(self.layers)
        ]
        users[0] += self.users_of(self.buckets, self.size, &self.passed)
        return users

    cdef int64_t users_of(self, const int32_t *layer, int64_t size, const Queue *queue):
        """Count the users in the lists of a layer, and in its detached lists."""
        cdef int64_t users = 0, at
        cdef int32_t queued = queue.first
        for at in range(size):
            users += self.table.lists[layer[at]].count
        while queued != NONE:
            users += self.table.lists[queued].count
            queued = self.table.lists[queued].after
        return users

    def clocks(self, double now, double mono):
        """Return every user's clock at *now*; see `wheel.Wheel.clocks`."""
        return clocks_of(self.table, now, mono)

    # --- within ---------------------------------------------------------------

    cdef int32_t checked(self, int64_t gateway) except -1:
        if not 0 <= gateway < self.gateways:
            raise IndexError(f"there is no gateway {gateway}")
        return gateway

    cdef inline int32_t due_list(self, int64_t gateway, bint renewed) except -1:
        return self.due_lists[2 * <int64_t> self.checked(gateway) + renewed]

    cdef uint64_t *silences_of(self, int64_t gateway) except NULL:
        return self.silences + self.checked(gateway) * <int64_t> BUCKETS

    cdef object add(self, object uid, User *user):
        """Add a user with this uid, to the list that it belongs in; see `open`."""
        cdef int32_t place = self.insert(uid, user)
        if self.devices is None:
            return NOT_COUNTED
        return self.devices.shown(
            self.table, place, self.devices.add(self.table, place)
        )

    cdef int32_t insert(self, object uid, User *user) except -1:
        """Add a user to table and list; its device is prepared, and not added yet."""
        cdef Table table = self.table
        cdef int32_t target = self.current_list(user), place
        if self.devices is not None:
            self.devices.prepare(uid, table.count)
        place = table.add(uid, user)
        table.append(place, table.user(place), target)
        return place

    cdef object remove(self, int32_t place):
        """Remove the user at a place; return its entry."""
        cdef Table table = self.table
        cdef int32_t left
        if self.devices is None:
            entry = table.entry(place, NOT_COUNTED)
            table.remove(place)
            return entry
        left = self.devices.remove(table, place)
        try:
            entry = table.entry(place, self.devices.shown(table, place, left))
        except MemoryError:
            self.devices.add(table, place)
            raise
        self.devices.prepare_move(table)
        table.remove(place)
        self.devices.moved(table, table.count, place)
        return entry

    # --- the layers -----------------------------------------------------------

    cdef inline int64_t border_before(self, double moment) except? -1:
        """The last bucket border that is not after *moment*."""
        cdef double at = (moment - self.origin) * self.scale
        if not -1e18 < at < 1e18:
            raise ValueError(f"a deadline {moment - self.origin} s ahead is too far")
        return <int64_t> at

    cdef double passes_at(self, int64_t bucket) except? -1:
        """The first moment at which *bucket* counts as passed."""
        cdef double moment = self.origin + bucket * self.bucket_s
        while self.border_before(moment) < bucket:
            moment += max(self.bucket_s * 1e-6, moment * 2.0**-52)
        return moment

    cdef int32_t list_for(self, double deadline) except -1:
        """The bucket or slot for a deadline that has not passed."""
        cdef int64_t bucket = self.border_before(deadline) + 1, slot
        cdef int layer
        if bucket <= self.bucket:
            bucket = self.bucket + 1
        if bucket - self.bucket <= self.size:
            return self.buckets[bucket % self.size]
        for layer in range(self.layers):
            slot = (bucket - 1) // self.widths[layer]
            if slot - self.cascaded[layer] <= self.slots:
                return self.layer_lists[layer * self.slots + slot % self.slots]
        raise ValueError(f"a deadline {deadline - self.origin} s ahead is too far")

    cdef int32_t current_list(self, User *user) except -1:
        """The list a user belongs in now: a due list once its bucket has passed."""
        if self.border_before(user.deadline) + 1 <= self.bucket:
            return self.due_lists[
                2 * <int64_t> user.gateway + (user.flags & AGAIN != 0)
            ]
        return self.list_for(user.deadline)

    cdef int detach(self, int64_t bucket) except -1:
        """Move the hand to *bucket*; queue the lists that this makes ready."""
        cdef int64_t passed = bucket - self.bucket, step, ready, last, slot
        cdef int layer
        if passed <= 0:
            return 0
        for step in range(min(passed, self.size)):
            self.queue(&self.buckets[(self.bucket + 1 + step) % self.size], &self.passed)
        self.bucket = bucket
        ready = bucket // self.per_slot + 1
        for layer in range(self.layers):
            if layer:
                ready = (bucket // self.widths[layer - 1] + 1) // self.slots
            last = self.cascaded[layer]
            for slot in range(max(last, ready - self.slots) + 1, ready + 1):
                self.queue(
                    &self.layer_lists[layer * self.slots + slot % self.slots],
                    &self.cascading[layer],
                )
            self.cascaded[layer] = max(last, ready)
        return 0

    cdef int queue(self, int32_t *at, Queue *queue) except -1:
        """Queue the list at a place of a layer, and put an empty one there."""
        cdef int32_t full = at[0]
        if self.table.lists[full].count:
            at[0] = self.table.new_list()
            if queue.last == NONE:
                queue.first = full
            else:
                self.table.lists[queue.last].after = full
            queue.last = full
        return 0

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

    # --- a batch --------------------------------------------------------------

    cdef int touch_block(
        self, int32_t gateway, const Sign *signs, Py_ssize_t start, Py_ssize_t stop,
        double timeout, int32_t target, double now, double mono,
        uint64_t *silences, list left,
    ) except -1:
        cdef uint32_t[BLOCK] hashes
        cdef int32_t[BLOCK] places
        cdef Py_ssize_t at
        cdef int32_t place
        cdef int why
        cdef Table table = self.table
        cdef const Index *index = &table.places.index
        cdef const Index *old = &table.places.old
        cdef User *user
        cdef const Sign *sign
        for at in range(start, stop):
            hashes[at - start] = hash_of(signs + at)
            # Collisions take a search into the next cache line often enough to fetch it.
            fetch(&index.slots[home(index, hashes[at - start])])
            fetch(&index.slots[home(index, hashes[at - start])] + 5)
            if old.slots != NULL:
                fetch(&old.slots[home(old, hashes[at - start])])
        for at in range(start, stop):
            place = places[at - start] = table.likely(hashes[at - start])
            if place != NONE:
                fetch(table.user(place))
                fetch(table.cell(place))
        for at in range(start, stop):
            sign = signs + at
            place = places[at - start]
            if sign.kind == NOBODY:
                places[at - start] = NONE
                continue
            if place == NONE or not is_of(table.cell(place), sign):
                place = places[at - start] = table.search(sign, hashes[at - start])
            if place != NONE:
                user = table.user(place)
                if user.prev != NONE:
                    fetch(table.user(user.prev))
                if user.next != NONE:
                    fetch(table.user(user.next))
        for at in range(start, stop):
            why = self.touch_one(
                table, gateway, signs + at, places[at - start], timeout, target, now,
                mono, NULL if at % SAMPLED else silences,
            )
            if why:
                left.append((at, why))
        return 0

    cdef inline int touch_one(
        self, Table table, int32_t gateway, const Sign *sign, int32_t place,
        double timeout, int32_t target, double now, double mono, uint64_t *silences,
    ) except -1:
        """Touch the user at a place; return 0, or why it was not touched."""
        cdef User *user
        if place == NONE:
            return WHY_BAD_UID if sign.kind == NOBODY else WHY_UNKNOWN
        user = table.user(place)
        if user.gateway != <uint32_t> gateway:
            return WHY_OTHER_GATEWAY
        if sign.conn != NO_CONN and user.conn != sign.conn and user.conn != NO_CONN:
            return WHY_OTHER_CONN
        if silences != NULL and user.event and not user.flags & ~EXACT:
            silences[bucket_of(now - user.deadline + user.timeout)] += 1
        user.flags &= ~AGAIN
        if user.flags & OWN:
            target = self.list_for(now + user.timeout)
            user.deadline = now + user.timeout
        else:
            user.timeout, user.deadline = timeout, now + timeout
        user.seen, user.event = mono, sign.event
        if user.list != <uint32_t> target:
            table.move(place, user, target)
        return 0
