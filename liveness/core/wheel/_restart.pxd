"""What `_wheel` uses of `_restart`: entries of rows, and the clocks of a table."""

from libc.stdint cimport int32_t, int64_t

from liveness.core.wheel._table cimport Table, User


cdef class RestoredGateway:
    cdef readonly int32_t number
    cdef readonly int64_t users
    cdef readonly double in_force, until


cdef class SessionRestorer:
    cdef readonly dict gateways
    # The columns of the clocks, which `clocks` keeps in memory.
    cdef object clocks
    cdef const int64_t[::1] sessions
    cdef const double[::1] timeouts
    cdef const double[::1] remaining
    cdef const double[::1] silences
    cdef const signed char[::1] events
    cdef Py_ssize_t next_clock
    cdef double away, now, mono, state_ms
    cdef int64_t last, next_seq

    cdef object entry(self, object row, User *user)


cdef object clocks_of(Table table, double now, double mono)
