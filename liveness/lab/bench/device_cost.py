"""What it costs to count the devices of users: the same load without and with it.

Each user has one device, so there are as many users to count as uids: the costliest case.
The runs alternate, and the best of each kind counts: other load on this machine can only
add to it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from liveness.console.progress import Stage
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.program import Window
from liveness.lab.bench.sidecar_process import (
    AS_INSTALLED,
    SidecarProcess,
    linked_sidecar,
)
from liveness.lab.bench.systems import LONG_S
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import MAX_BATCH, LoadGateway, LoadUsers, cut

# The floors, for this many users or more: with few, a page of memory is a lot.
PROMISED_USERS: Final = 100_000
MEMORY_B: Final = 60.0
CPU_RATIO: Final = 1.10

# Of each user: those of 100,000 users take 10 ms, which is too short to be measured.
KEEPALIVES: Final = 20
SETTLE_S: Final = 2.0  # until the work after logins is over
DEVICES: Final[Mapping[str, str]] = {"LIVENESS_PRESENCE_DEVICE_SEPARATOR": "/"}


EVENTS: Final = ("a login", "a keepalive", "an offline")


class _Costs(NamedTuple):
    """Of one run: bytes a user, and nanoseconds of the server's CPU."""

    memory: float
    login: float
    keepalive: float
    offline: float


def devices(options: BenchOptions, stage: Stage) -> list[Figure]:
    """What it costs to count the devices of each user."""
    users = LoadUsers(options.users, suffix="/phone")
    plain, counted = list[_Costs](), list[_Costs]()
    for number in range(1, options.rounds + 1):
        for into, env, how in ((plain, AS_INSTALLED, "not "), (counted, DEVICES, "")):
            stage(f"devices are {how}counted, run {number}", None)
            with linked_sidecar(options.folder, timeout_s=LONG_S, env=env) as server:
                into.append(_costs(users, *server))
    without, best = (_best(runs) for runs in (plain, counted))
    is_promised = options.users >= PROMISED_USERS
    memory_b = best.memory - without.memory
    most_b = MEMORY_B if is_promised else None
    figures = [
        Figure("devices", "memory for the devices of a user", memory_b, "B", most_b)
    ]
    for event, base, ours in zip(EVENTS, without[1:], best[1:], strict=True):
        ratio = Figure("devices", f"server CPU {event}: ratio", ours / base, "x")
        figures += [
            Figure("devices", f"server CPU {event}", base, "ns"),
            Figure("devices", f"server CPU {event}, devices counted", ours, "ns"),
            replace(ratio, most=CPU_RATIO if is_promised else None),
        ]
    return figures


def _costs(users: LoadUsers, sidecar: SidecarProcess, gateway: LoadGateway) -> _Costs:
    everyone = range(len(users))
    logins, logouts = users.logins(everyone), users.logouts(everyone)
    keepalives = [users.batch(part) for part in cut(everyone, MAX_BATCH)]
    time.sleep(SETTLE_S)
    empty_mb = sidecar.memory_mb()
    login = _cpu_ns(sidecar, gateway, [logins], len(users))
    time.sleep(SETTLE_S)
    memory = (sidecar.memory_mb() - empty_mb) * 1e6 / len(users)
    often = keepalives * KEEPALIVES
    keepalive = _cpu_ns(sidecar, gateway, often, len(users) * KEEPALIVES)
    offline = _cpu_ns(sidecar, gateway, [logouts], len(users))
    return _Costs(memory, login, keepalive, offline)


def _best(runs: Sequence[_Costs]) -> _Costs:
    return _Costs(*(min(costs) for costs in zip(*runs, strict=True)))


def _cpu_ns(
    sidecar: SidecarProcess, gateway: LoadGateway, frames: list[bytes], events: int
) -> float:
    with Window(sidecar) as window:
        for frame in frames:
            gateway.send(frame)
        gateway.ping()
    return window.server_ns(events)
