"""The world around the sidecar: plays the steps of a plan, and advances virtual time."""

import heapq
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final

import trio

from tests.promises.run_history import History
from tests.simulation.library import Library
from tests.simulation.machine import Machine
from tests.simulation.outlets import OutletWorld
from tests.simulation.parties import Gateway, GreedyWatcher, Watcher
from tests.simulation.plan import (
    STALL_SHARE,
    Fault,
    Greedy,
    Plan,
    Remind,
    Visit,
)
from tests.simulation.situations import reached

Act = Callable[[], Awaitable[None] | None]

RESTARTS: Final = (
    "sidecar crashes",
    "sidecar crashes in a write",
    "sidecar restarts",
    "host boots",
    "state is back",
)
# They happen whether a sidecar runs or not.
OF_CLOCKS: Final = ("host sleeps", "wall clock stepped", "wall clock set right")
GATEWAY_BOOTS: Final = ("crashes", "crashes, back fresh")


class World:
    """Everything but the sidecar, and the one who makes things happen.

    Args:
        plan: What is going to happen.
        machine: The sidecar's host, or what does as much of it as the plan needs.
        outlets: What its outlets lead to.
        random: Draws what the plan leaves open.
        jump: Has time pass while nothing runs.
        history: Gets what is sent and seen.
        nursery: Where links are read.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        outlets: OutletWorld | None = None,
        *,
        random: Random,
        jump: Callable[[float], None],
        history: History,
        nursery: trio.Nursery,
    ) -> None:
        self.plan = plan
        self.machine = machine
        self.outlets = outlets
        self.random = random
        self.history = history
        self.nursery = nursery
        self._jump = jump
        self._paused_at: float | None = None
        self._agenda: list[tuple[float, int, Act]] = []
        self._numbers = 0
        self._is_sooner = trio.Event()
        self._conns = 0
        self._is_restarting = False
        self.gateways = [
            Gateway(self, it) if it.library is None else Library(self, it, it.library)
            for it in plan.gateways
        ]
        self.watchers = [
            Watcher(self, f"w-{n}", keeps_position=n % 2 == 0)
            for n in range(plan.watchers)
        ]
        self.witness = Watcher(self, "witness")

    # --- time -----------------------------------------------------------------

    @property
    def now(self) -> float:
        """The moment it is, also where the sidecar is paused."""
        return trio.current_time() if self._paused_at is None else self._paused_at

    @property
    def is_paused(self) -> bool:
        """Whether only what is on the agenda goes on, and no task."""
        return self._paused_at is not None

    def random_of(self, name: str) -> Random:
        """One of its own for somebody, so that nobody else draws otherwise."""
        return Random(f"{name} {self.plan.seed}")

    def at(self, when: float, act: Act) -> None:
        self._numbers += 1
        heapq.heappush(self._agenda, (when, self._numbers, act))
        if self._agenda[0][1] == self._numbers:
            self._is_sooner.set()

    def after(self, seconds: float, act: Act) -> None:
        self.at(self.now + seconds, act)

    async def go_on_until(self, until: float) -> None:
        while True:
            next_at = min(until, self._agenda[0][0] if self._agenda else until)
            if next_at > trio.current_time():
                # What is read meanwhile may have something done before that.
                self._is_sooner = trio.Event()
                with trio.move_on_at(next_at):
                    await self._is_sooner.wait()
            elif self._agenda and self._agenda[0][0] <= until:
                _, _, act = heapq.heappop(self._agenda)
                waited = act()
                if waited is not None:
                    await waited
            else:
                return

    # --- the plan -------------------------------------------------------------

    async def play(self) -> None:
        await self.machine.start()
        for one in [self.witness, *self.watchers, *self.gateways]:
            one.connect()
        for number, step in enumerate(self.plan.steps):
            match step:
                case Visit():
                    self.at(step.at, partial(self._visit, step))
                case Remind():
                    self.at(step.at, partial(self._remind, step))
                case Fault():
                    self.at(step.at, partial(self._inject, step))
                case Greedy():
                    name = f"greedy-{number}"
                    greedy = GreedyWatcher(self, name, step.unread_for_s)
                    self.at(step.at, greedy.connect)
        await self.go_on_until(self.plan.lasts_s)
        for gateway in self.gateways:
            gateway.is_silent = True
        while not self.machine.is_up or self.trouble():
            await self.go_on_until(self.now + 1)
        self.history.calm_from = self.now
        if self.outlets is not None:
            self.outlets.mend()
        rest_s = max(self.plan.rest_s, self.plan.publishes_in_s)
        await self.go_on_until(self.now + rest_s)
        for gateway in self.gateways:
            if isinstance(gateway, Library):
                gateway.verify()
        Watcher(self, "reader", after=0).connect()
        await self.go_on_until(self.now + 2)
        if self.outlets is not None:
            await self.outlets.come_to_rest()
        await self.machine.stop()
        self.history.ended_at = self.now

    def trouble(self) -> bool:
        """Whether any fault has not ended yet."""
        return (
            self._is_restarting
            or self.machine.is_faulty
            or any(it.is_faulty for it in self.gateways)
            or any(it.is_hung for it in self.watchers)
        )

    def new_conn(self) -> int:
        """An id that was not given before."""
        self._conns += 1
        return self._conns

    def _visit(self, visit: Visit) -> None:
        gateway = self.gateways[visit.gateway]
        gateway.go_through(gateway.visit(visit))

    def _remind(self, remind: Remind) -> None:
        gateway = self.gateways[remind.gateway]
        texts = {"payload": f"{remind.seconds}", "ext": f"of {remind.gateway}"}
        gateway.report(["after", remind.key, remind.seconds, texts])
        if remind.cancelled_after_s is not None:
            self.after(
                remind.cancelled_after_s,
                lambda: gateway.report(["cancel", {"key": remind.key}]),
            )

    # --- faults ---------------------------------------------------------------

    def _inject(self, fault: Fault) -> Awaitable[None] | None:
        target, seconds = fault.target, fault.lasts_s
        if self.now >= self.plan.lasts_s:
            return None  # it was put off for so long that all is to come to rest
        kind, _, does = fault.what.partition(" ")
        if kind in ("sidecar", "disk", "wall", "socket", "host", "state"):
            is_down = self._is_restarting or not self.machine.is_up
            if self.is_paused or (is_down and fault.what not in OF_CLOCKS):
                self.after(0.5, partial(self._inject, fault))
                return None
            self._inject_into_host(fault)
            return None
        if kind in ("receiver", "redis"):
            assert self.outlets is not None
            self.after(seconds, self.outlets.inject(kind, target, does, seconds))
            return None
        if kind == "gateway":
            gateway = self.gateways[target % len(self.gateways)]
            whose = None if does == "floods" else gateway.name
            self.note(seconds + 1, fault.what, whose=whose)
            gateway.inject(does, seconds)
        elif self.watchers:
            watcher = self.watchers[target % len(self.watchers)]
            self.note(seconds + 1, fault.what, whose=watcher.name)
            watcher.inject(does, seconds)
        return None

    def note(self, seconds: float, what: str, *, whose: str | None = None) -> None:
        """Note that somebody may be late for a while: a gateway's users, or anybody."""
        trouble = (self.now, self.now + seconds, what)
        if whose is None:
            self.history.troubles.append(trouble)
        else:
            self.history.troubles_of.setdefault(whose, []).append(trouble)

    def _inject_into_host(self, fault: Fault) -> None:
        what, seconds = fault.what, fault.lasts_s
        if what in RESTARTS:
            self._is_restarting = True
            self.nursery.start_soon(self._restart, fault)
            return
        match what:
            case "sidecar paused":
                self._pause(seconds)
            case "state put back":
                self.machine.inject(fault)  # which only copies it
                back = fault._replace(what="state is back", lasts_s=0.0)
                self.after(seconds, partial(self._inject, back))
            case "sidecar busy":
                began, ends = self.now, self.machine.inject(fault)
                self._pass(seconds)
                # And what has gathered meanwhile is read slowly.
                self.history.troubles.append((began, self.now + 3, what))
                self.after(0.5, ends)
            case _ if what in OF_CLOCKS:
                if not self.machine.is_up:
                    reached(
                        "core: a clock is set, or the host sleeps, as no sidecar runs"
                    )
                self.machine.inject(fault)
            case _:
                # A call of a disk that begins at its end may last as long as any.
                longest_s = STALL_SHARE * seconds if what == "disk stalls" else 0.0
                self.note(seconds + longest_s + 3, what)
                self.after(seconds, self.machine.inject(fault))

    async def _restart(self, fault: Fault) -> None:
        began, what = self.now, fault.what
        if what == "sidecar restarts":
            await self.machine.stop()
        else:
            is_torn = what in ("sidecar crashes in a write", "host boots")
            await self.machine.crash(in_a_write=is_torn)
        if what == "host boots":
            for gateway in self.gateways:
                gateway.inject(GATEWAY_BOOTS[fault.target % 2], fault.lasts_s)
        if what in ("host boots", "state is back"):
            self.machine.inject(fault)
        if fault.lasts_s > 0.1:
            await trio.sleep(fault.lasts_s)
        await self.machine.start()
        self.history.troubles.append((began - 0.1, self.now + 3, what))
        self._is_restarting = False

    def _pause(self, seconds: float) -> None:
        began = self.now
        self._pass(seconds)
        self.history.pauses.append((began, began + seconds))
        self.history.troubles.append((began, began + seconds + 3, "sidecar paused"))

    def _pass(self, seconds: float) -> None:
        """Let time pass for everybody but the sidecar."""
        began = trio.current_time()
        until = began + seconds
        while self._agenda and self._agenda[0][0] <= until:
            at, _, act = heapq.heappop(self._agenda)
            self._paused_at = max(at, began)
            assert act() is None
        self._paused_at = None
        self._jump(seconds)
