# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records that were decided together, compiled; it behaves as `record_batch.RecordBatch`.

    item    128 bytes a record: its numbers, and the numbers of its names
    texts   the uids that are no integers, and no decimals of one, one after the other
    names   gateways, events and reasons, each once, and as msgpack

msgpack is written here by hand, byte for byte as msgpack-python writes it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.math cimport INFINITY, NAN, isnan
from libc.stdint cimport INT64_MIN, int32_t, int64_t
from libc.string cimport memcmp, memcpy, memset

from collections.abc import Sequence

from liveness.core.wire._msgpack cimport MOST_DIGITS, put_digits
from liveness.core.wire._wire cimport DECIMAL, INTEGER, NOBODY, STRING, Sign, set_key, uid_of
from liveness.core.wire.framing import encode
from liveness.core.wheel.record_batch import Encoded
from liveness.core.records import KINDS, MOVED, OFFLINE, ONLINE, TIMER, Record

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

assert KINDS == (ONLINE, OFFLINE, MOVED, TIMER)
cdef int64_t NEVER = INT64_MIN  # stamps may be negative: a clock may have been set
cdef dict KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
cdef tuple KIND_NAMES = KINDS
cdef object new_tuple = tuple.__new__
# Each key, and each kind, as msgpack.
cdef bytes SEQ = encode("seq"), KIND = encode("kind"), UID = encode("uid")
cdef bytes GATEWAY = encode("gateway"), SESSION = encode("session")
cdef bytes REASON = encode("reason"), AT = encode("at"), CONN = encode("conn")
cdef bytes SILENCE = encode("silence"), RESTORED = encode("restored")
cdef bytes SEEN = encode("seen"), LAST = encode("last"), FROM = encode("from")
cdef bytes FROM_SESSION = encode("from_session"), FROM_CONN = encode("from_conn")
cdef bytes USER = encode("user"), DEVICES = encode("devices")
cdef list KIND_PACKED = [encode(kind) for kind in KINDS]


