# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Bytes to frames, compiled: `wire.Reader` again, with a short way for signs of life.

Frames are found by walking over msgpack's headers, and an unfinished one is kept as
bytes; nothing is decoded before it is whole. What a gateway sends all the time, a
keepalive or message of valid uids with no option but `conn`, is then *packed*: noted
in C beside the bytes it came in, without a Python object for it. Every other frame is
decoded and checked as the reference does it, and whatever is wrong with one is told in
its words.
"""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import msgpack

from liveness.core.records import KEEPALIVE, EVENT_NUMBER, MESSAGE, SignsOfLife
from liveness.core.wire import MAX_DEPTH, array_room, blaming_the_sender, checked, too_large
from liveness.errors import Code, WireError

cdef extern from *:
    """
    /* Headers of msgpack are big-endian and stand anywhere. */
    static inline uint16_t load16(const unsigned char *at) {
        uint16_t raw; memcpy(&raw, at, 2); return __builtin_bswap16(raw);
    }
    static inline uint32_t load32(const unsigned char *at) {
        uint32_t raw; memcpy(&raw, at, 4); return __builtin_bswap32(raw);
    }
    static inline uint64_t load64(const unsigned char *at) {
        uint64_t raw; memcpy(&raw, at, 8); return __builtin_bswap64(raw);
    }
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "the compiled wheel is written for little-endian machines"
    #endif

    /* Whether all are printable ASCII: 0. A control character: bit 0. Above 0x7f: bit 1. */
    static inline int kinds_of(const unsigned char *text, Py_ssize_t size) {
        unsigned char control = 0, high = 0;
        for (Py_ssize_t i = 0; i < size; i++) {
            control |= (unsigned char)((text[i] < 0x20) | (text[i] == 0x7f));
            high |= text[i];
        }
        return control | (high >> 7 << 1);
    }
    """
    uint16_t load16(const unsigned char *at) nogil
    uint32_t load32(const unsigned char *at) nogil
    uint64_t load64(const unsigned char *at) nogil
    int kinds_of(const unsigned char *text, Py_ssize_t size) nogil

DEF_NO_CONN = -1
cdef int64_t NO_CONN = -1
cdef uint8_t _KEEPALIVE = EVENT_NUMBER[KEEPALIVE]
cdef uint8_t _MESSAGE = EVENT_NUMBER[MESSAGE]
