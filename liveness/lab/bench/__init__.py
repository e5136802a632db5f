"""`liveness bench`: measures the sidecar on this machine, from a gateway's side.

The bench starts the real sidecar as a separate process and drives it over its Unix socket.
It does not use the sidecar's own metrics. Figures come from

- the clocks of this process: lateness is measured from before the last activity is
  written until the record is received. So it is never underestimated, and a record that
  looks early is early by any clock.
- the record: its stamp `at` is when the sidecar decided, by the wall clock that is also
  read here. The time of its arrival is reported separately.
- the process table: CPU time and memory, also of the bench itself.

This file lists the scenarios and the options. `suite.py` runs them.
"""

# Imports: client, cluster, compiled, console, core, errors, lab.common.
# Never: starlette, hypercorn, structlog.

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCENARIOS: Final = {
    "idle": "a sidecar with nothing to do, and how soon it is ready",
    "logins": "all users log in at once",
    "steady": "a steady flow of keepalives, one a frame, while some users fall silent",
    "silence": "all users fall silent at once, while users of another gateway do too",
    "day": "all users log in for a day; how that delays others, then and hours later",
    "restart": "a planned stop, then a crash, with all users online; and under load",
    "timers": "ten million pending timers; others are created, cancelled and fire",
    "devices": "what it costs to count the devices of each user",
    "cluster": "what presence across hosts costs Redis and a host, and how late it is",
    "outlets": "how fast outlets send, and that a dead one slows nothing down",
    "client": "CPU cost of the client library in a gateway",
    "cost": "CPU and memory by the number of users, compared with other systems",
    "lateness": "when silent users are reported, compared with other systems",
}
# The systems that the sidecar is compared with. docs/performance.md has these texts too.
COMPARED_SYSTEMS: Final = {
    "reference": "the sidecar with its wheel in Python",
    "redis": "redis-server, a key with a TTL for each user",
    "zset": "redis-server, a sorted set of deadlines, swept every second",
    "valkey": "valkey-server, a key with a TTL for each user, if it is installed",
    "asyncio": "a process with a timer for each user",
}

# Numbers of users for the comparison; up to four times those of the run are used.
SIZES: Final = (10_000, 100_000, 1_000_000, 4_000_000, 10_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The parameters of a run."""

    users: int = 100_000
    rate: int = 3_000  # frames a second in `steady`
    # How long all users send in `steady`, and then how long users fall silent. No other
    # measuring window is longer.
    seconds: float = 30.0
    timeout_s: float = 10.0  # of the users that fall silent
    sizes: tuple[int, ...] = (10_000, 100_000)  # users in `cost` and `lateness`
    without: tuple[str, ...] = ()  # systems to leave out of these two
    rounds: int = 3  # in `cost`; the best counts
    # For the sidecar's files: the disk that is measured. None: the temporary folder.
    folder: Path | None = None


def full_options(users: int) -> BenchOptions:
    """The options for which the floors for *users* are promised."""
    is_large = users > BenchOptions().users
    sizes = tuple(size for size in SIZES if size <= 4 * users)
    return BenchOptions(
        users=users,
        rate=33_000 if is_large else 3_000,
        # Above a million, a keepalive of each user takes the load seconds.
        timeout_s=30.0 if users > 1_000_000 else BenchOptions().timeout_s,
        sizes=sizes,
    )


FULL: Final = full_options(100_000)
# Shows that everything works; the figures mean nothing.
QUICK: Final = BenchOptions(
    users=500, rate=500, seconds=2.0, timeout_s=3.0, sizes=(500,), rounds=1
)
