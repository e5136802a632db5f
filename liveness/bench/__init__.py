"""What the sidecar does on this machine, measured from a gateway's side.

`liveness bench` starts the real sidecar as a process of its own and drives it over its
Unix socket. Its figures about itself are not asked. They are taken

- on this side's clocks: from before the first byte is written until an answer or a
  record is there. Lateness begins before the last sign of life was written, so it is
  never flattered, and what is early is too early by any clock.
- from the record itself where its decision is meant: the stamp `at`, from this machine's
  wall clock, against the same clock read here. When it arrived is told beside it.
- from the process table: CPU and memory, the bench's own too.

This file names what there is to choose; `run.py` is the command.
"""

# Imports: client, compiled, console, core, errors, service.engine, service.links,
#   service.storage.
# Never: starlette, hypercorn, structlog.

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCENARIOS: Final = {
    "idle": "a sidecar with nothing to do, and how soon it is ready",
    "logins": "everyone logs in at once",
    "steady": "keepalives all along, one a frame, while some users fall silent",
    "silence": "everyone falls silent at once, and others meanwhile",
    "day": "everyone logs in for a day; what that does to others, then and hours later",
    "restart": "a planned stop, then a crash, with everyone online; and under load",
    "timers": "ten million that wait, and those that come, go and fire",
    "client": "what the client library costs a gateway",
    "cost": "CPU and memory by the number of users, beside other systems",
    "lateness": "when who fell silent is told, beside other systems",
}
# What the sidecar is measured beside.
OTHERS: Final = {
    "reference": "the sidecar with its wheel in Python",
    "redis": "redis-server, a key with a TTL for each user",
    "zset": "redis-server, a sorted set of deadlines, swept every second",
    "etcd": "etcd, a lease for each user",
    "asyncio": "a process with a timer for each user",
}

# Numbers of users beside other systems, up to four times those of the run.
SIZES: Final = (10_000, 100_000, 1_000_000, 4_000_000, 10_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How much of everything; `full` is as much as is promised.

    Args:
        users: How many there are.
        rate: Frames a second in `steady`.
        seconds: How long everyone speaks there, and then users go on falling silent;
            other windows are at most as long.
        timeout_s: The silence timeout of those that fall silent.
        sizes: How many users there are in `cost`, one number after the other.
        without: Systems to leave out there.
        rounds: How often each thing is measured there; the best counts.
        folder: Where the sidecar has its files: the disk that is measured. None: the
            usual temporary folder.
    """

    users: int = 100_000
    rate: int = 3_000
    seconds: float = 30.0
    timeout_s: float = 10.0
    sizes: tuple[int, ...] = (10_000, 100_000)
    without: tuple[str, ...] = ()
    rounds: int = 3
    folder: Path | None = None


def full(users: int) -> BenchOptions:
    """The run of the promises for so many users."""
    is_large = users > BenchOptions().users
    sizes = tuple(size for size in SIZES if size <= 4 * users)
    return BenchOptions(users=users, rate=33_000 if is_large else 3_000, sizes=sizes)


FULL: Final = full(100_000)
# As little as shows that everything works; what it measures is no measure.
QUICK: Final = BenchOptions(
    users=500, rate=500, seconds=2.0, timeout_s=3.0, sizes=(500,), rounds=1
)
