"""The clock of a partition: Redis' clock, as far as a host knows it, never set back."""

from math import inf
from typing import Final

# A call takes no longer, while this process runs.
LONGEST_CALL_S: Final = 2.0
# A partition's clock that is ahead, as Redis' clock was set back, runs slower by this share
# until it is not: by 0.1 s in the default pause between beats.
SLEW: Final = 0.02


class PartitionClock:
    """What a partition of a host knows of its clock."""

    _seen: int  # a version
    _seen_at: float

    def __init__(self) -> None:
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

    def see(self, version: int, now: float) -> None:
        self._seen, self._seen_at = max(version, self.floor(now)), now

    def compare(self, version: int, redis_us: int, began: float, now: float) -> None:
        """Note a version, and what Redis' clock was in a call that began at *began*."""
        self.see(version, now)
        half_trip_s = min(now - began, LONGEST_CALL_S) / 2
        earliest_us = (began + self._ahead) * 1e6
        latest_us = (now + self._ahead + 2 * self._half_trip_s) * 1e6
        is_possible = earliest_us <= redis_us <= latest_us
        if not is_possible or half_trip_s <= self._half_trip_s:
            # Otherwise a faster call has said it better.
            self._ahead, self._half_trip_s = redis_us / 1e6 - now, half_trip_s
