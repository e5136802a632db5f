# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which users have gone silent? The layered wheel, compiled: `wheel.Wheel` again.

What it does and why is told there. Here is how it is kept:

    entry   64 bytes, a cache line: the clocks of one user, and its links in a list
    cell    24 bytes beside it: the uid, or where it is if it has more than 22 bytes
    index   8 bytes and as many free ones: where the entry of a uid is, by open
            addressing, a quarter to three quarters full

Entries lie side by side without holes, in chunks of 32,768: one that leaves is
replaced by the last. So they are never copied to grow, and what a mass offline
leaves is given back, a chunk at a time. The index grows and shrinks into a second one,
a few slots with every entry that comes or goes and some thousands with every `advance`.

A touch is some 100 ns of waiting for memory, six times over. So a batch goes through
in blocks: first all of a block's index slots are asked for, then all entries, then the
neighbours they leave, and only then is anything done.

uids are hashed with the interpreter's own keyed hash (SipHash), since users choose them.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

from array import array

from liveness.core._wire cimport (
    INTEGER, NO_CONN, NOBODY, STRING, PackedSigns, Sign, packed, set_key, uid_of,
)
from liveness.core.table import OWN_TIMEOUT, RENEWED, Entry
from liveness.core.wheel import (
    BAD_UID, BUCKET_S, GROUND_MOST, HORIZON_S, OTHER_CONN, OTHER_GATEWAY, UNKNOWN, Snapshot,
)

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>

    typedef struct {
        double deadline, timeout, seen, start;
        int64_t session, conn;
        int32_t next, prev;
        uint32_t list;
        uint32_t gateway : 24, event : 4, flags : 4;
    } User;
    _Static_assert(sizeof(User) == 64, "a user is a cache line");

    typedef struct { uint8_t kind, size; char text[22]; } Cell;
    _Static_assert(sizeof(Cell) == 24, "a cell is three words");

    /* An integer, or where a long text is, in a cell. */
    static inline int64_t word_of(const Cell *cell) {
        int64_t word; memcpy(&word, cell->text, 8); return word;
    }
    static inline void set_word(Cell *cell, int64_t word) { memcpy(cell->text, &word, 8); }

    #define fetch(at) __builtin_prefetch((at), 1, 3)

    /* Whole pages, zero, and given back at once: not malloc's, which keeps what is freed.
       Under AddressSanitizer malloc's, so that it sees who goes astray. */
    static void *take_pages(size_t bytes) {
    #ifdef __SANITIZE_ADDRESS__
        return calloc(1, bytes);
    #else
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return at == MAP_FAILED ? NULL : at;
    #endif
    }
    static void give_pages(void *at, size_t bytes) {
    #ifdef __SANITIZE_ADDRESS__
        free(at);
    #else
        munmap(at, bytes);
    #endif
    }
    """
    ctypedef struct User:
        double deadline, timeout, seen, start
        int64_t session, conn
        int32_t next, prev
        uint32_t list
        uint32_t gateway, event, flags
    ctypedef struct Cell:
        uint8_t kind, size
        char *text
    int64_t word_of(const Cell *cell) noexcept nogil
    void set_word(Cell *cell, int64_t word) noexcept nogil
    void fetch(const void *at) noexcept nogil
    void *take_pages(size_t bytes) noexcept nogil
    void give_pages(void *at, size_t bytes) noexcept nogil

cdef extern from "Python.h":
    ctypedef struct PyHash_FuncDef:
        Py_ssize_t (*hash)(const void *, Py_ssize_t) noexcept nogil
    PyHash_FuncDef *PyHash_GetFuncDef()

cdef Py_ssize_t (*keyed_hash)(const void *, Py_ssize_t) noexcept nogil
keyed_hash = PyHash_GetFuncDef().hash

cdef enum:
    CHUNK_BITS = 15
    CHUNK = 1 << CHUNK_BITS
    INLINE = 22  # bytes of a uid that its cell has room for
    SMALLEST_INDEX = 1024
    # Slots of the old index moved with each entry that comes or goes (two would do for
    # the new one to be ready in time), and with each `advance`.
    STEP = 8
    STRIDE = 8192
    BLOCK = 32  # what is asked of memory at a time
    NONE = -1
    GONE = -1  # in the old index: looked past, not stopped at
    OWN = 1
    AGAIN = 2
    MOST_GATEWAYS = 1 << 24
    MOST_USERS = 2147450880  # whole chunks that an int32 can number

assert OWN == OWN_TIMEOUT and AGAIN == RENEWED
cdef double HORIZON = HORIZON_S
cdef int WHY_UNKNOWN = UNKNOWN, WHY_BAD_UID = BAD_UID
cdef int WHY_OTHER_GATEWAY = OTHER_GATEWAY, WHY_OTHER_CONN = OTHER_CONN
cdef object new_tuple = tuple.__new__

cdef struct Slot:
    uint32_t hash
    int32_t place  # of the entry, plus one; 0 if the slot is free

cdef struct Index:
    Slot *slots
    uint64_t mask

cdef struct List:
    int32_t first, last, count
    int32_t after  # the list behind it in a queue, or among the free ones

cdef struct Queue:
    int32_t first, last


cdef inline uint32_t hash_of(const Sign *sign) noexcept nogil:
    cdef uint64_t hashed
    if sign.kind == STRING:
        hashed = keyed_hash(sign.key.text, sign.size)
    else:
        hashed = ~keyed_hash(&sign.key.number, sizeof(int64_t))
    return <uint32_t> (hashed ^ hashed >> 32)


cdef inline bint is_of(const Cell *cell, const Sign *sign) noexcept nogil:
    """Whether the cell holds this very uid."""
    if cell.kind != sign.kind or cell.size != sign.size:
        return False
    if sign.kind == INTEGER:
        return word_of(cell) == sign.key.number
    return memcmp(text_of(cell), sign.key.text, sign.size) == 0


cdef inline const unsigned char *text_of(const Cell *cell) noexcept nogil:
    if cell.size > INLINE:
        return <const unsigned char *> word_of(cell)
    return <const unsigned char *> cell.text


cdef inline void sign_of(const Cell *cell, Sign *sign) noexcept nogil:
    """The uid of a cell, as long as the cell is left alone."""
    sign.kind, sign.size = cell.kind, cell.size
    if cell.kind == INTEGER:
        sign.key.number = word_of(cell)
    else:
        sign.key.text = text_of(cell)


cdef class Wheel:
    """The timing wheel and the table of all users on it; see `wheel.Wheel`."""

    steps = 50_000

    cdef readonly int slots
    cdef readonly double bucket_s
    cdef double origin, scale, default_timeout
    cdef int ring, layers
    cdef int64_t per_slot, size, bucket
    # Users by place, and where each uid is.
    cdef User **users
    cdef Cell **cells
    cdef int chunks, chunk_room
    cdef int32_t count
    cdef Index index, old
    cdef uint64_t moved  # slots of the old index that are behind it
    # Lists by number.
    cdef List *lists
    cdef int32_t list_count, list_room, free_list
    cdef int32_t *ground
    cdef int32_t *layer_lists
    cdef int64_t *widths
    cdef int64_t *poured
    cdef Queue passed
    cdef Queue *pouring
    # Gateways by number.
    cdef int32_t gateways, gateway_room
    cdef int32_t *due_lists
    cdef double *timeouts

    def __cinit__(self, *, double timeout, int slots, double now=0.0):
        cdef double width_s
        cdef int64_t width
        cdef int at
        if not (2 <= slots <= 3_600 and 1e-6 * slots <= timeout <= HORIZON):
            raise ValueError(f"no wheel has {slots} slots for {timeout} s")
        self.free_list = NONE
        self.passed = Queue(NONE, NONE)
        width_s = timeout / slots
        self.slots, self.origin, self.default_timeout = slots, now, timeout
        while width_s > <double> GROUND_MOST * BUCKET_S and width_s / slots >= BUCKET_S:
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
        self.ground = <int32_t *> room_for(self.size, sizeof(int32_t))
        self.layer_lists = <int32_t *> room_for(self.layers * slots, sizeof(int32_t))
        self.widths = <int64_t *> room_for(self.layers, sizeof(int64_t))
        self.poured = <int64_t *> room_for(self.layers, sizeof(int64_t))
        self.pouring = <Queue *> room_for(self.layers, sizeof(Queue))
        for at in range(self.size):
            self.ground[at] = self.new_list()
        for at in range(self.layers * slots):
            self.layer_lists[at] = self.new_list()
        width = self.per_slot
        for at in range(self.layers):
            self.widths[at] = width
            self.poured[at] = 0 if at else 1
            self.pouring[at] = Queue(NONE, NONE)
            width *= slots
        self.index = Index(
            <Slot *> pages(SMALLEST_INDEX * sizeof(Slot)), SMALLEST_INDEX - 1
        )

    def __dealloc__(self):
        cdef int32_t place
        for place in range(self.count):
            self.forget_text(place)
        while self.chunks:
            self.drop_chunk()
        drop_index(&self.index)
        drop_index(&self.old)
        for memory in (
            <uintptr_t> self.users, <uintptr_t> self.cells, <uintptr_t> self.lists,
            <uintptr_t> self.ground, <uintptr_t> self.layer_lists,
            <uintptr_t> self.widths, <uintptr_t> self.poured, <uintptr_t> self.pouring,
            <uintptr_t> self.due_lists, <uintptr_t> self.timeouts,
        ):
            PyMem_Free(<void *> <uintptr_t> memory)

    def __len__(self):
        return self.count

    # --- who is known ---------------------------------------------------------

    def add_gateway(self):
        """Make room for one more gateway; return its number, from 0."""
        cdef int32_t room = max(16, 2 * self.gateway_room)
        if self.gateways == MOST_GATEWAYS:
            raise OverflowError("there is no room for so many gateways")
        if self.gateways == self.gateway_room:
            self.due_lists = <int32_t *> more_room(
                self.due_lists, room, sizeof(int32_t)
            )
            self.timeouts = <double *> more_room(self.timeouts, room, sizeof(double))
            self.gateway_room = room
        self.due_lists[self.gateways] = self.new_list()
        self.timeouts[self.gateways] = self.default_timeout
        self.gateways += 1
        return self.gateways - 1

    def set_timeout(self, int32_t gateway, double timeout):
        """Set the silence timeout of *gateway*'s users, from each one's next event."""
        self.timeouts[self.checked(gateway)] = timeout

    def timeout_of(self, int32_t gateway):
        """The silence timeout of *gateway*'s users."""
        return self.timeouts[self.checked(gateway)]

    def find(self, uid):
        """Return what is known of *uid*, or None."""
        cdef int32_t place = self.place_of(uid)
        return None if place == NONE else self.entry(place)

    def touch(self, int32_t gateway, signs, *, double now, double mono):
        """Move those of *signs* that are *gateway*'s; see `wheel.Wheel.touch`."""
        cdef PackedSigns run = packed(signs)
        cdef double timeout = self.timeouts[self.checked(gateway)]
        cdef int32_t target = self.list_for(now + timeout)
        cdef Py_ssize_t start
        left = []
        for start in range(0, run.length, BLOCK):
            self.touch_block(
                gateway, run.items, start, min(run.length, start + BLOCK), timeout,
                target, now, mono, left,
            )
        return left

    def open(
        self, uid, *, int32_t gateway, int64_t session, conn, double start, timeout,
        uint32_t event, double now, double mono,
    ):
        """Begin a session of *uid*, which must not be known; see `wheel.Wheel.open`."""
        cdef double whole
        cdef User user
        if timeout is None:
            whole, user.flags = self.timeouts[self.checked(gateway)], 0
        else:
            whole, user.flags = timeout, OWN
        user.gateway, user.session, user.event = self.checked(gateway), session, event
        user.conn = NO_CONN if conn is None else conn
        user.start, user.seen = start, mono
        user.timeout, user.deadline = whole, now + whole
        self.take_in(uid, &user)

    def put(self, entry):
        """Take in a user, who must not be known, just as *entry* says."""
        cdef User user
        uid, gateway, user.session, conn, user.start, user.timeout, user.deadline, \
            user.seen, event, flags = entry
        user.gateway, user.event, user.flags = self.checked(gateway), event, flags
        user.conn = NO_CONN if conn is None else conn
        self.take_in(uid, &user)

    def amend(self, uid, *, conn, timeout):
        """Set the connection and own timeout of *uid*, from its next touch on."""
        cdef User *user = self.user(self.known(uid))
        user.conn = NO_CONN if conn is None else conn
        if timeout is None:
            user.flags &= ~OWN
        else:
            user.flags |= OWN
            user.timeout = timeout

    def close(self, uid):
        """End the session of *uid*, which must be known; return what was known."""
        return self.let_go(self.known(uid))

    # --- the hand -------------------------------------------------------------

    def advance(self, double now, int64_t steps):
        """Move the hand to *now*; see `wheel.Wheel.advance`."""
        cdef int layer
        self.detach(self.border_before(now))
        self.pour(&self.passed, steps)
        for layer in range(self.layers):
            steps = self.pour(&self.pouring[layer], steps)
        self.resize_index(STRIDE)

    def next_due(self):
        """The attended moment at which `advance` will next find something to do."""
        cdef int64_t bucket, boundary
        cdef int layer
        cdef bint is_behind = self.passed.first != NONE
        for layer in range(self.layers):
            is_behind |= self.pouring[layer].first != NONE
        if is_behind:
            return self.passes_at(self.bucket)
        boundary = (self.bucket // self.per_slot + 1) * self.per_slot
        for bucket in range(self.bucket + 1, boundary):
            if self.lists[self.ground[bucket % self.size]].count:
                return self.passes_at(bucket)
        return self.passes_at(boundary)

    def waiting(self):
        """The numbers of the gateways of which users are due, in a stable order."""
        cdef int32_t gateway
        return [
            gateway
            for gateway in range(self.gateways)
            if self.lists[self.due_lists[gateway]].count
        ]

    def due(self, int32_t gateway):
        """How many users of *gateway* are due and wait for judgement."""
        return self.lists[self.due_lists[self.checked(gateway)]].count

    def fire(self, int32_t gateway, *, double until, int64_t limit):
        """End the sessions of due users of *gateway*; return them, longest due first."""
        cdef List *due = self.lists + self.due_lists[self.checked(gateway)]
        gone = []
        while limit > 0 and due.count and self.user(due.first).deadline <= until:
            gone.append(self.let_go(due.first))
            limit -= 1
        return gone

    def renew(self, int32_t gateway, *, double until, int64_t limit):
        """Give due users of *gateway* a whole fresh timeout; see `wheel.Wheel.renew`."""
        cdef int32_t due = self.due_lists[self.checked(gateway)], place
        cdef int64_t renewed = 0
        cdef User *user
        limit = min(limit, self.lists[due].count)
        while renewed < limit:
            place = self.lists[due].first
            user = self.user(place)
            if user.deadline > until:
                break
            user.deadline = until + user.timeout
            user.flags |= AGAIN
            self.move(place, user, self.home(user))
            renewed += 1
        return renewed

    # --- looking at it --------------------------------------------------------

    def owned(self, int32_t gateway, int64_t place, int64_t limit):
        """Look for users of *gateway*, a stretch at a time; see `wheel.Wheel.owned`.

        From the last entry down: whatever replaces one that goes was looked at.
        """
        cdef int64_t at, top, bottom
        top = min(place, self.count) if place else self.count
        bottom = max(0, top - max(1, limit))
        found = [
            self.uid_at(at)
            for at in range(bottom, top)
            if self.user(at).gateway == <uint32_t> gateway
        ]
        return found, bottom or -1

    def slot_users(self):
        """How many users are due in each slot of the ring; see `wheel.Wheel`."""
        cdef int64_t ring = self.widths[self.ring], width, current, slot, bucket
        cdef int layer
        cdef int32_t queued
        users = [0] * self.slots
        for bucket in range(self.bucket + 1, self.bucket + self.size + 1):
            users[(bucket - 1) // ring % self.slots] += self.lists[
                self.ground[bucket % self.size]
            ].count
        for layer in range(self.ring + 1):
            width = self.widths[layer]
            current = self.bucket // width
            for slot in range(current + 1, current + self.slots + 1):
                users[slot * width // ring % self.slots] += self.lists[
                    self.layer_lists[layer * self.slots + slot % self.slots]
                ].count
            queued = self.pouring[layer].first
            while queued != NONE:
                users[(current + 1) * width // ring % self.slots] += self.lists[
                    queued
                ].count
                queued = self.lists[queued].after
        return users

    def snapshot(self, double now):
        """Every user's clock at *now*, in columns; see `wheel.Wheel.snapshot`."""
        cdef int32_t place
        cdef User *user
        columns = [array(code, bytes(8 * self.count)) for code in "qddd"]
        cdef int64_t[::1] sessions = columns[0]
        cdef double[::1] timeouts = columns[1]
        cdef double[::1] remaining = columns[2]
        cdef double[::1] seen = columns[3]
        events = array("b", bytes(self.count))
        cdef signed char[::1] event = events
        for place in range(self.count):
            user = self.user(place)
            sessions[place], timeouts[place] = user.session, user.timeout
            remaining[place] = max(0.0, user.deadline - now)
            seen[place], event[place] = user.seen, user.event
        return Snapshot(*columns, events)

    # --- the table ------------------------------------------------------------

    cdef inline User *user(self, int32_t place) noexcept nogil:
        return self.users[place >> CHUNK_BITS] + (place & CHUNK - 1)

    cdef inline Cell *cell(self, int32_t place) noexcept nogil:
        return self.cells[place >> CHUNK_BITS] + (place & CHUNK - 1)

    cdef object uid_at(self, int32_t place):
        cdef Sign sign
        sign_of(self.cell(place), &sign)
        return uid_of(&sign)

    cdef object entry(self, int32_t place):
        cdef User *user = self.user(place)
        return new_tuple(
            Entry,
            (
                self.uid_at(place), user.gateway, user.session,
                None if user.conn == NO_CONN else user.conn, user.start, user.timeout,
                user.deadline, user.seen, user.event, user.flags,
            ),
        )

    cdef int32_t checked(self, int64_t gateway) except -1:
        if not 0 <= gateway < self.gateways:
            raise IndexError(f"there is no gateway {gateway}")
        return gateway

    cdef int32_t place_of(self, object uid) except? -1:
        cdef Sign sign
        set_key(uid, &sign)
        return NONE if sign.kind == NOBODY else self.search(&sign, hash_of(&sign))

    cdef int32_t known(self, object uid) except -1:
        cdef int32_t place = self.place_of(uid)
        if place == NONE:
            raise KeyError(uid)
        return place

    cdef int take_in(self, object uid, User *user) except -1:
        """Add a user with this uid, and put it where it belongs."""
        cdef Sign sign
        cdef int32_t place = self.count, home = self.home(user)
        cdef Cell *cell
        cdef char *far
        if set_key(uid, &sign) or sign.kind == NOBODY:
            raise ValueError(f"{uid!r} is no uid")
        if place == self.chunks << CHUNK_BITS:
            self.add_chunk()
        self.resize_index(STEP)
        if 16 * <uint64_t> (place + 1) > 15 * (self.index.mask + 1):
            raise MemoryError("the index cannot grow")
        cell = self.cell(place)
        cell.kind, cell.size = sign.kind, sign.size
        if sign.kind == INTEGER:
            set_word(cell, sign.key.number)
        elif sign.size <= INLINE:
            memcpy(cell.text, sign.key.text, sign.size)
        else:
            far = <char *> PyMem_Malloc(sign.size)
            if far == NULL:
                raise MemoryError
            memcpy(far, sign.key.text, sign.size)
            set_word(cell, <int64_t> far)
        self.user(place)[0] = user[0]
        self.count += 1
        insert(&self.index, hash_of(&sign), place + 1)
        self.append(place, self.user(place), home)
        return 0

    cdef object let_go(self, int32_t place):
        """Remove a user; the last one takes its place. Return what was known."""
        cdef Sign sign
        cdef int32_t last = self.count - 1
        cdef User *user = self.user(place)
        cdef Cell *cell = self.cell(place)
        known = self.entry(place)
        self.unlink(user)
        sign_of(cell, &sign)
        self.erase(hash_of(&sign), place + 1)
        self.forget_text(place)
        if place != last:
            user[0] = self.user(last)[0]
            cell[0] = self.cell(last)[0]
            sign_of(cell, &sign)
            self.slot_of(hash_of(&sign), last + 1).place = place + 1
            self.link_anew(place, user)
        self.count = last
        if last <= (self.chunks - 2) * CHUNK:
            self.drop_chunk()
        self.resize_index(STEP)
        return known

    cdef void forget_text(self, int32_t place) noexcept:
        cdef Cell *cell = self.cell(place)
        if cell.kind == STRING and cell.size > INLINE:
            PyMem_Free(<void *> word_of(cell))

    cdef int add_chunk(self) except -1:
        cdef int room = max(16, 2 * self.chunk_room)
        if self.count >= MOST_USERS:
            raise OverflowError("there is no room for so many users")
        if self.chunks == self.chunk_room:
            self.users = <User **> more_room(self.users, room, sizeof(User *))
            self.cells = <Cell **> more_room(self.cells, room, sizeof(Cell *))
            self.chunk_room = room
        self.users[self.chunks] = <User *> pages(CHUNK * sizeof(User))
        try:
            self.cells[self.chunks] = <Cell *> pages(CHUNK * sizeof(Cell))
        except MemoryError:
            give_pages(self.users[self.chunks], CHUNK * sizeof(User))
            raise
        self.chunks += 1
        return 0

    cdef void drop_chunk(self) noexcept:
        self.chunks -= 1
        give_pages(self.users[self.chunks], CHUNK * sizeof(User))
        give_pages(self.cells[self.chunks], CHUNK * sizeof(Cell))

    # --- the index ------------------------------------------------------------

    cdef inline int32_t search(self, const Sign *sign, uint32_t hashed) noexcept nogil:
        """The place of a uid, or NONE."""
        cdef int32_t place = self.search_in(&self.index, sign, hashed)
        if place == NONE and self.old.slots != NULL:
            place = self.search_in(&self.old, sign, hashed)
        return place

    cdef inline int32_t search_in(
        self, const Index *index, const Sign *sign, uint32_t hashed
    ) noexcept nogil:
        cdef uint64_t at = hashed & index.mask
        cdef Slot slot = index.slots[at]
        while slot.place:
            if slot.hash == hashed and slot.place != GONE:
                if is_of(self.cell(slot.place - 1), sign):
                    return slot.place - 1
            at = (at + 1) & index.mask
            slot = index.slots[at]
        return NONE

    cdef inline int32_t likely(self, uint32_t hashed) noexcept nogil:
        """The first place with this hash: nearly always the one wanted; or NONE."""
        cdef uint64_t at = hashed & self.index.mask
        while self.index.slots[at].place:
            if self.index.slots[at].hash == hashed:
                return self.index.slots[at].place - 1
            at = (at + 1) & self.index.mask
        return NONE

    cdef Slot *slot_of(self, uint32_t hashed, int32_t place) noexcept:
        """The slot of an entry that is in one of the two; *place* plus one."""
        cdef uint64_t at = hashed & self.index.mask
        while self.index.slots[at].place:
            if self.index.slots[at].place == place:
                return &self.index.slots[at]
            at = (at + 1) & self.index.mask
        at = hashed & self.old.mask
        while self.old.slots[at].place != place:
            at = (at + 1) & self.old.mask
        return &self.old.slots[at]

    cdef void erase(self, uint32_t hashed, int32_t place) noexcept:
        """Free a slot, and close the gap for whoever was driven past it."""
        cdef Slot *slots = self.index.slots
        cdef Slot *slot = self.slot_of(hashed, place)
        cdef uint64_t mask = self.index.mask, at, gap
        if not slots <= slot <= slots + mask:
            slot.place = GONE
            return
        gap = at = slot - slots
        while True:
            at = (at + 1) & mask
            if not slots[at].place:
                break
            if ((at - slots[at].hash) & mask) >= ((at - gap) & mask):
                slots[gap] = slots[at]
                gap = at
        slots[gap].place = 0

    cdef void resize_index(self, uint64_t steps) noexcept:
        """Move up to *steps* slots on to a larger or smaller index, if one is wanted.

        One for which there is no memory is tried again with the next step.
        """
        cdef uint64_t size = self.index.mask + 1, count = self.count
        cdef Slot slot
        cdef Slot *slots
        if self.old.slots == NULL:
            if 4 * count > 3 * size:
                size *= 2
            elif 8 * count < size and size > SMALLEST_INDEX:
                size //= 2
            else:
                return
            slots = <Slot *> take_pages(size * sizeof(Slot))
            if slots == NULL:
                return
            self.old, self.index, self.moved = self.index, Index(slots, size - 1), 0
        while steps and self.moved <= self.old.mask:
            slot = self.old.slots[self.moved]
            if slot.place > 0:
                insert(&self.index, slot.hash, slot.place)
                self.old.slots[self.moved].place = GONE
            self.moved += 1
            steps -= 1
        if self.moved > self.old.mask:
            drop_index(&self.old)

    # --- the lists ------------------------------------------------------------

    cdef int32_t new_list(self) except -1:
        cdef int32_t number = self.free_list, room = max(64, 2 * self.list_room)
        if number != NONE:
            self.free_list = self.lists[number].after
        else:
            if self.list_count == self.list_room:
                self.lists = <List *> more_room(self.lists, room, sizeof(List))
                self.list_room = room
            number = self.list_count
            self.list_count += 1
        self.lists[number] = List(NONE, NONE, 0, NONE)
        return number

    cdef inline void append(self, int32_t place, User *user, int32_t number) noexcept nogil:
        """Put a user that is in no list at the end of one."""
        cdef List *into = self.lists + number
        user.prev, user.next, user.list = into.last, NONE, number
        if into.last == NONE:
            into.first = place
        else:
            self.user(into.last).next = place
        into.last = place
        into.count += 1

    cdef inline void unlink(self, User *user) noexcept nogil:
        cdef List *out = self.lists + user.list
        if user.prev == NONE:
            out.first = user.next
        else:
            self.user(user.prev).next = user.next
        if user.next == NONE:
            out.last = user.prev
        else:
            self.user(user.next).prev = user.prev
        out.count -= 1

    cdef inline void move(self, int32_t place, User *user, int32_t number) noexcept nogil:
        """Move a user from the list it is in to the end of another."""
        self.unlink(user)
        self.append(place, user, number)

    cdef void link_anew(self, int32_t place, User *user) noexcept:
        """Tell the neighbours of a user that it has another place now."""
        cdef List *within = self.lists + user.list
        if user.prev == NONE:
            within.first = place
        else:
            self.user(user.prev).next = place
        if user.next == NONE:
            within.last = place
        else:
            self.user(user.next).prev = place

    # --- the layers -----------------------------------------------------------

    cdef inline int64_t border_before(self, double moment) except? -1:
        """The last bucket border that is not after *moment*."""
        cdef double at = (moment - self.origin) * self.scale
        if not -1e18 < at < 1e18:
            raise ValueError(f"a deadline {moment - self.origin} s ahead is too far")
        return <int64_t> at

    cdef double passes_at(self, int64_t bucket) except? -1:
        """The first moment at which `advance` takes *bucket* for passed."""
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
            return self.ground[bucket % self.size]
        for layer in range(self.layers):
            slot = (bucket - 1) // self.widths[layer]
            if slot - self.poured[layer] <= self.slots:
                return self.layer_lists[layer * self.slots + slot % self.slots]
        raise ValueError(f"a deadline {deadline - self.origin} s ahead is too far")

    cdef int32_t home(self, User *user) except -1:
        """Where a user belongs now: its due list once its bucket has passed."""
        if self.border_before(user.deadline) + 1 <= self.bucket:
            return self.due_lists[user.gateway]
        return self.list_for(user.deadline)

    cdef int detach(self, int64_t bucket) except -1:
        """Let the hand reach *bucket*; queue all lists that this makes ready."""
        cdef int64_t passed = bucket - self.bucket, step, ready, last, slot
        cdef int layer
        if passed <= 0:
            return 0
        for step in range(min(passed, self.size)):
            self.queue(&self.ground[(self.bucket + 1 + step) % self.size], &self.passed)
        self.bucket = bucket
        ready = bucket // self.per_slot + 1
        for layer in range(self.layers):
            if layer:
                ready = (bucket // self.widths[layer - 1] + 1) // self.slots
            last = self.poured[layer]
            for slot in range(max(last, ready - self.slots) + 1, ready + 1):
                self.queue(
                    &self.layer_lists[layer * self.slots + slot % self.slots],
                    &self.pouring[layer],
                )
            self.poured[layer] = max(last, ready)
        return 0

    cdef int queue(self, int32_t *at, Queue *queue) except -1:
        """Swap the list at a ring's place for an empty one and queue it."""
        cdef int32_t full = at[0]
        if self.lists[full].count:
            at[0] = self.new_list()
            if queue.last == NONE:
                queue.first = full
            else:
                self.lists[queue.last].after = full
            queue.last = full
        return 0

    cdef int64_t pour(self, Queue *queue, int64_t steps) except -1:
        """Move up to *steps* entries of queued lists home; return the steps left."""
        cdef int32_t number, place
        cdef User *user
        while queue.first != NONE and steps:
            number = queue.first
            while steps and self.lists[number].count:
                place = self.lists[number].first
                user = self.user(place)
                if user.next != NONE:
                    fetch(self.user(user.next))
                self.move(place, user, self.home(user))
                steps -= 1
            if not self.lists[number].count:
                queue.first = self.lists[number].after
                if queue.first == NONE:
                    queue.last = NONE
                self.lists[number].after = self.free_list
                self.free_list = number
        return steps

    # --- a batch --------------------------------------------------------------

    cdef int touch_block(
        self, int32_t gateway, const Sign *signs, Py_ssize_t start, Py_ssize_t stop,
        double timeout, int32_t target, double now, double mono, list left,
    ) except -1:
        cdef uint32_t[BLOCK] hashes
        cdef int32_t[BLOCK] places
        cdef Py_ssize_t at
        cdef int32_t place
        cdef int why
        cdef User *user
        cdef const Sign *sign
        for at in range(start, stop):
            hashes[at - start] = hash_of(signs + at)
            fetch(&self.index.slots[hashes[at - start] & self.index.mask])
            if self.old.slots != NULL:
                fetch(&self.old.slots[hashes[at - start] & self.old.mask])
        for at in range(start, stop):
            place = places[at - start] = self.likely(hashes[at - start])
            if place != NONE:
                fetch(self.user(place))
                fetch(self.cell(place))
        for at in range(start, stop):
            sign = signs + at
            place = places[at - start]
            if sign.kind == NOBODY:
                places[at - start] = NONE
                continue
            if place == NONE or not is_of(self.cell(place), sign):
                place = places[at - start] = self.search(sign, hashes[at - start])
            if place != NONE:
                user = self.user(place)
                if user.prev != NONE:
                    fetch(self.user(user.prev))
                if user.next != NONE:
                    fetch(self.user(user.next))
        for at in range(start, stop):
            why = self.touch_one(
                gateway, signs + at, places[at - start], timeout, target, now, mono
            )
            if why:
                left.append((at, why))
        return 0

    cdef inline int touch_one(
        self, int32_t gateway, const Sign *sign, int32_t place, double timeout,
        int32_t target, double now, double mono,
    ) except -1:
        """Touch the user at a place; return why it was left alone, or 0."""
        cdef User *user
        if place == NONE:
            return WHY_BAD_UID if sign.kind == NOBODY else WHY_UNKNOWN
        user = self.user(place)
        if user.gateway != <uint32_t> gateway:
            return WHY_OTHER_GATEWAY
        if sign.conn != NO_CONN and user.conn != sign.conn and user.conn != NO_CONN:
            return WHY_OTHER_CONN
        if user.flags & OWN:
            target = self.list_for(now + user.timeout)
            user.flags, user.deadline = OWN, now + user.timeout
        else:
            user.flags, user.timeout, user.deadline = 0, timeout, now + timeout
        user.seen, user.event = mono, sign.event
        if user.list != <uint32_t> target:
            self.move(place, user, target)
        return 0


# --- memory -------------------------------------------------------------------


cdef void insert(Index *index, uint32_t hashed, int32_t place) noexcept:
    cdef uint64_t at = hashed & index.mask
    while index.slots[at].place:
        at = (at + 1) & index.mask
    index.slots[at] = Slot(hashed, place)


cdef void drop_index(Index *index) noexcept:
    if index.slots != NULL:
        give_pages(index.slots, (index.mask + 1) * sizeof(Slot))
        index.slots = NULL


cdef void *pages(size_t size) except NULL:
    """Zero bytes, in whole pages."""
    cdef void *taken = take_pages(size)
    if taken == NULL:
        raise MemoryError
    return taken


cdef void *room_for(Py_ssize_t count, Py_ssize_t size) except NULL:
    return more_room(NULL, count, size)


cdef void *more_room(void *room, Py_ssize_t count, Py_ssize_t size) except NULL:
    cdef void *grown = PyMem_Realloc(room, max(1, count) * size)
    if grown == NULL:
        raise MemoryError
    return grown
