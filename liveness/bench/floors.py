"""What is promised, by the number of users: the documents' numbers, in one place.

None stands for what is measured, and not promised.
"""

from dataclasses import dataclass, replace
from typing import Final

from liveness.bench import BenchOptions, full

# At any number of users.
IDLE_READY_S: Final = 1.0
IDLE_MB: Final = 80.0
IDLE_CPU_PERCENT: Final = 1.0
STOP_S: Final = 5.0
# Beyond the time that a replacement takes silence is told no later than ever: this is for
# a machine that has just started a process.
REPLACED_S: Final = 0.1
# But whoever is due just then waits so long for its gateway to come back.
AWAITED_S: Final = 2.5
DECIDED_MS: Final = 50.0
NONE: Final = 0.0
# Of another gateway's users, while everyone of one falls silent.
OTHERS_DECIDED_MS: Final = 200.0
OTHERS_DELIVERED_MS: Final = 500.0
# Of others' users, while everyone online is listed over HTTP.
LISTED_MS: Final = 100.0
# Of timers: with ten million that wait, beside the load of 100,000 users.
PENDING_MB: Final = 300.0
PENDING_READY_S: Final = 5.0
SUSTAINED_PER_S: Final = 10_000.0
SAME_SECOND_S: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The floors that depend on the number of users.

    Args:
        logins_s: From the first login to all of them on disk.
        speaking_cpu_percent: The server's share of a core in `steady`, while everyone
            speaks.
        steady_cpu_percent: The same while users go offline, too.
        delivered_ms: The 99th percentile of what a gateway saw there.
        silence_s: From the first deadline until all are acknowledged.
        silence_mb: What the server's memory grows by meanwhile.
        ready_s: From exec to ready with everyone to restore.
        patience_s: How long after their deadlines those who are not reported are
            missing: twice what is promised, or long.
    """

    logins_s: float | None = None
    speaking_cpu_percent: float | None = None
    steady_cpu_percent: float | None = None
    delivered_ms: float | None = None
    silence_s: float | None = None
    silence_mb: float | None = None
    ready_s: float | None = None
    patience_s: float = 600.0


# Up to so many users.
PROMISED: Final[dict[int, Floors]] = {
    100_000: Floors(
        logins_s=4.0,
        speaking_cpu_percent=3.0,
        steady_cpu_percent=10.0,
        silence_s=8.0,
        silence_mb=100.0,
        ready_s=1.0,
        patience_s=16.0,
    ),
    1_000_000: Floors(
        logins_s=15.0,
        delivered_ms=100.0,
        silence_s=20.0,
        silence_mb=250.0,
        ready_s=5.0,
        patience_s=40.0,
    ),
}


def promised(options: BenchOptions) -> Floors:
    """What is promised of a run; what depends on its load only with that of `full`."""
    it, usual = floors(options.users), full(options.users)
    load = (options.rate, options.seconds, options.timeout_s)
    if load == (usual.rate, usual.seconds, usual.timeout_s):
        return it
    return replace(
        it, speaking_cpu_percent=None, steady_cpu_percent=None, delivered_ms=None
    )


def floors(users: int) -> Floors:
    """What is promised with *users*; of more than a million nothing is."""
    fitting = (it for most, it in PROMISED.items() if users <= most)
    return next(fitting, Floors())
