"""How often do a gateway's users send events, and does its timeout leave room for that?

With a timeout of less than twice the usual silence, one lost keepalive makes a false
offline. So the wheel adds up, for each gateway, how long users were silent before an
event, and the squares of that: `Silences`.

The usual silence is their mean, each weighted by its length, so each user has the same
weight, however many events it sends. A burst of messages, over in seconds, hides the
keepalives before and after it as little as the first message after a login does.

Silences are counted in attended time, as timeouts are. Not counted are users with a
timeout of their own, to whom their gateway's does not apply; users that were given a
fresh timeout after a hold, whose events were lost; and restored users without an event
yet. A silence longer than the timeout ends in an offline and is not counted: if users
come and go all the time, the offlines show it.
"""

from dataclasses import dataclass
from typing import Final

from liveness.core.wheel.table import NO_SILENCES, Silences

# A timeout should be at least this many silences, to outlast one lost keepalive.
TIMES: Final = 2
# Below this many it is too short: keepalives that come a little late, and the few that were
# lost, make the usual silence longer than the interval of the clients.
LEAST_TIMES: Final = 1.8
# This many silences of that length are needed: not just a few users, or the first minute.
# Source: Kish 1965, the effective size of a weighted sample.
LEAST_SILENCES: Final = 20
# Silences older than once or twice this many timeouts count no more.
FORGOTTEN_AFTER: Final = 10


def is_short(timeout: float, interval: float) -> bool:
    """Whether a timeout leaves no room for one lost keepalive."""
    return timeout < LEAST_TIMES * interval


@dataclass(slots=True)
class Cadence:
    """How often one gateway's users send events. Times are attended seconds."""

    # The silences that count are those since then, and the moment of that. None before
    # the first look: an earlier gateway may have had the same number on the wheel.
    before: Silences | None = None
    since: float = 0.0
    interval: float | None = None  # the usual silence; None: unknown yet
    _next_before: Silences = NO_SILENCES
    _next_since: float = 0.0

    def look(self, silences: Silences, *, timeout: float, now: float) -> None:
        if self.before is None or silences == self.before:
            self.before = self._next_before = silences
            self.since = self._next_since = now
        elif now - self._next_since >= FORGOTTEN_AFTER * timeout:
            self.before, self.since = self._next_before, self._next_since
            self._next_before, self._next_since = silences, now
        seconds = silences.seconds - self.before.seconds
        squares = silences.squares - self.before.squares
        # The quotient is how many silences of the usual length these are worth. Longer ones
        # can have ended only after one timeout has passed.
        is_known = (
            squares > 0
            and seconds * seconds / squares >= LEAST_SILENCES
            and now - self.since >= timeout
        )
        self.interval = squares / seconds if is_known else None
