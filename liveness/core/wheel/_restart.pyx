# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Sessions over a restart, compiled; it behaves as `restart`, which documents it."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport qsort

from array import array

from liveness.core.wheel._table cimport Table, User
from liveness.core.wire._wire cimport NO_CONN
from liveness.core.wire.uids import MAX_NAME_BYTES, MAX_TIMEOUT_S
from liveness.core.wheel.restart import Clocks
from liveness.core.wheel.table import OWN_TIMEOUT
from liveness.core.wire.uids import is_text

cdef enum:
    OWN = 1

assert OWN == OWN_TIMEOUT
cdef double LONGEST_TIMEOUT = MAX_TIMEOUT_S

cdef struct Ranked:
    int64_t session
    int32_t place


cdef class RestoredGateway:
    """A gateway's restored sessions; see `restart.RestoredGateway`."""


cdef class SessionRestorer:
    """Makes entries of rows; see `restart.SessionRestorer`."""

    def __init__(self, clocks, *, at, int64_t next_seq):
        self.gateways = {}
        self.sessions, self.timeouts, self.remaining, self.silences, self.events, \
            self.away = clocks
        self.now, self.mono, self.state_ms = at.now, at.mono, at.state_ms
        self.next_seq = next_seq

    def add_gateway(self, name, int32_t number, *, double in_force):
        cdef RestoredGateway gateway = RestoredGateway()
        if not is_text(name, MAX_NAME_BYTES):
            raise ValueError("the gateway of a session has no valid name")
        gateway.number, gateway.in_force, gateway.until = number, in_force, self.now
        self.gateways[name] = gateway

    cdef object entry(self, object row, User *user):
        """Set a user by a row, and return its uid, which the table will check."""
        cdef RestoredGateway gateway
        cdef double lasts, remaining, silence = 0, own
        cdef Py_ssize_t clock = self.next_clock
        cdef int64_t session
        number, uid, start_ms, conn, name, timeout = row
        gateway = self.gateways.get(name)
        if gateway is None:
            return None
        if type(number) is not int or not (
            timeout is None or type(timeout) is float or type(timeout) is int
        ):
            raise ValueError(f"session {number} makes no sense")
        session, own = number, 0 if timeout is None else timeout
        if (
            not self.last < session < self.next_seq
            or type(start_ms) is not int
            or not (conn is None or type(conn) is int and 0 <= conn <= INT64_MAX)
            or not (timeout is None or 0 < own <= LONGEST_TIMEOUT)
        ):
            raise ValueError(f"session {session} makes no sense")
        self.last = session
        while clock < self.sessions.shape[0] and self.sessions[clock] < session:
            clock += 1
        self.next_clock = clock
        if clock < self.sessions.shape[0] and self.sessions[clock] == session:
            lasts = own or self.timeouts[clock]
            remaining, user.event = self.remaining[clock], self.events[clock]
            silence = self.silences[clock] + self.away
        else:
            remaining = lasts = own or gateway.in_force
            user.event = 0
        gateway.users += 1
        user.deadline = self.now + remaining
        if not own and lasts == gateway.in_force and user.deadline > gateway.until:
            gateway.until = user.deadline
        user.gateway, user.session = gateway.number, session
        user.conn = NO_CONN if conn is None else conn
        user.start = self.mono - max(0.0, self.state_ms - <double> start_ms) / 1000
        user.timeout, user.seen = lasts, self.mono - silence
        user.flags = OWN if own else 0
        return uid


cdef int by_session(const void *one, const void *other) noexcept nogil:
    cdef int64_t first = (<const Ranked *> one).session
    cdef int64_t second = (<const Ranked *> other).session
    return (first > second) - (first < second)


cdef object clocks_of(Table table, double now, double mono):
    """Every user's clock; see `wheel.Wheel.clocks`."""
    cdef int32_t place, at
    cdef User *user
    columns = [array(code, bytes(8 * table.count)) for code in "qddd"]
    events = array("b", bytes(table.count))
    cdef int64_t[::1] sessions = columns[0]
    cdef double[::1] timeouts = columns[1]
    cdef double[::1] remaining = columns[2]
    cdef double[::1] silences = columns[3]
    cdef signed char[::1] event = events
    cdef Ranked *order = <Ranked *> PyMem_Malloc(max(1, table.count) * sizeof(Ranked))
    if order == NULL:
        raise MemoryError
    for place in range(table.count):
        order[place] = Ranked(table.user(place).session, place)
    qsort(order, table.count, sizeof(Ranked), by_session)
    for at in range(table.count):
        user = table.user(order[at].place)
        sessions[at], timeouts[at] = user.session, user.timeout
        remaining[at] = max(0.0, user.deadline - now)
        silences[at], event[at] = mono - user.seen, user.event
    PyMem_Free(order)
    return Clocks(*columns, events)
