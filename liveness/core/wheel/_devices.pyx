# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""How many devices each user has online, compiled; it behaves as `devices.Devices`.

    device  12 bytes for each entry of the table: its neighbours in the ring of the devices
            of its user, in the order of their logins, and in the first one their number
    index   10 to 11 bytes a user, as that of the table: where the first device is

The names of the users are not kept: each is the beginning of its devices' uids.
"""

from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from liveness.core.wheel._table cimport (
    CHUNK, CHUNK_BITS, GONE, Index, Places, Slot, Table, behind, drop_places, erase,
    fetch, free_pages, grow, hash_of, home, insert, more_room, new_places, pages, resize,
    sign_of, slot_of,
)
from liveness.core.wire._wire cimport NOBODY, STRING, Sign, is_same, set_key, set_text

cdef extern from *:
    """
    #include <string.h>  /* Python.h, in front of it, defines _GNU_SOURCE */
    """
    void *memmem(const void *, size_t, const void *, size_t) noexcept nogil

cdef enum:
    STEP = 16  # slots of the old index moved with each device that is removed


cdef class Devices:
    """The devices of each user; see `devices.Devices`."""

    def __cinit__(self, str separator not None):
        cdef bytes encoded = separator.encode()
        if not 1 <= len(encoded) <= MOST_SEPARATOR_BYTES:
            raise ValueError(f"{separator!r} separates no device from its user")
        self.separator_size = len(encoded)
        memcpy(self.separator, <const char *> encoded, self.separator_size)
        new_places(&self.places)

    def __dealloc__(self):
        while self.chunks:
            self.drop_chunk()
        drop_places(&self.places)
        PyMem_Free(self.devices)

    cdef int prepare(self, object uid, int32_t place) except -1:
        """Make room for a device, at the place that the table will take next.

        Its slot of the index comes from memory while the table takes the place.
        """
        cdef Sign user
        cdef int room = max(16, 2 * self.chunk_room)
        if place >> CHUNK_BITS == self.chunks:
            if self.chunks == self.chunk_room:
                self.devices = <Device **> more_room(
                    self.devices, room, sizeof(Device *)
                )
                self.chunk_room = room
            self.devices[self.chunks] = <Device *> pages(CHUNK * sizeof(Device))
            self.chunks += 1
        grow(&self.places, self.names)
        set_key(uid, &user)
        if user.kind != NOBODY:  # else the table refuses it
            self.cut(&user)
            self.hashed = hash_of(&user)
            fetch(&self.places.index.slots[home(&self.places.index, self.hashed)])
        return 0

    cdef int32_t add(self, Table table, int32_t place) noexcept:
        """Add the entry at a place, after `prepare`; return the number of its user's devices."""
        cdef Sign user
        cdef Slot *slot
        cdef Device *first
        cdef Device *device = self.device(place)
        cdef uint32_t hashed = self.hashed
        self.user_at(table, place, &user)
        device.next = device.prev = place
        device.count = 1
        slot = self.find(table, &user, hashed)
        if slot == NULL:
            self.names += 1
            insert(&self.places, hashed, place + 1)
            return 1
        first = self.device(slot.place - 1)
        device.next, device.prev, device.count = slot.place - 1, first.prev, 0
        self.device(first.prev).next = place
        first.prev = place
        first.count += 1
        return first.count

    cdef int32_t remove(self, Table table, int32_t place) noexcept:
        """Remove the entry at a place, before the table does; return how many are left.

        Until `prepare_move`, `add` takes it back.
        """
        cdef Sign user
        cdef Slot *slot
        cdef Device *device = self.device(place)
        cdef int32_t count
        self.user_at(table, place, &user)
        self.hashed = hash_of(&user)
        slot = self.find(table, &user, self.hashed)
        count = self.device(slot.place - 1).count - 1
        if not count:
            self.names -= 1
            erase(&self.places, self.hashed, place + 1)
            resize(&self.places, self.names, STEP)
            return 0
        self.device(device.prev).next = device.next
        self.device(device.next).prev = device.prev
        if slot.place == place + 1:
            slot.place = device.next + 1
        self.device(slot.place - 1).count = count
        return count

    cdef void prepare_move(self, Table table) noexcept:
        """Get from memory what `moved` needs of the last entry, which the table will move."""
        cdef Sign user
        self.user_at(table, table.count - 1, &user)
        self.hashed = hash_of(&user)
        fetch(self.device(table.count - 1))
        fetch(&self.places.index.slots[home(&self.places.index, self.hashed)])

    cdef void moved(self, Table table, int32_t before, int32_t place) noexcept:
        """Note that the table has removed an entry at *place*, and put its last one there.

        `prepare_move` comes before it.

        Args:
            table: The table.
            before: Where the last one was, so how many entries are left.
            place: Where it is now; the same as *before* if it was the one removed.
        """
        cdef Device *device = self.device(place)
        if before != place:
            device[0] = self.device(before)[0]
            if device.next == before:
                device.next = device.prev = place
            else:
                self.device(device.prev).next = place
                self.device(device.next).prev = place
            if device.count:
                slot_of(&self.places, self.hashed, before + 1).place = place + 1
        if before <= (self.chunks - 2) * CHUNK:
            self.drop_chunk()

    cdef int32_t count(self, Table table, int32_t place) noexcept:
        """How many devices the user of the entry at a place has online."""
        cdef Sign user
        self.user_at(table, place, &user)
        return self.device(self.find(table, &user, hash_of(&user)).place - 1).count

    cdef object shown(self, Table table, int32_t place, int32_t count):
        """The size of the user of the entry at a place, with its number of devices."""
        return self.size_of_user(table, place), count

    cdef int size_of_user(self, Table table, int32_t place) noexcept:
        """How many characters of a uid are its user; 0: all."""
        cdef Sign uid
        cdef int at, size = 0
        sign_of(table.cell(place), &uid)
        for at in range(self.separator_in(&uid)):
            size += uid.key.text[at] & 0xC0 != 0x80  # a byte that begins a character
        return size

    cdef list of(self, Table table, object user, int64_t limit):
        """The uids of a user's devices, at most *limit*, in the order of their logins."""
        cdef Sign sign
        cdef Slot *slot
        cdef int32_t first, place
        uids = []
        set_key(user, &sign)
        if sign.kind == NOBODY or limit < 1:
            return uids
        slot = self.find(table, &sign, hash_of(&sign))
        if slot != NULL:
            first = place = slot.place - 1
            while len(uids) < limit:
                uids.append(table.uid_at(place))
                place = self.device(place).next
                if place == first:
                    break
        return uids

    cdef Device *device(self, int32_t place) noexcept:
        return self.devices[place >> CHUNK_BITS] + (place & CHUNK - 1)

    cdef void user_at(self, Table table, int32_t place, Sign *user) noexcept:
        """The user of the entry at a place, valid until its cell changes."""
        sign_of(table.cell(place), user)
        self.cut(user)

    cdef void cut(self, Sign *user) noexcept:
        """Cut a uid to its user."""
        cdef int size = self.separator_in(user)
        if size:
            set_text(user, user.key.text, size)

    cdef int separator_in(self, const Sign *uid) noexcept:
        """Where the first separator of a uid is; 0 if it has none behind a user."""
        cdef const unsigned char *found
        if uid.kind != STRING:
            return 0
        found = <const unsigned char *> memmem(
            uid.key.text, uid.size, self.separator, self.separator_size
        )
        return 0 if found == NULL else found - uid.key.text

    cdef Slot *find(self, Table table, const Sign *user, uint32_t hashed) noexcept:
        """The slot of a user, or NULL."""
        cdef Slot *slot = self.find_in(&self.places.index, table, user, hashed)
        if slot == NULL and self.places.old.slots != NULL:
            slot = self.find_in(&self.places.old, table, user, hashed)
        return slot

    cdef Slot *find_in(
        self, const Index *index, Table table, const Sign *user, uint32_t hashed
    ) noexcept:
        cdef uint64_t at = home(index, hashed)
        cdef Slot *slot = &index.slots[at]
        cdef Sign known
        while slot.place:
            if slot.hash == hashed and slot.place != GONE:
                self.user_at(table, slot.place - 1, &known)
                if is_same(&known, user):
                    return slot
            at = behind(index, at)
            slot = &index.slots[at]
        return NULL

    cdef void drop_chunk(self) noexcept:
        self.chunks -= 1
        free_pages(self.devices[self.chunks], CHUNK * sizeof(Device))
