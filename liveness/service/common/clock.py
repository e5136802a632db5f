"""Every clock that the sidecar reads; tests replace `Clock`.

The clock of a state directory, for all moments that a restart reads again, cannot be set.
It begins as the wall clock when the state is made, so that its moments look like those of
the wall clock, and then runs by elapsed time. That is measured by CLOCK_BOOTTIME while the
host runs, also while it sleeps and while no sidecar runs. After a boot, or on another host,
only the difference of the wall clocks is left, never a negative one. A wall clock that is
behind is wrong, such as that of a host without a battery: until it is set, it cannot
measure the time to the next boot either.
"""

import time
from typing import Final, NamedTuple

import trio

from liveness.core.records import HostReading, Instant
from liveness.host_clock import boot_id, read_host

# If the wall clock moves by more than this against the state's clock, it was set. Less may
# come from a preemption between two readings.
STEP_MS: Final = 100


class StateTime(NamedTuple):
    """One moment on the state's clock, and on the clocks of its host.

    Attributes:
        state_s: Seconds of the state's clock.
        boot: Names the boot that `boot_s` counts from; "" if it is unknown.
        boot_s: Seconds of CLOCK_BOOTTIME.
        wall_ms: Unix milliseconds.
        behind_ms: By how much the wall clock was behind at boot; 0 once it was set.
    """

    state_s: float
    boot: str
    boot_s: float
    wall_ms: int
    behind_ms: int

    def passed_until(self, later: "StateTime") -> float:
        """Seconds until a later moment, by the clocks of the hosts."""
        if self._is_same_boot(later):
            return later.boot_s - self.boot_s
        return max(0, later.wall_ms - self.wall_ms - self.behind_ms) / 1000

    def behind_ms_at(self, later: "StateTime") -> int:
        """The known delay of the wall clock at a later moment.

        That of the same boot must not have been set since.
        """
        if self._is_same_boot(later):
            return self.behind_ms
        return max(0, self.wall_ms + self.behind_ms - later.wall_ms)

    def _is_same_boot(self, later: "StateTime") -> bool:
        # The host of a cloned machine may have an earlier clock of the same boot.
        return (
            bool(self.boot) and self.boot == later.boot and later.boot_s >= self.boot_s
        )

    @property
    def wall_ahead_ms(self) -> int:
        """The difference from a moment of the state's clock to the wall time to show."""
        return self.wall_ms - int(self.state_s * 1000)


class Clock:
    """The event loop's clock, the wall clock, the state's clock, and the CPU clock."""

    _offset: float | None = None  # of CLOCK_MONOTONIC from `mono`
    _state_offset: float | None = None  # of the state's clock from `boot_s`
    _wall_ahead_ms = 0
    _behind_ms = 0  # as `StateTime.behind_ms`

    def mono(self) -> float:
        """Monotonic seconds of the event loop: virtual under `trio.testing.MockClock`."""
        return trio.current_time()

    def wall_ms(self) -> int:
        """Unix milliseconds; only for stamps that are shown, such as those in records."""
        return time.time_ns() // 1_000_000

    def mono_offset_ms(self) -> int:
        """The difference from a stamp made now to milliseconds of `mono`."""
        return round(self.mono() * 1000) - self.wall_ms()

    def boot_s(self) -> float:
        """Seconds of CLOCK_BOOTTIME, which runs on while the host sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """The boot to which `boot_s` belongs; see `host_clock.boot_id`."""
        return boot_id()

    def resume_state(self, last: StateTime | None) -> None:
        """Continue the clock of a state from a moment that is stored; None: begin it."""
        self._state_offset = self.wall_ms() / 1000 - self.boot_s()
        if last is not None:
            now = self.state_time()
            self._state_offset = last.state_s + last.passed_until(now) - now.boot_s
            self._behind_ms = last.behind_ms_at(now)
            # Its value if nobody has set the wall clock since.
            self._wall_ahead_ms = last.wall_ahead_ms + last.behind_ms - self._behind_ms

    def state_s(self) -> float:
        """Seconds of the state's clock; it begins now unless `resume_state` was called."""
        return self._state_s(self.boot_s())

    def state_ms(self) -> int:
        return int(self.state_s() * 1000)

    def age_s(self, at_ms: int) -> float:
        """Seconds since a moment of the state's clock; 0 if that is in the future."""
        return max(0, self.state_ms() - at_ms) / 1000

    def wall_ahead_ms(self) -> int:
        """The difference from a moment of the state's clock to the wall time to show.

        It changes only if the wall clock is set.
        """
        ahead_ms = self.wall_ms() - self.state_ms()
        if abs(ahead_ms - self._wall_ahead_ms) > STEP_MS:
            self._wall_ahead_ms, self._behind_ms = ahead_ms, 0
        return self._wall_ahead_ms

    def state_time(self) -> StateTime:
        """This moment on all clocks, to continue the state's clock from."""
        boot_s = self.boot_s()
        state_s = self._state_s(boot_s)
        wall_ms = int(state_s * 1000) + self.wall_ahead_ms()
        return StateTime(state_s, self.boot_id(), boot_s, wall_ms, self._behind_ms)

    def _state_s(self, boot_s: float) -> float:
        if self._state_offset is None:
            self.resume_state(None)
            assert self._state_offset is not None
        return self._state_offset + boot_s

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
        return time.process_time()

    def instant(self, now: float, mono: float) -> Instant:
        """One moment on all clocks; *now* is in attended seconds."""
        return Instant(now, mono, self.wall_ms(), self.state_s())
