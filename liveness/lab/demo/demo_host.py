"""A host of the demo: a sidecar, its gateway, and the referee that reads its records."""

import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import uniform
from typing import Final

import trio

from liveness.client.watcher import LOG, Watch
from liveness.console.watching import command_errors
from liveness.lab.demo.gateway import HOST
from liveness.lab.demo.plans import Behaviour
from liveness.lab.demo.processes import NAME, gateway_in, sidecar_in, socket_in
from liveness.lab.demo.referee import Record, Referee

MOST_GUESTS: Final = 100
# Short: no other watchers compete with this one when it reconnects.
RECONNECT_PAUSE_S: Final = (0.02, 0.2)


class DemoHost:
    """A sidecar and its gateway in an empty folder; one of several if it has a name.

    Args:
        folder: An empty one.
        behaviours: What each user is to do, by uid.
        most_users: That the gateway lets in, besides guests.
        timeout_s: The silence after which a user is offline.
        flush_s: For how long the gateway may collect activity.
        on_end: Called with each record that ends a session or is about a timer.
        name: Of the host; empty if it is the only one.
        gateway_name: Of the gateway.
        more: TOML for the settings of the sidecar.
        gateway_words: The command of another gateway than ours, with placeholders.
    """

    def __init__(
        self,
        folder: Path,
        behaviours: Mapping[str, Behaviour],
        *,
        most_users: int,
        timeout_s: float,
        flush_s: float,
        on_end: Callable[[Record], None],
        name: str = "",
        gateway_name: str = NAME,
        more: str = "",
        gateway_words: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.socket = socket_in(folder)
        self.referee = Referee(behaviours, timeout_s=timeout_s, flush_s=flush_s)
        self._reserved = reserved_port()
        self.port: int = self._reserved.getsockname()[1]
        of = f" of {name}" if name else ""
        self.sidecar = sidecar_in(
            folder, timeout_s=timeout_s, name=f"sidecar{of}", more=more
        )
        self.gateway = gateway_in(
            folder,
            words=gateway_words,
            port=self.port,
            most=most_users + MOST_GUESTS,
            name=f"gateway{of}",
            known_as=gateway_name,
        )
        self.children = (self.sidecar, self.gateway)
        self._on_end = on_end

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs until cancelled; started once the gateway is ready.

        Raises:
            ChildLost: The sidecar or the gateway did not start, or ended by itself.
        """
        with self._reserved:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.sidecar.run)
                nursery.start_soon(self._watch)
                await nursery.start(self.gateway.run)
                task_status.started()

    @property
    def page(self) -> str:
        """The address of the sidecar's live page."""
        return f"http://{self.sidecar.address}/"

    @property
    def state(self) -> str:
        """Of both processes: "up", or that of the first one which is not."""
        states = (child.state for child in self.children)
        return next((state for state in states if state != "up"), "up")

    async def kill(self) -> None:
        """Kills both processes, as a power failure would; they stay down until `start`."""
        self.referee.disruption_begins()
        self.referee.gateway_killed(float("inf"))  # until it is over
        async with trio.open_nursery() as nursery:
            for child in self.children:
                nursery.start_soon(child.end, signal.SIGKILL)

    async def start(self) -> None:
        """Starts both after `kill`; returns when they are ready."""
        for child in self.children:
            await child.start()
        self.referee.gateway_killed(trio.current_time())
        self.referee.disruption_ends(trio.current_time())

    async def _watch(self) -> None:
        """Reads every record, across restarts of the sidecar."""
        watch = Watch(
            str(self.socket),
            after=0,
            strict=True,
            report_line=lambda line: None,  # the director's lines say enough
            pause_between=lambda *_: uniform(*RECONNECT_PAUSE_S),
        )
        with command_errors(self.socket):
            async with watch:
                async for batch in watch.batches():
                    self._take(batch)

    def _take(self, records: Sequence[Record]) -> None:
        now, wall_ms = trio.current_time(), time.time_ns() // 1_000_000
        for record in records:
            if record["kind"] == LOG:
                continue
            decided = now - age_s(record["at"], wall_ms)
            self.referee.check(record, decided=decided, at=now)
            if record["kind"] != "online":
                self._on_end(record)


def age_s(at_ms: int, now_ms: int) -> float:
    """The age of a record; stamps are cut to milliseconds, so it may be one younger."""
    return max(0, now_ms - at_ms - 1) / 1_000


def reserved_port() -> socket.socket:
    """A socket that reserves a free port for a child across its restarts.

    It is bound and never listens. So the child can listen on the port, and the kernel
    gives it to no outgoing connection while the child is down.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved
