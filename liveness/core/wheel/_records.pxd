"""What `_wheel` uses of `_records`, and how a reader's records are searched for."""

cimport cython
from libc.stdint cimport int32_t, int64_t

from liveness.core.wheel._record_columns cimport Item, RecordColumns
from liveness.core.wire._msgpack cimport MOST_DIGITS
from liveness.core.wire._wire cimport Sign

# A subscription, with the numbers that its names have in one batch, and how far it is.
cdef struct Search:
    int kinds  # bits
    bint has_gateway, has_uid, users
    int32_t gateway, runs
    Sign uid
    const char *text  # of the uid, also of an integer
    size_t size
    char[MOST_DIGITS] digits
    bint is_sorted  # `at` and `stop` are places in `sorted`
    Py_ssize_t at, stop, least


@cython.final
cdef class RecordBatch(RecordColumns):
    cdef int begin(self, Search *search, int64_t after, object wanted) except -1
    cdef Py_ssize_t next_place(self, Search *search) noexcept
    cdef int sort(self) except -1
    cdef Py_ssize_t most_bytes(self, Py_ssize_t start, Py_ssize_t stop) noexcept
    cdef char *put_row(self, char *out, Py_ssize_t at) noexcept
    cdef char *put_map(self, char *out, Py_ssize_t at) noexcept
    cdef char *put_uid(self, char *out, const Item *item) noexcept
    cdef char *put_user(self, char *out, const Item *item) noexcept
    cdef char *put_name(self, char *out, int32_t number) noexcept
