"""The compared systems by name: how each is started, and which runs are planned."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from liveness.lab.bench import BenchOptions
from liveness.lab.bench.machine import available_bytes
from liveness.lab.bench.program import temporary_folder
from liveness.lab.bench.redis import Setex, Zset, expired, redis_system, swept
from liveness.lab.bench.sidecars import AsyncioTimers, measured, sidecar
from liveness.lab.bench.systems import System
from liveness.lab.common.figures import OURS

# Memory per user, of system and load together: more than was measured of any system.
USER_BYTES: Final = 1_000


class SystemKind(NamedTuple):
    """How a system is started, and what it needs."""

    # Takes a folder for its files, and the number of users.
    open: Callable[[Path, int], AbstractContextManager[System]]
    program: str | None = None  # that it needs, from the Debian package of this name
    is_optional: bool = False  # without its program it is left out
    most: int | None = None  # users; more would take too long


REFERENCE: Final = "reference"
SETEX: Final = "redis"
REDIS: Final = "redis-server"
VALKEY: Final = "valkey-server"
_REFERENCE: Final = partial(sidecar, env={"LIVENESS_PURE_WHEEL": "1"})
KINDS: Final[dict[str, SystemKind]] = {
    OURS: SystemKind(partial(measured, sidecar)),
    REFERENCE: SystemKind(partial(measured, _REFERENCE), most=1_000_000),
    SETEX: SystemKind(partial(redis_system, Setex, expired, REDIS), REDIS),
    "zset": SystemKind(partial(redis_system, Zset, swept, REDIS), REDIS),
    "valkey": SystemKind(
        partial(redis_system, Setex, expired, VALKEY), VALKEY, is_optional=True
    ),
    "asyncio": SystemKind(partial(measured, AsyncioTimers)),
}


class SystemPlan(NamedTuple):
    """The runs, as users and system, in order; and what is left out and why."""

    runs: list[tuple[int, str]]
    left_out: list[str]


def plan(options: BenchOptions) -> SystemPlan:
    """The runs that fit into memory and that are not left out."""
    runs: list[tuple[int, str]] = []
    left_out = [f"{name}: by --without" for name in KINDS if name in options.without]
    left_out += [
        f"{name}: {kind.program} is not installed"
        for name, kind in KINDS.items()
        if name not in options.without and _is_absent(kind)
    ]
    most_users = available_bytes() // USER_BYTES
    for users in sorted(set(options.sizes)):
        if users > most_users:
            left_out.append(f"{users:,} users: there is memory for {most_users:,}")
            continue
        for name in _chosen(options):
            most = KINDS[name].most
            if most is None or users <= most:
                runs.append((users, name))
            else:
                left_out.append(
                    f"{name}, {users:,} users: measured with at most {most:,}"
                )
    return SystemPlan(runs, left_out)


def missing_program(options: BenchOptions) -> str:
    """Which program is not installed, and what to do; "" if none is missing."""
    for name in _chosen(options):
        program = KINDS[name].program
        if program and not shutil.which(program):
            return (
                f"{name} is measured too, and {program} is not installed: "
                f"apt install {program}, or leave it out with --without {name}"
            )
    return ""


def _chosen(options: BenchOptions) -> list[str]:
    return [
        name
        for name, kind in KINDS.items()
        if name not in options.without and not _is_absent(kind)
    ]


def _is_absent(kind: SystemKind) -> bool:
    """Whether a system is left out as its program is missing."""
    return kind.is_optional and shutil.which(kind.program or "") is None


@contextmanager
def opened(name: str, folder: Path | None, users: int) -> Iterator[System]:
    """A running system; its process and files are removed at the end."""
    with temporary_folder(folder) as own, KINDS[name].open(own, users) as system:
        yield system
