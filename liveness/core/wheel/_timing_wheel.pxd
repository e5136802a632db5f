"""What `_wheel` uses of `_timing_wheel`: entries, and the lists that they belong in."""

from libc.stdint cimport int32_t, int64_t

from liveness.core.wheel._table cimport Table, User
from liveness.core.wheel._wheel_layers cimport Layers, Queue

cdef enum:
    AGAIN = 2


cdef class TimingWheel:
    cdef readonly int slots
    cdef readonly double bucket_s
    cdef Table table
    cdef object devices  # None without a separator
    cdef Layers layers
    # Gateways by number; each has two lists of due users.
    cdef int32_t gateways, gateway_room
    cdef int32_t *due_lists

    cdef int32_t checked(self, int64_t gateway) except -1
    cdef object add(self, object uid, User *user)
    cdef int32_t insert(self, object uid, User *user) except -1
    cdef object remove(self, int32_t place)
    cdef int64_t cascade(self, Queue *queue, int64_t steps) except -1

    cdef inline int32_t due_list(self, int64_t gateway, bint renewed) except -1:
        return self.due_lists[2 * <int64_t> self.checked(gateway) + renewed]

    cdef inline int32_t current_list(self, User *user) except -1:
        """The list a user belongs in now: a due list once its bucket has passed."""
        if self.layers.has_passed(user.deadline):
            return self.due_lists[
                2 * <int64_t> user.gateway + (user.flags & AGAIN != 0)
            ]
        return self.layers.list_for(user.deadline)
