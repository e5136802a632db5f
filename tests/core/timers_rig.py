"""The service around the scheduler; the test chooses times and order.

A dictionary is the table. What was decided is committed at once. A reading has three steps,
each of which may be late: it is *begun*, *read* (the snapshot), and *handed in*; one
is under way at a time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from liveness.core.changes import Decisions
from liveness.core.records import Instant, TimerRecord
from liveness.core.timer_states import RETRY_POLICY, RetryPolicy, TimerState
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.core.timers.timer_scheduler import (
    RING_SLOTS,
    Due,
    LoadedWindow,
    TimerScheduler,
)
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.link_requests import After, Answer, Cancel
from liveness.testing.scripted_disk import ScriptedDisk

# An engine sleeps no shorter; and a ring that is begun must not keep it awake for ever.
LEAST_S: Final = 0.0005
MOST_READINGS: Final = 10_000
PLENTY: Final = 10**9
TAKEN_AT_ONCE: Final = 1_000


@dataclass
class Reading:
    """Of claimed timers, or of a window; what was found once it was read."""

    window: LoadedWindow | None = None
    numbers: Sequence[int] = ()
    found: list[Any] | None = None


class Rig:
    """One scheduler, its table, and their reader and writer."""

    def __init__(
        self,
        wheel_class: type[Wheel],
        *,
        retry_policy: RetryPolicy = RETRY_POLICY,
        max_live: int = PLENTY,
        max_loaded: int = PLENTY,
        rows_at_once: int = PLENTY,
    ) -> None:
        self.wheel_class = wheel_class
        self.retry_policy = retry_policy
        self.max_live, self.max_loaded = max_live, max_loaded
        self.rows_at_once = rows_at_once
        self.disk = ScriptedDisk()
        self.table = self.disk.timers
        self.log: list[TimerRecord] = []
        self.handed: dict[str, int] = {}  # up to which seq; a gateway that is not: all
        self.mono, self.wall_ms = 5_000.123, 1_750_000_000_000
        self.state_s = 1_750_000_000.123
        self.start()

    def start(self) -> None:
        """Begin a process; forget the last one."""
        self.decided = Decisions(max((one.seq for one in self.log), default=0) + 1)
        self.reading: Reading | None = None
        self.timetable = TimerScheduler(
            lambda now: self.wheel_class(timeout=RING_SLOTS, slots=RING_SLOTS, now=now),
            self.decided,
            at=self.now,
            retry_policy=self.retry_policy,
            max_live=self.max_live,
            max_loaded=self.max_loaded,
        )
        self.timetable.resume(max(self.table, default=0) + 1, dict(self.states))

    @property
    def now(self) -> Instant:
        return Instant(self.mono, self.mono, self.wall_ms, self.state_s)

    @property
    def ms(self) -> float:
        """The state's clock, exactly."""
        return self.state_s * 1000

    @property
    def states(self) -> Counter[str]:
        return self.disk.states()

    @property
    def live(self) -> list[TimerState]:
        return [row.timer for row in self.table.values() if row.timer.is_live]

    def timer(self, key: str, gateway: str = "g") -> TimerState:
        """The newest timer of a key, as the table has it."""
        wanted = (gateway, key)
        timers = (row.timer for row in self.table.values())
        return max(it for it in timers if (it.gateway, it.key) == wanted)

    def commit(self) -> None:
        """Write all decisions, and pass them to the scheduler."""
        if self.write():
            self.timetable.applied(*self.written)

    def write(self) -> bool:
        """Write all decisions; return whether there were any."""
        changes = self.decided.take()
        if not changes:
            return False
        assert len(changes.records.timers) == len(changes.records) == changes.ends
        self.log += changes.records.timers
        found = [row.timer for row in self.table.values()]
        done = TimerTransaction(changes.commands, found, self.retry_policy)
        for timer in done.changed:
            former = self.table.get(timer.id)
            payload = done.payloads[timer.id] if former is None else former.payload
            self.table[timer.id] = Due(timer, payload)
        self.written = changes.commands, done
        return True

    def begin_reading(self, *, of_due: bool) -> bool:
        if self.reading is not None:
            return False
        if of_due:
            if numbers := self.timetable.take(TAKEN_AT_ONCE):
                self.reading = Reading(numbers=numbers)
        elif window := self.timetable.window():
            window = window._replace(limit=min(window.limit, self.rows_at_once))
            self.reading = Reading(window)
        return self.reading is not None

    def read(self) -> None:
        reading = self.reading
        if reading is not None and reading.found is None:
            window, numbers = reading.window, reading.numbers
            reading.found = (
                self.disk.due(numbers) if window is None else self.disk.coming(window)
            )

    def hand_in(self) -> list[float]:
        """Hand in what was read; return the lateness of each timer that fired."""
        reading, self.reading = self.reading, None
        if reading is None:
            return []
        assert reading.found is not None
        if reading.window is not None:
            self.timetable.fill(reading.window, reading.found)
            return []
        # A gateway that is not named was handed all of its records.
        names = {timer.gateway for timer, _ in reading.found}
        delivered = {name: self.handed.get(name, PLENTY) for name in names}
        return self.timetable.fire(reading.found, self.now, delivered)

    def fail_reading(self) -> None:
        if self.reading is not None:
            self.reading = None
            self.timetable.reading_failed()

    def turn(self) -> None:
        """Do whatever there is to do at this moment."""
        self.timetable.turned(self.now)
        self.timetable.advance(self.now)
        for _ in range(MOST_READINGS):
            self.commit()
            begun = self.reading is not None
            begun = begun or self.begin_reading(of_due=True)
            begun = begun or self.begin_reading(of_due=False)
            if not begun:
                return
            self.read()
            self.hand_in()
        raise AssertionError("it reads for ever")

    def wait(self, seconds: float) -> list[TimerRecord]:
        """Let this many seconds pass; return the records of that time.

        Stretches in which the table has nothing to come are passed in one step.
        """
        first, until = len(self.log), self.state_s + seconds
        self.turn()
        while self.state_s < until:
            coming = (
                it.next for it in self.live if it.next and it.next > self.ms - 1_000
            )
            nearest = min(coming, default=inf)
            nearest_s = nearest / 1000 - 1
            step = max(self.timetable.next_due(), nearest_s, self.state_s + LEAST_S)
            self.to(min(step, until))
            self.turn()
        return self.log[first:]

    def to(self, state_s: float) -> None:
        seconds = state_s - self.state_s
        self.wall_ms += round(seconds * 1000)
        self.mono += seconds
        self.state_s = state_s

    def after(
        self,
        key: str,
        seconds: float,
        payload: str | None = None,
        *,
        ext: str | None = None,
        gateway: str = "g",
    ) -> bool:
        asked = After(key, seconds, payload, ext)
        return self.timetable.request(gateway, asked, self.now)

    def cancel(self, key: str | None = None, *, ext: str | None = None) -> None:
        self.timetable.request("g", Cancel(key, ext), self.now)

    def done(
        self,
        key: str,
        message: str | None = None,
        *,
        seq: int | None = None,
        gateway: str = "g",
    ) -> None:
        answer = Answer(key, is_done=True, message=message, final=False, seq=seq)
        self.timetable.request(gateway, answer, self.now)

    def fail(
        self,
        key: str,
        message: str = "no",
        *,
        final: bool = False,
        seq: int | None = None,
    ) -> None:
        answer = Answer(key, is_done=False, message=message, final=final, seq=seq)
        self.timetable.request("g", answer, self.now)

    def try_again(self, key: str) -> None:
        self.timetable.try_again("g", key, self.now)
