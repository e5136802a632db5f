"""What `_wheel` and `_records` use of `_record_columns`: columns, and where uids are."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from liveness.core.wire._wire cimport Sign

cdef extern from *:
    """
    #define NEVER INT64_MIN  /* stamps may be negative: a clock may have been set */
    """
    const int64_t NEVER

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

cdef dict KIND_NUMBER


cdef class RecordColumns:
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
    cdef void forget_order(self) noexcept
    cdef object record(self, Py_ssize_t at)
    cdef object name_at(self, int32_t number)
    cdef object uid_at(self, const Item *item)
