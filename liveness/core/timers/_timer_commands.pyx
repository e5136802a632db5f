# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Commands for timers, compiled; they behave as in `timer_commands`, which documents them.

Commands and timers are the named tuples of `timer_states`. Here they are made and read
without Python calls, which are nearly all of their cost.
"""

from collections import Counter

from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t

from liveness.core.wire._named_tuples cimport named_tuple
from liveness.core.wire.link_requests import After, Answer, Cancel
from liveness.core.timers.timer_commands import ADDED, CHANGED, ENDED, Named
from liveness.core.timer_states import (
    CANCELLED, DONE, FAIL, FAILED, FIRED, LATE, PENDING, REPLACED, SHORT_CHARACTERS,
    UNANSWERED, CancelTimer, CompleteTimer, CreateTimer, Fire, GiveUp, LookLater,
    RetryTimer, TimerState, Undelivered, weight_of,
)

cdef type AFTER = After, CANCEL_REQUEST = Cancel
cdef type TIMER = TimerState
cdef type CREATE = CreateTimer, CANCEL = CancelTimer, COMPLETE = CompleteTimer, FIRE = Fire
cdef type GIVE_UP = GiveUp, LOOK_LATER = LookLater, UNDELIVERED = Undelivered
cdef type RETRY = RetryTimer
cdef str IS_PENDING = PENDING, IS_FIRED = FIRED, IS_FAILED = FAILED
cdef str IS_DONE = DONE, IS_CANCELLED = CANCELLED, IS_REPLACED = REPLACED
cdef Py_ssize_t SHORT = SHORT_CHARACTERS

cdef enum Column:
    ID, GATEWAY, KEY, EXT, STATE, DUE, NEXT, ATTEMPTS, SEQ, MIN_SEQ, MESSAGE, CREATED
    BEGAN, ALTERED, COLUMNS

assert TimerState._fields == (
    "id", "gateway", "key", "ext", "state", "due", "next", "attempts", "seq", "min_seq",
    "message", "created", "fired", "changed",
)
assert ADDED == (
    "id", "gateway", "key", "ext", "state", "due", "next", "min_seq", "created", "changed",
)
assert CHANGED == (
    "id", "state", "due", "next", "attempts", "seq", "message", "fired", "changed",
)
assert ENDED == ("id", "state", "message", "changed")
# All commands but a new timer begin with the gateway and the key.
for kind in (Cancel, Answer, CancelTimer, CompleteTimer, Fire, GiveUp, LookLater,
             Undelivered, RetryTimer):
    assert kind._fields.index("key") == (0 if kind in (Cancel, Answer) else 1), kind
assert After._fields == ("key", "seconds", "payload", "ext")
assert Answer._fields == ("key", "is_done", "message", "final", "seq")
assert CreateTimer._fields == ("timer", "payload")
assert CancelTimer._fields == ("gateway", "key", "ext", "below", "at")
assert CompleteTimer._fields == (
    "gateway", "key", "seq", "is_done", "message", "is_final", "at",
)
assert Fire._fields == ("gateway", "key", "attempt", "seq", "at")


cdef inline object item(object values, Py_ssize_t at):
    """A value of a named tuple."""
    return <object> PyTuple_GET_ITEM(values, at)


cdef inline tuple key_of(object command):
    """Gateway and key of a command's timer; None if the command names an ext."""
    if type(command) is CREATE:
        timer = item(command, 0)
        return item(timer, GATEWAY), item(timer, KEY)
    key = item(command, 1)
    return None if key is None else (item(command, 0), key)


cdef inline int64_t weight(object command) except -1:
    """As `timer_states.weight_of`."""
    cdef object text = None
    if type(command) is CREATE:
        text = item(command, 1)
    elif type(command) is COMPLETE:
        text = item(command, 4)
    if text is None or len(<str> text) < SHORT:
        return 1
    return weight_of(command)


