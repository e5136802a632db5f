"""What `_table` and `_wheel` use of `_wire`: keepalives and messages as C structs."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from liveness.core.wire._msgpack cimport is_decimal

cdef enum:
    NO_CONN = -1

cdef enum Kind:
    NOBODY
    STRING
    INTEGER
    DECIMAL  # the text of an integer: another name of the same user

cdef union Key:
    const unsigned char *text  # of a STRING: UTF-8, without a terminator
    int64_t number

cdef struct Sign:
    Key key
    int64_t conn
    uint32_t frame  # the frame of the batch that it came in, from 0
    uint8_t size  # bytes of the text of a STRING, else 0
    uint8_t kind
    uint8_t event

cdef class PackedActivity:
    cdef object owner  # keeps the memory alive that the keys point into
    cdef Sign *items
    cdef Py_ssize_t length, room
    cdef uint32_t frames
    cdef int64_t first_n

    cdef int reserve(self, Py_ssize_t wanted) except -1
    cdef bint add(self, const unsigned char *at, Py_ssize_t most_uids) except -1

cdef inline void set_text(Sign *sign, const unsigned char *text, uint8_t size) noexcept nogil:
    """Set a uid that is a valid text."""
    sign.size = 0
    if is_decimal(text, size, &sign.key.number):
        sign.kind = DECIMAL
    else:
        sign.kind, sign.size, sign.key.text = STRING, size, text


cdef inline bint is_same(const Sign *one, const Sign *other) noexcept nogil:
    """Whether two uids name the same user."""
    if one.size != other.size:
        return False
    if one.size == 0:
        return one.key.number == other.key.number
    return memcmp(one.key.text, other.key.text, one.size) == 0


cdef PackedActivity packed(object activity)
cdef int set_key(object uid, Sign *sign) except -1
cdef object uid_of(const Sign *sign)
