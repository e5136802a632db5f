# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The memory under the wheel, compiled; it behaves as `table.Table`.

    entry   64 bytes, a cache line: the clocks of one user, and its links in a list
    cell    24 bytes: its uid, or a pointer to a uid of more than 22 bytes
    index   10 to 11 bytes: the place of each uid's entry; a hash table with open
            addressing, seven to eight tenths full, and emptier only after users left

Entries are dense, in chunks of 32,768: the last one replaces one that is removed. So
growth copies no entries, and after a mass offline the memory is freed chunk by chunk.
The index grows by an eighth and shrinks by moving to a second one: a few slots with each
entry that is added or removed, and some thousands with each `advance`.

Lists have numbers and no sentinels: the table keeps each list's first and last entry.

uids are hashed with the interpreter's own keyed hash (SipHash), since users choose them.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from liveness.core.wire._wire cimport NO_CONN, NOBODY, STRING, Sign, set_key, uid_of
from liveness.core.wheel.table import Entry

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>

    /* Whole pages of zeros. Freed, they go back to the system at once, unlike malloc's.
       AddressSanitizer gets calloc's memory, in which it finds bad accesses. */
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
    void *take_pages(size_t bytes) noexcept nogil
    void give_pages(void *at, size_t bytes) noexcept nogil

cdef extern from "Python.h":
    ctypedef struct PyHash_FuncDef:
        Py_ssize_t (*hash)(const void *, Py_ssize_t) noexcept nogil
    PyHash_FuncDef *PyHash_GetFuncDef()

keyed_hash = PyHash_GetFuncDef().hash

cdef enum:
    SMALLEST_INDEX = 1024
    # Slots of the old index moved with each entry that is added or removed. Ten would be
    # just enough: another tenth of the slots fills until the new index has to grow.
    STEP = 16
    MOST_USERS = 2147450880  # whole chunks that an int32 can number

cdef object new_tuple = tuple.__new__


cdef class Table:
    """Users, and the lists that they are in; see `table.Table`."""

    def __cinit__(self):
        self.free_list = NONE
        new_places(&self.places)

    def __dealloc__(self):
        cdef int32_t place
        for place in range(self.count):
            self.forget_text(place)
        while self.chunks:
            self.drop_chunk()
        drop_places(&self.places)
        PyMem_Free(self.users)
        PyMem_Free(self.cells)
        PyMem_Free(self.lists)

    cdef int32_t add(self, object uid, const User *user) except -1:
        """Add a user, in no list yet; return its place."""
        cdef Sign sign
        cdef int32_t place = self.count
        cdef Cell *cell
        cdef char *far
        if set_key(uid, &sign) or sign.kind == NOBODY:
            raise ValueError(f"{uid!r} is no uid")
        if place == self.chunks << CHUNK_BITS:
            self.add_chunk()
        grow(&self.places, self.count)
        cell = self.cell(place)
        cell.kind, cell.size = sign.kind, sign.size
        if sign.kind != STRING:
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
        insert(&self.places, hash_of(&sign), place + 1)
        return place

    cdef void remove(self, int32_t place) noexcept:
        """Remove a user; the last one takes its place."""
        cdef Sign sign
        cdef int32_t last = self.count - 1
        cdef User *user = self.user(place)
        cdef Cell *cell = self.cell(place)
        self.unlink(user)
        sign_of(cell, &sign)
        erase(&self.places, hash_of(&sign), place + 1)
        self.forget_text(place)
        if place != last:
            user[0] = self.user(last)[0]
            cell[0] = self.cell(last)[0]
            sign_of(cell, &sign)
            slot_of(&self.places, hash_of(&sign), last + 1).place = place + 1
            self.link_anew(place, user)
        self.count = last
        if last <= (self.chunks - 2) * CHUNK:
            self.drop_chunk()
        resize(&self.places, self.count, STEP)

    cdef object entry(self, int32_t place, object user_devices):
        cdef User *user = self.user(place)
        return new_tuple(
            Entry,
            (
                self.uid_at(place), user.gateway, user.session,
                None if user.conn == NO_CONN else user.conn, user.start, user.timeout,
                user.deadline, user.seen, user.event, user.flags, user_devices,
            ),
        )

    cdef object uid_at(self, int32_t place):
        cdef Sign sign
        sign_of(self.cell(place), &sign)
        return uid_of(&sign)

    cdef int32_t place_of(self, object uid) except? -1:
        cdef Sign sign
        set_key(uid, &sign)
        return NONE if sign.kind == NOBODY else self.search(&sign, hash_of(&sign))

    cdef int32_t known(self, object uid) except -1:
        cdef int32_t place = self.place_of(uid)
        if place == NONE:
            raise KeyError(uid)
        return place

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
            free_pages(self.users[self.chunks], CHUNK * sizeof(User))
            raise
        self.chunks += 1
        return 0

    cdef void drop_chunk(self) noexcept:
        self.chunks -= 1
        free_pages(self.users[self.chunks], CHUNK * sizeof(User))
        free_pages(self.cells[self.chunks], CHUNK * sizeof(Cell))

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

    cdef void drop_list(self, int32_t number) noexcept:
        """Free an empty list."""
        self.lists[number].after = self.free_list
        self.free_list = number

    cdef void link_anew(self, int32_t place, User *user) noexcept:
        """Link the neighbours of a user, or its list, to its new place."""
        cdef List *within = self.lists + user.list
        if user.prev == NONE:
            within.first = place
        else:
            self.user(user.prev).next = place
        if user.next == NONE:
            within.last = place
        else:
            self.user(user.next).prev = place


