"""How often do a gateway's users speak, and does its timeout leave room for that?

A timeout under twice the usual interval is one lost keepalive away from false alarms.
So the wheel counts, by gateway, how long users were silent before each sign of life; of
a user nothing more is kept than the wheel knows anyway.

*Usual* is the middle by time: half of all the time that users were online they were in
a silence at least so long. Each silence counts by its length. So each user has the same
say, however much it talks; a burst of messages, over in seconds, does not hide the
keepalives before and after, nor does the first message after a login; and one lost
keepalive in ten does not look like a longer interval, nor do clients that vary theirs.

Counted is attended time, as that is what a timeout is measured in. Not counted: users
with a timeout of their own, as their gateway's does not concern them; whoever was given
a fresh timeout after a hold, as signs were lost; and who was restored unheard. A silence
longer than the timeout ends as an offline and is not seen here: that users come and go
all the time shows in the offlines themselves.

Old silences count half after ten timeouts, a quarter after twenty: a new release of the
clients is noticed. What is learnt is gone with a restart.

Source: buckets as in HdrHistogram (Tene, 2012), a fixed number in each octave; with their
relative error stated as in DDSketch (Masson, Rim & Lee, VLDB 2019).
"""

from dataclasses import dataclass
from math import frexp, ldexp
from typing import Final

# From 31 ms, about what signs of life are gathered for, to 36 hours, more than the
# longest timeout. In each octave as many buckets as make one 3 % wide.
LOWEST_EXPONENT: Final = -5
OCTAVES: Final = 22
STEPS: Final = 32
BUCKETS: Final = OCTAVES * STEPS
# By bucket: the shortest silence in it, in seconds; exact.
EDGES: Final = tuple(
    ldexp(STEPS + step, octave + LOWEST_EXPONENT) / STEPS
    for octave in range(OCTAVES)
    for step in range(STEPS)
)

# Of the signs of life that are read at once every eighth is looked at, the first among
# them: with all of them a touch costs up to 6 % more, and no more is learnt.
SAMPLED: Final = 8

# A timeout is to be at least so many usual intervals: then one lost keepalive harms
# nobody.
TIMES: Final = 2
# So many silences, at least as long as the usual one, must have been seen. A few users,
# or a first minute, are no reason for advice.
LEAST_SILENCES: Final = 20
# Counts are halved after so many timeouts.
HALVED_AFTER: Final = 10


def bucket_of(silence: float) -> int:
    """The bucket of a silence in seconds; the outermost take what lies beyond."""
    if silence < EDGES[0]:
        return 0
    fraction, exponent = frexp(silence)  # a fraction from 0.5 on
    octave = exponent - 1 - LOWEST_EXPONENT
    return min(octave * STEPS + int((2 * fraction - 1) * STEPS), BUCKETS - 1)


class Silences:
    """How many silences of each length were heard to end: the readable reference."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, silence: float) -> None:
        """Count one, in seconds."""
        bucket = bucket_of(silence)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def halve(self) -> None:
        """Have all so far count half; single ones are forgotten."""
        halves = {bucket: count // 2 for bucket, count in self._counts.items()}
        self._counts = {bucket: count for bucket, count in halves.items() if count}

    def usual(self) -> tuple[int, float]:
        """How many silences are at least as long as the usual one, and that in seconds.

        It is never told too long, and at most a 32nd too short. Without any: 0 and 0.0.
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
    """Whether a timeout leaves no room for one lost sign of life."""
    return timeout < TIMES * interval


@dataclass(slots=True)
class Cadence:
    """What is known of one gateway. Times are attended seconds."""

    interval: float | None = None  # how often its users usually speak
    is_short: bool = False  # its timeout is, for that
    since: float | None = None  # when the first silence was seen to have been counted
    halved_at: float = 0.0  # the counts, or when they began

    def look(
        self, usual: tuple[int, float], *, timeout: float, now: float
    ) -> tuple[bool, bool]:
        """Take note of what was counted by *now*.

        Args:
            usual: As `Silences.usual` tells it.
            timeout: The gateway's.
            now: Attended seconds.
        Returns:
            Whether its timeout begins to be too short, and whether the counts are to
            be halved.
        """
        silences, seconds = usual
        if not silences:
            self.since = None
        elif self.since is None:
            self.since = self.halved_at = now
        # Before one timeout has passed the longer silences cannot have ended yet.
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
