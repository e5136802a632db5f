"""The only reader of clocks."""

import time

import trio

from liveness.core.records import HostTime, Instant
from liveness.host_clock import HostReading, read_host


class Clock:
    """Reads the loop's clock, the wall clock and the CPU clock of this process."""

    _offset: float | None = None  # from CLOCK_MONOTONIC to `mono`

    def mono(self) -> float:
        """Monotonic seconds: the loop's own, so that tests can make them virtual."""
        return trio.current_time()

    def wall_ms(self) -> int:
        """Unix milliseconds, for stamps in records only."""
        return time.time_ns() // 1_000_000

    def system_us(self) -> int:
        """Microseconds of the clock that all processes of this host share."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000

    def host(self) -> HostReading | None:
        """The clocks that processes of this host share, and how far `mono` is from them."""
        return read_host(trio.current_time)

    def offset_of(self, theirs: HostTime | None) -> float | None:
        """What turns another process's CLOCK_MONOTONIC into `mono`.

        None: that process has another clock, or did not say what it reads.
        """
        ours = self.host() if theirs is not None else None
        if theirs is None or ours is None or not ours.host.is_same_clock(theirs):
            return None
        # It never changes. Measured for each link it would differ by what the measuring
        # takes, and so would equal moments of two links.
        if self._offset is None:
            self._offset = -ours.offset
        return self._offset

    def cpu(self) -> float:
        """CPU seconds used by all threads of this process."""
        return time.process_time()

    def instant(self, now: float, mono: float) -> Instant:
        """One moment on all clocks; *now* is attended seconds."""
        return Instant(now, mono, self.wall_ms())
