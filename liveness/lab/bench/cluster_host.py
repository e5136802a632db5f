"""What publishing costs a sidecar, how late it is, and that local promises are kept.

The same load runs with publishing off, on, and on with a Redis that does not answer: users
log in and out at an even pace, and some fall silent.
"""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Final

from liveness.cluster.format import HostState
from liveness.console.progress import Stage
from liveness.core.records import ONLINE
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.cluster_load import (
    ClusterRedis,
    StreamReader,
    cluster_redis,
)
from liveness.lab.bench.floors import DECIDED_MS
from liveness.lab.bench.sidecar_process import AS_INSTALLED, linked_sidecar
from liveness.lab.bench.systems import LONG_S
from liveness.lab.bench.transitions import AHEAD, TransitionCosts, TransitionLoad
from liveness.lab.bench.verdict import p99_ms
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import LoadError

# The floors.
HOST_NS: Final = 40_000.0
STREAM_MS: Final = 100.0

LONGEST_S: Final = 10.0
POLL_S: Final = 0.01
AWAITED_S: Final = 60.0


def publishing(server: ClusterRedis, host: str, *, lease_s: float) -> Mapping[str, str]:
    """The environment of a sidecar that publishes."""
    return {
        "LIVENESS_CLUSTER_URL": server.url,
        "LIVENESS_CLUSTER_HOST": host,
        "LIVENESS_CLUSTER_LEASE_S": str(lease_s),
    }


def host_costs(
    options: BenchOptions, stage: Stage, *, is_promised: bool
) -> list[Figure]:
    """The runs alternate; the best of each kind counts, and the median is shown."""
    load = TransitionLoad(min(options.seconds, LONGEST_S))
    kinds = ("not published", "published", "Redis does not answer")
    runs: dict[str, list[TransitionCosts]] = {kind: [] for kind in kinds}
    for number in range(1, options.rounds + 1):
        for kind in kinds:
            stage(f"{kind}, run {number}", None)
            runs[kind].append(_run(options, kind, load))
    off, on, away = (
        TransitionCosts(*map(min, zip(*runs[kind], strict=True))) for kind in kinds
    )
    costs_ns = [
        ours.transition_ns - base.transition_ns
        for base, ours in zip(runs[kinds[0]], runs[kinds[1]], strict=True)
    ]
    most_ns, most_ms, decided_ms = (
        (HOST_NS, STREAM_MS, DECIDED_MS) if is_promised else (None, None, None)
    )
    cost_ns = on.transition_ns - off.transition_ns
    keepalive = on.keepalive_ns / off.keepalive_ns
    rows: list[tuple[str, float, str, float | None]] = [
        ("record to stream p99, 10,000 a second", on.sent_ms, "ms", most_ms),
        ("host: CPU a transition, not published", off.transition_ns, "ns", None),
        ("host: CPU a transition, for publishing", cost_ns, "ns", most_ns),
        ("the same, median of the runs", median(costs_ns), "ns", None),
        ("host: CPU a keepalive, published: ratio", keepalive, "x", None),
        ("not published: decided p99", off.decided_ms, "ms", None),
        ("not published: delivered p99", off.delivered_ms, "ms", None),
        ("published: decided p99", on.decided_ms, "ms", decided_ms),
        ("published: delivered p99", on.delivered_ms, "ms", None),
        ("Redis does not answer: decided p99", away.decided_ms, "ms", decided_ms),
        ("Redis does not answer: delivered p99", away.delivered_ms, "ms", None),
    ]
    return [Figure("cluster", *row) for row in rows]


def _run(options: BenchOptions, kind: str, load: TransitionLoad) -> TransitionCosts:
    with ExitStack() as stack:
        env, server, reader = AS_INSTALLED, None, None
        if kind != "not published":
            server = stack.enter_context(cluster_redis(options.folder))
            env = publishing(server, "bench", lease_s=30)
            reader = stack.enter_context(StreamReader(server.socket))
        sidecar, gateway = stack.enter_context(
            linked_sidecar(options.folder, timeout_s=LONG_S, env=env)
        )
        if server is not None:
            _await_live(server)
        load.begin(gateway)
        if reader is not None:
            reader.wait_for(AHEAD)
        if server is not None and kind != "published":
            os.kill(server.pid, signal.SIGSTOP)
            reader = None
        if reader is None:
            return load.run(sidecar, gateway)
        records = AHEAD + load.transitions
        costs = load.run(sidecar, gateway, lambda: reader.wait_for(records))
        late_s = [
            (wall_ms - record.place.since) / 1000
            for wall_ms, record in reader.records()
            if record.kind == ONLINE and wall_ms >= costs.began_ms
        ]
        return costs._replace(sent_ms=p99_ms(late_s))


def _await_live(server: ClusterRedis) -> None:
    until = time.perf_counter() + AWAITED_S
    while not all(
        host and host.state is HostState.LIVE for host in server.host("bench")
    ):
        if time.perf_counter() > until:
            raise LoadError(f"the sidecar published nothing within {AWAITED_S:g} s")
        time.sleep(POLL_S)
