"""The clock of a state directory, for all moments that a restart reads again.

It cannot be set. It begins as the wall clock when the state is made, so that its moments
look like those of the wall clock, and then runs by elapsed time. That is measured by
CLOCK_BOOTTIME while the host runs, also while it sleeps and while no sidecar runs. After a
boot, or on another host, only the difference of the wall clocks is left, never a negative
one. A wall clock that is behind is wrong, such as that of a host without a battery: until
it is set, it cannot measure the time to the next boot either.
"""

from typing import NamedTuple


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
