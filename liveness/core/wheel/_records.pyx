# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records that were decided together, compiled; it behaves as `record_batch.RecordBatch`.

`_record_columns` has the records, and this module encodes them, for the log and for readers.
msgpack is written here by hand, byte for byte as msgpack-python writes it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.math cimport INFINITY, isnan
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp, memcpy, memset

from collections.abc import Sequence

from liveness.core.wheel._record_columns cimport (
    KIND_NUMBER, MOVED_KIND, NEVER, NOTHING, OFFLINE_KIND, ONLINE_KIND, TIMER_KIND, Item,
    RecordColumns,
)
from liveness.core.wire._msgpack cimport put_digits
from liveness.core.wire._wire cimport DECIMAL, INTEGER, NOBODY, STRING, set_key
from liveness.core.wire.framing import encode
from liveness.core.wheel.record_batch import Encoded
from liveness.core.records import KINDS

cdef extern from *:
    """
    /* An integer in msgpack's shortest form; returns what is behind it. */
    static inline char *put_number(char *out, int64_t number) {
        unsigned char *at = (unsigned char *)out;
        uint64_t raw = (uint64_t)number;
        int bytes, head;
        if (number >= 0) {
            if (number < 0x80) { *at++ = (unsigned char)number; return (char *)at; }
            head = 0xcc;
            bytes = number < 0x100 ? 1 : number < 0x10000 ? 2 : number < 0x100000000 ? 4 : 8;
        } else {
            if (number >= -32) { *at++ = (unsigned char)number; return (char *)at; }
            head = 0xd0;
            bytes = number >= -0x80 ? 1 : number >= -0x8000 ? 2
                : number >= -0x80000000LL ? 4 : 8;
        }
        *at++ = (unsigned char)(head + (bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3));
        while (bytes--) *at++ = (unsigned char)(raw >> 8 * bytes);
        return (char *)at;
    }
    static inline char *put_double(char *out, double number) {
        uint64_t raw;
        memcpy(&raw, &number, 8);
        *out++ = (char)0xcb;
        for (int left = 8; left--;) *out++ = (char)(raw >> 8 * left);
        return out;
    }
    /* A text of at most 255 bytes. */
    static inline char *put_text(char *out, const char *text, size_t size) {
        if (size < 32) *out++ = (char)(0xa0 | size);
        else { *out++ = (char)0xd9; *out++ = (char)size; }
        memcpy(out, text, size);
        return out + size;
    }
    /* The bytes of the first so many characters of a text. */
    static inline size_t bytes_of(const char *text, size_t size, int characters) {
        size_t at = 0;
        while (at < size && ((text[at] & 0xc0) == 0x80 || characters-- > 0)) at++;
        return at;
    }
    """
    char *put_number(char *out, int64_t number) noexcept nogil
    char *put_double(char *out, double number) noexcept nogil
    char *put_text(char *out, const char *text, size_t size) noexcept nogil
    size_t bytes_of(const char *text, size_t size, int characters) noexcept nogil

cdef enum:
    NIL = 0xc0
    FALSE = 0xc2
    TRUE = 0xc3
    # More than the numbers, headers and keys of a record take, without its texts.
    FIXED = 512

# Each key, and each kind, as msgpack.
cdef bytes SEQ = encode("seq"), KIND = encode("kind"), UID = encode("uid")
cdef bytes GATEWAY = encode("gateway"), SESSION = encode("session")
cdef bytes REASON = encode("reason"), AT = encode("at"), CONN = encode("conn")
cdef bytes SILENCE = encode("silence"), RESTORED = encode("restored")
cdef bytes SEEN = encode("seen"), LAST = encode("last"), FROM = encode("from")
cdef bytes FROM_SESSION = encode("from_session"), FROM_CONN = encode("from_conn")
cdef bytes USER = encode("user"), DEVICES = encode("devices")
cdef list KIND_PACKED = [encode(kind) for kind in KINDS]


