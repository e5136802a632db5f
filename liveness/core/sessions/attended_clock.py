"""Attended time: a clock that runs only while this process does.

A detector that was stopped for a minute has heard no user for a minute, which proves
nothing about the users. So the wheel does not run on monotonic time but on the part of it
in which this process was at work: its intended sleeps, its computing, and a little for the
scheduler. Load counts. Absence (SIGSTOP, a frozen machine, starvation) does not, and
neither does the sleep in which it began. Sleeps must be short: an absence that ends before
the sleep would have ended looks like sleep.

After a longer absence the gateways may have been away too. The clock then pauses until
every link has been read and the gateways have had time to send the events they collected.
"""

from typing import Final

# A loaded machine wakes a process some milliseconds late. That is no absence.
SLACK_S: Final = 0.050

# A process that wakes later than this did not run. The absence began at an unknown moment
# of the sleep, so none of that sleep counts.
ABSENCE_S: Final = 0.250

# An absence longer than this may have stopped the gateways as well, which then still have
# collected events to send.
LONG_ABSENCE_S: Final = 1.0


class AttendedClock:
    """Turns monotonic time and this process's CPU time into attended seconds.

    It pauses for *reconnect_grace* seconds after a long absence, and for *patience*
    seconds at most if links cannot be read.
    """

    def __init__(
        self, *, mono: float, cpu: float, reconnect_grace: float, patience: float
    ) -> None:
        self.now = 0.0
        self.unattended = 0.0
        self._mono = mono
        self._cpu = cpu
        self.reconnect_grace = reconnect_grace
        self._pause_s = reconnect_grace
        self._patience = patience
        self.paused_since: float | None = None  # monotonic; None: it is not paused

    def begin(self, *, mono: float, cpu: float) -> None:
        """Start to run now; the time before was unattended."""
        self.unattended += mono - self._mono
        self._mono, self._cpu = mono, cpu

    def pause(self, mono: float, *, reconnect_grace: float | None = None) -> None:
        """Pause from *mono* on, as after a long absence, until `resume_if_caught_up`.

        The pause lasts *reconnect_grace* seconds at least; None: those after an absence.
        """
        self.paused_since = mono
        self._pause_s = (
            self.reconnect_grace if reconnect_grace is None else reconnect_grace
        )

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None

    @property
    def turned_at(self) -> float:
        """When `turn` or `begin` was called last, in monotonic seconds."""
        return self._mono

    def turn(
        self, *, mono: float, cpu: float, asked: float, reading_paused: bool = False
    ) -> float:
        """Account for the time since the last turn; return attended seconds.

        *asked* is how many seconds the process meant to sleep in between.
        *reading_paused*: links were not read, on purpose, so nothing counts.
        """
        elapsed, used = mono - self._mono, cpu - self._cpu
        attended = min(elapsed, asked + used + SLACK_S)
        if elapsed - asked - used > ABSENCE_S:
            absence = elapsed - attended
            attended = min(elapsed, used)
            if absence > LONG_ABSENCE_S:
                self.pause(mono)
        if self.is_paused or reading_paused:
            attended = 0.0
        self.now += attended
        self.unattended += elapsed - attended
        self._mono, self._cpu = mono, cpu
        return self.now

    def at(self, mono: float) -> float:
        """The highest possible attended time at *mono*, after the last turn.

        A deadline counted from here is never early, as attended time runs no faster than
        monotonic time.
        """
        return self.now + max(0.0, mono - self._mono)

    def resume_if_caught_up(self, *, mono: float, all_read: bool) -> None:
        """Resume a paused clock, if its time is over and the gateways were read.

        *all_read*: every byte was read that was in a socket at the pause.
        """
        if self.paused_since is None:
            return
        paused_s = mono - self.paused_since
        if paused_s >= (self._pause_s if all_read else self._patience):
            self.paused_since = None


class WindowedMax:
    """The highest of the recent values, for a reader that reads it at intervals.

    A value counts for one to two spans. A span is in seconds, and no shorter than the
    reader's interval. Only the maxima of the current and the previous span are stored.
    """

    def __init__(self, span: float) -> None:
        self._span = span
        self._number = 0
        self._current = self._previous = 0.0

    def note(self, value: float, mono: float) -> None:
        """Note a value of 0 or more, at a time that never goes back."""
        self._move(mono)
        self._current = max(self._current, value)

    def recent(self, mono: float) -> float:
        """The highest value of the last span or two; 0 without one."""
        self._move(mono)
        return max(self._current, self._previous)

    def _move(self, mono: float) -> None:
        number = int(mono // self._span)
        if number > self._number:
            is_next = number == self._number + 1
            self._previous = self._current if is_next else 0.0
            self._number, self._current = number, 0.0
