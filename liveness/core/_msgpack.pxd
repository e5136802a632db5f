"""Values of msgpack in memory, for the modules that read frames without Python objects.

Only for whole frames: everything that a header announces is there.
"""

from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    /* msgpack's lengths are big-endian and unaligned. */
    static inline uint64_t load(const unsigned char *at, int bytes) {
        uint64_t raw = 0;
        while (bytes--) raw = raw << 8 | *at++;
        return raw;
    }
    /* Bit 0: there is a control character. Bit 1: there is a byte beyond ASCII. */
    static inline int content_of(const unsigned char *text, Py_ssize_t size) {
        unsigned char control = 0, beyond = 0;
        for (Py_ssize_t i = 0; i < size; i++) {
            control |= (unsigned char)((text[i] < 0x20) | (text[i] == 0x7f));
            beyond |= text[i];
        }
        return control | beyond >> 7 << 1;
    }
    """
    uint64_t load(const unsigned char *at, int bytes) noexcept nogil
    int content_of(const unsigned char *text, Py_ssize_t size) noexcept nogil

cdef enum:
    CONTROL = 1
    BEYOND_ASCII = 2


cdef inline const unsigned char *past_natural(const unsigned char *at, int64_t *number) noexcept nogil:
    """Read an integer from 0 to 2^63-1; NULL for anything else."""
    cdef int size
    if at[0] < 0x80:
        number[0] = at[0]
        return at + 1
    if not 0xcc <= at[0] <= 0xcf:
        return NULL
    size = 1 << (at[0] - 0xcc)
    number[0] = load(at + 1, size)
    return NULL if number[0] < 0 else at + 1 + size