cdef class CommandsUnderWay:
    """Makes commands, and counts them; see `timer_commands.CommandsUnderWay`."""

    cdef readonly Py_ssize_t new
    cdef dict of_keys, of_exts

    def __init__(self):
        self.of_keys, self.of_exts = {}, {}

    def requested(
        self, str gateway not None, requests, Py_ssize_t first, *, double at_s,
        int64_t next_id, int64_t next_seq, int64_t most_new,
    ):
        """Issue commands; see `timer_commands.CommandsUnderWay.requested`."""
        cdef double until
        cdef int64_t due_ms
        cdef Py_ssize_t at, count = len(requests)
        cdef list commands = []
        now = <int64_t> (at_s * 1000)
        seq = next_seq
        for at in range(first, count):
            request = requests[at]
            if type(request) is AFTER:
                if most_new <= 0:
                    break
                until = at_s + <double> item(request, 1)
                due_ms = <int64_t> (until * 1000)
                if <double> due_ms / 1000 < until:
                    due_ms += 1
                due = due_ms
                timer = named_tuple(TIMER, (
                    next_id, gateway, item(request, 0), item(request, 3), IS_PENDING, due,
                    due, 0, None, seq, None, now, None, now,
                ))
                command = named_tuple(CREATE, (timer, item(request, 2)))
                next_id += 1
                most_new -= 1
            elif type(request) is CANCEL_REQUEST:
                command = named_tuple(CANCEL, (
                    gateway, item(request, 0), item(request, 1), next_id, now,
                ))
            else:
                command = named_tuple(COMPLETE, (
                    gateway, item(request, 0), item(request, 4), item(request, 1),
                    item(request, 2), item(request, 3), now,
                ))
            self.count(command, 1)
            commands.append(command)
        return commands

    def issue(self, command):
        """Note a command; see `timer_commands.CommandsUnderWay.issue`."""
        self.count(command, 1)

    def settle(self, commands):
        """Note that they are applied; see `timer_commands.CommandsUnderWay.settle`."""
        for command in commands:
            self.count(command, -1)

    def has(self, str gateway, str key, str ext):
        """Whether a command is under way; see `timer_commands.CommandsUnderWay.has`."""
        cdef dict keys = self.of_keys.get(gateway), exts = self.of_exts.get(gateway)
        return (keys is not None and key in keys) or (
            ext is not None and exts is not None and ext in exts
        )

    cdef int count(self, object command, Py_ssize_t more) except -1:
        """Add 1 or -1 to the number of commands for this key or ext."""
        cdef dict of = self.of_keys, counts
        cdef Py_ssize_t number
        if type(command) is CREATE:
            timer = item(command, 0)
            gateway, name = item(timer, GATEWAY), item(timer, KEY)
        else:
            gateway, name = item(command, 0), item(command, 1)
            if name is None:
                of, name = self.of_exts, item(command, 2)
        counts = of.get(gateway)
        if counts is None:
            counts = of[gateway] = {}
        known = counts.get(name)
        number = more if known is None else more + <Py_ssize_t> known
        if number < 0:
            raise KeyError(name)
        if number:
            counts[name] = number
        else:
            del counts[name]
        if type(command) is CREATE:
            self.new += more
        return 0


def by_gateway(commands):
    """Group commands; see `timer_commands.by_gateway`."""
    cdef dict groups = {}
    cdef list group
    cdef object last = None  # the gateway of the command before: most often the same
    cdef int64_t weighs = 0
    cdef dict weights = {}
    for command in commands:
        owner = item(item(command, 0), GATEWAY) if type(command) is CREATE else item(command, 0)
        if owner is not last:
            if last is not None:
                weights[last] = weights.get(last, 0) + weighs
            group, last, weighs = groups.setdefault(owner, []), owner, 0
        group.append(command)
        weighs += weight(command)
    if last is not None:
        weights[last] = weights.get(last, 0) + weighs
    return {name: (groups[name], weights[name]) for name in groups}


def named_by(commands):
    """Their timers; see `timer_commands.named_by`."""
    cdef set known = set()
    cdef list keys = []
    cdef dict exts = {}
    cdef tuple key
    newest = 0
    for command in commands:
        key = key_of(command)
        if key is None:
            exts[item(command, 0), item(command, 2), item(command, 3)] = None
        elif key not in known:
            known.add(key)
            keys.append(key[0])
            keys.append(key[1])
        if type(command) is FIRE:
            newest = max(newest, item(command, 3))
    return Named(keys, [*exts], newest)


