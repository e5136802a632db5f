# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The sessions of users on the timing wheel, compiled.

It behaves as `wheel.Wheel`, which documents it; `_timing_wheel` has the algorithm.

A touch waits for memory six times, some 100 ns each. So a batch is handled in blocks:
first all index slots of a block are prefetched, then all entries, then the neighbours in
the lists that they leave; then the entries are moved. All prefetches are here, not in
functions of the table, since gcc drops a function that only prefetches.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.math cimport NAN, rint
from libc.stdint cimport int32_t, int64_t, uint32_t

from liveness.core.wheel._table cimport (
    NONE, Index, List, Table, User, fetch, hash_of, home, is_of, more_room, sign_of,
)
from liveness.core.wheel._record_columns cimport (
    NOTHING, OFFLINE_KIND, ONLINE_KIND, Item,
)
from liveness.core.wheel._records cimport RecordBatch
from liveness.core.wheel._restart cimport SessionRestorer
from liveness.core.wheel._timing_wheel cimport AGAIN, TimingWheel
from liveness.core.wire._wire cimport (
    NO_CONN, NOBODY, PackedActivity, Sign, packed, set_key,
)
from liveness.core.records import EVENTS, SILENCE
from liveness.core.wheel.table import EXACT_START, OWN_TIMEOUT, Silences
from liveness.core.wheel import wheel
from liveness.core.wheel.wheel import (
    BAD_UID, EARLY_S, OTHER_CONN, OTHER_GATEWAY, UNKNOWN,
)

cdef enum:
    BLOCK = 32  # events that are prefetched at a time
    OWN = 1
    EXACT = 4
    SAMPLED = 8

assert OWN == OWN_TIMEOUT and EXACT == EXACT_START
assert SAMPLED == wheel.SAMPLED
assert len(EVENTS) == 5
cdef double ROUNDING = EARLY_S
cdef int WHY_UNKNOWN = UNKNOWN, WHY_BAD_UID = BAD_UID
cdef int WHY_OTHER_GATEWAY = OTHER_GATEWAY, WHY_OTHER_CONN = OTHER_CONN


cdef struct Habits:
    double timeout
    double seconds, squares  # sums over the silences of its users


cdef inline int64_t earlier_ms(int64_t now_ms, double mono, double moment) noexcept nogil:
    """As `records.Instant.unix_ms` and `records.Instant.state_ms_of`."""
    return now_ms - <int64_t> rint((mono - moment) * 1000)


@cython.no_gc  # nor do the objects of its base
cdef class Wheel(TimingWheel):
    """The timing wheel with the sessions of all users; see `wheel.Wheel`."""

    steps = 50_000

    cdef Habits *habits  # of gateways, by number
    cdef int32_t habit_room
    cdef double default_timeout

    def __cinit__(
        self, *, double timeout, int slots, double now=0.0, str separator=""
    ):
        self.default_timeout = timeout

    def __dealloc__(self):
        PyMem_Free(self.habits)

    # --- sessions -------------------------------------------------------------

    def add_gateway(self):
        cdef int32_t room = max(16, 2 * self.habit_room), number
        if self.gateways == self.habit_room:
            self.habits = <Habits *> more_room(self.habits, room, sizeof(Habits))
            self.habit_room = room
        number = TimingWheel.add_gateway(self)
        self.habits[number] = Habits(self.default_timeout, 0, 0)
        return number

    def set_timeout(self, int32_t gateway, double timeout):
        self.habits[self.checked(gateway)].timeout = timeout

    def timeout_of(self, int32_t gateway):
        return self.habits[self.checked(gateway)].timeout

    def silences(self, int32_t gateway):
        cdef Habits *habits = &self.habits[self.checked(gateway)]
        return Silences(habits.seconds, habits.squares)

    def touch(self, int32_t gateway, activity, *, double now, double mono):
        cdef PackedActivity batch = packed(activity)
        cdef Habits *habits = &self.habits[self.checked(gateway)]
        cdef int32_t target = self.layers.list_for(now + habits.timeout)
        cdef Py_ssize_t start
        left = []
        for start in range(0, batch.length, BLOCK):
            self.touch_block(
                gateway, batch.items, start, min(batch.length, start + BLOCK), habits,
                target, now, mono, left,
            )
        return left

    def open(
        self, uid, *, int32_t gateway, int64_t session, conn, double start, timeout,
        uint32_t event, double now, double mono, bint exact=False,
    ):
        cdef double whole
        cdef User user
        if timeout is None:
            whole, user.flags = self.habits[self.checked(gateway)].timeout, 0
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
        cdef Table table = self.table
        cdef Sign sign
        cdef User user
        cdef Item *item
        cdef int32_t name = batch.number_of(logins.name)
        cdef int32_t reason = batch.number_of(EVENTS[logins.event])
        cdef double now = at.now, mono = at.mono, start = logins.start, own, whole
        cdef int64_t wall_ms = at.wall_ms, state_ms = at.state_ms
        cdef int64_t number = 0, stop = len(logins.uids) - first
        cdef bint has_own = logins.timeout is not None
        uids, conns, begun = logins.uids, logins.conns, logins.begun
        user.gateway, user.event = self.checked(logins.gateway), logins.event
        own = logins.timeout if has_own else NAN
        whole = own if has_own else self.habits[user.gateway].timeout
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
                self.insert(uid, &user)
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
                item.user_size, item.devices = self.devices.add(uid)
            number += 1
        return number

    def restore(self, SessionRestorer restorer not None, list rows, Py_ssize_t first):
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

    def end(self, RecordBatch batch not None, endings, *, int64_t seq, at):
        cdef Table table = self.table
        cdef List *due = table.lists + self.due_list(endings.gateway, endings.renewed)
        cdef User *user
        cdef Item *item
        cdef Sign sign
        cdef int32_t place
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
            if self.devices is not None:
                item.user_size, item.devices = self.devices.remove(table.uid_at(place))
            table.remove(place)
            number += 1
        return number, early, counted

    # --- a batch --------------------------------------------------------------

    cdef int touch_block(
        self, int32_t gateway, const Sign *signs, Py_ssize_t start, Py_ssize_t stop,
        Habits *habits, int32_t target, double now, double mono, list left,
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
                table, gateway, signs + at, places[at - start], habits, target, now,
                mono, at % SAMPLED == 0,
            )
            if why:
                left.append((at, why))
        return 0

    cdef inline int touch_one(
        self, Table table, int32_t gateway, const Sign *sign, int32_t place,
        Habits *habits, int32_t target, double now, double mono, bint is_sampled,
    ) except -1:
        """Touch the user at a place; return 0, or why it was not touched."""
        cdef User *user
        cdef double silence
        if place == NONE:
            return WHY_BAD_UID if sign.kind == NOBODY else WHY_UNKNOWN
        user = table.user(place)
        if user.gateway != <uint32_t> gateway:
            return WHY_OTHER_GATEWAY
        if sign.conn != NO_CONN and user.conn != sign.conn and user.conn != NO_CONN:
            return WHY_OTHER_CONN
        if is_sampled and user.event and not user.flags & ~EXACT:
            silence = now - user.deadline + user.timeout
            habits.seconds += silence
            habits.squares += silence * silence
        user.flags &= ~AGAIN
        if user.flags & OWN:
            target = self.layers.list_for(now + user.timeout)
            user.deadline = now + user.timeout
        else:
            user.timeout, user.deadline = habits.timeout, now + habits.timeout
        user.seen, user.event = mono, sign.event
        if user.list != <uint32_t> target:
            table.move(place, user, target)
        return 0
