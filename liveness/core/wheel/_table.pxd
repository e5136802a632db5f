"""What `_wheel` uses of `_table`: users and lists as C structs.

The functions that every touch needs are here, so that gcc inlines them in the wheel's
loops: calls between modules go through pointers otherwise.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from liveness.core.wire._wire cimport STRING, Sign

cdef extern from *:
    """
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

    /* A cell's word: its number, or the pointer to its long text. */
    static inline int64_t word_of(const Cell *cell) {
        int64_t word; memcpy(&word, cell->text, 8); return word;
    }
    static inline void set_word(Cell *cell, int64_t word) {
        memcpy(cell->text, &word, 8);
    }

    #define fetch(at) __builtin_prefetch((at), 1, 3)
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

cdef enum:
    CHUNK_BITS = 15
    CHUNK = 1 << CHUNK_BITS
    INLINE = 22  # bytes of a uid that its cell has room for
    NONE = -1
    GONE = -1  # in the old index: moved or removed; a search goes on behind it

cdef struct Slot:
    uint32_t hash
    int32_t place  # of the entry, plus one; 0 if the slot is free

# Slots are in the order of their hashes, but for collisions. So an index is read and
# written from front to back while it is moved, and can have any size.
cdef struct Index:
    Slot *slots
    uint64_t size

# The place of each key by its hash, in one index or two: while it is resized, the slots of
# the old one are moved to the other.
cdef struct Places:
    Index index, old
    uint64_t moved  # how many slots of the old index are moved

cdef struct List:
    int32_t first, last, count
    int32_t after  # the list behind it in a queue, or among the free ones

cdef Py_ssize_t (*keyed_hash)(const void *, Py_ssize_t) noexcept nogil

cdef void resize(Places *places, uint64_t count, uint64_t steps) noexcept

cdef void *room_for(Py_ssize_t count, Py_ssize_t size) except NULL
cdef void *more_room(void *room, Py_ssize_t count, Py_ssize_t size) except NULL


cdef inline uint32_t hash_of(const Sign *sign) noexcept nogil:
    cdef uint64_t hashed
    if sign.kind == STRING:
        hashed = keyed_hash(sign.key.text, sign.size)
    else:
        hashed = ~keyed_hash(&sign.key.number, sizeof(int64_t))
    return <uint32_t> (hashed ^ hashed >> 32)


cdef inline uint64_t home(const Index *index, uint32_t hashed) noexcept nogil:
    """Where the search for a hash begins."""
    return hashed * index.size >> 32


cdef inline uint64_t behind(const Index *index, uint64_t at) noexcept nogil:
    """Where it goes on."""
    return at + 1 if at + 1 < index.size else 0


cdef inline bint is_of(const Cell *cell, const Sign *sign) noexcept nogil:
    """Whether the cell has this user, by whichever name."""
    if cell.size != sign.size:
        return False
    if sign.size == 0:
        return word_of(cell) == sign.key.number
    return memcmp(text_of(cell), sign.key.text, sign.size) == 0


cdef inline const unsigned char *text_of(const Cell *cell) noexcept nogil:
    if cell.size > INLINE:
        return <const unsigned char *> word_of(cell)
    return <const unsigned char *> cell.text


cdef inline void sign_of(const Cell *cell, Sign *sign) noexcept nogil:
    """The uid of a cell, valid until the cell changes."""
    sign.kind, sign.size = cell.kind, cell.size
    if cell.kind == STRING:
        sign.key.text = text_of(cell)
    else:
        sign.key.number = word_of(cell)


cdef class Table:
    # Users by place, and where each uid is.
    cdef User **users
    cdef Cell **cells
    cdef int chunks, chunk_room
    cdef int32_t count
    cdef Places places
    # Lists by number.
    cdef List *lists
    cdef int32_t list_count, list_room, free_list

    cdef int32_t add(self, object uid, const User *user) except -1
    cdef void remove(self, int32_t place) noexcept
    cdef object entry(self, int32_t place, object user_devices)
    cdef object uid_at(self, int32_t place)
    cdef int32_t place_of(self, object uid) except? -1
    cdef int32_t known(self, object uid) except -1
    cdef void forget_text(self, int32_t place) noexcept
    cdef int add_chunk(self) except -1
    cdef void drop_chunk(self) noexcept
    cdef int32_t new_list(self) except -1
    cdef void drop_list(self, int32_t number) noexcept
    cdef void link_anew(self, int32_t place, User *user) noexcept

    cdef inline User *user(self, int32_t place) noexcept nogil:
        return self.users[place >> CHUNK_BITS] + (place & CHUNK - 1)

    cdef inline Cell *cell(self, int32_t place) noexcept nogil:
        return self.cells[place >> CHUNK_BITS] + (place & CHUNK - 1)

    cdef inline int32_t search(self, const Sign *sign, uint32_t hashed) noexcept nogil:
        """The place of a uid, or NONE."""
        cdef int32_t place = self.search_in(&self.places.index, sign, hashed)
        if place == NONE and self.places.old.slots != NULL:
            place = self.search_in(&self.places.old, sign, hashed)
        return place

    cdef inline int32_t search_in(
        self, const Index *index, const Sign *sign, uint32_t hashed
    ) noexcept nogil:
        cdef uint64_t at = home(index, hashed)
        cdef Slot slot = index.slots[at]
        while slot.place:
            if slot.hash == hashed and slot.place != GONE:
                if is_of(self.cell(slot.place - 1), sign):
                    return slot.place - 1
            at = behind(index, at)
            slot = index.slots[at]
        return NONE

    cdef inline int32_t likely(self, uint32_t hashed) noexcept nogil:
        """The first place with this hash, nearly always the right one; or NONE."""
        cdef Index *index = &self.places.index
        cdef uint64_t at = home(index, hashed)
        while index.slots[at].place:
            if index.slots[at].hash == hashed:
                return index.slots[at].place - 1
            at = behind(index, at)
        return NONE

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
