"""Brings users, gateway, sidecar and referee together, and lets it all happen."""

import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import uniform
from typing import Final, Protocol

import trio

from liveness.console.record_feed import WatchedFeed
from liveness.demo.director import Director
from liveness.demo.gateway import HOST
from liveness.demo.plans import joining_s, last_silence_s, planned
from liveness.demo.processes import gateway_in, settings_in, sidecar_in, socket_in
from liveness.demo.referee import Record, Referee
from liveness.demo.script import Step
from liveness.demo.users import User
from liveness.service.common.clock import Clock

MOST_GUESTS: Final = 100
LOOK_S: Final = 0.1
# The watcher of this demo is alone, and need not leave others room.
WATCHER_BACK_S: Final = (0.02, 0.2)


def command() -> str:
    """The command line to type: a path where the shell does not find `liveness`."""
    called = Path(sys.argv[0])
    if called.name != "liveness" or shutil.which("liveness"):
        return "liveness"
    return shlex.quote(str(called))


class Show(Protocol):
    """Where what happens is seen."""

    def tell(self, line: str) -> None:
        """Shows a line for a person."""

    def add(self, record: Record) -> None:
        """Shows a record, if it is one that ends a session."""

    async def run(self, stage: "Stage") -> None:
        """Shows how things are, until cancelled."""


class Stage:
    """All that takes part.

    Args:
        folder: An empty one, for sockets, state and logs.
        show: Where it is seen.
        users: How many are simulated.
        seconds: How long it goes on.
        timeout_s: The silence after which a user is offline.
    """

    def __init__(
        self, folder: Path, show: Show, *, users: int, seconds: float, timeout_s: float
    ) -> None:
        self.seconds = seconds
        self.timeout_s = timeout_s
        self.socket = socket_in(folder)
        self.is_over = trio.Event()
        flush_s = settings_in(folder, timeout_s=timeout_s).flush
        timing = {"timeout_s": timeout_s, "flush_s": flush_s}
        plans = list(planned(users, seconds=seconds, **timing))
        self.referee = Referee({p.uid: p.behaviour for p in plans}, **timing)
        self._port = _kept_port()
        self.port: int = self._port.getsockname()[1]
        user = partial(
            User,
            port=self.port,
            timeout_s=timeout_s,
            back_s=joining_s(users),
            referee=self.referee,
        )
        self.users = {plan.uid: user(plan) for plan in plans}
        self.sidecar = sidecar_in(folder, timeout_s=timeout_s)
        self.gateway = gateway_in(folder, port=self.port, most=users + MOST_GUESTS)
        self.director = Director(
            gateway=self.gateway,
            sidecar=self.sidecar,
            users=self.users,
            referee=self.referee,
            tell=self._tell,
        )
        self._show = show
        self._clock = Clock()
        self._began = 0.0

    async def play(self, steps: Sequence[Step]) -> None:
        """Lets it all happen, until the time is over or `is_over` is set.

        Raises:
            ChildLost: The sidecar or the gateway did not start, or ended by itself.
        """
        with self._port:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.sidecar.run)
                nursery.start_soon(self._watch)
                await nursery.start(self.gateway.run)
                self._began = trio.current_time()
                for user in self.users.values():
                    nursery.start_soon(user.live)
                nursery.start_soon(self._look)
                nursery.start_soon(self._show.run, self)
                nursery.start_soon(self.director.run, steps)
                with trio.move_on_after(self.seconds):
                    await self.is_over.wait()
                self.referee.look(trio.current_time())
                nursery.cancel_scope.cancel()

    @property
    def elapsed_s(self) -> float:
        """For how long the gateway has been open."""
        return trio.current_time() - self._began

    @property
    def lines_said(self) -> int:
        """What all users have said by now."""
        return sum(user.lines_said for user in self.users.values())

    def hints(self) -> Iterator[str]:
        """How somebody may take part or look."""
        yield f'join the room:     nc {HOST} {self.port}, then type {{"login": "ada"}}'
        yield f"see every record:  {command()} watch --socket {self.socket}"
        yield f"see its metrics:   curl http://{self.sidecar.said}/metrics"
        flush_s = self.referee.flush_s
        last_s = last_silence_s(self.seconds, self.timeout_s, flush_s)
        if last_s < self.seconds / 2:
            yield (
                f"what cannot be shown: silence that begins after {last_s:.1f} s, as it "
                "would outlast the demo"
            )

    def press(self, key: str) -> None:
        """Does what *key* asks for."""
        if key == "q":
            self.is_over.set()
        else:
            self.director.press(key)

    def _tell(self, line: str) -> None:
        self._show.tell(f"{self.elapsed_s:5.1f} s   {line}")

    async def _watch(self) -> None:
        """Reads every record, over restarts of the sidecar, from the first on."""
        feed = WatchedFeed(
            self.socket,
            after=0,
            kinds=(),
            tell=lambda line: None,  # what happens to the sidecar is told already
            pause_s=partial(uniform, *WATCHER_BACK_S),
        )
        await feed.follow(self._take)

    def _take(self, records: Sequence[Record]) -> bool:
        now, wall_ms = trio.current_time(), self._clock.wall_ms()
        for record in records:
            # Stamps are whole milliseconds: a record may be one less old than it looks.
            age_s = max(0, wall_ms - record["at"] - 1) / 1_000
            self.referee.told(record, decided=now - age_s, at=now)
            if record["kind"] != "online":
                self._show.add(record)
        return False

    async def _look(self) -> None:
        while True:
            self.referee.look(trio.current_time())
            await trio.sleep(LOOK_S)


def _kept_port() -> socket.socket:
    """A free port that stays the gateway's while that is restarted.

    It is bound here and never listened on: so the gateway may listen on it, and no
    connection made on this machine can happen to be given its number meanwhile.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind((HOST, 0))
    return kept
