"""Values of msgpack in memory, for the modules that read frames without Python objects.

Only `header_at` takes a part of a frame; for all others what a header announces is there.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    /* msgpack's lengths are big-endian and unaligned. */
    static inline uint64_t load(const unsigned char *at, int bytes) {
        uint64_t raw = 0;
        while (bytes--) raw = raw << 8 | *at++;
        return raw;
    }
    /* For each first byte from 0xc0 on: the bytes of the header and of a fixed size; the
       bytes of the length field. */
    static const uint8_t HEADER_BYTES[32] = {
        1, 0, 1, 1, 2, 3, 5, 3, 4, 6, 5, 9, 2, 3, 5, 9,
        2, 3, 5, 9, 3, 4, 6, 10, 18, 2, 3, 5, 3, 5, 3, 5,
    };
    static const uint8_t LENGTH_BYTES[32] = {
        0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4,
    };
    /* Bit 0: there is a control character. Bit 1: there is a byte beyond ASCII. */
    static inline int content_of(const unsigned char *text, Py_ssize_t size) {
        unsigned char control = 0, beyond = 0;
        for (Py_ssize_t i = 0; i < size; i++) {
            control |= (unsigned char)((text[i] < 0x20) | (text[i] == 0x7f));
            beyond |= text[i];
        }
        return control | beyond >> 7 << 1;
    }
    /* Whether a text is the decimal of an integer from 0 to 2^63-1, and which. */
    static inline int is_decimal(const unsigned char *text, Py_ssize_t size, int64_t *number) {
        uint64_t sum = 0;
        if (size < 1 || size > 19 || (text[0] == '0' && size > 1)) return 0;
        for (Py_ssize_t i = 0; i < size; i++) {
            unsigned char digit = text[i] - '0';
            if (digit > 9) return 0;
            sum = 10 * sum + digit;
        }
        *number = (int64_t)sum;
        return *number >= 0;
    }
    /* The decimal of such a number; returns how many digits it has, 19 at most. */
    static inline Py_ssize_t put_digits(char *out, int64_t number) {
        char digits[19];
        Py_ssize_t at = sizeof digits, size;
        uint64_t left = (uint64_t)number;
        do { digits[--at] = (char)('0' + left % 10); left /= 10; } while (left);
        size = (Py_ssize_t)sizeof digits - at;
        memcpy(out, digits + at, (size_t)size);
        return size;
    }
    """
    const uint8_t[32] HEADER_BYTES
    const uint8_t[32] LENGTH_BYTES
    uint64_t load(const unsigned char *at, int bytes) noexcept nogil
    int content_of(const unsigned char *text, Py_ssize_t size) noexcept nogil
    bint is_decimal(const unsigned char *text, Py_ssize_t size, int64_t *number) noexcept nogil
    Py_ssize_t put_digits(char *out, int64_t number) noexcept nogil

cdef enum:
    MOST_DIGITS = 19
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


cdef struct Header:
    Py_ssize_t size  # of the value in bytes, without what it contains
    uint64_t inner  # how many values it directly contains


cdef inline bint header_at(const unsigned char *at, Py_ssize_t have, Header *header) noexcept nogil:
    """Read a value's header; return 0 if its *have* bytes are too few."""
    cdef unsigned char first = at[0]
    cdef int lengths  # bytes that the length takes
    header.inner = 0
    header.size = 1
    if first < 0x80 or first >= 0xe0:
        return True
    if first < 0x90:
        header.inner = 2 * (first & 0x0f)
        return True
    if first < 0xa0:
        header.inner = first & 0x0f
        return True
    if first < 0xc0:
        header.size = 1 + (first & 0x1f)
        return True
    header.size = HEADER_BYTES[first - 0xc0]
    lengths = LENGTH_BYTES[first - 0xc0]
    if not lengths:
        return True
    if have < 1 + lengths:
        return False
    if first >= 0xdc:
        header.inner = load(at + 1, lengths) * (2 if first >= 0xde else 1)
    elif first == 0xc9:
        # msgpack adds the type byte of an extension to its length, in 32 bits, so that
        # the greatest length becomes 0. Such a frame is whole here, and refused when
        # decoded.
        header.size = <uint32_t> (load(at + 1, lengths) + 1)
        header.size += 5
    else:
        header.size += load(at + 1, lengths)
    return True
