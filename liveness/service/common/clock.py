"""Every clock that the sidecar reads; tests replace this class."""

import time

import trio

from liveness.core.records import HostReading, Instant
from liveness.host_clock import read_host


class Clock:
    """The event loop's clock, the wall clock, and the CPU clock of this process."""

    _offset: float | None = None  # of CLOCK_MONOTONIC from `mono`

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
        reading = read_host(trio.current_time)
        if reading is None:
            return None
        # The offset never changes, so it is measured once. Measured for each link it would
        # vary slightly, and the same moment would differ between two links.
        if self._offset is None:
            self._offset = reading.offset
        return reading._replace(offset=self._offset)

    def cpu(self) -> float:
        """CPU seconds used by all threads of this process."""
        return time.process_time()

    def instant(self, now: float, mono: float) -> Instant:
        """One moment on all clocks; *now* is in attended seconds."""
        return Instant(now, mono, self.wall_ms())
