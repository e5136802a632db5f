"""Ranges of the log that gateways skipped, until they are searched for attempts.

A gateway that says `fresh`, or whose name was forgotten, begins to read at the end of the
log. It does not need older records of sessions, but its timers outlive its process. So the
records that it skipped are searched for attempts of its timers, and these timers fire
again, which does not count as another attempt. If the sidecar ends before that, such an
attempt times out, like one without an answer.
"""

from typing import Final

# The most ranges of one gateway. A further one is merged with the last: the records between
# them then count as skipped, although the gateway got them.
MOST_RANGES: Final = 100


class SkippedRanges:
    """By gateway, ranges of the log: above the first seq, up to the second."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[tuple[int | None, int]]] = {}

    def add(self, gateway: str, *, after: int | None, until: int) -> bool:
        """Note that a gateway skips the records above *after*, up to *until*.

        *after* is None if its last record is unknown. Returns whether there are any.
        """
        if (after or 0) >= until:
            return False
        ranges = self._ranges.setdefault(gateway, [])
        if len(ranges) == MOST_RANGES:
            after, _ = ranges.pop()
        ranges.append((after, until))
        return True

    def delivered(self, gateway: str, position: int) -> int:
        """The seq up to which a gateway with its cursor at *position* skipped nothing."""
        ranges = self._ranges.get(gateway)
        return min(position, ranges[0][0] or 0) if ranges else position

    def gateways(self) -> list[str]:
        return [*self._ranges]

    def next(self, gateway: str) -> tuple[int | None, int]:
        return self._ranges[gateway][0]

    def searched(self, gateway: str, reached: int) -> None:
        """Note that the first range of a gateway was searched up to *reached*."""
        ranges = self._ranges[gateway]
        _, until = ranges[0]  # maybe not all of it was durable
        if reached < until:
            ranges[0] = reached, until
        elif ranges[1:]:
            del ranges[0]
        else:
            del self._ranges[gateway]
