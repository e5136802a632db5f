"""A histogram of durations, and quantiles of one."""

from bisect import bisect_left
from collections.abc import Iterable


class Histogram:
    """A classic histogram: counts by bucket, and a sum.

    Args:
        bounds: Upper bounds, ascending, in seconds; infinity is added.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations at or below it), ending with +Inf."""
        total, rows = 0, []
        for bound, count in zip((*self.bounds, None), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound is None else f"{bound:g}", float(total)))
        return rows


def quantile(q: float, buckets: Iterable[tuple[float, float]]) -> float | None:
    """Estimate a quantile as PromQL does: values are spread evenly within a bucket.

    Args:
        q: Between 0 and 1.
        buckets: Upper bounds, ascending and the last infinite, with cumulative counts.
    Returns:
        At most the largest finite bound, even if the quantile is above it; None without
        samples.
    """
    ascending = sorted(buckets)
    total = ascending[-1][1] if ascending else 0
    below, low = 0.0, 0.0
    for bound, count in ascending:
        if total and count >= q * total:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (q * total - below) / (count - below)
        below, low = count, bound
    return None
