# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records that were decided together, in columns; see `record_batch.RecordBatch`.

    item    128 bytes a record: its numbers, and the numbers of its names
    texts   the uids that are no integers, and no decimals of one, one after the other
    names   gateways, events and reasons, each once, and as msgpack
"""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.math cimport NAN, isnan
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from collections.abc import Sequence

from liveness.core.wire._wire cimport INTEGER, NOBODY, STRING, Sign, set_key, uid_of
from liveness.core.wire.framing import encode
from liveness.core.records import KINDS, MOVED, OFFLINE, ONLINE, TIMER, Record

assert KINDS == (ONLINE, OFFLINE, MOVED, TIMER)
KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
cdef tuple KIND_NAMES = KINDS
cdef object new_tuple = tuple.__new__


cdef class RecordColumns:
    """The records of a batch; see `record_batch.RecordBatch`."""

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

    def extend(self, RecordColumns batch not None):
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
        return self.first + self.count - 1

    @property
    def gateways(self):
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
        cdef Py_ssize_t at
        return [self.items[at].due for at in range(self.count)]

    # --- the online set -------------------------------------------------------

    @property
    def closed(self):
        cdef Py_ssize_t at
        cdef int64_t session
        found = []
        for at in range(self.count):
            session = closed_by(self.items + at)
            if session != NOTHING:
                found.append(session)
        return found

    def opened(self):
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

    @property
    def timers(self):
        return [*self.others.values()]

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

    cdef void forget_order(self) noexcept:
        """Undo `sort`, before a record or a name is added."""
        PyMem_Free(self.sorted)
        PyMem_Free(self.starts)
        self.sorted = self.starts = NULL


cdef inline int64_t closed_by(const Item *item) noexcept nogil:
    """The session that a record closes, or `NOTHING`."""
    if item.kind == OFFLINE_KIND:
        return item.session
    return item.from_session if item.kind == MOVED_KIND else NOTHING