cdef class TimerTransaction:
    """The rows that change; see `timer_commands.TimerTransaction`."""

    cdef readonly object results, states
    cdef readonly list changed, added_values, changed_values, ended_values
    cdef readonly dict payloads
    cdef object policy
    cdef dict after, newest, by_ext

    def __init__(self, commands, found, policy):
        cdef dict before = {}, states = {}
        cdef list added = [], changed = [], ended = []
        self.results, self.payloads, self.policy = Counter(), {}, policy
        for row in found:
            timer = named_tuple(TIMER, tuple(row))
            if len(<tuple> timer) != COLUMNS:
                raise TypeError(f"a timer has {COLUMNS} values, and not {len(row)}")
            before[item(timer, ID)] = timer
        self.after, self.newest, self.by_ext = dict(before), {}, {}
        for timer in before.values():
            self.index(timer)
        for command in commands:
            self.apply(command)
        self.changed, self.added_values = [], added
        self.changed_values, self.ended_values = changed, ended
        for number, timer in self.after.items():
            former = before.get(number)
            if former is timer:
                continue
            self.changed.append(timer)
            state = item(timer, STATE)
            states[state] = states.get(state, 0) + 1
            if former is None:
                for at in (ID, GATEWAY, KEY, EXT, STATE, DUE, NEXT, MIN_SEQ, CREATED, ALTERED):
                    added.append(item(timer, at))
                added.append(self.payloads[number])
                if item(timer, SEQ) is not None:
                    self.add_changed(timer)
                continue
            state = item(former, STATE)
            states[state] = states.get(state, 0) - 1
            if (
                item(timer, NEXT) is not None
                or item(timer, DUE) != item(former, DUE)
                or item(timer, ATTEMPTS) != item(former, ATTEMPTS)
                or item(timer, SEQ) != item(former, SEQ)
                or item(timer, BEGAN) != item(former, BEGAN)
            ):
                self.add_changed(timer)
            else:
                for at in (ID, STATE, MESSAGE, ALTERED):
                    ended.append(item(timer, at))
        self.states = Counter(states)

    cdef int add_changed(self, object timer) except -1:
        cdef list changed = self.changed_values
        cdef int at
        for at in (ID, STATE, DUE, NEXT, ATTEMPTS, SEQ, MESSAGE, BEGAN, ALTERED):
            changed.append(item(timer, at))
        return 0

    # --- commands -------------------------------------------------------------

    cdef int apply(self, object command) except -1:
        cdef object kind = type(command)
        if kind is CREATE:
            return self.create(command)
        if kind is CANCEL:
            return self.cancel(command)
        if kind is COMPLETE:
            return self.complete(command)
        if kind is FIRE:
            return self.fire(command)
        if kind is RETRY:
            return self.try_again(command)
        if kind is GIVE_UP or kind is LOOK_LATER or kind is UNDELIVERED:
            return self.end_attempt(command)
        raise TypeError(f"{command!r} is no command")

    cdef int create(self, object command) except -1:
        timer = item(command, 0)
        former = self.live(item(timer, GATEWAY), item(timer, KEY))
        if former is not None:
            self.end(former, IS_REPLACED, item(timer, CREATED), item(former, MESSAGE))
        self.payloads[item(timer, ID)] = item(command, 1)
        self.after[item(timer, ID)] = timer
        self.index(timer)
        return 0

    cdef int cancel(self, object command) except -1:
        key, below, at = item(command, 1), item(command, 3), item(command, 4)
        if key is None:
            timers = self.live_of_ext(item(command, 0), item(command, 2))
        else:
            timer = self.live(item(command, 0), key)
            timers = () if timer is None else (timer,)
        for timer in timers:
            if item(timer, ID) < below:
                self.end(timer, IS_CANCELLED, at, item(timer, MESSAGE))
        return 0

    cdef int complete(self, object command) except -1:
        timer = self.live(item(command, 0), item(command, 1))
        seq, is_done, message = item(command, 2), item(command, 3), item(command, 4)
        of_timer = None if timer is None else item(timer, SEQ)
        at = item(command, 6)
        result = LATE
        if of_timer is None:
            pass
        elif is_done:
            # A timer with seq 0 fired in another log, whose seqs are unknown here.
            if seq is None or item(timer, MIN_SEQ) <= seq <= (of_timer or seq):
                result = DONE
                self.end(timer, IS_DONE, at, message)
        elif item(timer, STATE) == IS_FIRED and (seq is None or seq == of_timer):
            result = FAIL
            self.fail(timer, message, at, item(command, 5))
        self.results[result] += 1
        return 0

    cdef int fire(self, object command) except -1:
        timer = self.newest_timer(item(command, 0), item(command, 1))
        attempt, seq, at = item(command, 2), item(command, 3), item(command, 4)
        if (
            timer is None
            or item(timer, ATTEMPTS) != attempt - 1
            or seq < max(item(timer, MIN_SEQ), (item(timer, SEQ) or 0) + 1)
        ):
            return 0
        state, next_ms, changed = item(timer, STATE), item(timer, NEXT), item(timer, ALTERED)
        if state == IS_PENDING:
            state, next_ms, changed = IS_FIRED, at + self.policy.attempt_ms, at
        self.after[item(timer, ID)] = named_tuple(TIMER, (
            item(timer, ID), item(timer, GATEWAY), item(timer, KEY), item(timer, EXT),
            state, item(timer, DUE), next_ms, attempt, seq, item(timer, MIN_SEQ),
            item(timer, MESSAGE), item(timer, CREATED), at, changed,
        ))
        return 0

    cdef int end_attempt(self, object command) except -1:
        timer = self.live(command.gateway, command.key)
        if timer is None or timer.state != IS_FIRED or timer.seq != command.seq:
            return 0
        if type(command) is LOOK_LATER:
            timer = timer._replace(next=command.until)
        elif type(command) is UNDELIVERED:
            timer = timer._replace(
                state=IS_PENDING, next=command.at, attempts=timer.attempts - 1,
                changed=command.at,
            )
        else:
            self.results[UNANSWERED] += 1
            message = f"no answer within {self.policy.attempt_ms / 1000:g} s"
            return self.fail(timer, message, command.at, False)
        self.after[timer.id] = timer
        return 0

    cdef int try_again(self, object command) except -1:
        timer = self.newest_timer(command.gateway, command.key)
        if timer is not None and timer.state in (IS_PENDING, IS_FAILED):
            self.after[timer.id] = timer._replace(
                state=IS_PENDING, due=command.at, next=command.at, attempts=0,
                changed=command.at,
            )
        return 0

    cdef int fail(self, object timer, object message, object at, bint is_final) except -1:
        waits = self.policy.waits_ms
        if is_final or timer.attempts > len(waits):
            return self.end(timer, IS_FAILED, at, message)
        due = at + waits[timer.attempts - 1]
        self.after[timer.id] = timer._replace(
            state=IS_PENDING, due=due, next=due, message=message, changed=at
        )
        return 0

    cdef int end(self, object timer, str state, object at, object message) except -1:
        self.after[item(timer, ID)] = named_tuple(TIMER, (
            item(timer, ID), item(timer, GATEWAY), item(timer, KEY), item(timer, EXT),
            state, item(timer, DUE), None, item(timer, ATTEMPTS), item(timer, SEQ),
            item(timer, MIN_SEQ), message, item(timer, CREATED), item(timer, BEGAN), at,
        ))
        return 0

    # --- rows -----------------------------------------------------------------

    cdef object newest_timer(self, object gateway, object key):
        number = self.newest.get((gateway, key))
        return None if number is None else self.after[number]

    cdef object live(self, object gateway, object key):
        timer = self.newest_timer(gateway, key)
        return None if timer is None or item(timer, NEXT) is None else timer

    cdef list live_of_ext(self, object gateway, object ext):
        """The live timers of an ext; drops the others from the index."""
        cdef list numbers = self.by_ext.get((gateway, ext), []), live = []
        for number in numbers:
            timer = self.after[number]
            if item(timer, NEXT) is not None:
                live.append(timer)
        self.by_ext[gateway, ext] = [item(timer, ID) for timer in live]
        return live

    cdef int index(self, object timer) except -1:
        """Index a timer by its key and ext."""
        cdef tuple key = (item(timer, GATEWAY), item(timer, KEY))
        number = item(timer, ID)
        known = self.newest.get(key)
        if known is None or known < number:
            self.newest[key] = number
        ext = item(timer, EXT)
        if ext is not None:
            self.by_ext.setdefault((item(timer, GATEWAY), ext), []).append(number)
        return 0