@cython.final
cdef class RecordBatch(RecordColumns):
    """The same as msgpack, and by reader; see `record_batch.RecordBatch`."""

    # --- the log --------------------------------------------------------------

    def packed(self, Py_ssize_t start, Py_ssize_t stop):
        cdef Py_ssize_t at
        cdef int64_t newest
        cdef char *out
        cdef bytes made
        stop = min(stop, self.count)
        if not 0 <= start < stop:
            raise ValueError("a page may not be empty")
        newest = self.items[start].at
        for at in range(start, stop):
            newest = max(newest, self.items[at].at)
        if self.others and any(start <= at < stop for at in self.others):
            return newest, encode([self.record(at) for at in range(start, stop)])
        made = PyBytes_FromStringAndSize(NULL, 5 + self.most_bytes(start, stop))
        out = put_array(PyBytes_AS_STRING(made), stop - start)
        for at in range(start, stop):
            out = self.put_row(out, at)
        return newest, made[:out - PyBytes_AS_STRING(made)]

    cdef char *put_row(self, char *out, Py_ssize_t at) noexcept:
        cdef Item *item = self.items + at
        out = put_array(out, 17)
        out = put_number(out, self.first + at)
        out = put(out, KIND_PACKED[item.kind])
        out = self.put_uid(out, item)
        out = put(out, self.packed_names[item.gateway])
        out = put_number(out, item.session)
        out = put_optional(out, item.conn)
        out = put(out, self.packed_names[item.reason])
        out = put_number(out, item.at)
        out = put_seen(out, item)
        out = self.put_name(out, item.last)
        out = put_silence(out, item)
        out[0] = <char> (TRUE if item.restored else FALSE)
        out = self.put_name(out + 1, item.from_gateway)
        out = put_optional(out, item.from_session)
        out = put_optional(out, item.from_conn)
        out = put_optional(out, item.user_size)
        return put_optional(out, item.devices)

    # --- readers --------------------------------------------------------------

    def places(self, int64_t after, wanted, *, Py_ssize_t limit):
        cdef Search search
        cdef Py_ssize_t at
        found = []
        self.begin(&search, after, wanted)
        while len(found) < limit:
            at = self.next_place(&search)
            if at == NOTHING:
                break
            found.append(at)
        return found

    def encoded(
        self, int64_t after, wanted, *, Py_ssize_t limit, double most_bytes=INFINITY,
        own=None,
    ):
        cdef Search search
        cdef Py_ssize_t at, size = 0, room = 0, more
        cdef int32_t own_number = self.known_number(own)
        cdef Item *item
        cdef char *maps = NULL
        cdef char *start
        seqs, deadlines = [], []
        self.begin(&search, after, wanted)
        try:
            while len(seqs) < limit:
                at = self.next_place(&search)
                if at == NOTHING:
                    break
                item = self.items + at
                packed = None
                if item.kind == TIMER_KIND:
                    packed = encode(self.others[at].as_map())
                more = self.most_bytes(at, at + 1) if packed is None else len(packed)
                if size + more > room:
                    room = 2 * (size + more)
                    start = <char *> PyMem_Realloc(maps, room)
                    if start == NULL:
                        raise MemoryError
                    maps = start
                start = maps + size
                if packed is not None:
                    size = put(start, packed) - maps
                else:
                    size = self.put_map(start, at) - maps
                    if item.due and item.gateway == own_number:
                        deadlines.append(item.due)
                seqs.append(self.first + at)
                if size >= most_bytes:
                    break
            return Encoded(seqs, PyBytes_FromStringAndSize(maps, size), deadlines)
        finally:
            PyMem_Free(maps)

    cdef int begin(self, Search *search, int64_t after, object wanted) except -1:
        """Look up a subscription's names in this batch, and where to begin."""
        search.kinds = 0
        for kind in wanted.kinds:
            if kind in KIND_NUMBER:
                search.kinds |= 1 << <int> KIND_NUMBER[kind]
        search.has_gateway = wanted.gateway is not None
        search.gateway = self.known_number(wanted.gateway)
        search.runs = self.known_number(wanted.runs)
        search.has_uid = wanted.uid is not None
        set_key(wanted.uid, &search.uid)
        search.text, search.size = search.digits, search.uid.size
        if search.uid.kind == STRING:
            search.text = <const char *> search.uid.key.text
        elif search.uid.kind != NOBODY:
            search.size = put_digits(search.digits, search.uid.key.number)
        search.users = wanted.users
        search.least = search.at = max(0, after + 1 - self.first)
        search.stop = self.count
        search.is_sorted = False
        if search.has_gateway and search.runs in (NOTHING, search.gateway):
            # Only what concerns this gateway: the records of others are not looked at.
            search.at = search.stop = 0
            if search.gateway != NOTHING:
                self.sort()
                search.is_sorted = True
                search.at = self.starts[search.gateway]
                search.stop = self.starts[search.gateway + 1]
        return 0

    cdef Py_ssize_t next_place(self, Search *search) noexcept:
        """Where the next record is that is searched for; `NOTHING` behind the last one."""
        cdef Py_ssize_t at
        while search.at < search.stop:
            at = self.sorted[search.at] if search.is_sorted else search.at
            search.at += 1
            if at >= search.least and is_wanted(search, self.items + at, self.texts):
                return at
        return NOTHING

    cdef int sort(self) except -1:
        """Sort the positions by gateway, if that was not done yet: a counting sort."""
        cdef Py_ssize_t at, names = len(self.names)
        cdef int32_t number
        cdef Item *item
        cdef int32_t *starts
        if self.starts != NULL:
            return 0
        starts = <int32_t *> PyMem_Realloc(NULL, (names + 2) * sizeof(int32_t))
        if starts == NULL:
            raise MemoryError
        memset(starts, 0, (names + 2) * sizeof(int32_t))
        # starts[n + 2] counts the positions of name n. Summed up, starts[n + 1] is where
        # they begin. Each that is put there moves it on, at last to where those of n + 1
        # begin, as is wanted.
        for at in range(self.count):
            item = self.items + at
            starts[item.gateway + 2] += 1
            if has_second(item):
                starts[item.from_gateway + 2] += 1
        for number in range(2, names + 2):
            starts[number] += starts[number - 1]
        self.sorted = <int32_t *> PyMem_Realloc(
            NULL, max(1, starts[names + 1]) * sizeof(int32_t)
        )
        if self.sorted == NULL:
            PyMem_Free(starts)
            raise MemoryError
        for at in range(self.count):
            item = self.items + at
            self.sorted[starts[item.gateway + 1]] = at
            starts[item.gateway + 1] += 1
            if has_second(item):
                self.sorted[starts[item.from_gateway + 1]] = at
                starts[item.from_gateway + 1] += 1
        self.starts = starts
        return 0

    cdef char *put_map(self, char *out, Py_ssize_t at) noexcept:
        cdef Item *item = self.items + at
        cdef char *head = out
        cdef int keys = 7
        out = put_number(put(out + 1, SEQ), self.first + at)
        out = put(put(out, KIND), KIND_PACKED[item.kind])
        out = self.put_uid(put(out, UID), item)
        out = put(put(out, GATEWAY), self.packed_names[item.gateway])
        out = put_number(put(out, SESSION), item.session)
        out = put(put(out, REASON), self.packed_names[item.reason])
        out = put_number(put(out, AT), item.at)
        if item.conn != NOTHING:
            keys += 1
            out = put_number(put(out, CONN), item.conn)
        if item.kind == OFFLINE_KIND:
            keys += 2
            out = put_silence(put(out, SILENCE), item)
            if item.restored:
                out = put(out, RESTORED)
                out[0] = <char> TRUE
                out += 1
            else:
                keys += 1
                out = put_seen(put(out, SEEN), item)
                out = self.put_name(put(out, LAST), item.last)
        elif item.kind == MOVED_KIND:
            keys += 1
            out = self.put_name(put(out, FROM), item.from_gateway)
            if item.from_session != NOTHING:
                keys += 1
                out = put_number(put(out, FROM_SESSION), item.from_session)
            if item.from_conn != NOTHING:
                keys += 1
                out = put_number(put(out, FROM_CONN), item.from_conn)
        if item.devices != NOTHING:
            keys += 2
            out = self.put_user(put(out, USER), item)
            out = put_number(put(out, DEVICES), item.devices)
        head[0] = <char> (0x80 | keys)
        return out

    cdef Py_ssize_t most_bytes(self, Py_ssize_t start, Py_ssize_t stop) noexcept:
        """More than some records take as rows, or as maps."""
        cdef Py_ssize_t at, size = 0
        cdef Item *item
        for at in range(start, stop):
            item = self.items + at
            size += FIXED + 2 * item.uid_size + len(<bytes> self.packed_names[item.gateway])
            if item.reason != NOTHING:
                size += len(<bytes> self.packed_names[item.reason])
            if item.last != NOTHING:
                size += len(<bytes> self.packed_names[item.last])
            if item.from_gateway != NOTHING:
                size += len(<bytes> self.packed_names[item.from_gateway])
        return size

    cdef char *put_uid(self, char *out, const Item *item) noexcept:
        cdef Py_ssize_t digits
        if item.uid_kind == INTEGER:
            return put_number(out, item.uid)
        if item.uid_kind == DECIMAL:
            digits = put_digits(out + 1, item.uid)
            out[0] = <char> (0xa0 | digits)
            return out + 1 + digits
        return put_text(out, self.texts + item.uid, item.uid_size)

    cdef char *put_user(self, char *out, const Item *item) noexcept:
        if item.uid_kind != STRING:
            return self.put_uid(out, item)
        return put_text(out, self.texts + item.uid, user_bytes(item, self.texts))

    cdef char *put_name(self, char *out, int32_t number) noexcept:
        if number == NOTHING:
            out[0] = <char> NIL
            return out + 1
        return put(out, self.packed_names[number])


