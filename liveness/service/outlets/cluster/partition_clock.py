"""The clock of a partition: Redis' clock, as far as a host knows it, never set back."""

from math import inf
from typing import Final

# A call takes no longer, while this process runs.
LONGEST_CALL_S: Final = 2.0
# A partition's clock that is ahead, as Redis' clock was set back, runs slower by this share
# until it is not: by 0.1 s in the default pause between beats.
SLEW: Final = 0.02
# If Redis' clock differs from what it should be by more of a lease than this, it was set.
CLOCK_SHARE: Final = 1 / 60


class PartitionClock:
    """What a partition of a host with this lease knows of its clock."""

    def __init__(self, lease_s: float) -> None:
        self.set_to = 0  # Redis' time when it was last found that its clock was set
        self._may_differ_us = lease_s * CLOCK_SHARE * 1e6
        self._seen = 0
        self._seen_at = 0.0
        self._ahead = -inf  # Redis' clock less ours, at least
        self._half_trip_s = 0.0  # it may be more by this, or at most by twice this

    def floor(self, now: float) -> int:
        """The least that the partition's clock can be; versions are times of that clock.

        It is Redis' clock, but never goes back. Sessions begin by it, so it must not
        stand still either.
        """
        if self._ahead == -inf:
            return 0
        passed = (now - self._seen_at) * (1 - SLEW)
        return max(self._seen + round(passed * 1e6), round((now + self._ahead) * 1e6))

    def estimate(self, now: float) -> int:
        """The partition's clock, within half of a round trip."""
        redis_us = round((now + self._ahead + self._half_trip_s) * 1e6)
        return max(self.floor(now), redis_us)

    def latest_us(self, now: float) -> float:
        """What Redis' clock shows at most."""
        return (now + self._ahead + 2 * self._half_trip_s) * 1e6

    def see(self, version: int, now: float) -> None:
        """Note a version."""
        self._seen, self._seen_at = max(version, self.floor(now)), now

    def compare(self, version: int, redis_us: int, began: float, now: float) -> bool:
        """Note a version, and what Redis' clock was in a call that began at *began*.

        Returns:
            Whether Redis' clock was set since the last call, as far as can be known.
        """
        self.see(version, now)
        earliest_us, latest_us = (began + self._ahead) * 1e6, self.latest_us(now)
        may_differ_us = self._may_differ_us
        was_set = not (
            earliest_us - may_differ_us <= redis_us <= latest_us + may_differ_us
        )
        if was_set:
            # Or it may have been set before this process began.
            self.set_to = redis_us
        half_trip_s = min(now - began, LONGEST_CALL_S) / 2
        is_possible = earliest_us <= redis_us <= latest_us
        if not is_possible or half_trip_s <= self._half_trip_s:
            # Otherwise a faster call has said it better.
            self._ahead, self._half_trip_s = redis_us / 1e6 - now, half_trip_s
        return was_set
