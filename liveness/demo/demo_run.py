"""One run of the demo: connects users, gateway, sidecar, referee and display."""

import socket
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import uniform
from typing import Final, Protocol

import trio

from liveness.client.watcher import LOG, Watch
from liveness.console.own_command import as_typed
from liveness.console.watching import command_errors
from liveness.demo.director import Director
from liveness.demo.gateway import HOST
from liveness.demo.plans import joining_s, last_silence_s, planned
from liveness.demo.processes import gateway_in, settings_in, sidecar_in, socket_in
from liveness.demo.referee import Record, Referee
from liveness.demo.script import Step
from liveness.demo.users import User

MOST_GUESTS: Final = 100
CHECK_EVERY_S: Final = 0.1
# Short: no other watchers compete with this one when it reconnects.
RECONNECT_PAUSE_S: Final = (0.02, 0.2)


class Display(Protocol):
    """Shows the run to the user."""

    def log(self, line: str) -> None:
        """Shows a line about an action."""

    def add(self, record: Record) -> None:
        """Shows a record that ends a session or is about a timer."""

    async def run(self, demo: "DemoRun") -> None:
        """Shows the state of the run, until cancelled."""


class DemoRun:
    """All parts of the demo, with their sockets, state and logs in an empty folder."""

    def __init__(
        self,
        folder: Path,
        display: Display,
        *,
        users: int,
        seconds: float,
        timeout_s: float,
    ) -> None:
        self.seconds = seconds
        self.timeout_s = timeout_s
        self.socket = socket_in(folder)
        flush_s = settings_in(folder, timeout_s=timeout_s).flush
        timing = {"timeout_s": timeout_s, "flush_s": flush_s}
        plans = list(planned(users, seconds=seconds, **timing))
        self.referee = Referee({p.uid: p.behaviour for p in plans}, **timing)
        self._reserved = _reserved_port()
        self.port: int = self._reserved.getsockname()[1]
        user = partial(
            User,
            port=self.port,
            timeout_s=timeout_s,
            back_s=joining_s(users),
            referee=self.referee,
        )
        self.users = {plan.uid: user(plan=plan) for plan in plans}
        self.sidecar = sidecar_in(folder, timeout_s=timeout_s)
        self.gateway = gateway_in(folder, port=self.port, most=users + MOST_GUESTS)
        self.director = Director(
            gateway=self.gateway,
            sidecar=self.sidecar,
            users=self.users,
            referee=self.referee,
            log=lambda line: display.log(f"{self.elapsed_s:5.1f} s   {line}"),
        )
        self._display = display
        self._quit = trio.Event()
        self._began = 0.0

    async def run(self, steps: Sequence[Step]) -> None:
        """Runs until the time is over, or the user quits.

        Raises:
            ChildLost: The sidecar or the gateway did not start, or ended by itself.
        """
        with self._reserved:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.sidecar.run)
                nursery.start_soon(self._watch)
                await nursery.start(self.gateway.run)
                self._began = trio.current_time()
                for user in self.users.values():
                    nursery.start_soon(user.live)
                nursery.start_soon(self._check_overdue)
                nursery.start_soon(self._display.run, self)
                nursery.start_soon(self.director.run, steps)
                with trio.move_on_after(self.seconds):
                    await self._quit.wait()
                self.referee.check_overdue(trio.current_time())
                nursery.cancel_scope.cancel()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the gateway opened."""
        return trio.current_time() - self._began

    @property
    def lines_said(self) -> int:
        """Chat lines of all users so far."""
        return sum(user.lines_said for user in self.users.values())

    @property
    def page(self) -> str:
        """The address of the sidecar's live page."""
        return f"http://{self.sidecar.address}/"

    def watch_command(self, *, indent: int = 0) -> list[str]:
        """The command that follows the records, as lines to be typed."""
        return list(as_typed(["watch", "--socket", str(self.socket)], indent=indent))

    def hints(self) -> Iterator[str]:
        """Where the reader can look, and how to join."""
        yield f"see the live page:  {self.page}"
        yield f"see its metrics:    curl {self.page}metrics"
        yield f"join the room:      nc {HOST} {self.port}"
        yield '  and type:         {"login": "ada"}'
        yield "see every record:"
        yield from self.watch_command(indent=2)
        flush_s = self.referee.flush_s
        last_s = last_silence_s(self.seconds, self.timeout_s, flush_s)
        if last_s < self.seconds / 2:
            yield (
                f"not shown: silence that begins after {last_s:.1f} s, which would outlast "
                "the demo"
            )

    def press(self, key: str) -> None:
        """Does what a key asks for."""
        if key == "q":
            self._quit.set()
        else:
            self.director.press(key)

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
            # Stamps are truncated to milliseconds: the record may be up to one younger.
            age_s = max(0, wall_ms - record["at"] - 1) / 1_000
            self.referee.check(record, decided=now - age_s, at=now)
            if record["kind"] != "online":
                self._display.add(record)

    async def _check_overdue(self) -> None:
        while True:
            self.referee.check_overdue(trio.current_time())
            await trio.sleep(CHECK_EVERY_S)


def _reserved_port() -> socket.socket:
    """A socket that reserves a free port for the gateway across its restarts.

    It is bound and never listens. So the gateway can listen on the port, and the kernel
    gives it to no outgoing connection while the gateway is down.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved
