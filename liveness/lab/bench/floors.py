"""The floors: the values that the documents promise, by the number of users.

A figure whose floor is None is measured, but not promised.
"""

from dataclasses import dataclass, replace
from typing import Final

from liveness.lab.bench import FULL, BenchOptions, full_options

# At any number of users.
IDLE_READY_S: Final = 1.0
IDLE_MB: Final = 80.0
IDLE_CPU_PERCENT: Final = 1.0
STOP_S: Final = 5.0
# A replacement delays offlines by the time that it takes, plus at most this, as the machine
# has just started a process.
REPLACED_S: Final = 0.1
# The same for a user that is due just then: it waits until its gateway has reconnected.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The floors that depend on the number of users."""

    logins_s: float | None = None  # from the first login until all are on disk
    # In `steady`: the server's share of a core while all users send, and while users also
    # go offline; the 99th percentile of the delivery.
    speaking_cpu_percent: float | None = None
    steady_cpu_percent: float | None = None
    delivered_ms: float | None = None
    # In `silence`: from the first deadline until all offlines are acknowledged, and the
    # growth of the server's memory meanwhile.
    silence_s: float | None = None
    silence_mb: float | None = None
    # The server's CPU time of a login and of an offline, while all come at once. With few
    # users it would be that of everything else.
    login_ns: float | None = None
    offline_ns: float | None = None
    ready_s: float | None = None  # from exec to ready, with all users restored
    # A user that is not reported this long after its deadline counts as missing: twice the
    # promised time, or ten minutes if none is promised.
    patience_s: float = 600.0


# By the largest number of users that they are promised for.
PROMISED: Final[dict[int, Floors]] = {
    100_000: Floors(
        logins_s=2.0,
        speaking_cpu_percent=3.0,
        steady_cpu_percent=10.0,
        silence_s=8.0,
        silence_mb=100.0,
        login_ns=3_000.0,
        offline_ns=5_000.0,
        ready_s=1.0,
        patience_s=16.0,
    ),
    1_000_000: Floors(
        logins_s=8.0,
        delivered_ms=100.0,
        silence_s=20.0,
        silence_mb=250.0,
        ready_s=2.5,
        patience_s=40.0,
    ),
}


def promised(options: BenchOptions) -> Floors:
    """The floors of a run; some apply only with the load and the users of `full_options`."""
    usual = full_options(options.users)
    of_users = (floors for most, floors in PROMISED.items() if options.users <= most)
    found = next(of_users, Floors())
    load = (options.rate, options.seconds, options.timeout_s)
    if (
        load == (usual.rate, usual.seconds, usual.timeout_s)
        and options.users >= FULL.users
    ):
        return found
    return replace(
        found,
        speaking_cpu_percent=None,
        steady_cpu_percent=None,
        delivered_ms=None,
        login_ns=None,
        offline_ns=None,
    )
