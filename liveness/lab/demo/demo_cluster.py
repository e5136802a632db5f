"""What joins several hosts: a Redis, and the judge that gets the records of the cluster."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from liveness.cluster.cluster_watch import ClusterWatch
from liveness.cluster.events import ClusterEvent, Listed
from liveness.cluster.format import ClusterRecord
from liveness.config.cluster import ClusterSettings
from liveness.core.records import ONLINE, identity
from liveness.lab.common.cluster_judge import ClusterJudge
from liveness.lab.common.host_judge import HostJudge
from liveness.lab.common.processes import HOST, redis_server, reserved_port
from liveness.lab.demo.demo_host import KeptProgram, age_s

# Short, so that a lost host is noticed within the demo.
LEASE_S: Final = 5.0
PARTITIONS: Final = 4  # enough for some hundred users
# Looking at all users on all hosts takes some milliseconds.
LOOK_EVERY_S: Final = 1.0


@dataclass(eq=False, kw_only=True)
class DemoCluster:
    """A Redis, which starts empty."""

    folder: Path  # for its files
    program: str  # the path of redis-server, or of valkey-server
    hosts: Mapping[str, HostJudge]  # by name
    on_end: Callable[[ClusterRecord], None]  # gets what ends or moves a session

    def __post_init__(self) -> None:
        self.reserved = reserved_port()
        port = self.reserved.getsockname()[1]
        words = ("--port", str(port), "--bind", HOST)
        redis = redis_server(self.folder, *words, program=self.program)
        self.redis = KeptProgram(redis, "Redis")
        self.url = f"redis://{HOST}:{port}"
        self.judge = ClusterJudge(self.hosts, lease_s=LEASE_S)
        self._look_at = 0.0

    def settings_of(self, host: str) -> str:
        """TOML for the sidecar of a host."""
        return (
            f'[cluster]\nurl = "{self.url}"\nhost = "{host}"\n'
            f"partitions = {PARTITIONS}\nlease_s = {LEASE_S}\n"
        )

    def check_overdue(self, at: float) -> None:
        """Looks for what should have happened by *at*, from time to time."""
        if at >= self._look_at:
            self._look_at = at + LOOK_EVERY_S
            self.judge.check_overdue(at)

    async def watch(self) -> None:
        """Reads every change of the cluster, across restarts of Redis."""
        settings = ClusterSettings(url=self.url, partitions=PARTITIONS, lease_s=LEASE_S)
        async with ClusterWatch(
            settings,
            lists=True,
            report_line=lambda _: None,  # the director's lines say enough
        ) as watch:
            async for batch in watch.batches():
                self._take(batch)

    def _take(self, events: Sequence[ClusterEvent]) -> None:
        now, wall_ms = trio.current_time(), time.time_ns() // 1_000_000
        for event in events:
            if isinstance(event, Listed):
                places = {identity(it.user): it.host for it in event.places}
                self.judge.take_list(
                    event.partition, places, is_settled=event.is_settled, at=now
                )
            elif isinstance(event, ClusterRecord):
                self.judge.take(
                    event.partition,
                    event.kind,
                    identity(event.user),
                    host=event.place.host,
                    reason=event.place.reason,
                    decided=now - age_s(event.at, wall_ms),
                )
                if event.kind != ONLINE:
                    self.on_end(event)
