"""Every clock that the sidecar reads; tests replace this class."""

import time

import trio

from liveness.core.records import HostTime, Instant
from liveness.host_clock import HostReading, read_host


class Clock:
    """The event loop's clock, the wall clock, and the CPU clock of this process."""

    _offset: float | None = None  # add to CLOCK_MONOTONIC to get `mono`

    def mono(self) -> float:
        """Monotonic seconds of the event loop: virtual under `trio.testing.MockClock`."""
        return trio.current_time()

    def wall_ms(self) -> int:
        """Unix milliseconds; only for the timestamps in records."""
        return time.time_ns() // 1_000_000

    def system_us(self) -> int:
        """Microseconds of CLOCK_MONOTONIC, as systemd wants them."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000

    def host(self) -> HostReading | None:
        """The host's clocks and their offset from `mono`; None if they cannot be read."""
        return read_host(trio.current_time)

    def offset_of(self, theirs: HostTime | None) -> float | None:
        """The seconds to add to another process's CLOCK_MONOTONIC to get `mono`.

        None if that process has another clock, or did not report its clock.
        """
        ours = self.host() if theirs is not None else None
        if theirs is None or ours is None or not ours.host.is_same_clock(theirs):
            return None
        # The offset never changes, so it is measured once. Measured for each link it would
        # vary slightly, and the same moment would differ between two links.
        if self._offset is None:
            self._offset = -ours.offset
        return self._offset

    def cpu(self) -> float:
        """CPU seconds used by all threads of this process."""
        return time.process_time()

    def instant(self, now: float, mono: float) -> Instant:
        """One moment on all clocks; *now* is in attended seconds."""
        return Instant(now, mono, self.wall_ms())
