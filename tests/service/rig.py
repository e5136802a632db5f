"""The service without HTTP and signals, and those who talk to it, in one process.

Everything is the product's own and wired by it: SQLite, threads, sockets. Only time
is virtual (see `jumping`): an hour passes as soon as nobody has anything to do.
"""

import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import anyio
import trio
from anyio.abc import SocketAttribute

from liveness.config.settings import (
    Config,
    SocketSettings,
    StateSettings,
)
from liveness.core.limits import Limits
from liveness.core.records import Record, Uid
from liveness.service.app import load
from liveness.service.common.clock import Clock
from liveness.service.components import SidecarService
from liveness.service.http.middleware import Middleware
from liveness.service.links.credentials import access_to
from liveness.service.links.sockets import listening
from liveness.service.storage.log_store import LogStore
from liveness.service.timers.timer_store import TimerStore
from tests.helpers import disk, peer
from tests.helpers.wire import Frame

SETTINGS: Final = {field.name for field in fields(Config)}
WEEK_S: Final = 7 * 86_400.0  # the default of `state.retention_s`
WALL_MS: Final = 1_795_168_800_000
# Virtual seconds: far beyond any delay of the product's.
LONG_S: Final = 600.0
# An idle sidecar may look up ten times a second, and at its ticks, and no more.
IDLE_PER_S: Final = 14.0
# Where somebody is due and waits it looks every 50 ms, beside its ticks.
WAITING_PER_S: Final = 40.0


class VirtualWallClock(Clock):
    """The clocks of a host that runs with the loop's virtual time."""

    def __init__(self) -> None:
        self.ahead_s = 0.0  # how far the wall clock is ahead of the right time
        self.slept_s = 0.0  # CLOCK_MONOTONIC stood still meanwhile
        self._boot, self._booted_s = "first boot", 0.0

    def start_host(self, boot: str) -> None:
        """Have the host start anew; its boots must have different names."""
        self._boot, self._booted_s = boot, trio.current_time() + self.slept_s

    def wall_ms(self) -> int:
        seconds = trio.current_time() + self.slept_s + self.ahead_s
        return WALL_MS + round(seconds * 1000)

    def boot_s(self) -> float:
        return trio.current_time() + self.slept_s - self._booted_s

    def boot_id(self) -> str:
        return self._boot


class Caller(peer.Caller):
    """A gateway or watcher in virtual time."""

    within_s = LONG_S

    async def is_told_nothing(self, seconds: float) -> bool:
        """Whether no frame comes within this many virtual seconds."""
        with trio.move_on_after(seconds) as waiting:
            await self.receive()
        return waiting.cancelled_caught

    def received(self) -> list[Frame]:
        """The whole frames that have come by now; nothing else runs meanwhile."""
        with suppress(BlockingIOError):
            while data := self._socket.recv(2**20):
                self._frames.feed(data)
        return [*self._frames]

    @property
    def _socket(self) -> socket.socket:
        return self._stream.extra(SocketAttribute.raw_socket)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class Rig:
    """A running service, alone in its nursery."""

    def __init__(
        self,
        sidecar: SidecarService,
        store: LogStore,
        path: Path,
        nursery: trio.Nursery,
    ) -> None:
        self.sidecar = sidecar
        self.store = store
        self.engine = sidecar.engine
        self.presence, self.firing = sidecar.presence, sidecar.parts.firing
        self.gateways = sidecar.parts.gateways.by_name
        self.registry, self.attended = sidecar.parts.registry, sidecar.parts.attended
        self.log_writer = sidecar.log_writer
        self.counts = sidecar.counts
        self.turns: list[float] = []  # when each was made, in virtual seconds
        self._path = path
        self._nursery = nursery
        self._callers: list[Caller] = []
        self._turn = self.engine.turn
        self.asked_to_stop = trio.Event()

    async def stop(self) -> None:
        """Stop it in order, as SIGTERM does; leaving `running` is a crash."""
        self.asked_to_stop.set()
        await self.until(lambda: not self._nursery.child_tasks)

    def turn(self) -> float:
        """The engine's own turn, noted."""
        self.turns.append(trio.current_time())
        return self._turn()

    def door(self, name: str = "http") -> Middleware:
        """What answers HTTP, without a server."""
        return self.sidecar.http.app(name, lambda _: None)

    async def connect(self) -> Caller:
        caller = Caller(await anyio.connect_unix(self._path))
        self._callers.append(caller)
        return caller

    async def gateway(self, name: str, **options: Any) -> Caller:
        """A gateway that was welcomed."""
        caller = await self.connect()
        await caller.hello(name, **options)
        return caller

    async def gateway_of(
        self, users: Uid | Sequence[Uid], name: str = "g", **options: Any
    ) -> Caller:
        """A gateway that was welcomed, and whose users are online and on disk."""
        gateway = await self.gateway(name, **options)
        await gateway.apply(["login", users])
        return gateway

    async def watcher(self, name: str = "w", **options: Any) -> Caller:
        """A watcher of everything, without a stored cursor."""
        asked = {"role": "watcher", "scope": "all", "ack": False, **options}
        return await self.gateway(name, **asked)

    async def until(
        self, is_so: Callable[[], object], within_s: float = LONG_S
    ) -> float:
        """Wait until something is so; the virtual seconds that took, to 10 ms."""
        began = trio.current_time()
        with trio.fail_after(within_s):
            while not is_so():  # noqa: ASYNC110 - virtual: this is how time passes
                await trio.sleep(0.01)
        return trio.current_time() - began

    def disk_full(self) -> AbstractContextManager[None]:
        """SQLite itself finds no room for another page of the log."""
        return disk.full(self.store)

    def no_room_for_timers(self) -> AbstractContextManager[None]:
        """Nor for one of the timers' table."""
        return disk.full(self.log_writer.timers.table)

    def log(self) -> list[Record]:
        """The log as it is on disk, read over a connection of its own."""
        return disk.log(self.store.path)

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


def slowed(write: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The same, but each transaction takes so long."""

    async def slow(call: Callable[[], Any], **told: Any) -> Any:
        await trio.sleep(seconds)
        return await write(call, **told)

    return slow


@asynccontextmanager
async def running(
    folder: Path,
    *,
    retention_s: float = WEEK_S,
    listen: Callable[[Path], AbstractContextManager[socket.socket]] = listening,
    clock: Callable[[], Clock] = VirtualWallClock,
    **given: Any,
) -> AsyncIterator[Rig]:
    """Run a service with these settings and limits."""
    settings = {name: given.pop(name) for name in SETTINGS & given.keys()}
    config = Config(
        socket=SocketSettings(path=folder / "g.sock"),
        state=StateSettings(dir=folder / "state", retention_s=retention_s),
        limits=Limits(**given),
        **settings,
    )
    with (
        closing(LogStore(config.state.dir, folder)) as store,
        closing(
            TimerStore(
                config.state.dir,
                log=store.log,
                ancestors=store.ancestors,
                retry_policy=config.timers.retry_policy,
            )
        ) as table,
        listen(config.socket.path) as listener,
    ):
        sidecar = load(
            config, store, table, clock(), access_to(config.access, group=os.getegid())
        )
        async with trio.open_nursery() as nursery:
            rig = Rig(sidecar, store, config.socket.path, nursery)
            rig.engine.turn = rig.turn  # type: ignore[method-assign]
            await nursery.start(sidecar.run, rig.asked_to_stop.wait, listener, {})
            try:
                yield rig
            finally:
                rig.close()
                nursery.cancel_scope.cancel()
