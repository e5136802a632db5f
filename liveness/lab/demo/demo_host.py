"""The hosts of the demo, each a sidecar and its gateway, and the Redis that joins them.

They pass the records of the sidecars and of Redis to the judges.
"""

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import uniform
from typing import Final

import trio

from liveness.client.record_link import LOG
from liveness.client.watcher import Watch
from liveness.cluster.cluster_watch import ClusterWatch
from liveness.cluster.events import ClusterEvent, Listed
from liveness.cluster.format import ClusterRecord
from liveness.config.cluster import ClusterSettings
from liveness.core.records import ONLINE, identity
from liveness.lab.common.cluster_judge import ClusterJudge
from liveness.lab.common.gateway_program import filled
from liveness.lab.common.host_judge import HostJudge
from liveness.lab.common.processes import (
    HOST,
    PYTHON,
    Program,
    SidecarProgram,
    free_port,
    redis_server,
)
from liveness.lab.common.promises import Record
from liveness.lab.demo.users import GatewayAddress

MOST_GUESTS: Final = 100
# Short: no other watchers compete with this one when it reconnects.
RECONNECT_PAUSE_S: Final = (0.02, 0.2)
END_S: Final = 10.0  # a sidecar stops within five seconds of SIGTERM
# Our gateway; `gateway_program` explains the placeholders.
GATEWAY: Final = (
    *(*PYTHON, "liveness.lab.demo.gateway", "--sidecar", "{socket}"),
    *("--name", "{name}", "--port", "{port}", "--most", "{most}"),
)
# Short, so that a lost host is noticed within the demo.
LEASE_S: Final = 5.0
PARTITIONS: Final = 4  # enough for some hundred users


class KeptProgram:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.name = program.name
        self.state = "starting"

    async def start(self) -> None:
        self.state = "starting"
        self.program.launch()
        await self.program.until_ready()
        self.state = "up"

    async def end(self, number: int) -> None:
        """Ends it by a signal; it stays down until `start`."""
        self.state = "down"
        self.program.signal(number)
        with trio.fail_after(END_S):
            await self.program.ended()

    async def stop(self, seconds: float) -> None:
        self.program.signal(signal.SIGSTOP)
        self.state = "stopped"
        await trio.sleep(seconds)
        self.program.signal(signal.SIGCONT)
        self.state = "up"

    def check(self) -> None:
        if self.state in ("up", "stopped"):
            self.program.check()


@dataclass(eq=False, kw_only=True)
class DemoHost:
    name: str  # its number is the last character
    folder: Path  # a new one
    judge: HostJudge  # gets the records
    is_alone: bool  # the only one: its name is left out of messages
    most_users: int  # simulated ones that the gateway accepts
    settings: str  # more TOML for the sidecar
    gateway_words: Sequence[str]  # of another gateway than ours, with placeholders
    on_end: Callable[[Record], None]  # gets records of timers and of ends

    def __post_init__(self) -> None:
        self.folder.mkdir()
        port = free_port()
        self.address = GatewayAddress(HOST, port, self.judge)
        of = "" if self.is_alone else f" of {self.name}"
        sidecar = SidecarProgram(
            self.folder,
            timeout_s=self.judge.timeout_s,
            settings=f"flush_s = {self.judge.flush_s}\n{self.settings}",
            name=f"sidecar{of}",
        )
        self.socket = sidecar.socket
        values = {
            "socket": self.socket,
            "name": f"gw-{self.name[-1]}",
            "port": port,
            "most": self.most_users + MOST_GUESTS,
        }
        gateway = Program(
            name=f"gateway{of}",
            command=filled(self.gateway_words or GATEWAY, values),
            log=self.folder / "gateway.log",
            ready=re.compile(rf"listens on ({re.escape(HOST)}:\d+)"),
        )
        self.sidecar, self.gateway = KeptProgram(sidecar), KeptProgram(gateway)
        self.programs = (self.sidecar, self.gateway)

    @property
    def state(self) -> str:
        """ "up", or the state of the first program that is not."""
        states = (each.state for each in self.programs)
        return next((state for state in states if state != "up"), "up")

    def check(self) -> None:
        for each in self.programs:
            each.check()

    async def kill(self) -> None:
        self.judge.disruption_begins(trio.current_time(), of_gateway=True)
        async with trio.open_nursery() as nursery:
            for each in self.programs:
                nursery.start_soon(each.end, signal.SIGKILL)

    async def start(self) -> None:
        for each in self.programs:
            await each.start()
        self.judge.disruption_ends(trio.current_time(), of_gateway=True)

    async def watch(self) -> None:
        watch = Watch(
            str(self.socket),
            after=0,
            report_line=lambda line: None,  # the director logs each action
            pause_between=lambda *_: uniform(*RECONNECT_PAUSE_S),
        )
        async with watch:
            async for batch in watch.batches():
                self._take(batch)

    def _take(self, records: Sequence[Record]) -> None:
        now, wall_ms = trio.current_time(), time.time_ns() // 1_000_000
        for record in records:
            if record["kind"] == LOG:
                continue
            decided = now - age_s(record["at"], wall_ms)
            self.judge.check(record, decided=decided, at=now)
            if record["kind"] != ONLINE:
                self.on_end(record)


def age_s(at_ms: int, now_ms: int) -> float:
    """The least age of a record: its stamp is truncated to a millisecond."""
    return max(0, now_ms - at_ms - 1) / 1_000


class DemoCluster(KeptProgram):
    """A Redis, which starts empty, and the judge of the records that hosts publish there.

    *on_end* gets records that end or move a session.
    """

    def __init__(
        self,
        folder: Path,
        program: str,
        hosts: Mapping[str, HostJudge],
        on_end: Callable[[ClusterRecord], None],
    ) -> None:
        port = free_port()
        words = ("--port", str(port), "--bind", HOST)
        super().__init__(redis_server(folder, *words, program=program))
        self.name = "Redis"
        self.url = f"redis://{HOST}:{port}"
        self.judge = ClusterJudge(hosts, lease_s=LEASE_S)
        self._on_end = on_end

    async def kill(self) -> None:
        self.judge.redis_killed(trio.current_time())
        await self.end(signal.SIGKILL)

    async def start(self) -> None:
        await super().start()
        self.judge.redis_up(trio.current_time())

    def settings_of(self, host: str) -> str:
        return (
            f'[cluster]\nurl = "{self.url}"\nhost = "{host}"\n'
            f"partitions = {PARTITIONS}\nlease_s = {LEASE_S}\n"
        )

    async def watch(self) -> None:
        settings = ClusterSettings(url=self.url, partitions=PARTITIONS, lease_s=LEASE_S)
        async with ClusterWatch(
            settings,
            lists=True,
            report_line=lambda _: None,  # the director logs each action
        ) as watch:
            async for batch in watch.batches():
                self._take(batch)

    def _take(self, events: Sequence[ClusterEvent]) -> None:
        now, wall_ms = trio.current_time(), time.time_ns() // 1_000_000
        for event in events:
            if isinstance(event, Listed):
                users = {identity(place.user) for place in event.places}
                self.judge.take_list(
                    event.partition, users, is_settled=event.is_settled, at=now
                )
            elif isinstance(event, ClusterRecord):
                user, place = identity(event.user), event.place
                at = now - age_s(event.at, wall_ms)
                self.judge.take(
                    event.kind,
                    user,
                    place.host,
                    place.reason,
                    partition=event.partition,
                    at=at,
                )
                if event.kind != ONLINE:
                    self._on_end(event)
