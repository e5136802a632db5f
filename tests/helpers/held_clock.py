"""Virtual time that waits for what happens in real time, as work in a thread does."""

from collections.abc import Iterator
from contextlib import contextmanager

from trio.testing import MockClock

Holds = list[float]


@contextmanager
def held(clock: MockClock, holds: Holds, idle_s: float) -> Iterator[None]:
    """Have a clock jump only once nothing has happened for so long, in real seconds.

    *holds* has all that is asked of this clock at present: the longest counts.
    """
    holds.append(idle_s)
    clock.autojump_threshold = max(holds)
    try:
        yield
    finally:
        holds.remove(idle_s)
        clock.autojump_threshold = max(holds, default=0.0)
