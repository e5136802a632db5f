"""Replaces the sidecar under load, with its socket kept open: how much later are offlines?

A gateway uses the client library. Most users stay and send in turns. Others arrive all
the time: half of them log out, half send nothing after their login. The next process must
report all of them.
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
from liveness.client.dialer import logger
from liveness.core.records import LOGOUT, MOVED, OFFLINE
from liveness.lab.bench import BenchOptions, Stage
from liveness.lab.bench.floors import AWAITED_S, NONE, REPLACED_S, STOP_S, of_users
from liveness.lab.bench.sidecars import fresh_sidecar
from liveness.lab.common.figures import Figure, mistakes
from liveness.lab.common.judge import Judge, Moment, Notices, quantile
from liveness.lab.common.load import LoadGateway, now, uid
from liveness.lab.common.processes import SidecarProgram

ARRIVALS_PER_S: Final = 100.0
TICK_S: Final = 0.02  # users due within a tick are reported together
# Added to a timeout after each replacement, until records come at their usual time again.
AFTER_S: Final = 3.0
LOGINS_PER_CHECKPOINT: Final = 2_000
# The most users that stay: the client library of this process has objects for each.
MOST_STAYERS: Final = 1_000_000
PATIENCE_S: Final = 60.0
GATEWAY: Final = "replaced"


class Replacement(NamedTuple):
    """When a process was asked to end, had ended, and had a successor (monotonic)."""

    asked: float
    ended: float
    ready: float


class ReplacementLoad:
    def __init__(self, options: BenchOptions) -> None:
        self.options = options
        self.stayers: dict[int, str] = {}  # uids by conn
        # For each silence: when it was due (monotonic), and how late it was received.
        self.silences: list[tuple[float, float]] = []
        self.leaving: set[str] = set()  # until their logout is reported
        self.first_seq = 0  # the first record's
        self._silent: dict[str, Moment] = {}  # until they are reported
        self.judge = Judge(self._silent, timeout_s=options.timeout_s)
        self._was_read = trio.lowlevel.ParkingLot()  # a record

    async def log_in(self, sidecar: liveness.Sidecar) -> None:
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
        began, sent, turns = time.perf_counter(), 0, cycle(self.stayers.items())
        while True:
            due = (time.perf_counter() - began) * self.options.rate
            while sent < due:
                conn, stayer = next(turns)
                sidecar.keepalive(stayer, conn=conn)
                sent += 1
            await trio.sleep(TICK_S)

    async def arrive(self, sidecar: liveness.Sidecar, nursery: trio.Nursery) -> None:
        began = time.perf_counter()
        for number in count():
            conn, name = sidecar.new_conn(), uid(number, "come")
            if number % 2:
                self._silent[name] = now()
            else:
                self.leaving.add(name)
                nursery.start_soon(self._log_out, sidecar, name, conn)
            sidecar.login(name, conn=conn)
            ahead_s = began + (number + 1) / ARRIVALS_PER_S - time.perf_counter()
            await trio.sleep(max(0.0, ahead_s))

    async def _log_out(self, sidecar: liveness.Sidecar, name: str, conn: int) -> None:
        # If the logout came before the login is decided, there would be no record at all.
        await sidecar.flush()
        await trio.sleep(self.options.timeout_s / 2)
        sidecar.logout(name, conn=conn)

    async def read_records(self, watch: liveness.Watch) -> None:
        """Judges the records; every record about a user that stays is false."""
        async for record in watch:
            received, name = time.perf_counter(), record["uid"]
            self.first_seq = self.first_seq or record["seq"]
            self._was_read.unpark_all()
            if name in self.leaving and record.get("reason") == LOGOUT:
                self.leaving.remove(name)
                continue
            if moment := self._silent.get(name):
                due = moment.mono + self.options.timeout_s
                self.silences.append((due, received - due))
            self.judge.take(Notices(received, [dict(record)]))

    async def all_reported(self) -> None:
        with trio.move_on_after(PATIENCE_S):
            while self._silent or self.leaving:
                await self._was_read.park()


def restart(options: BenchOptions, stage: Stage) -> list[Figure]:
    """Replace the sidecar under load with all users online: planned, then after kill -9."""
    # The library's warnings about lost links are expected here.
    logger.addHandler(logging.NullHandler())
    load = ReplacementLoad(options)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        fresh_sidecar(
            options.folder, timeout_s=options.timeout_s, listener=listener
        ) as sidecar,
    ):
        listener.bind(str(sidecar.socket))
        listener.listen()
        planned, crash = trio.run(_replaced_twice, sidecar, load, stage)
        with LoadGateway(sidecar.socket, name=GATEWAY) as gateway:
            # Begun again, a session would have a seq above those of the first arrivals.
            kept = sum(session < load.first_seq for _, session in gateway.sessions())
    return [
        *_durations(load, planned, crash),
        Figure("restart", "sessions lost", len(load.stayers) - kept, "", NONE),
        Figure("restart", "logouts lost", len(load.leaving), "", NONE),
        *mistakes("restart", load.judge),
    ]


async def _replaced_twice(
    sidecar: SidecarProgram, load: ReplacementLoad, stage: Stage
) -> tuple[Replacement, Replacement]:
    after_s = load.options.timeout_s + load.options.at_most_s(AFTER_S)
    sidecar.launch()
    await sidecar.until_ready()
    async with (
        liveness.connect(sidecar.socket, name=GATEWAY) as gateway,
        liveness.watch(
            sidecar.socket, name=GATEWAY, scope="own", kinds=[OFFLINE, MOVED]
        ) as watch,
        trio.open_nursery() as nursery,
    ):
        await watch.connected()
        nursery.start_soon(load.read_records, watch)
        stage("everyone logs in through the library")
        await load.log_in(gateway)
        nursery.start_soon(load.send_keepalives, gateway)
        async with trio.open_nursery() as arrivals:
            arrivals.start_soon(load.arrive, gateway, nursery)
            stage("users arrive, send, log out and fall silent")
            await trio.sleep(after_s)
            stage("a planned replacement under load")
            planned = await _replaced(sidecar, signal.SIGTERM)
            await trio.sleep(after_s)
            stage("a replacement after kill -9 under load")
            crash = await _replaced(sidecar, signal.SIGKILL)
            await trio.sleep(after_s)
            arrivals.cancel_scope.cancel()
        stage("the last records are delivered")
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
    timeout_s, ready_s = load.options.timeout_s, of_users(load.options, 1.0, 2.5)
    planned_s, crash_s = planned.ready - planned.asked, crash.ready - crash.asked

    def late_s(first: float, end: float, q: float) -> float:
        return quantile([late for due, late in load.silences if first <= due < end], q)

    usual_s = late_s(0.0, planned.asked, 0.5)
    soon = planned.asked + AWAITED_S
    # After a planned stop a user's timeout continues where it was, after a crash it starts
    # again.
    at_once_s = late_s(planned.asked, soon, 1.0) - planned_s - usual_s
    later_s = late_s(soon, planned.ready + timeout_s, 0.99) - planned_s - usual_s
    crashed_s = late_s(crash.asked, crash.ready + timeout_s, 0.99) - crash_s - usual_s
    for name, value, most in (
        ("stopped after SIGTERM", planned.ended - planned.asked, STOP_S),
        ("ready after a planned stop", planned.ready - planned.ended, ready_s),
        ("ready after kill -9", crash.ready - crash.ended, ready_s),
        ("SIGTERM to ready", planned_s, None),
        ("late beyond that p99", later_s, REPLACED_S),
        ("late beyond that, if due at once", at_once_s, AWAITED_S),
        ("kill -9 to ready", crash_s, None),
        ("late beyond that and a timeout p99", crashed_s - timeout_s, REPLACED_S),
    ):
        yield Figure("restart", name, value, "s", most)
