"""The systems by name: how each is started, and what is measured of which."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from liveness.bench import BenchOptions
from liveness.bench.etcd import etcd
from liveness.bench.figures import OURS
from liveness.bench.machine import available_bytes
from liveness.bench.process import folder_of_its_own
from liveness.bench.redis import Setex, Zset, expired, redis, swept
from liveness.bench.sidecars import asyncio_timers, sidecar
from liveness.bench.systems import System

# Of a user, on both sides together, at the most that was seen of any system.
USER_BYTES: Final = 1_000


class SystemKind(NamedTuple):
    """One kind of system.

    Args:
        open: Starts it in a folder, for so many users.
        program: What must be installed, and the Debian package that has it.
        most: How many users it is given: more would take too long to be worth it.
    """

    open: Callable[[Path, int], AbstractContextManager[System]]
    program: tuple[str, str] | None = None
    most: int | None = None


REFERENCE: Final = "reference"
SETEX: Final = "redis"
# Programs beside their Debian packages.
REDIS: Final = ("redis-server", "redis-server")
ETCD: Final = ("etcd", "etcd-server")
KINDS: Final[dict[str, SystemKind]] = {
    OURS: SystemKind(sidecar),
    REFERENCE: SystemKind(
        partial(sidecar, env={"LIVENESS_PURE_WHEEL": "1"}), most=1_000_000
    ),
    SETEX: SystemKind(partial(redis, Setex, expired), REDIS),
    "zset": SystemKind(partial(redis, Zset, swept), REDIS),
    "etcd": SystemKind(etcd, ETCD, most=10_000),
    "asyncio": SystemKind(asyncio_timers),
}


class SystemPlan(NamedTuple):
    """What is measured, in this order, and what is left out and why."""

    runs: list[tuple[int, str]]
    left_out: list[str]


def plan(options: BenchOptions) -> SystemPlan:
    """The number of users and the system of each run that fits."""
    asked = [f"{name}: by --without" for name in KINDS if name in options.without]
    it, room = SystemPlan([], asked), available_bytes() // USER_BYTES
    for users in sorted(set(options.sizes)):
        if users > room:
            it.left_out.append(f"{users:,} users: there is memory for {room:,}")
            continue
        for name in wanted(options):
            most = KINDS[name].most
            if most is None or users <= most:
                it.runs.append((users, name))
            else:
                it.left_out.append(
                    f"{name}, {users:,} users: measured with at most {most:,}"
                )
    return it


def missing(options: BenchOptions) -> str:
    """What is not installed, and what to do; nothing if all is there."""
    for name in wanted(options):
        program, package = KINDS[name].program or (None, None)
        if program and not shutil.which(program):
            return (
                f"{name} is measured too, and {program} is not installed: "
                f"apt install {package}, or leave it out with --without {name}"
            )
    return ""


def wanted(options: BenchOptions) -> list[str]:
    """The systems that are not left out; ours never is."""
    return [name for name in KINDS if name not in options.without]


@contextmanager
def opened(name: str, folder: Path | None, users: int) -> Iterator[System]:
    """A system that is started, and gone at the end."""
    with folder_of_its_own(folder) as own, KINDS[name].open(own, users) as system:
        yield system
