"""Fires timers: those of the coming hour are on a wheel of their own.

The table of timers (`timer_states`) is authoritative, and may have far more timers than fit
into memory. The ids of those due next are here, on a ring of 3,600 slots of one second: a
wheel like that of users. It is filled from the table ahead of time, earliest first and in
bounded steps, up to the *horizon*. `applied` updates it after each transaction.

So the ring shows when to read the table. A timer that comes due is claimed, read from the
table, and fired. Gateways may send commands while a row is read, so it may be out of date
when it arrives. Two rules make that safe:
    1. a timer does not fire while a command for its key or ext is *under way*: issued,
       and not settled yet. A command that arrives before the timer fires wins;
    2. a timer changed by a transaction after the read began is not fired from that read:
       `applied` has already put it on the ring again.

The caller passes the time of the state's clock (`service.common.clock`): in seconds for the
ring, in milliseconds for rows. So setting the wall clock moves no timer, and a timer that
came due while the host slept fires when the host wakes up.

Source: Varghese & Lauck, SOSP 1987, and the ring rebuilt from a database at the start.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from liveness.core.changes import Decisions
from liveness.core.records import TIMER, Instant, TimerRecord
from liveness.core.sessions.absences import Absences
from liveness.core.sessions.fair_share import fair_share
from liveness.core.timer_states import (
    FIRED,
    PENDING,
    RESULTS,
    STATES,
    CancelTimer,
    CompleteTimer,
    CreateTimer,
    Fire,
    GiveUp,
    LookLater,
    RetryPolicy,
    RetryTimer,
    TimerCommand,
    TimerState,
    Undelivered,
)
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.core.wheel.table import OWN_TIMEOUT
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.link_requests import After, Answer, Cancel

RING_S: Final = 3_600.0
RING_SLOTS: Final = 3_600

# The ring is filled a minute at a time, so that an idle process seldom reads the table.
FILL_EVERY_MS: Final = 60_000
# Timers put on the ring in one step, after reading for some milliseconds.
FILL_STEP: Final = 2_000
# Moments in whole milliseconds and in seconds differ by less than this.
ROUNDING_MS: Final = 1.0
# A due timer whose key has a command under way is checked again after this long.
LOOK_AGAIN_S: Final = 0.05
# If the state's clock gains more than this on the monotonic clock, the host has slept. Both
# are read one after the other, and the process may be preempted in between.
SLEPT_S: Final = 0.25

_NEVER: Final = -(2**62)


class Due(NamedTuple):
    """A row of the table: a timer that came due, and its payload."""

    timer: TimerState
    payload: str | None


class Coming(NamedTuple):
    """A row of the table: a live timer to put on the ring."""

    id: int
    gateway: str
    next: int


class LoadedWindow(NamedTuple):
    """The rows to read for the ring: above (`next`, `id`), up to `until`, in order."""

    next: int
    id: int
    until: int
    limit: int


def _subject_of(command: TimerCommand) -> tuple[str, str | None, str | None]:
    """What a command is about: a gateway, and a key or an ext."""
    if command.key is not None:
        return command.gateway, command.key, None
    assert isinstance(command, CancelTimer)
    return command.gateway, None, command.ext


class TimerScheduler:
    """Tracks due timers, and commands for timers that are under way.

    Args:
        make_wheel: Makes an empty ring that starts at a moment.
        decided: Receives records and commands.
        at: The start.
        retry_policy: The times of further attempts.
        max_live: At this number of live timers, new ones are refused.
        max_loaded: Above this number of timers, the ring is emptied and filled again.
    """

    def __init__(
        self,
        make_wheel: Callable[[float], Wheel],
        decided: Decisions,
        *,
        at: Instant,
        retry_policy: RetryPolicy,
        max_live: int,
        max_loaded: int,
    ) -> None:
        self.states: Counter[str] = Counter(dict.fromkeys(STATES, 0))
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self.retry_policy = retry_policy
        self._decided = decided
        self._next_id = 1
        self._max_live = max_live
        self._max_loaded = max_loaded
        self._make_wheel = make_wheel
        self._gateways: dict[str, int] = {}
        self._names: list[str] = []  # of the gateways, by number
        self._wheel = make_wheel(at.state_s)
        self._now = at.state_s
        self._turned_at = at
        self._absences = Absences(at.state_s)
        self._horizon = (_NEVER, 0)  # `next` and id: timers up to there are on the ring
        self._reading_until: int | None = None  # the end of the current read
        self._claimed: dict[int, int] = {}  # due timers being read: gateway's number
        # How many commands are issued and not applied yet, by what they are about; and how
        # many of them create a timer.
        self._under_way: dict[tuple[str, str | None, str | None], int] = {}
        self._new = 0
        self._changed_since_read: set[int] = set()

    def resume(self, next_id: int, states: dict[str, int]) -> None:
        """Continue with the timers of a table; there were none before."""
        self._next_id = next_id
        self.states.update(states)

    @property
    def loaded(self) -> int:
        return len(self._wheel)

    # --- commands -------------------------------------------------------------

    def request(
        self,
        gateway: str,
        request: After | Cancel | Answer,
        at: Instant,
    ) -> bool:
        """Apply a gateway's request; return False for an `After` of a timer too many."""
        now = at.state_ms
        match request:
            case After(key, seconds, payload, ext):
                live = self.states[PENDING] + self.states[FIRED] + self._new
                if live >= self._max_live:
                    return False
                until = at.state_s + seconds
                due = int(until * 1000)
                if due / 1000 < until:
                    due += 1
                number, self._next_id = self._next_id, self._next_id + 1
                timer = TimerState(
                    number, gateway, key, ext, PENDING, due, due, 0, None,
                    self._decided.next_seq, None, now, None, now,
                )  # fmt: skip
                self._issue(CreateTimer(timer, payload))
            case Cancel(key, ext):
                self._issue(CancelTimer(gateway, key, ext, self._next_id, now))
            case Answer(key, is_done, message, is_final, seq):
                self._issue(
                    CompleteTimer(gateway, key, seq, is_done, message, is_final, now)
                )
        return True

    def try_again(self, gateway: str, key: str, at: Instant) -> None:
        self._issue(RetryTimer(gateway, key, at.state_ms))

    def fire_again(self, gateway: str, key: str, seq: int, at: Instant) -> None:
        """Fire a timer again, as the record of its attempt cannot be delivered."""
        self._issue(Undelivered(gateway, key, seq, at.state_ms))

    def applied(self, commands: Iterable[TimerCommand], done: TimerTransaction) -> None:
        """Update the ring and the counts from a durable transaction."""
        for command in commands:
            subject = _subject_of(command)
            count = self._under_way[subject]
            if count == 1:
                del self._under_way[subject]
            else:
                self._under_way[subject] = count - 1
            self._new -= isinstance(command, CreateTimer)
        self.results.update(done.results)
        self.states.update(done.states)
        if self._is_reading:
            self._changed_since_read.update(timer.id for timer in done.changed)
        # Timers due up to here are on the ring, or will be after the current read.
        reaches = max(self._horizon[0], self._reading_until or _NEVER)
        wheel = self._wheel
        for timer in done.changed:
            number, next_ms = timer.id, timer.next
            if wheel.find(number) is not None:
                wheel.close(number)
            if next_ms is not None and next_ms <= reaches:
                self._load(number, timer.gateway, next_ms)
        if self.loaded > self._max_loaded:
            self._empty_ring()

    def deleted(self, ended: dict[str, int]) -> None:
        """Subtract ended timers that were deleted from the table, by state."""
        self.states.subtract(ended)

    def will_be_absent(self, at: Instant, seconds: float) -> None:
        """Note that no gateway will be read for *seconds* from now on."""
        self._absences.add(at.state_s, at.state_s + seconds, None)

    def turned(
        self, at: Instant, *, is_absent: bool = False, absent: Iterable[str] = ()
    ) -> None:
        """Account for the time since the last call: whether gateways could answer in it.

        *is_absent*: no gateway was read. *absent* are those that were not read; while the
        host sleeps, none is.
        """
        before, self._turned_at = self._turned_at, at
        since, until = before.state_s, at.state_s
        if is_absent:
            self._absences.add(since, until, None)
            return
        slept = (until - since) - (at.mono - before.mono)
        if slept > SLEPT_S:
            self._absences.add(since, since + slept, None)
            since += slept
        for name in absent:
            self._absences.add(since, until, name)

    # --- the ring -------------------------------------------------------------

    def advance(self, at: Instant, *, ahead_s: float = 0.0) -> None:
        """Move the hand; never back.

        *ahead_s* moves the ring that far ahead, so that a timer due now need not wait for
        the end of its bucket.
        """
        self._now = max(self._now, at.state_s)
        self._wheel.advance(self._now + ahead_s, self._wheel.steps)

    def next_due(self) -> float:
        """The second of the state's clock at which the ring next has something to do.

        Timers that already wait to be taken or loaded are not considered.
        """
        fill_at = (self._horizon[0] + FILL_EVERY_MS) / 1000 - RING_S
        due = self._wheel.next_due()
        return min(due, fill_at) if fill_at > self._now else due

    @property
    def wants_filling(self) -> bool:
        """Whether `window` would return something.

        It does not if the ring reaches far enough, or is half full: new timers need room.
        """
        is_far = self._horizon[0] > self._loads_until - FILL_EVERY_MS
        return not (is_far or self._is_reading or self.loaded > self._max_loaded // 2)

    def window(self) -> LoadedWindow | None:
        """Return the rows to read for the ring now, if any; pass them to `fill`."""
        if not self.wants_filling:
            return None
        until = self._loads_until
        self._changed_since_read.clear()
        self._reading_until = until
        return LoadedWindow(*self._horizon, until, FILL_STEP)

    def fill(self, window: LoadedWindow, coming: Sequence[Coming]) -> None:
        """Put the timers that were read for *window* on the ring."""
        if self._reading_until != window.until:
            return  # the ring was emptied since
        self._reading_until = None
        for number, gateway, next_ms in coming:
            if (
                number not in self._changed_since_read
                and self._wheel.find(number) is None
            ):
                self._load(number, gateway, next_ms)
        self._horizon = (window.until, 0)
        if len(coming) == window.limit:
            self._horizon = (coming[-1].next, coming[-1].id)

    # --- due timers -----------------------------------------------------------

    @property
    def has_due(self) -> bool:
        return bool(self._wheel.waiting()) and not self._is_reading

    def take(self, limit: int, held_back: Container[str] = ()) -> list[int]:
        """Claim due timers, and return their numbers; pass their rows to `fire`.

        Gateways get equal shares of *limit*: a hundred thousand timers of one do not
        delay the only timer of another. The timers of those *held_back* may not fire now.
        """
        if self._is_reading:
            return []
        self._changed_since_read.clear()

        def take(gateway: int, share: int) -> int:
            taken = self._wheel.fire(gateway, until=self._now, limit=share)
            self._claimed |= {int(entry.uid): gateway for entry in taken}
            return len(taken)

        waiting = self._wheel.waiting()
        ready = [number for number in waiting if self._names[number] not in held_back]
        fair_share(ready, limit, take)
        return [*self._claimed]

    def reading_failed(self) -> None:
        """Note that a read failed; the claimed timers stay due."""
        self._reading_until = None
        for number, gateway in self._claimed.items():
            if self._wheel.find(number) is None:
                self._insert(number, gateway, self._now)
        self._claimed.clear()

    def fire(
        self, rows: Iterable[Due], at: Instant, delivered: Mapping[str, int]
    ) -> list[float]:
        """Fire the claimed timers that are due, by their rows, or end their attempts.

        *delivered* has by gateway the seq up to which records were sent to it: an attempt
        whose record was not sent yet is not given up.

        Returns:
            The lateness of each timer that fired, in seconds.
        """
        lateness = list[float]()
        claimed, self._claimed = self._claimed, {}
        for timer, payload in rows:
            gateway = claimed.get(timer.id)
            if (
                gateway is None
                or timer.id in self._changed_since_read
                or timer.next is None
            ):
                continue
            if self._is_under_way(timer):
                self._insert(timer.id, gateway, at.state_s + LOOK_AGAIN_S)
            elif timer.next / 1000 > at.state_s:  # as the ring compares
                self._insert(timer.id, gateway, timer.next / 1000)
            elif timer.state == PENDING:
                lateness.append(at.state_s - timer.next / 1000)
                self._fire(timer, payload, at)
            else:
                self._end_attempt(timer, at, delivered[timer.gateway])
        return lateness

    # --- within ---------------------------------------------------------------

    def _is_under_way(self, timer: TimerState) -> bool:
        gateway, ext, under_way = timer.gateway, timer.ext, self._under_way
        is_ext = ext is not None and (gateway, None, ext) in under_way
        return is_ext or (gateway, timer.key, None) in under_way

    @property
    def _is_reading(self) -> bool:
        return self._reading_until is not None or bool(self._claimed)

    def _issue(self, command: TimerCommand) -> None:
        self._decided.changes.commands.append(command)
        subject = _subject_of(command)
        self._under_way[subject] = self._under_way.get(subject, 0) + 1
        self._new += isinstance(command, CreateTimer)

    @property
    def _loads_until(self) -> int:
        """The moment up to which timers go to the ring, in milliseconds."""
        return int((self._now + RING_S) * 1000)

    def _end_attempt(self, timer: TimerState, at: Instant, delivered_seq: int) -> None:
        assert timer.seq is not None  # it is fired
        assert timer.fired is not None
        gateway, key, seq, now = timer.gateway, timer.key, timer.seq, at.state_ms
        attempt_ms = self.retry_policy.attempt_ms
        listened_s = self._absences.listened_s(gateway, timer.fired / 1000, at.state_s)
        left_ms = attempt_ms - 1000 * listened_s
        # Put off in the table too. Otherwise many such timers would stay the earliest of
        # the table, and no others would be loaded.
        if left_ms > ROUNDING_MS:
            self._issue(LookLater(gateway, key, seq, now + ceil(left_ms)))
        elif delivered_seq < seq:
            until = now + self.retry_policy.away_ms
            self._issue(LookLater(gateway, key, seq, until))
        else:
            self._issue(GiveUp(gateway, key, seq, now))

    def _fire(self, timer: TimerState, payload: str | None, at: Instant) -> None:
        seq, attempt = self._decided.next_seq, timer.attempts + 1
        # Rounded to whole milliseconds, this moment may be before the due time.
        now = max(at.state_ms, timer.due)
        # `at` minus this is the lateness, however the wall clock was set.
        due = at.wall_ms - (now - timer.due)
        record = TimerRecord(
            seq,
            TIMER,
            timer.gateway,
            timer.key,
            payload,
            timer.ext,
            due,
            attempt,
            at.wall_ms,
        )
        self._decided.record(record)
        self._decided.changes.ends += 1
        self._issue(Fire(timer.gateway, timer.key, attempt, seq, now))

    def _load(self, number: int, name: str, next_ms: int) -> None:
        gateway = self._gateways.get(name)
        if gateway is None:
            gateway = self._gateways[name] = self._wheel.add_gateway()
            self._names.append(name)
        self._insert(number, gateway, next_ms / 1000)

    def _insert(self, number: int, gateway: int, due: float) -> None:
        """Put a timer on the ring; one that is already due comes next."""
        due = max(due, self._now)
        self._wheel.put((number, gateway, 0, None, 0.0, 0.0, due, 0.0, 0, OWN_TIMEOUT))

    def _empty_ring(self) -> None:
        """Empty the ring, which holds too many; it is filled again, earliest first."""
        self._wheel = self._make_wheel(self._now)
        for _ in self._gateways:
            self._wheel.add_gateway()
        self._horizon, self._reading_until = (_NEVER, 0), None
