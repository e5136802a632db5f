"""Replaces the sidecar under load, with its socket kept open: how much later are offlines?

The gateways use the client library. Most users stay and send in turns. Others arrive all
the time: half of them log out after they were reported online, half send nothing after
their login. The next process must report all of them.
"""

import logging
import signal
import socket
import time
from collections.abc import Iterator
from itertools import count, cycle
from typing import Final, NamedTuple

import trio
import trio.lowlevel

import liveness
from liveness.client.reconnecting_link import logger
from liveness.console.progress import Stage, time_share
from liveness.core.records import LOGOUT, OFFLINE, ONLINE
from liveness.lab.bench import BenchOptions
from liveness.lab.bench.floors import AWAITED_S, NONE, REPLACED_S, STOP_S, promised
from liveness.lab.bench.sidecars import MANY_USERS, watched
from liveness.lab.common.figures import Figure, mistakes
from liveness.lab.common.judge import Judge, Moment, Notices, quantile
from liveness.lab.common.load import LoadGateway, now, uid
from liveness.lab.common.processes import SidecarProgram, socket_in, temporary_folder
from liveness.lab.common.promises import SessionLog

ARRIVALS_PER_S: Final = 100.0
TICK_S: Final = 0.02  # what is due within a tick is reported together
# Added to a timeout after each replacement, until records come at their usual time again.
AFTER_S: Final = 3.0
LOGINS_PER_CHECKPOINT: Final = 2_000
# Users that stay, at most: the client library of this process has objects for each.
MOST_STAYERS: Final = 1_000_000
PATIENCE_S: Final = 60.0
STAYING: Final = "stay"  # the gateway of the users that stay


class Replacement(NamedTuple):
    """When a process was asked to end, had ended, and had a successor (monotonic)."""

    asked: float
    ended: float
    ready: float


class ReplacementLoad:
    """Two gateways with their users, and what is reported of those that arrive."""

    def __init__(self, options: BenchOptions) -> None:
        self.options = options
        self.stayers: dict[int, str] = {}  # uids by conn
        # Of each silence: when it was due (monotonic), and how late it was received.
        self.silences: list[tuple[float, float]] = []
        self.leaving: dict[str, trio.Event] = {}  # until they log out; set once online
        self.false = 0  # offlines of users that stay, and sessions that end twice
        self.first_seq = 0  # of the first record
        self._silent: dict[str, Moment] = {}  # until they are reported
        self.judge = Judge(self._silent, timeout_s=options.timeout_s)

    async def log_in(self, sidecar: liveness.Sidecar) -> None:
        """Log in the users that stay; their timeout outlasts the pause of two turns."""
        options = self.options
        long_s = options.timeout_s + 3 * options.users / options.rate
        for number in range(min(options.users, MOST_STAYERS)):
            conn, stayer = sidecar.new_conn(), uid(number)
            self.stayers[conn] = stayer
            sidecar.login(stayer, conn=conn, timeout=long_s)
            if number % LOGINS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
        await sidecar.flush()

    async def send_keepalives(self, sidecar: liveness.Sidecar) -> None:
        """The users that stay send in turns."""
        began, sent, turns = time.perf_counter(), 0, cycle(self.stayers.items())
        while True:
            due = (time.perf_counter() - began) * self.options.rate
            while sent < due:
                conn, stayer = next(turns)
                sidecar.keepalive(stayer, conn=conn)
                sent += 1
            await trio.sleep(TICK_S)

    async def count_false(self, sidecar: liveness.Sidecar) -> None:
        """No user that stays may go offline."""
        async for _ in sidecar.ended():
            self.false += 1

    async def arrive(self, sidecar: liveness.Sidecar, nursery: trio.Nursery) -> None:
        """Users arrive, until this is cancelled; each leaves by itself."""
        began = time.perf_counter()
        for number in count():
            conn, name = sidecar.new_conn(), uid(number, "come")
            if number % 2:
                self._silent[name] = now()
            else:
                self.leaving[name] = trio.Event()
                nursery.start_soon(self._log_out, sidecar, name, conn)
            sidecar.login(name, conn=conn)
            ahead_s = began + (number + 1) / ARRIVALS_PER_S - time.perf_counter()
            await trio.sleep(max(0.0, ahead_s))

    async def _log_out(self, sidecar: liveness.Sidecar, name: str, conn: int) -> None:
        # A logout before the login was decided would leave no record at all.
        await self.leaving[name].wait()
        await trio.sleep(self.options.timeout_s / 2)
        sidecar.logout(name, conn=conn)

    async def read_records(self, sidecar: liveness.Sidecar) -> None:
        """Judges what is reported of users that arrive."""
        sessions, timeout_s = SessionLog(), self.options.timeout_s
        async for record in sidecar.records():
            received, name = time.perf_counter(), record["uid"]
            self.first_seq = self.first_seq or record["seq"]
            self.false += len(sessions.take(record))
            if record["kind"] == ONLINE:
                if name in self.leaving:
                    self.leaving[name].set()
            elif name in self.leaving and record["reason"] == LOGOUT:
                del self.leaving[name]
            else:
                if moment := self._silent.get(name):
                    due = moment.mono + timeout_s
                    self.silences.append((due, received - due))
                self.judge.take(Notices(received, [dict(record)]))

    async def all_reported(self) -> None:
        """Return when each user that arrived went offline, or a while later."""
        with trio.move_on_after(PATIENCE_S):
            while self._silent or self.leaving:  # noqa: ASYNC110 - of another process
                await trio.sleep(TICK_S)


