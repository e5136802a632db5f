# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Frames about timers to requests, compiled: `after`, `cancel`, `done` and `fail`.

A gateway may send tens of thousands of these each second. One that is *plain*, as nearly
all are, becomes its request without the objects of a decoded frame. What is not plain,
and so all that is wrong, is left to `framing` and `frames`, which say what is wrong.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from liveness.core.wire._msgpack cimport CONTROL, content_of, load, past_natural
from liveness.core.wire._named_tuples cimport named_tuple
from liveness.core.wire.frames import (
    MAX_AFTER_S, MAX_KEY_BYTES, MAX_TEXT_BYTES, MIN_AFTER_S,
)
from liveness.core.wire.link_requests import After, Answer, Cancel

cdef enum:
    LONGEST_KEY = 255
    LONGEST_TEXT = 4096  # a payload, or the message of an answer

assert (LONGEST_KEY, LONGEST_TEXT) == (MAX_KEY_BYTES, MAX_TEXT_BYTES)
cdef type AFTER = After, CANCEL = Cancel, ANSWER = Answer
cdef double LEAST_AFTER_S = MIN_AFTER_S
cdef double MOST_AFTER_S = MAX_AFTER_S

cdef struct Text:
    const unsigned char *at
    Py_ssize_t size


cdef object timer_request(const unsigned char *at):
    """The request of a whole, plain frame about timers; None for any other frame.

    Plain frames are valid, and have no more values and options than these requests need.
    """
    cdef int values = at[0] & 0x0f
    if not 0x92 <= at[0] <= 0x94:
        return None
    if at[1] == 0xa5 and memcmp(at + 2, b"after", 5) == 0:
        return None if values == 2 else after_request(at + 7, has_options=values == 4)
    if at[1] == 0xa6 and memcmp(at + 2, b"cancel", 6) == 0:
        return cancel_request(at + 8) if values == 2 else None
    if at[1] != 0xa4:
        return None
    if memcmp(at + 2, b"done", 4) == 0:
        return answer_request(at + 6, values, is_done=True)
    if memcmp(at + 2, b"fail", 4) == 0:
        return answer_request(at + 6, values, is_done=False)
    return None


cdef object after_request(const unsigned char *at, bint has_options):
    cdef Text name, text
    cdef uint64_t bits
    cdef int64_t whole
    cdef double seconds
    cdef int pairs = 0
    at = past_text(at, &text)
    key = None if at == NULL else key_in(&text)
    if key is None:
        return None
    if at[0] == 0xcb:
        bits = load(at + 1, 8)
        memcpy(&seconds, &bits, 8)
        at += 9
    else:
        at = past_natural(at, &whole)
        if at == NULL:
            return None
        seconds = whole
    if not LEAST_AFTER_S <= seconds <= MOST_AFTER_S:
        return None
    payload = ext = None
    if has_options:
        if not 0x80 <= at[0] <= 0x82:
            return None
        pairs = at[0] & 0x0f
        at += 1
    for _ in range(pairs):
        at = past_text(at, &name)
        if at == NULL:
            return None
        at = past_text(at, &text)
        if at == NULL:
            return None
        if payload is None and name.size == 7 and memcmp(name.at, b"payload", 7) == 0:
            payload = text_in(&text)
            if payload is None:
                return None
        elif ext is None and name.size == 3 and memcmp(name.at, b"ext", 3) == 0:
            ext = key_in(&text)
            if ext is None:
                return None
        else:
            return None
    return named_tuple(AFTER, (key, seconds, payload, ext))


cdef object cancel_request(const unsigned char *at):
    cdef Text name, text
    if at[0] != 0x81:
        return None
    at = past_text(at + 1, &name)
    if at == NULL or name.size != 3 or past_text(at, &text) == NULL:
        return None
    value = key_in(&text)
    if value is None:
        return None
    if memcmp(name.at, b"key", 3) == 0:
        return named_tuple(CANCEL, (value, None))
    if memcmp(name.at, b"ext", 3) == 0:
        return named_tuple(CANCEL, (None, value))
    return None


cdef object answer_request(const unsigned char *at, int values, bint is_done):
    cdef Text text
    cdef int64_t seq = 0
    at = past_text(at, &text)
    key = None if at == NULL else key_in(&text)
    if key is None:
        return None
    message = None
    if values > 2 and is_done and at[0] == 0xc0:
        at += 1
    elif values > 2:
        at = past_text(at, &text)
        message = None if at == NULL else text_in(&text)
        if message is None:
            return None
    elif not is_done:
        return None
    if values == 4:
        if at[0] != 0x81 or at[1] != 0xa3 or memcmp(at + 2, b"seq", 3) != 0:
            return None
        if past_natural(at + 5, &seq) == NULL or seq == 0:
            return None
    return named_tuple(ANSWER, (key, is_done, message, False, seq or None))


cdef const unsigned char *past_text(const unsigned char *at, Text *text) noexcept nogil:
    """Read a string, which may be invalid; NULL for anything else."""
    if 0xa0 <= at[0] < 0xc0:
        text.size = at[0] & 0x1f
        text.at = at + 1
    elif at[0] == 0xd9:
        text.size = at[1]
        text.at = at + 2
    elif at[0] == 0xda:
        text.size = load(at + 1, 2)
        text.at = at + 3
    else:
        return NULL
    return text.at + text.size


cdef object key_in(const Text *text):
    """A timer's key, or ext; None if it is not valid."""
    if not 0 < text.size <= LONGEST_KEY or content_of(text.at, text.size) & CONTROL:
        return None
    return decoded_text(text)


cdef object text_in(const Text *text):
    """A payload, or a message; None if it is not valid."""
    if text.size > LONGEST_TEXT or memchr(text.at, 0, text.size) != NULL:
        return None
    return decoded_text(text)


cdef object decoded_text(const Text *text):
    try:
        return PyUnicode_DecodeUTF8(<const char *> text.at, text.size, NULL)
    except UnicodeDecodeError:
        return None
