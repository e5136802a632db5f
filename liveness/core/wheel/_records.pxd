"""What `_wheel` uses of `_records`: a batch's columns, and where its uids are."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from liveness.core.wire._msgpack cimport MOST_DIGITS
from liveness.core.wire._wire cimport Sign

cdef enum:
    NOTHING = -1  # no conn, session, name or number

cdef enum Kind:
    ONLINE_KIND
    OFFLINE_KIND
    MOVED_KIND
    TIMER_KIND

cdef struct Item:
    int64_t session, conn, at, from_session, from_conn
    int64_t uid  # a number, or the place of a text among the texts
    int64_t seen
    int64_t start_ms  # of a session that it opens
    double silence  # NaN without one
    double due
    double timeout  # of a session that it opens; NaN: the gateway's
    int32_t gateway, from_gateway, reason, last  # numbers of names
    int32_t user_size, devices
    uint8_t kind, uid_kind, uid_size
    bint restored, opens, is_closed  # `is_closed`: by a later record of this batch

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

cdef class RecordBatch:
    cdef readonly int64_t first
    cdef Item *items
    cdef Py_ssize_t count, room
    cdef char *texts
    cdef Py_ssize_t text_bytes, text_room
    cdef list names, packed_names  # the second as msgpack
    cdef dict numbers  # of names
    cdef dict others  # records of timers, by position
    # The positions of each gateway's records, made when they are first asked for.
    cdef int32_t *sorted
    cdef int32_t *starts

    cdef int32_t number_of(self, object name) except -2
    cdef int32_t known_number(self, object name) except -2
    cdef Item *add(self, int64_t seq, const Sign *uid) except NULL
    cdef int make_room(self, Py_ssize_t more, Py_ssize_t more_text) except -1
    cdef void remove_last(self) noexcept
    cdef int fill(self, Item *item, object record, object opening) except -1
    cdef void close(self, int64_t session) noexcept
    cdef int begin(self, Search *search, int64_t after, object wanted) except -1
    cdef Py_ssize_t next_place(self, Search *search) noexcept
    cdef int sort(self) except -1
    cdef void forget_order(self) noexcept
    cdef Py_ssize_t most_bytes(self, Py_ssize_t start, Py_ssize_t stop) noexcept
    cdef object record(self, Py_ssize_t at)
    cdef object name_at(self, int32_t number)
    cdef object uid_at(self, const Item *item)
    cdef char *put_row(self, char *out, Py_ssize_t at) noexcept
    cdef char *put_map(self, char *out, Py_ssize_t at) noexcept
    cdef char *put_uid(self, char *out, const Item *item) noexcept
    cdef char *put_user(self, char *out, const Item *item) noexcept
    cdef char *put_name(self, char *out, int32_t number) noexcept
