"""Attended time: the clock that only runs while somebody is there to listen.

A detector that was stopped for a minute has heard nobody for a minute, which says
nothing about its users. So the wheel does not run on monotonic time but on the part
of it in which this process was at work: what it meant to sleep, what it computed,
and a little for the scheduler. Load counts; absence (SIGSTOP, a frozen machine,
starvation) does not, and neither does the sleep in which it began. Sleeps are to be short:
an absence that is over before the sleep should be cannot be told from it.

After a longer absence the gateways may have been away too. The clock then stands
still until what lay in every link has been read and the gateways have had time to send
what they collected.
"""

from typing import Final

# A loaded machine wakes a process late by some milliseconds; that is attendance.
SLACK_S: Final = 0.050

# By more than this a process is not late because of load, but because it did not run. When
# within the sleep that began is not known, and so nothing of it counts.
ABSENCE_S: Final = 0.250

# A shorter absence than this cannot have kept a gateway from sending what it
# collected by more than it is used to; a longer one may have stopped it as well.
LONG_ABSENCE_S: Final = 1.0


class AttendedClock:
    """Turns raw monotonic time and own CPU time into attended seconds.

    Args:
        mono: Monotonic seconds now.
        cpu: CPU seconds this process has used so far.
        reconnect_grace: Seconds to stand still after a long absence.
        patience: Longest that a link which cannot be read may keep it still.
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
        self.stands_since: float | None = None  # monotonic; None if it does not

    def begin(self, *, mono: float, cpu: float) -> None:
        """Start to run from here; nobody was attended before.

        Args:
            mono: Monotonic seconds now.
            cpu: CPU seconds used so far.
        """
        self.unattended += mono - self._mono
        self._mono, self._cpu = mono, cpu

    def stand(self, mono: float, *, reconnect_grace: float | None = None) -> None:
        """Stand still from *mono* on, as after a long absence, until `caught_up`.

        Args:
            mono: Monotonic seconds.
            reconnect_grace: For how long at least; None: as after an absence.
        """
        self.stands_since = mono
        self._pause_s = (
            self.reconnect_grace if reconnect_grace is None else reconnect_grace
        )

    @property
    def is_paused(self) -> bool:
        """Whether the clock stands still, waiting for the gateways to catch up."""
        return self.stands_since is not None

    def turn(
        self, *, mono: float, cpu: float, asked: float, reading_paused: bool = False
    ) -> float:
        """Account for the time since the last turn; return attended seconds.

        Args:
            mono: Monotonic seconds now.
            cpu: CPU seconds used so far.
            asked: Seconds of sleep the process had asked for in between.
            reading_paused: Links were deliberately not read meanwhile, so nobody was attended.
        """
        elapsed, used = mono - self._mono, cpu - self._cpu
        attended = min(elapsed, asked + used + SLACK_S)
        if elapsed - asked - used > ABSENCE_S:
            absence = elapsed - attended
            attended = min(elapsed, used)
            if absence > LONG_ABSENCE_S:
                self.stand(mono)
        if self.is_paused or reading_paused:
            attended = 0.0
        self.now += attended
        self.unattended += elapsed - attended
        self._mono, self._cpu = mono, cpu
        return self.now

    def at(self, mono: float) -> float:
        """The latest that attended time can be at *mono*, since the last turn.

        A deadline counted from here is never early: attended time does not run
        faster than monotonic time.
        """
        return self.now + max(0.0, mono - self._mono)

    def caught_up(self, *, mono: float, all_read: bool) -> None:
        """Let the clock go on, once the gateways have been listened to.

        Args:
            mono: Monotonic seconds now.
            all_read: All that lay in their sockets when it stopped has been read.
        """
        if self.stands_since is None:
            return
        paused_s = mono - self.stands_since
        if paused_s >= (self._pause_s if all_read else self._patience):
            self.stands_since = None


class WindowedMax:
    """The highest of what was noted of late, for who asks only now and then.

    A value is shown for one span at least and for two at most; nothing is kept but the
    highest of this span and of the one before it.

    Args:
        span: Seconds, no less than who asks lets pass in between.
    """

    def __init__(self, span: float) -> None:
        self._span = span
        self._number = 0
        self._current = self._previous = 0.0

    def note(self, value: float, mono: float) -> None:
        """Note a value, which is 0 or more, at a time that never goes back."""
        self._move(mono)
        self._current = max(self._current, value)

    def of_late(self, mono: float) -> float:
        """The highest of those noted within the last span or two; 0 if there is none."""
        self._move(mono)
        return max(self._current, self._previous)

    def _move(self, mono: float) -> None:
        number = int(mono // self._span)
        if number > self._number:
            is_next = number == self._number + 1
            self._previous = self._current if is_next else 0.0
            self._number, self._current = number, 0.0
