"""How often do a gateway's users send events, and does its timeout leave room for that?

With a timeout of less than twice the median silence, one lost keepalive makes a false
offline. So the wheel counts, for each gateway, how long users were silent before each
event. This needs no memory per user.

The median silence is taken by time: users spent half of all their time online in
silences at least as long. Each silence counts by its length, so each user has the same
weight, however many events it sends. A burst of messages, over in seconds, does not hide
the keepalives before and after it; nor does the first message after a login. One lost
keepalive in ten does not look like a longer interval, nor do clients that vary theirs.

Silences are counted in attended time, as timeouts are. Not counted are users with a
timeout of their own, to whom their gateway's does not apply; users that were given a
fresh timeout after a hold, whose events were lost; and restored users without an event
yet. A silence longer than the timeout ends in an offline and is not counted: if users
come and go all the time, the offlines show it.

Old silences count half after ten timeouts and a quarter after twenty, so that a new
release of the clients is noticed. A restart forgets all counts.

Source: buckets as in HdrHistogram (Tene, 2012), a fixed number in each octave; with their
relative error stated as in DDSketch (Masson, Rim & Lee, VLDB 2019).
"""

from dataclasses import dataclass
from math import frexp, ldexp
from typing import Final

# From 31 ms, about as long as gateways collect events, to 36 hours, more than the longest
# timeout. With 32 buckets to an octave each is 3 % wide.
LOWEST_EXPONENT: Final = -5
OCTAVES: Final = 22
STEPS: Final = 32
BUCKETS: Final = OCTAVES * STEPS
# The shortest silence in each bucket, in seconds; exact.
EDGES: Final = tuple(
    ldexp(STEPS + step, octave + LOWEST_EXPONENT) / STEPS
    for octave in range(OCTAVES)
    for step in range(STEPS)
)

# Every eighth event of a batch is counted, from the first on. Counting all of them makes
# a touch up to 6 % slower, and the result no better.
SAMPLED: Final = 8

# A timeout should be at least this many median silences, to outlast one lost keepalive.
TIMES: Final = 2
# This many silences, at least as long as the median, are needed for advice: not just a
# few users, or the first minute.
LEAST_SILENCES: Final = 20
# Counts are halved after this many timeouts.
HALVED_AFTER: Final = 10


def bucket_of(silence: float) -> int:
    """The bucket of a silence in seconds; one out of range counts in the nearest."""
    if silence < EDGES[0]:
        return 0
    fraction, exponent = frexp(silence)  # a fraction from 0.5 on
    octave = exponent - 1 - LOWEST_EXPONENT
    return min(octave * STEPS + int((2 * fraction - 1) * STEPS), BUCKETS - 1)


class Silences:
    """How many silences of each length an event has ended; `_wheel.pyx` has its own."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, silence: float) -> None:
        """Count a silence, in seconds."""
        bucket = bucket_of(silence)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def halve(self) -> None:
        """Halve all counts; a single silence is forgotten."""
        halves = {bucket: count // 2 for bucket, count in self._counts.items()}
        self._counts = {bucket: count for bucket, count in halves.items() if count}

    def median_silence(self) -> tuple[int, float]:
        """Return how many silences are at least as long as the median, and that one.

        In seconds, up to a 32nd too short and never too long. Without silences: 0, 0.0.
        """
        half = sum(EDGES[bucket] * count for bucket, count in self._counts.items()) / 2
        silences, weight = 0, 0.0
        for bucket in sorted(self._counts, reverse=True):
            silences += self._counts[bucket]
            weight += EDGES[bucket] * self._counts[bucket]
            if weight >= half:
                return silences, EDGES[bucket]
        return 0, 0.0


def is_short(timeout: float, interval: float) -> bool:
    """Whether a timeout leaves no room for one lost keepalive."""
    return timeout < TIMES * interval


@dataclass(slots=True)
class Cadence:
    """How often one gateway's users send events. Times are attended seconds."""

    interval: float | None = None  # the median silence; None: unknown yet
    is_short: bool = False  # whether the timeout is too short for it
    since: float | None = None  # when `look` first found a silence
    halved_at: float = 0.0  # when the counts were halved last, or began

    def look(
        self, median_silence: tuple[int, float], *, timeout: float, now: float
    ) -> tuple[bool, bool]:
        """Update all this from the counts as of *now*.

        Args:
            median_silence: What `Silences.median_silence` returned.
            timeout: The gateway's timeout.
            now: Attended seconds.
        Returns:
            Whether the timeout has just become too short; whether to halve the counts.
        """
        silences, seconds = median_silence
        if not silences:
            self.since = None
        elif self.since is None:
            self.since = self.halved_at = now
        # Longer silences can have ended only after one timeout has passed.
        is_known = (
            silences >= LEAST_SILENCES
            and self.since is not None
            and now - self.since >= timeout
        )
        was_short = self.is_short
        self.interval = seconds if is_known else None
        self.is_short = is_known and is_short(timeout, seconds)
        is_over = silences > 0 and now - self.halved_at >= HALVED_AFTER * timeout
        if is_over:
            self.halved_at = now
        return self.is_short and not was_short, is_over
