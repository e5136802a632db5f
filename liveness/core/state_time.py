"""The clock of a state directory, by which all moments count that a restart reads again.

Nobody can set it. It begins as the wall clock when the state is made, so that its moments
look like those of the wall clock, and from then on it runs by the time that passes. While
the host runs, CLOCK_BOOTTIME says how much that is, also while the host sleeps and while no
sidecar runs. After a boot, or on another host, only the wall clocks can say it: never less
than nothing.
"""

from typing import NamedTuple


class StateTime(NamedTuple):
    """One moment on the state's clock, and on the clocks of its host.

    Attributes:
        state_s: Seconds of the state's clock.
        boot: Names the boot that `boot_s` counts from; "" if it is unknown.
        boot_s: Seconds of CLOCK_BOOTTIME.
        wall_ms: Unix milliseconds.
    """

    state_s: float
    boot: str
    boot_s: float
    wall_ms: int

    def passed_until(self, later: "StateTime") -> float:
        """Seconds until a later moment, by the clocks of the hosts."""
        is_same_boot = bool(self.boot) and self.boot == later.boot
        # The host of a cloned machine may have an earlier clock of the same boot.
        if is_same_boot and later.boot_s >= self.boot_s:
            return later.boot_s - self.boot_s
        return max(0, later.wall_ms - self.wall_ms) / 1000

    @property
    def wall_ahead_ms(self) -> int:
        """What to add to a moment of the state's clock to show it as wall time."""
        return self.wall_ms - int(self.state_s * 1000)