cdef class RecordBatch:
    """Records in columns; see `record_batch.RecordBatch`."""

    def __cinit__(self):
        self.names, self.packed_names, self.numbers, self.others = [], [], {}, {}

    def __dealloc__(self):
        PyMem_Free(self.items)
        PyMem_Free(self.texts)
        self.forget_order()

    def __len__(self):
        return self.count

    def __iter__(self):
        cdef Py_ssize_t at
        for at in range(self.count):
            yield self.record(at)

    def __getitem__(self, at):
        cdef Py_ssize_t position
        if isinstance(at, slice):
            return [self.record(position) for position in range(*at.indices(self.count))]
        position = at if at >= 0 else at + self.count
        if not 0 <= position < self.count:
            raise IndexError(at)
        return self.record(position)

    def __eq__(self, other):
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None

    def append(self, record, *, double due=0.0, opening=None):
        """Add the next record; see `record_batch.RecordBatch.append`."""
        cdef Sign sign
        cdef Item *item
        cdef bint is_timer = type(record) is not Record
        if is_timer:
            sign.kind, sign.size, sign.key.number = INTEGER, 0, 0
        else:
            set_key(record.uid, &sign)
            if sign.kind == NOBODY:
                raise ValueError(f"{record.uid!r} is no uid")
        item = self.add(record.seq, &sign)
        item.due = due
        try:
            if is_timer:
                item.kind, item.at = TIMER_KIND, record.at
                item.gateway = self.number_of(record.gateway)
                self.others[self.count - 1] = record
            else:
                self.fill(item, record, opening)
        except BaseException:
            self.remove_last()
            raise

    cdef int fill(self, Item *item, object record, object opening) except -1:
        """Set the columns of a session's record, but for its uid and deadline."""
        (
            _, kind, _, gateway, item.session, conn, reason, item.at, seen, last, silence,
            item.restored, from_gateway, from_session, from_conn, user_size, devices,
        ) = record
        item.kind = KIND_NUMBER[kind]
        item.gateway, item.reason = self.number_of(gateway), self.number_of(reason)
        item.conn = NOTHING if conn is None else conn
        item.last = self.number_of(last)
        item.seen = NEVER if seen is None else seen
        item.silence = NAN if silence is None else silence
        item.from_gateway = self.number_of(from_gateway)
        item.from_session = NOTHING if from_session is None else from_session
        item.from_conn = NOTHING if from_conn is None else from_conn
        item.user_size = NOTHING if user_size is None else user_size
        item.devices = NOTHING if devices is None else devices
        if opening is not None:
            item.opens = True
            item.start_ms, timeout = opening
            item.timeout = NAN if timeout is None else timeout
        self.close(closed_by(item))
        return 0

    def extend(self, RecordBatch batch not None):
        """Add the records of another batch; see `record_batch.RecordBatch.extend`."""
        cdef Py_ssize_t at
        cdef Item *item
        cdef int64_t shift = self.text_bytes
        if not batch.count:
            return
        if not self.count:
            self.first = batch.first
        assert batch.first == self.first + self.count
        numbers = [self.number_of(name) for name in batch.numbers]
        self.make_room(batch.count, batch.text_bytes)
        memcpy(self.items + self.count, batch.items, batch.count * sizeof(Item))
        if batch.text_bytes:
            memcpy(self.texts + shift, batch.texts, batch.text_bytes)
        self.text_bytes += batch.text_bytes
        for at, record in batch.others.items():
            self.others[self.count + at] = record
        for at in range(self.count, self.count + batch.count):
            item = self.items + at
            if item.uid_kind == STRING:
                item.uid += shift
            item.gateway = numbers[item.gateway]
            if item.kind == TIMER_KIND:
                continue
            item.reason = numbers[item.reason]
            if item.last != NOTHING:
                item.last = numbers[item.last]
            if item.from_gateway != NOTHING:
                item.from_gateway = numbers[item.from_gateway]
        at, self.count = self.count, self.count + batch.count
        for at in range(at, self.count):
            self.close(closed_by(self.items + at))

    @property
    def last(self):
        """The seq of the last record."""
        return self.first + self.count - 1

    @property
    def gateways(self):
        """The gateways that these records concern."""
        cdef Py_ssize_t at
        cdef set found = set()
        cdef int32_t gateway = NOTHING
        for at in range(self.count):
            if self.items[at].gateway != gateway:
                gateway = self.items[at].gateway
                found.add(gateway)
            if self.items[at].from_gateway != NOTHING:
                found.add(self.items[at].from_gateway)
        return {self.names[number] for number in found}

    @property
    def due(self):
        """The monotonic seconds of the deadline that led to each; 0.0 without one."""
        cdef Py_ssize_t at
        return [self.items[at].due for at in range(self.count)]

    # --- the log --------------------------------------------------------------

    def packed(self, Py_ssize_t start, Py_ssize_t stop):
        """Encode the fields of some records; see `record_batch.RecordBatch.packed`."""
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

    # --- the online set -------------------------------------------------------

    @property
    def closed(self):
        """The sessions that these records close, also those that they open."""
        cdef Py_ssize_t at
        cdef int64_t session
        found = []
        for at in range(self.count):
            session = closed_by(self.items + at)
            if session != NOTHING:
                found.append(session)
        return found

    def opened(self):
        """The rows of the sessions that these records open, and do not close."""
        cdef Py_ssize_t at
        cdef Item *item
        values = []
        for at in range(self.count):
            item = self.items + at
            if item.opens and not item.is_closed:
                values.append(self.first + at)
                values.append(self.uid_at(item))
                values.append(item.start_ms)
                values.append(None if item.conn == NOTHING else item.conn)
                values.append(self.names[item.gateway])
                values.append(None if isnan(item.timeout) else item.timeout)
        return values

    cdef void close(self, int64_t session) noexcept:
        """Note that a session is closed, if a record of this batch opened it."""
        if self.first <= session < self.first + self.count:
            self.items[session - self.first].is_closed = True

    # --- readers --------------------------------------------------------------

    @property
    def timers(self):
        """The records of timers."""
        return [*self.others.values()]

    def places(self, int64_t after, wanted, *, Py_ssize_t limit):
        """Where records are that concern a reader; see `record_batch.RecordBatch.places`."""
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
        """Encode records that concern a reader; see `record_batch.RecordBatch.encoded`."""
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

    cdef void forget_order(self) noexcept:
        """Undo `sort`, before a record or a name is added."""
        PyMem_Free(self.sorted)
        PyMem_Free(self.starts)
        self.sorted = self.starts = NULL

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

    # --- within ---------------------------------------------------------------

    cdef Item *add(self, int64_t seq, const Sign *uid) except NULL:
        """Add an item with nothing but its uid."""
        cdef Item *item
        if not self.count:
            self.first = seq
        assert seq == self.first + self.count
        self.make_room(1, uid.size)
        item = self.items + self.count
        memset(item, 0, sizeof(Item))
        item.uid_kind, item.uid_size = uid.kind, uid.size
        if uid.kind == STRING:
            item.uid = self.text_bytes
            memcpy(self.texts + self.text_bytes, uid.key.text, uid.size)
            self.text_bytes += uid.size
        else:
            item.uid = uid.key.number
        item.session = item.conn = item.from_session = item.from_conn = NOTHING
        item.gateway = item.from_gateway = item.reason = item.last = NOTHING
        item.seen = NEVER
        item.user_size = item.devices = NOTHING
        item.silence = item.timeout = NAN
        self.count += 1
        return item

    cdef void remove_last(self) noexcept:
        """Take back the last `add`."""
        self.count -= 1
        if self.items[self.count].uid_kind == STRING:
            self.text_bytes -= self.items[self.count].uid_size

    cdef int make_room(self, Py_ssize_t more, Py_ssize_t more_text) except -1:
        cdef Py_ssize_t room
        self.forget_order()
        if self.count + more > self.room:
            room = max(self.count + more, 2 * self.room, 16)
            items = <Item *> PyMem_Realloc(self.items, room * sizeof(Item))
            if items == NULL:
                raise MemoryError
            self.items, self.room = items, room
        if self.text_bytes + more_text > self.text_room:
            room = max(self.text_bytes + more_text, 2 * self.text_room, 512)
            texts = <char *> PyMem_Realloc(self.texts, room)
            if texts == NULL:
                raise MemoryError
            self.texts, self.text_room = texts, room
        return 0

    cdef int32_t number_of(self, object name) except -2:
        """The number of a name, which may be new; `NOTHING` for None."""
        if name is None:
            return NOTHING
        number = self.numbers.get(name)
        if number is None:
            self.forget_order()  # it has no place for this name
            packed = encode(name)
            self.names.append(name)
            self.packed_names.append(packed)
            number = self.numbers[name] = len(self.names) - 1
        return number

    cdef int32_t known_number(self, object name) except -2:
        """The number of a name; `NOTHING` if no record has it."""
        number = None if name is None else self.numbers.get(name)
        return NOTHING if number is None else number

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

    cdef object record(self, Py_ssize_t at):
        cdef Item *item = self.items + at
        if item.kind == TIMER_KIND:
            return self.others[at]
        return new_tuple(Record, (
            self.first + at,
            KIND_NAMES[item.kind],
            self.uid_at(item),
            self.name_at(item.gateway),
            item.session,
            None if item.conn == NOTHING else item.conn,
            self.name_at(item.reason),
            item.at,
            None if item.seen == NEVER else item.seen,
            self.name_at(item.last),
            None if isnan(item.silence) else item.silence,
            item.restored,
            self.name_at(item.from_gateway),
            None if item.from_session == NOTHING else item.from_session,
            None if item.from_conn == NOTHING else item.from_conn,
            None if item.user_size == NOTHING else item.user_size,
            None if item.devices == NOTHING else item.devices,
        ))

    cdef object name_at(self, int32_t number):
        return None if number == NOTHING else self.names[number]

    cdef object uid_at(self, const Item *item):
        cdef Sign sign
        sign.kind, sign.size = item.uid_kind, item.uid_size
        if item.uid_kind == STRING:
            sign.key.text = <const unsigned char *> self.texts + item.uid
        else:
            sign.key.number = item.uid
        return uid_of(&sign)

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


cdef inline int64_t closed_by(const Item *item) noexcept nogil:
    """The session that a record closes, or `NOTHING`."""
    if item.kind == OFFLINE_KIND:
        return item.session
    return item.from_session if item.kind == MOVED_KIND else NOTHING


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
