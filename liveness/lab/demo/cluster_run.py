"""One run of the demo with several hosts: sidecars, gateways, Redis, and users that hop."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from liveness.cluster.cluster_watch import ClusterWatch
from liveness.cluster.events import ClusterEvent
from liveness.cluster.format import ClusterRecord
from liveness.config.cluster import ClusterSettings
from liveness.console.own_command import as_typed
from liveness.core.records import ONLINE
from liveness.lab.demo.cluster_director import ClusterDirector
from liveness.lab.demo.cluster_referee import ClusterReferee, OnlineCounts
from liveness.lab.demo.demo_host import DemoHost, age_s, reserved_port
from liveness.lab.demo.demo_run import Display, Run
from liveness.lab.demo.gateway import HOST
from liveness.lab.demo.hoppers import Hopper, journeys
from liveness.lab.demo.plans import Behaviour, joining_s
from liveness.lab.demo.processes import Child, redis_in, settings_in
from liveness.lab.demo.script import Step

# Short, so that a lost host is noticed within the demo.
LEASE_S: Final = 5.0
PARTITIONS: Final = 4  # enough for some hundred users
# Looking at all users on all hosts takes some milliseconds.
LOOK_EVERY_S: Final = 1.0
SETTINGS_TOML: Final = """
[cluster]
url = "{url}"
host = "{host}"
partitions = {partitions}
lease_s = {lease_s}
"""


class ClusterRun(Run):
    """All parts of the demo with several hosts, with all their files in an empty folder."""

    def __init__(
        self,
        folder: Path,
        display: "Display[ClusterRun]",
        *,
        hosts: int,
        users: int,
        seconds: float,
        timeout_s: float,
        redis_server: str,
        gateway_words: Sequence[str] = (),
    ) -> None:
        super().__init__(seconds=seconds, timeout_s=timeout_s)
        self._reserved = reserved_port()
        self.redis_port: int = self._reserved.getsockname()[1]
        self._settings = ClusterSettings(
            url=f"redis://{HOST}:{self.redis_port}",
            partitions=PARTITIONS,
            lease_s=LEASE_S,
        )
        self.redis = redis_in(folder, program=redis_server, port=self.redis_port)
        names = [f"host-{number + 1}" for number in range(hosts)]
        folders = [folder / name for name in names]
        for each in folders:
            each.mkdir()
        flush_s = settings_in(folders[0], timeout_s=timeout_s).flush
        timing = {"timeout_s": timeout_s, "flush_s": flush_s}
        plans = list(journeys(users, hosts=hosts, seconds=seconds, **timing))
        self.hosts = [
            DemoHost(
                folder_of,
                {plan.uid: Behaviour.KEEPALIVE for plan in plans},
                most_users=users,
                on_end=_ignore,
                name=name,
                gateway_name=f"gw-{number}",
                more=self._settings_of(name),
                timeout_s=timeout_s,
                flush_s=flush_s,
                gateway_words=gateway_words,
            )
            for number, (name, folder_of) in enumerate(
                zip(names, folders, strict=True), 1
            )
        ]
        self.referee = ClusterReferee(
            {host.name: host.referee for host in self.hosts}, lease_s=LEASE_S
        )
        back_s = joining_s(users)
        self.users = {
            plan.uid: Hopper(plan, self.hosts, timeout_s=timeout_s, back_s=back_s)
            for plan in plans
        }
        self.director = ClusterDirector(
            hosts=self.hosts,
            redis=self.redis,
            hoppers=self.users,
            referee=self.referee,
            log=lambda line: display.log(self._stamped(line)),
        )
        self._display = display
        self._look_at = 0.0
        self.counts: OnlineCounts | None = None  # at the end

    @property
    def children(self) -> Sequence[Child]:
        """All processes."""
        return [self.redis, *(child for host in self.hosts for child in host.children)]

    @property
    def has_faults(self) -> bool:
        """Whether a decision was wrong, early or missing, on a host or anywhere."""
        return bool(
            self.referee.faults or any(host.referee.faults for host in self.hosts)
        )

    @property
    def hops(self) -> int:
        """How often users went to another host by themselves."""
        return sum(user.hops for user in self.users.values())

    def hints(self) -> Iterator[str]:
        """Where the reader can look, and how to join."""
        for host in self.hosts:
            yield f"{host.name}:  {host.page}   nc {HOST} {host.port}"
        yield 'join a host by its nc, and type: {"login": "ada"}'
        yield "see who comes and goes anywhere:"
        yield f"  LIVENESS_CLUSTER_URL={self._settings.url} \\"
        yield from as_typed(["watch", "--cluster"], indent=2)

    async def _start(self, nursery: trio.Nursery) -> None:
        await nursery.start(self._hold_port)
        await nursery.start(self.redis.run)
        for host in self.hosts:  # one by one: each is ready within the same time
            await nursery.start(host.run)
        nursery.start_soon(self._watch)

    def _tasks(self, steps: Sequence[Step]) -> Iterator[Callable[[], Awaitable[None]]]:
        yield from (user.live for user in self.users.values())
        yield partial(self._display.run, self)
        yield partial(self.director.run, steps)

    def _press(self, key: str) -> None:
        self.director.press(key)

    def _check_overdue(self, at: float) -> None:
        for host in self.hosts:
            host.referee.check_overdue(at)
        if at >= self._look_at:
            self._look_at = at + LOOK_EVERY_S
            self.referee.check_overdue(at)

    def _conclude(self, at: float) -> None:
        self._look_at = at
        self._check_overdue(at)
        self.counts = self.referee.counts(at)

    async def _hold_port(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with self._reserved:
            task_status.started()
            await trio.sleep_forever()

    async def _watch(self) -> None:
        """Reads every change of the cluster, across restarts of Redis."""
        async with ClusterWatch(
            self._settings,
            lists=True,
            report_line=_ignore,  # the director's lines say enough
        ) as watch:
            async for batch in watch.batches():
                self._take(batch)

    def _take(self, events: Sequence[ClusterEvent]) -> None:
        now, wall_ms = trio.current_time(), time.time_ns() // 1_000_000
        for event in events:
            if not isinstance(event, ClusterRecord):
                self.referee.take(event, decided=now, at=now)
                continue
            decided = now - age_s(event.at, wall_ms)
            self.referee.take(event, decided=decided, at=now)
            if event.kind != ONLINE:
                self._display.add(event.as_map())

    def _settings_of(self, host: str) -> str:
        settings = self._settings
        return SETTINGS_TOML.format(
            url=settings.url,
            host=host,
            partitions=settings.partitions,
            lease_s=settings.lease_s,
        )


def _ignore(_: Any) -> None:
    pass
