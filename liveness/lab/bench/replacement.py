"""Replaces the sidecar under load, with its socket kept open: how much later are offlines?

The gateways use the client library. Most users stay and send in turns. Others arrive all
the time: half of them log out after they were reported online, half send nothing after
their login. The next process must report all of them.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio
import trio.lowlevel

import liveness
from liveness.client.reconnecting_link import logger
from liveness.console.progress import Stage, time_share
from liveness.core.records import LOGOUT, OFFLINE, ONLINE
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.floors import AWAITED_S, NONE, REPLACED_S
from liveness.lab.bench.sidecar_process import SidecarProcess, replaceable_sidecar
from liveness.lab.bench.verdict import AT_S, quantile
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import Moment, now, uid
from liveness.lab.common.promises import SessionLog, is_early

ARRIVALS_PER_S: Final = 100.0
TICK_S: Final = 0.02  # what is due within a tick is reported together
# Added to a timeout after each replacement, until records come at their usual time again.
AFTER_S: Final = 3.0
LOGINS_PER_CHECKPOINT: Final = 2_000
# Users that stay, at most: the client library of this process has objects for each.
MOST_STAYERS: Final = 1_000_000
PATIENCE_S: Final = 60.0
KINDS: Final = (ONLINE, OFFLINE)


@dataclass(slots=True)
class Visitor:
    """A user that arrives, and the records about it."""

    arrived: Moment
    logs_out: bool
    is_online: trio.Event = field(default_factory=trio.Event)
    onlines: int = 0
    # Of each offline its reason, its `at` in ms, and when it was received (monotonic).
    ends: list[tuple[str, float, float]] = field(default_factory=list)

    def take(self, record: Mapping[str, Any]) -> None:
        """Note a record."""
        if record["kind"] == ONLINE:
            self.onlines += 1
            self.is_online.set()
        else:
            self.ends.append((record["reason"], record["at"], time.perf_counter()))

    def is_early(self, timeout_s: float) -> bool:
        """Whether its silence was decided within the timeout."""
        decided_ms = min((at for _, at, _ in self.ends), default=math.inf)
        return is_early((decided_ms - self.arrived.wall_ms) / 1000, timeout_s, AT_S)

    def late_s(self, timeout_s: float) -> float:
        """How late its silence was received, on the gateway's clock."""
        return self.ends[0][2] - self.arrived.mono - timeout_s


class ProcessGap(NamedTuple):
    """When a process was asked to end, and when its successor was ready (monotonic)."""

    ended: float
    ready: float

    @property
    def took_s(self) -> float:
        """Seconds between these two."""
        return self.ready - self.ended


class ReplacementLoad:
    """Two gateways with their users, and the records that they receive."""

    def __init__(self, options: BenchOptions) -> None:
        self.visitors: dict[int, Visitor] = {}  # by conn
        self.false = 0  # offlines of users that stay, and sessions that end twice
        self._sessions = SessionLog()
        self.all_online = threading.Event()  # all users that stay
        self.stop_arrivals = threading.Event()
        self._stayers: dict[int, str] = {}  # uids by conn
        self._options = options

    async def run(self, path: Path) -> None:
        """Runs until arrivals are stopped and all visitors are reported."""
        async with (
            # Without onlines: they would delay the records of visitors by a million.
            liveness.connect(path, name="stay", strict=True) as staying,
            liveness.connect(path, name="come", kinds=KINDS, strict=True) as visiting,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._count_false, staying)
            nursery.start_soon(self._read_records, visiting)
            await self._log_in(staying)
            nursery.start_soon(self._send_keepalives, staying)
            self.all_online.set()
            await self._receive_visitors(visiting, nursery)
            with trio.move_on_after(PATIENCE_S):
                while self._has_unreported:  # noqa: ASYNC110 - of another process
                    await trio.sleep(TICK_S)
            nursery.cancel_scope.cancel()

    async def _log_in(self, sidecar: liveness.Sidecar) -> None:
        """The users that stay, with a timeout longer than the pause between two turns."""
        options = self._options
        long_s = options.timeout_s + 3 * options.users / options.rate
        for number in range(min(options.users, MOST_STAYERS)):
            conn, stayer = sidecar.new_conn(), uid(number)
            self._stayers[conn] = stayer
            sidecar.login(stayer, conn=conn, timeout=long_s)
            if number % LOGINS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
        await sidecar.flush()

    async def _send_keepalives(self, sidecar: liveness.Sidecar) -> None:
        began, sent, turns = time.perf_counter(), 0, cycle(self._stayers.items())
        while True:
            due = (time.perf_counter() - began) * self._options.rate
            while sent < due:
                conn, stayer = next(turns)
                sidecar.keepalive(stayer, conn=conn)
                sent += 1
            await trio.sleep(TICK_S)

    async def _receive_visitors(
        self, sidecar: liveness.Sidecar, nursery: trio.Nursery
    ) -> None:
        began = time.perf_counter()
        for number in count():
            if self.stop_arrivals.is_set():
                break
            nursery.start_soon(self._visit, sidecar, number)
            ahead_s = began + (number + 1) / ARRIVALS_PER_S - time.perf_counter()
            await trio.sleep(max(0.0, ahead_s))

    async def _visit(self, sidecar: liveness.Sidecar, number: int) -> None:
        conn, name = sidecar.new_conn(), uid(number, "come")
        visitor = self.visitors[conn] = Visitor(now(), logs_out=number % 2 == 0)
        sidecar.login(name, conn=conn)
        if visitor.logs_out:
            # A logout before the login was decided would leave no record at all.
            await visitor.is_online.wait()
            await trio.sleep(self._options.timeout_s / 2)
            sidecar.logout(name, conn=conn)

    async def _count_false(self, sidecar: liveness.Sidecar) -> None:
        async for _ in sidecar.ended():
            self.false += 1

    async def _read_records(self, sidecar: liveness.Sidecar) -> None:
        async for record in sidecar.records():
            self.visitors[record["conn"]].take(record)
            self.false += len(self._sessions.take(record))

    @property
    def _has_unreported(self) -> bool:
        """Whether a visitor has no online or no offline yet."""
        return not all(
            visitor.onlines and visitor.ends for visitor in self.visitors.values()
        )