def restart(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A planned replacement under load with all users online, then one after kill -9."""
    # The library's warnings about lost links are expected here.
    logger.addHandler(logging.NullHandler())
    load = ReplacementLoad(options)
    with (
        temporary_folder(options.folder) as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(str(socket_in(folder)))
        listener.listen()
        timeout_s = options.timeout_s
        with watched(
            SidecarProgram(
                folder, timeout_s=timeout_s, env=MANY_USERS, listener=listener
            )
        ) as sidecar:
            try:
                planned, crash = trio.run(_replaced_twice, sidecar, load, stage)
            except BaseExceptionGroup as errors:  # of a nursery
                error: BaseException = errors
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                raise error from None
            with LoadGateway(sidecar.socket, name=STAYING) as gateway:
                # A session that began again has a number after those of the first arrivals.
                kept = sum(
                    session < load.first_seq for _, session in gateway.sessions()
                )
    verdict = load.judge.verdict()
    verdict.false += load.false
    return [
        *_durations(load, planned, crash),
        Figure("restart", "sessions lost", len(load.stayers) - kept, "", NONE),
        Figure("restart", "logouts lost", len(load.leaving), "", NONE),
        *mistakes("restart", verdict),
    ]


async def _replaced_twice(
    sidecar: SidecarProgram, load: ReplacementLoad, stage: Stage
) -> tuple[Replacement, Replacement]:
    after_s = load.options.timeout_s + load.options.at_most_s(AFTER_S)
    sidecar.launch()
    await sidecar.until_ready()
    async with (
        # Without onlines: they would delay the records of arrivals by a million.
        liveness.connect(sidecar.socket, name=STAYING, strict=True) as staying,
        liveness.connect(
            sidecar.socket, name="come", kinds=(ONLINE, OFFLINE), strict=True
        ) as coming,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(load.count_false, staying)
        nursery.start_soon(load.read_records, coming)
        stage("everyone logs in through the library", None)
        await load.log_in(staying)
        nursery.start_soon(load.send_keepalives, staying)
        async with trio.open_nursery() as arrivals:
            arrivals.start_soon(load.arrive, coming, nursery)
            stage("users arrive, send, log out and fall silent", time_share(after_s))
            await trio.sleep(after_s)
            stage("a planned replacement under load", time_share(after_s))
            planned = await _replaced(sidecar, signal.SIGTERM)
            await trio.sleep(after_s)
            stage("a replacement after kill -9 under load", time_share(after_s))
            crash = await _replaced(sidecar, signal.SIGKILL)
            await trio.sleep(after_s)
            arrivals.cancel_scope.cancel()
        stage("the last records are delivered", None)
        await load.all_reported()
        nursery.cancel_scope.cancel()
    return planned, crash


async def _replaced(sidecar: SidecarProgram, number: signal.Signals) -> Replacement:
    asked = time.perf_counter()
    sidecar.signal(number)
    await sidecar.ended()
    ended = time.perf_counter()
    sidecar.launch()
    await sidecar.until_ready()
    return Replacement(asked, ended, time.perf_counter())


def _durations(
    load: ReplacementLoad, planned: Replacement, crash: Replacement
) -> Iterator[Figure]:
    """How long both took, and how much later than usual silences were received."""
    timeout_s, ready_s = load.options.timeout_s, promised(load.options).ready_s
    planned_s, crash_s = planned.ready - planned.asked, crash.ready - crash.asked
    before, later, at_once, crashed = (list[float]() for _ in range(4))
    for due, late_s in load.silences:
        if due < planned.asked:
            before.append(late_s)
        elif due < planned.ready + timeout_s:
            # After a planned stop a user's timeout continues where it was.
            is_soon = due < planned.asked + AWAITED_S
            (at_once if is_soon else later).append(late_s - planned_s)
        elif crash.asked <= due < crash.ready + timeout_s:
            # After a crash it starts again.
            crashed.append(late_s - crash_s - timeout_s)
    usual_s = quantile(before, 0.5)
    later_s, crashed_s = quantile(later, 0.99), quantile(crashed, 0.99)
    at_once_s = quantile(at_once, 1)
    for name, value, most in (
        ("stopped after SIGTERM", planned.ended - planned.asked, STOP_S),
        ("ready after a planned stop", planned.ready - planned.ended, ready_s),
        ("ready after kill -9", crash.ready - crash.ended, ready_s),
        ("usual lateness", usual_s, None),
        ("SIGTERM to ready", planned_s, None),
        ("late beyond that p99", later_s - usual_s, REPLACED_S),
        ("late beyond that, if due at once", at_once_s - usual_s, AWAITED_S),
        ("kill -9 to ready", crash_s, None),
        ("late beyond that and a timeout p99", crashed_s - usual_s, REPLACED_S),
    ):
        yield Figure("restart", name, value, "s", most)
