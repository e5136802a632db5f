# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Bytes to frames, compiled: `framing.Reader`, and a fast path for keepalives.

A walk over msgpack's headers finds the end of a frame, and counts its values. Until the
end has arrived the frame is kept as bytes, and nothing of it is decoded. The frames that
gateways send all the time, keepalives and messages of valid uids with no option but
`conn`, are then *packed*: kept in C structs that point into the bytes, without Python
objects. All other frames are decoded and checked by functions of `framing`, with the same
errors.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

import msgpack

from liveness.core.wire._msgpack cimport (
    BEYOND_ASCII, CONTROL, MOST_DIGITS, Header, content_of, header_at, load, past_natural,
    put_digits,
)
from liveness.core.wire.link_requests import ActivityBatch
from liveness.core.records import EVENT_NUMBER, KEEPALIVE, MESSAGE
from liveness.core.wire.uids import MAX_UID_BYTES
from liveness.core.wire.framing import (
    wire_error_for, decoded, most_values, too_large, too_many_values,
)
from liveness.errors import WireError

cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || UINTPTR_MAX != UINT64_MAX
    #error "the compiled wheel is written for little-endian machines of 64 bits"
    #endif
    """

cdef enum:
    DEEPEST = 1024  # as in msgpack, which cannot decode deeper frames
    LONGEST_UID = 255
    ALONE = -1  # a uid outside an array

assert LONGEST_UID == MAX_UID_BYTES
assert KEEPALIVE == "keepalive" and MESSAGE == "message"
cdef uint8_t KEEPALIVE_NUMBER = EVENT_NUMBER[KEEPALIVE]
cdef uint8_t MESSAGE_NUMBER = EVENT_NUMBER[MESSAGE]


cdef class PackedActivity:
    """Activity in C structs; see `link_requests.ActivityBatch`."""

    def __dealloc__(self):
        PyMem_Free(self.items)

    def __len__(self):
        return self.length

    def count(self, uint8_t event):
        cdef Py_ssize_t at, found = 0
        for at in range(self.length):
            found += self.items[at].event == event
        return found

    def at(self, Py_ssize_t position):
        if not 0 <= position < self.length:
            raise IndexError(position)
        cdef Sign *sign = self.items + position
        return uid_of(sign), None if sign.conn == NO_CONN else sign.conn, sign.event

    def frame_at(self, Py_ssize_t position):
        if not 0 <= position < self.length:
            raise IndexError(position)
        cdef uint32_t frame = self.items[position].frame
        cdef Py_ssize_t first = position
        while first and self.items[first - 1].frame == frame:
            first -= 1
        return self.first_n + frame, position - first

    @property
    def uids(self):
        return [uid_of(self.items + at) for at in range(self.length)]

    @property
    def conns(self):
        return [self.at(at)[1] for at in range(self.length)]

    @property
    def events(self):
        return bytes([self.items[at].event for at in range(self.length)])

    cdef int reserve(self, Py_ssize_t wanted) except -1:
        """Make room for *wanted* items in all."""
        cdef Py_ssize_t room = max(wanted, 2 * self.room, 64)
        if wanted > self.room:
            items = <Sign *> PyMem_Realloc(self.items, room * sizeof(Sign))
            if items == NULL:
                raise MemoryError
            self.items, self.room = items, room
        return 0

    cdef bint add(self, const unsigned char *at, Py_ssize_t most_uids) except -1:
        """Pack a whole frame; return False if it is not a plain keepalive or message."""
        cdef bint has_options = at[0] == 0x93
        cdef Py_ssize_t position, count, uids = ALONE
        cdef uint8_t event
        if not has_options and at[0] != 0x92:
            return False
        if at[1] == 0xa9 and memcmp(at + 2, b"keepalive", 9) == 0:
            event = KEEPALIVE_NUMBER
            at += 11
        elif at[1] == 0xa7 and memcmp(at + 2, b"message", 7) == 0:
            event = MESSAGE_NUMBER
            at += 9
        else:
            return False
        at = past_array(at, &uids)
        if uids > most_uids:
            return False
        count = 1 if uids == ALONE else uids
        self.reserve(self.length + count)
        cdef Sign *first = self.items + self.length
        for position in range(count):
            at = past_key(at, first + position)
            if at == NULL:
                return False
            first[position].event = event
            first[position].conn = NO_CONN
            first[position].frame = self.frames
        if has_options and not take_conns(at, first, uids):
            return False
        self.length += count
        self.frames += 1
        return True


ActivityBatch.register(PackedActivity)


cdef PackedActivity packed(object activity):
    """Convert any batch of activity to C structs, even with invalid uids.

    The keys point into the uid objects of *activity*.
    """
    cdef PackedActivity made
    cdef Sign *sign
    cdef Py_ssize_t size
    if type(activity) is PackedActivity:
        return activity
    made = PackedActivity.__new__(PackedActivity)
    uids, conns, events = tuple(activity.uids), activity.conns, activity.events
    made.owner = uids
    made.reserve(len(uids))
    for uid, conn, event in zip(uids, conns, events):
        sign = made.items + made.length
        set_key(uid, sign)
        sign.conn = NO_CONN if conn is None else conn
        sign.event = event
        made.length += 1
    return made


cdef int set_key(object uid, Sign *sign) except -1:
    """Set the key of a uid, valid as long as the object; NOBODY if it is not valid."""
    cdef Py_ssize_t size
    sign.kind = NOBODY
    sign.size = 0
    sign.key.number = 0
    if type(uid) is str:
        try:
            text = PyUnicode_AsUTF8AndSize(uid, &size)
        except UnicodeEncodeError:  # half of a surrogate pair
            return 0
        if 0 < size <= LONGEST_UID and not content_of(<const unsigned char *> text, size) & CONTROL:
            set_text(sign, <const unsigned char *> text, size)
    elif type(uid) is int and 0 <= uid <= INT64_MAX:
        sign.kind = INTEGER
        sign.key.number = uid
    return 0


cdef object uid_of(const Sign *sign):
    """The uid as an object."""
    cdef char[MOST_DIGITS] digits
    if sign.kind == INTEGER:
        return sign.key.number
    if sign.kind == DECIMAL:
        return PyUnicode_DecodeUTF8(digits, put_digits(digits, sign.key.number), NULL)
    return PyUnicode_DecodeUTF8(<const char *> sign.key.text, sign.size, NULL)


# --- the parts of a keepalive or message --------------------------------------
#
# Only for whole frames: everything that a header announces is there.


cdef const unsigned char *past_array(const unsigned char *at, Py_ssize_t *length) noexcept nogil:
    """Step into an array and set its length; stay if there is none."""
    if 0x90 <= at[0] <= 0x9f:
        length[0] = at[0] & 0x0f
        return at + 1
    if at[0] == 0xdc:
        length[0] = load(at + 1, 2)
        return at + 3
    return at


cdef const unsigned char *past_key(const unsigned char *at, Sign *sign) except? NULL:
    """Read a valid uid; NULL for anything else."""
    cdef int content
    cdef uint8_t size
    if 0xa0 <= at[0] < 0xc0:
        size = at[0] & 0x1f
        at += 1
    elif at[0] == 0xd9:
        size = at[1]
        at += 2
    else:
        sign.kind, sign.size = INTEGER, 0
        return past_natural(at, &sign.key.number)
    set_text(sign, at, size)
    if sign.kind == DECIMAL:
        return at + size
    content = content_of(at, size)
    if size == 0 or content & CONTROL:
        return NULL
    if content & BEYOND_ASCII:
        try:
            uid_of(sign)
        except UnicodeDecodeError:
            return NULL
    return at + size


cdef bint take_conns(const unsigned char *at, Sign *first, Py_ssize_t uids) noexcept nogil:
    """Read nothing (an empty map or array, or nil), or a map with only the conn of each uid."""
    cdef Py_ssize_t position, count = 1, conns = ALONE
    if at[0] in (0xc0, 0x80, 0x90):
        return True
    if at[0] != 0x81 or at[1] != 0xa4 or memcmp(at + 2, b"conn", 4) != 0:
        return False
    at += 6
    if at[0] == 0xc0:
        return True
    at = past_array(at, &conns)
    if conns != uids:
        return False
    if uids != ALONE:
        count = uids
    for position in range(count):
        if at[0] == 0xc0:
            at += 1
            continue
        at = past_natural(at, &first[position].conn)
        if at == NULL:
            return False
    return True


# --- frames -------------------------------------------------------------------


@cython.auto_pickle(False)
cdef class Reader:
    """The receiving end of one stream; see `framing.Reader`, which it replaces."""

    cdef public bint packs
    cdef public Py_ssize_t max_frame_bytes
    cdef readonly int64_t n
    cdef Py_ssize_t max_batch
    cdef uint64_t most_values
    # The incomplete frame, and how far it was walked: the place of the next
    # header, the values announced so far, and for each open array or map the values still
    # to come.
    cdef bytearray held
    cdef Py_ssize_t walked
    cdef uint64_t values
    cdef int depth
    cdef uint64_t[DEEPEST] inner

    def __cinit__(self, *, Py_ssize_t max_frame_bytes, Py_ssize_t max_batch):
        self.max_frame_bytes = max_frame_bytes
        self.max_batch = max_batch
        self.most_values = most_values(max_batch)
        self.held = bytearray()

    @property
    def unfinished_bytes(self):
        return len(self.held)

    def feed(self, data):
        """Yield each frame that *data* completes; see `framing.Reader`.

        Exhaust the generator before you feed the next piece.
        """
        return self.feed_packing(data)

    def feed_packing(self, data):
        cdef Py_ssize_t start = 0, size = 0
        cdef PackedActivity batch = None
        cdef bytes whole
        fault = None
        if self.held:
            self.held += data
            if not self.end_of_frame(self.held, len(self.held)):
                return
            whole, self.held = bytes(self.held), bytearray()
        else:
            whole = bytes(data)
        while start < len(whole):
            self.walked = self.depth = self.values = 0
            try:
                size = self.end_of_frame(
                    <const unsigned char *> whole + start, len(whole) - start
                )
            except WireError as error:
                fault = error
                break
            if not size:
                break
            if self.packs:
                if batch is None:
                    batch = PackedActivity.__new__(PackedActivity)
                    batch.owner, batch.first_n = whole, self.n + 1
                if batch.add(<const unsigned char *> whole + start, self.max_batch):
                    self.n += 1
                    start += size
                    continue
                if batch.frames:
                    yield batch
                batch = None
            frame = decoded(whole[start:start + size])
            self.n += 1
            start += size
            yield frame
        if batch is not None and batch.frames:
            yield batch
        if fault is not None:
            raise fault
        self.held += whole[start:]

    cdef Py_ssize_t end_of_frame(
        self, const unsigned char *frame, Py_ssize_t have
    ) except -1:
        """Continue the walk over a frame in *have* bytes, which may be too few or many.

        Returns:
            Its size; 0 if it is incomplete, and then the next call continues the walk.
        """
        cdef Header header
        cdef Py_ssize_t size
        while self.depth or not self.walked:
            if self.walked >= have:
                return self.wait(have)
            if self.walked >= self.max_frame_bytes:
                raise too_large(self.walked + 1, self.max_frame_bytes)
            if frame[self.walked] == 0xc1:
                raise wire_error_for(msgpack.FormatError())
            if not header_at(frame + self.walked, have - self.walked, &header):
                return self.wait(have)
            self.walked += header.size
            self.values += header.inner
            if header.inner:
                if self.depth == DEEPEST:
                    raise wire_error_for(msgpack.StackError())
                self.inner[self.depth] = header.inner
                self.depth += 1
                continue
            while self.depth:
                self.inner[self.depth - 1] -= 1
                if self.inner[self.depth - 1]:
                    break
                self.depth -= 1
        if self.walked > have:
            return self.wait(have)
        if self.walked > self.max_frame_bytes:
            raise too_large(self.walked, self.max_frame_bytes)
        if self.values > self.most_values:
            raise too_many_values(self.most_values)
        size, self.walked = self.walked, 0
        return size

    cdef Py_ssize_t wait(self, Py_ssize_t have) except -1:
        """Return 0 for an incomplete frame, unless it is too large already."""
        if have > self.max_frame_bytes:
            raise too_large(have, self.max_frame_bytes)
        return 0
