"""The floors: the values that the documents promise.

A figure whose floor is None is measured, but not promised.
"""

from typing import Final

from liveness.lab.bench import FULL, BenchOptions, full_options

# At any number of users.
IDLE_READY_S: Final = 1.0
IDLE_MB: Final = 80.0
IDLE_CPU_PERCENT: Final = 1.0
STOP_S: Final = 5.0
# A replacement delays offlines by its duration, plus at most this, as starting a process
# keeps the machine busy.
REPLACED_S: Final = 0.1
# The same for users due just then: they wait until their gateway has reconnected.
AWAITED_S: Final = 2.5
DECIDED_MS: Final = 50.0
NONE: Final = 0.0
# Users of another gateway, while all users of one fall silent.
OTHERS_DECIDED_MS: Final = 200.0
OTHERS_DELIVERED_MS: Final = 500.0
# Timers: ten million pending ones, beside the load of 100,000 users.
PENDING_MB: Final = 300.0
PENDING_READY_S: Final = 5.0
SUSTAINED_PER_S: Final = 10_000.0
SAME_SECOND_S: Final = 8.0


def of_users(
    options: BenchOptions, usual: float | None, million: float | None = None
) -> float | None:
    """*usual*, *million* or None: for up to 100,000 users, up to a million, or more."""
    if options.users <= FULL.users:
        return usual
    return million if options.users <= 1_000_000 else None


def of_load(
    options: BenchOptions, usual: float | None, million: float | None = None
) -> float | None:
    """Like `of_users`, but only with the load of `full_options` and at least 100,000 users.

    With few users, the CPU time of everything else would dominate.
    """
    full = full_options(options.users)
    names = ("rate", "seconds", "timeout_s")
    is_full = all(getattr(options, name) == getattr(full, name) for name in names)
    is_full = is_full and options.users >= FULL.users
    return of_users(options, usual, million) if is_full else None