# --- the index ----------------------------------------------------------------


cdef int new_places(Places *places) except -1:
    places.index = Index(
        <Slot *> pages(SMALLEST_INDEX * sizeof(Slot)), SMALLEST_INDEX
    )
    return 0


cdef void drop_places(Places *places) noexcept:
    drop_index(&places.index)
    drop_index(&places.old)


cdef void insert(Places *places, uint32_t hashed, int32_t place) noexcept:
    """Add a slot; *place* is that of the entry plus one. `grow` made sure of room."""
    insert_in(&places.index, hashed, place)


cdef Slot *slot_of(Places *places, uint32_t hashed, int32_t place) noexcept:
    """The slot of an entry, in either index; *place* is its place plus one."""
    cdef Index *index = &places.index
    cdef uint64_t at = home(index, hashed)
    while index.slots[at].place:
        if index.slots[at].place == place:
            return &index.slots[at]
        at = behind(index, at)
    index = &places.old
    at = home(index, hashed)
    while index.slots[at].place != place:
        at = behind(index, at)
    return &index.slots[at]


cdef void erase(Places *places, uint32_t hashed, int32_t place) noexcept:
    """Free a slot, and move back the slots that a collision had put behind it."""
    cdef Index *index = &places.index
    cdef Slot *slots = index.slots
    cdef Slot *slot = slot_of(places, hashed, place)
    cdef uint64_t at, gap
    if not slots <= slot < slots + index.size:
        slot.place = GONE
        return
    gap = at = slot - slots
    while True:
        at = behind(index, at)
        if not slots[at].place:
            break
        if way(index, home(index, slots[at].hash), at) >= way(index, gap, at):
            slots[gap] = slots[at]
            gap = at
    slots[gap].place = 0


cdef uint64_t way(const Index *index, uint64_t start, uint64_t stop) noexcept:
    """How many slots *stop* is behind *start*; the first slot is behind the last one."""
    return stop - start if start <= stop else index.size - start + stop


cdef int grow(Places *places, uint64_t count) except -1:
    """Make room for one more entry than *count*."""
    resize(places, count, STEP)
    if 16 * (count + 1) > 15 * places.index.size:
        raise MemoryError("the index cannot grow")
    return 0


cdef void resize(Places *places, uint64_t count, uint64_t steps) noexcept:
    """Move up to *steps* slots to a larger or smaller index, if one is needed.

    Without memory for it, the next call tries again.
    """
    cdef uint64_t size = places.index.size
    cdef Slot slot
    cdef Slot *slots
    if places.old.slots == NULL:
        if 5 * count > 4 * size:
            size += size // 8
        elif 4 * count < size and size > SMALLEST_INDEX:
            size = max(size // 2, SMALLEST_INDEX)
        else:
            return
        slots = <Slot *> take_pages(size * sizeof(Slot))
        if slots == NULL:
            return
        places.old, places.index = places.index, Index(slots, size)
        places.moved = 0
    while steps and places.moved < places.old.size:
        slot = places.old.slots[places.moved]
        if slot.place > 0:
            insert_in(&places.index, slot.hash, slot.place)
            places.old.slots[places.moved].place = GONE
        places.moved += 1
        steps -= 1
    if places.moved == places.old.size:
        drop_index(&places.old)


cdef void insert_in(Index *index, uint32_t hashed, int32_t place) noexcept:
    cdef uint64_t at = home(index, hashed)
    while index.slots[at].place:
        at = behind(index, at)
    index.slots[at] = Slot(hashed, place)


cdef void drop_index(Index *index) noexcept:
    if index.slots != NULL:
        free_pages(index.slots, index.size * sizeof(Slot))
        index.slots = NULL


# --- memory -------------------------------------------------------------------


cdef void *pages(size_t size) except NULL:
    """Allocate whole pages of zeros."""
    cdef void *taken = take_pages(size)
    if taken == NULL:
        raise MemoryError
    return taken


cdef void free_pages(void *at, size_t size) noexcept:
    give_pages(at, size)


cdef void *room_for(Py_ssize_t count, Py_ssize_t size) except NULL:
    return more_room(NULL, count, size)


cdef void *more_room(void *room, Py_ssize_t count, Py_ssize_t size) except NULL:
    cdef void *grown = PyMem_Realloc(room, max(1, count) * size)
    if grown == NULL:
        raise MemoryError
    return grown