Sequence.register(RecordBatch)


cdef inline bint is_wanted(
    const Search *which, const Item *item, const char *texts
) noexcept nogil:
    """As `records.Subscription.wants`."""
    if item.kind == TIMER_KIND and which.runs != NOTHING and item.gateway == which.runs:
        return True
    if not which.kinds >> item.kind & 1:
        return False
    if which.has_gateway and (
        which.gateway == NOTHING
        or which.gateway != item.gateway and which.gateway != item.from_gateway
    ):
        return False
    if which.has_uid and not is_of(item, which, texts):
        return False
    return not which.users or item.kind == TIMER_KIND or is_users(item)


cdef inline bint is_of(const Item *item, const Search *which, const char *texts) noexcept nogil:
    """As `records.Record.is_of`; `records.TimerRecord.is_of`."""
    if item.kind == TIMER_KIND:
        return False
    if item.uid_kind != STRING:
        return which.uid.kind in (INTEGER, DECIMAL) and item.uid == which.uid.key.number
    if which.size > item.uid_size or memcmp(texts + item.uid, which.text, which.size):
        return False
    return which.size in (item.uid_size, user_bytes(item, texts))


cdef inline size_t user_bytes(const Item *item, const char *texts) noexcept nogil:
    """How many bytes of a text are its user."""
    if item.user_size <= 0:
        return item.uid_size
    return bytes_of(texts + item.uid, item.uid_size, item.user_size)


