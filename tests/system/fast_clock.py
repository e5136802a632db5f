"""A sidecar whose clock runs too fast, as no released one's does.

`liveness_early_offline_total` must stay 0; whether anybody would see that it does not
takes a sidecar that is broken. Run in place of the command that stands behind it.
"""

import sys

from liveness.cli.main import main
from liveness.core.sessions.attended_clock import AttendedClock

right = AttendedClock.turn


def turn(
    self: AttendedClock,
    *,
    mono: float,
    cpu: float,
    asked: float,
    reading_paused: bool = False,
) -> float:
    before = self.now
    now = right(self, mono=mono, cpu=cpu, asked=asked, reading_paused=reading_paused)
    self.now = now + (now - before)
    return self.now


if __name__ == "__main__":
    AttendedClock.turn = turn  # type: ignore[method-assign]
    sys.exit(main(sys.argv[4:]))  # after `python -m liveness`
