"""What `_wheel` sees of `_wire`: signs of life as C keeps them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum Kind:
    NO_UID = 0
    STRING = 1
    INTEGER = 2

cdef union Key:
    const unsigned char *text  # of a string, UTF-8, not ended by anything
    int64_t number

cdef struct Sign:
    Key key
    int64_t conn  # -1: none was named
    uint32_t frame  # which frame of the run it came in, from 0
    uint8_t size  # of a string, in bytes
    uint8_t kind
    uint8_t event  # index into `records.EVENTS`

cdef class PackedSigns:
    cdef object _owner  # whatever the keys point into
    cdef Sign *items
    cdef Py_ssize_t count
    cdef Py_ssize_t _room
    cdef readonly uint32_t frames
    cdef public int64_t first_n

    cdef Sign *_more(self, Py_ssize_t wanted) except NULL
    cdef bint add_frame(
        self, const unsigned char *at, const unsigned char *end, Py_ssize_t most
    ) except -1

cdef PackedSigns packed(object signs)
