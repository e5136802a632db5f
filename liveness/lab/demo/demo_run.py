"""One run of the demo: connects users, gateway, sidecar, referee and display."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import trio

from liveness.console.own_command import as_typed
from liveness.lab.demo.demo_host import DemoHost
from liveness.lab.demo.director import Director
from liveness.lab.demo.gateway import HOST
from liveness.lab.demo.plans import MOST_REMINDERS, joining_s, last_silence_s, planned
from liveness.lab.demo.processes import Child, settings_in
from liveness.lab.demo.referee import Record
from liveness.lab.demo.script import Step
from liveness.lab.demo.users import User

CHECK_EVERY_S: Final = 0.1

R = TypeVar("R", contravariant=True)


class Display(Protocol[R]):
    """Shows the run to the user."""

    def log(self, line: str) -> None:
        """Shows a line about an action."""

    def add(self, record: Record) -> None:
        """Shows a record that ends a session or is about a timer."""

    async def run(self, demo: R) -> None:
        """Shows the state of the run, until cancelled."""


class Run(ABC):
    """A run of the demo, with one host or with several."""

    def __init__(self, *, seconds: float, timeout_s: float) -> None:
        self.seconds = seconds
        self.timeout_s = timeout_s
        self._quit = trio.Event()
        self._began = 0.0

    async def run(self, steps: Sequence[Step]) -> None:
        """Runs until the time is over, or the user quits.

        Raises:
            ChildLost: A process did not start, or ended by itself.
        """
        async with trio.open_nursery() as nursery:
            await self._start(nursery)
            self._began = trio.current_time()
            for task in self._tasks(steps):
                nursery.start_soon(task)
            nursery.start_soon(self._check_often)
            with trio.move_on_after(self.seconds):
                await self._quit.wait()
            self._conclude(trio.current_time())
            nursery.cancel_scope.cancel()

    @property
    @abstractmethod
    def children(self) -> Sequence[Child]:
        """All processes."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the gateways opened."""
        return trio.current_time() - self._began

    @abstractmethod
    def hints(self) -> Iterator[str]:
        """Where the reader can look, and how to join."""

    @property
    @abstractmethod
    def has_faults(self) -> bool:
        """Whether anything happened that must not."""

    def press(self, key: str) -> None:
        """Does what a key asks for."""
        if key == "q":
            self._quit.set()
        else:
            self._press(key)

    @abstractmethod
    async def _start(self, nursery: trio.Nursery) -> None:
        """Starts the processes; returns when users may come."""

    @abstractmethod
    def _tasks(self, steps: Sequence[Step]) -> Iterator[Callable[[], Awaitable[None]]]:
        """What runs from then on."""

    @abstractmethod
    def _press(self, key: str) -> None:
        """Does what a key other than q asks for."""

    @abstractmethod
    def _check_overdue(self, at: float) -> None:
        """Looks for what should have happened by *at*."""

    def _conclude(self, at: float) -> None:
        """Looks for the last time, while everything still runs."""
        self._check_overdue(at)

    def _stamped(self, line: str) -> str:
        return f"{self.elapsed_s:5.1f} s   {line}"

    async def _check_often(self) -> None:
        while True:
            self._check_overdue(trio.current_time())
            await trio.sleep(CHECK_EVERY_S)


class DemoRun(Run):
    """All parts of the demo, with their sockets, state and logs in an empty folder."""

    def __init__(
        self,
        folder: Path,
        display: "Display[DemoRun]",
        *,
        users: int,
        seconds: float,
        timeout_s: float,
        gateway_words: Sequence[str] = (),
    ) -> None:
        super().__init__(seconds=seconds, timeout_s=timeout_s)
        flush_s = settings_in(folder, timeout_s=timeout_s).flush
        timing = {"timeout_s": timeout_s, "flush_s": flush_s}
        # Reminders are timers, which another gateway need not have.
        most_reminders = 0 if gateway_words else MOST_REMINDERS
        plans = list(
            planned(users, seconds=seconds, most_reminders=most_reminders, **timing)
        )
        self.host = DemoHost(
            folder,
            {plan.uid: plan.behaviour for plan in plans},
            most_users=users,
            timeout_s=timeout_s,
            flush_s=flush_s,
            on_end=display.add,
            gateway_words=gateway_words,
        )
        self.referee = self.host.referee
        self.sidecar, self.gateway = self.host.sidecar, self.host.gateway
        user = partial(
            User,
            port=self.host.port,
            timeout_s=timeout_s,
            back_s=joining_s(users),
            referee=self.referee,
        )
        self.users = {plan.uid: user(plan=plan) for plan in plans}
        self.director = Director(
            gateway=self.gateway,
            sidecar=self.sidecar,
            users=self.users,
            referee=self.referee,
            log=lambda line: display.log(self._stamped(line)),
        )
        self._display = display

    @property
    def children(self) -> Sequence[Child]:
        """All processes."""
        return self.host.children

    @property
    def has_faults(self) -> bool:
        """Whether a decision was wrong, early or missing."""
        return bool(self.referee.faults)

    @property
    def lines_said(self) -> int:
        """Chat lines of all users so far."""
        return sum(user.lines_said for user in self.users.values())

    def watch_command(self, *, indent: int = 0) -> list[str]:
        """The command that follows the records, as lines to be typed."""
        words = ["watch", "--socket", str(self.host.socket)]
        return list(as_typed(words, indent=indent))

    def hints(self) -> Iterator[str]:
        """Where the reader can look, and how to join."""
        page = self.host.page
        yield f"see the live page:  {page}"
        yield f"see its metrics:    curl {page}metrics"
        yield f"join the room:      nc {HOST} {self.host.port}"
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

    async def _start(self, nursery: trio.Nursery) -> None:
        await nursery.start(self.host.run)

    def _tasks(self, steps: Sequence[Step]) -> Iterator[Callable[[], Awaitable[None]]]:
        yield from (user.live for user in self.users.values())
        yield partial(self._display.run, self)
        yield partial(self.director.run, steps)

    def _press(self, key: str) -> None:
        self.director.press(key)

    def _check_overdue(self, at: float) -> None:
        self.referee.check_overdue(at)
