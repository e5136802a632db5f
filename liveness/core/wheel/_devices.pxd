"""What `_wheel` uses of `_devices`: the devices of each user, by places of the table."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from liveness.core.wheel._table cimport Index, Places, Slot, Table
from liveness.core.wire._wire cimport Sign

cdef enum:
    MOST_SEPARATOR_BYTES = 12  # three characters

cdef struct Device:
    int32_t next, prev  # in the ring of one user's devices
    int32_t count  # how many there are, in the first of them; else 0


cdef class Devices:
    cdef unsigned char[MOST_SEPARATOR_BYTES] separator
    cdef Py_ssize_t separator_size
    cdef Places places  # by user: where its first device is
    cdef Device **devices
    cdef int chunks, chunk_room
    cdef int32_t names  # users online
    cdef uint32_t hashed  # of the user of the latest `prepare`, `remove` or `prepare_move`

    cdef int prepare(self, object uid, int32_t place) except -1
    cdef int32_t add(self, Table table, int32_t place) noexcept
    cdef int32_t remove(self, Table table, int32_t place) noexcept
    cdef void prepare_move(self, Table table) noexcept
    cdef void moved(self, Table table, int32_t before, int32_t place) noexcept
    cdef int32_t count(self, Table table, int32_t place) noexcept
    cdef object shown(self, Table table, int32_t place, int32_t count)
    cdef int size_of_user(self, Table table, int32_t place) noexcept
    cdef list of(self, Table table, object user, int64_t limit)
    cdef Device *device(self, int32_t place) noexcept
    cdef void user_at(self, Table table, int32_t place, Sign *user) noexcept
    cdef void cut(self, Sign *user) noexcept
    cdef int separator_in(self, const Sign *uid) noexcept
    cdef Slot *find(self, Table table, const Sign *user, uint32_t hashed) noexcept
    cdef Slot *find_in(
        self, const Index *index, Table table, const Sign *user, uint32_t hashed
    ) noexcept
    cdef void drop_chunk(self) noexcept