def replacement(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A planned replacement under load, then one after kill -9."""
    # The library's warnings about lost links are expected here.
    logger.addHandler(logging.NullHandler())
    after_s = options.timeout_s + AFTER_S
    with (
        replaceable_sidecar(options.folder, timeout_s=options.timeout_s) as sidecar,
        ThreadPoolExecutor(1) as threads,
    ):
        sidecar.start()
        load = ReplacementLoad(options)
        stage("everyone logs in through the library", None)
        running = threads.submit(trio.run, load.run, sidecar.socket)
        try:
            _wait(load.all_online, running)
            stage("users arrive, send, log out and fall silent", time_share(after_s))
            _sleep(running, after_s)
            stage("a planned replacement under load", time_share(after_s))
            planned = _replaced(sidecar, sidecar.stop)
            _sleep(running, after_s)
            stage("a replacement after kill -9 under load", time_share(after_s))
            crash = _replaced(sidecar, sidecar.kill)
            _sleep(running, after_s)
        finally:
            load.stop_arrivals.set()
        stage("the last records are delivered", None)
        running.result()
        sidecar.check()
    return [
        *_lateness(load, planned, crash, options.timeout_s),
        *_errors(load, options.timeout_s),
    ]


def _wait(event: threading.Event, running: Future[None]) -> None:
    """Waits for an event of the load; raises if the load fails meanwhile."""
    while not event.wait(TICK_S):
        if running.done():
            running.result()


def _sleep(running: Future[None], seconds: float) -> None:
    """Lets the load go on; raises if it fails meanwhile."""
    if wait([running], seconds).done:
        running.result()


def _replaced(sidecar: SidecarProcess, end: Callable[[], object]) -> ProcessGap:
    ended = time.perf_counter()
    end()
    sidecar.start()
    return ProcessGap(ended, time.perf_counter())


def _lateness(
    load: ReplacementLoad, planned: ProcessGap, crash: ProcessGap, timeout_s: float
) -> Iterator[Figure]:
    """How much later than usual silences were received, by when they were due."""
    before, later, at_once, crashed = (list[float]() for _ in range(4))
    for visitor in load.visitors.values():
        if visitor.logs_out or not visitor.ends:
            continue
        late_s, due = visitor.late_s(timeout_s), visitor.arrived.mono + timeout_s
        if due < planned.ended:
            before.append(late_s)
        elif due < planned.ready + timeout_s:
            # After a planned stop a user's timeout continues where it was.
            is_soon = due < planned.ended + AWAITED_S
            (at_once if is_soon else later).append(late_s - planned.took_s)
        elif crash.ended <= due < crash.ready + timeout_s:
            # After a crash it starts again.
            crashed.append(late_s - crash.took_s - timeout_s)
    usual_s = quantile(before, 0.5)
    later_s, crashed_s = (
        quantile(later, 0.99) - usual_s,
        quantile(crashed, 0.99) - usual_s,
    )
    for name, value, most in (
        ("usual lateness under load", usual_s, None),
        ("SIGTERM to ready under load", planned.took_s, None),
        ("late beyond that p99", later_s, REPLACED_S),
        ("late beyond that, if due at once", quantile(at_once, 1) - usual_s, AWAITED_S),
        ("kill -9 to ready under load", crash.took_s, None),
        ("late beyond that and a timeout p99", crashed_s, REPLACED_S),
    ):
        yield Figure("restart", name, value, "s", most)


def _errors(load: ReplacementLoad, timeout_s: float) -> Iterator[Figure]:
    visitors = load.visitors.values()
    left = [visitor for visitor in visitors if visitor.logs_out]
    silent = [visitor for visitor in visitors if not visitor.logs_out]
    # False too: an offline for another reason than the logout.
    false = sum(any(reason != LOGOUT for reason, _, _ in v.ends) for v in left)
    for name, value in (
        ("logins lost", sum(not visitor.onlines for visitor in visitors)),
        ("logouts lost", sum(not visitor.ends for visitor in left)),
        ("early", sum(visitor.is_early(timeout_s) for visitor in silent)),
        ("false", load.false + false),
        ("missing", sum(not visitor.ends for visitor in silent)),
    ):
        yield Figure("restart", f"{name} under load", value, "", NONE)