cdef inline bint is_users(const Item *item) noexcept nogil:
    """As `records.Record.is_users`."""
    if item.kind == MOVED_KIND:
        return False
    return item.devices == NOTHING or item.devices == (item.kind == ONLINE_KIND)


cdef inline bint has_second(const Item *item) noexcept nogil:
    """Whether a record concerns another gateway than its own."""
    return item.from_gateway != NOTHING and item.from_gateway != item.gateway


cdef inline char *put(char *out, bytes packed) noexcept:
    cdef Py_ssize_t size = len(packed)
    memcpy(out, PyBytes_AS_STRING(packed), size)
    return out + size


cdef inline char *put_array(char *out, Py_ssize_t length) noexcept nogil:
    if length < 16:
        out[0] = <char> (0x90 | length)
        return out + 1
    if length < 0x10000:
        out[0] = <char> 0xdc
    else:
        out[0], out[1], out[2] = <char> 0xdd, <char> (length >> 24), <char> (length >> 16)
        out += 2
    out[1], out[2] = <char> (length >> 8), <char> length
    return out + 3


cdef inline char *put_optional(char *out, int64_t number) noexcept nogil:
    if number == NOTHING:
        out[0] = <char> NIL
        return out + 1
    return put_number(out, number)


cdef inline char *put_seen(char *out, const Item *item) noexcept nogil:
    if item.seen == NEVER:
        out[0] = <char> NIL
        return out + 1
    return put_number(out, item.seen)


cdef inline char *put_silence(char *out, const Item *item) noexcept nogil:
    if isnan(item.silence):
        out[0] = <char> NIL
        return out + 1
    return put_double(out, item.silence)
