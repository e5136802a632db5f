"""One run of the demo: connects users, hosts, their Redis, and the display."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

import trio

from liveness.cluster.format import ClusterRecord
from liveness.console.cluster_lines import event_line
from liveness.console.record_lines import text_line
from liveness.lab.common.host_judge import HostJudge
from liveness.lab.common.promises import Record
from liveness.lab.demo.demo_host import DemoCluster, DemoHost
from liveness.lab.demo.director import Director
from liveness.lab.demo.plans import joining_s, planned
from liveness.lab.demo.script import Step
from liveness.lab.demo.users import User

CHECK_EVERY_S: Final = 0.1
# Gateways collect activity for so small a part of the timeout, as by default.
FLUSHES: Final = 30
ACTION: Final = "action"
DATE: Final = len("2026-11-20 ")


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    seconds: float  # from the opening of the gateways to the report
    users: int  # simulated ones
    timeout: float  # the silence after which a user is offline, in seconds
    hosts: int  # more than one are joined by a Redis
    script: str  # the actions, and when they happen; see `script.py`
    gateway: str  # the command of another gateway than ours


class DemoRun:
    """All parts of the demo, with their sockets, state and logs in an empty folder.

    *show* is called with each line about an action or a record, and its topic: "action", or
    the reason of the record.
    """

    def __init__(
        self,
        folder: Path,
        show: Callable[[str, str], None],
        options: DemoOptions,
        redis: str,
        gateway_words: Sequence[str],
    ) -> None:
        self.seconds, self.timeout_s = options.seconds, options.timeout
        self.flush_s = min(self.timeout_s / FLUSHES, 1.0)
        self._show = show
        self._has_quit = False
        self._began = 0.0
        timing = {"timeout_s": self.timeout_s, "flush_s": self.flush_s}
        count, hosts = options.users, options.hosts
        plans = [*planned(count, hosts=hosts, seconds=self.seconds, **timing)]
        behaviours = {plan.uid: plan.behaviour for plan in plans}
        names = [f"host-{number}" for number in range(1, hosts + 1)]
        judges = {name: HostJudge(behaviours, **timing) for name in names}
        self.cluster = DemoCluster(folder, redis, judges, self._add) if redis else None
        self.judge = self.cluster.judge if self.cluster else judges[names[0]]
        self.hosts = [
            DemoHost(
                name=name,
                folder=folder / name,
                judge=judge,
                is_alone=not redis,
                most_users=count,
                settings=self.cluster.settings_of(name) if self.cluster else "",
                gateway_words=gateway_words,
                on_end=(lambda record: None) if redis else self._add,
            )
            for name, judge in judges.items()
        ]
        gateways, back_s = [host.address for host in self.hosts], joining_s(count)
        self.users = [User(plan, gateways, self.timeout_s, back_s) for plan in plans]
        self.director = Director(
            self.hosts,
            self.cluster,
            self.users,
            lambda line: show(f"{self.elapsed_s:5.1f} s   {line}", ACTION),
        )

    async def run(
        self, steps: Sequence[Step], display: Callable[["DemoRun"], Awaitable[None]]
    ) -> None:
        """Runs until the time and the script are over, or a key quits."""
        with ExitStack() as stack:
            async with trio.open_nursery() as nursery:
                await self._start(stack, nursery)
                self._began = trio.current_time()
                for user in self.users:
                    nursery.start_soon(user.live)
                nursery.start_soon(display, self)
                nursery.start_soon(self.director.run, steps)
                ends = self._began + self.seconds
                while not self._has_quit and (
                    trio.current_time() < ends or not self.director.script_is_over
                ):
                    self._check()
                    await trio.sleep(CHECK_EVERY_S)
                self._check()
                nursery.cancel_scope.cancel()

    def press(self, key: str) -> None:
        self._has_quit |= key == "q"
        self.director.press(key)

    async def _start(self, stack: ExitStack, nursery: trio.Nursery) -> None:
        if self.cluster:
            stack.enter_context(self.cluster.program)
            await self.cluster.start()
            nursery.start_soon(self.cluster.watch)
        for host in self.hosts:  # one by one: each is ready within the same time
            for each in host.programs:
                stack.enter_context(each.program)
                await each.start()
            nursery.start_soon(host.watch)

    def _check(self) -> None:
        now = trio.current_time()
        for host in self.hosts:
            host.judge.check_overdue(now)
        for target in self.director.targets:
            target.check()

    def _add(self, record: Record | ClusterRecord) -> None:
        """Shows a record in 80 columns: without the date, and without its number."""
        if isinstance(record, ClusterRecord):
            line, reason = event_line(record).rpartition("  p ")[0], record.place.reason
        else:
            line = text_line(dict(record)).rpartition("  seq ")[0]
            reason = record.get("reason", "")
        self._show(line[DATE:], reason)

    # --- figures for the display --------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        return trio.current_time() - self._began

    @property
    def hops(self) -> int:
        return sum(user.hops for user in self.users)

    @property
    def faults(self) -> Counter[str]:
        return sum((host.judge.faults.counts for host in self.hosts), Counter[str]())

    @property
    def faults_anywhere(self) -> Counter[str]:
        return self.cluster.judge.faults.counts if self.cluster else Counter()

    def places(self) -> Iterator[str]:
        """Lines for guests: each host's live page, how to join, how to see records."""
        for host in self.hosts:
            name = f"{host.name}   " if self.cluster else ""
            page, chat = f"http://{host.sidecar.program.address}/", host.address
            yield f"{name}{page}   nc {chat.host} {chat.port}"
        if self.cluster:
            yield f"LIVENESS_CLUSTER_URL={self.cluster.url} \\"
            yield "liveness watch --cluster"
        else:
            yield f"liveness watch --socket {quote(str(self.hosts[0].socket))}"
