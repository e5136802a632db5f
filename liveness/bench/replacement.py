"""A sidecar that is replaced under load, its socket kept: what that adds to lateness.

The gateways are the client library's. Beside users who stay and speak in turns, others come
all along: of two of them one never says a word again, and the other logs out some time
after it was told to be online. The next process owes everything to all of them.
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
from typing import Any, Final

import trio
import trio.lowlevel

import liveness
from liveness.bench import BenchOptions
from liveness.bench.figures import Figure
from liveness.bench.floors import AWAITED_S, NONE, REPLACED_S
from liveness.bench.load import Moment, now, uid
from liveness.bench.sidecar_process import Server, replaceable
from liveness.bench.verdict import AT_MS, quantile
from liveness.client.reconnecting_link import logger
from liveness.console.progress import Stage, passing
from liveness.core.records import LOGOUT, OFFLINE, ONLINE

COME_PER_S: Final = 100.0
TURN_S: Final = 0.02  # what is due within it is reported together
# After what a replacement delays most, for what comes at its usual time again.
AFTER_S: Final = 3.0
# So many logins between two looks at the link.
LOGINS_AT_ONCE: Final = 2_000
PATIENCE_S: Final = 60.0
KINDS: Final = (ONLINE, OFFLINE)


@dataclass(slots=True)
class Visit:
    """A user who comes, and what was told of it."""

    came: Moment
    leaves: bool
    is_online: trio.Event = field(default_factory=trio.Event)
    onlines: int = 0
    ends: list[tuple[str, float, float]] = field(default_factory=list)

    def take(self, record: Mapping[str, Any]) -> None:
        """Note a record of it: of an end its reason, `at`, and when it was here."""
        if record["kind"] == ONLINE:
            self.onlines += 1
            self.is_online.set()
        else:
            self.ends.append((record["reason"], record["at"], time.perf_counter()))

    @property
    def reasons(self) -> list[str]:
        """Why it ended, as often as that was told."""
        return [reason for reason, _, _ in self.ends]

    def is_early(self, timeout_s: float) -> bool:
        """Whether its silence was decided before it had lasted as long as it must."""
        decided_ms = min((at for _, at, _ in self.ends), default=math.inf)
        return decided_ms + AT_MS < self.came.wall_ms + 1000 * timeout_s

    def late_s(self, timeout_s: float) -> float:
        """How late its silence was told, on the gateway's clock."""
        return self.ends[0][2] - self.came.mono - timeout_s


@dataclass(frozen=True, slots=True)
class ReplacementLoad:
    """When a process was asked to end, and when its successor was ready."""

    ended: float
    ready: float

    @property
    def took_s(self) -> float:
        """In between."""
        return self.ready - self.ended


class Load:
    """The gateways, in a thread of their own, their users, and what is told of them.

    Args:
        options: How much of everything.
    """

    def __init__(self, options: BenchOptions) -> None:
        self.visits: dict[int, Visit] = {}  # by conn
        self.false = 0  # ends of those who stay
        self.has_begun = threading.Event()  # all who stay are online
        self.is_over = threading.Event()  # nobody comes any more
        self._stayers: dict[int, str] = {}  # uids by conn
        self._options = options

    async def serve(self, path: Path) -> None:
        """Serve until it is over, and nothing is owed any more."""
        async with (
            # It asks for no news of who is online: what is told of those who come is not
            # to wait behind a million of those.
            liveness.connect(path, name="stay") as staying,
            liveness.connect(path, name="come", kinds=KINDS) as coming,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._read_ends, staying)
            nursery.start_soon(self._read_records, coming)
            await self._log_in(staying)
            nursery.start_soon(self._speak, staying)
            self.has_begun.set()
            await self._come(coming, nursery)
            with trio.move_on_after(PATIENCE_S):
                while self.owes:  # noqa: ASYNC110 - of another process
                    await trio.sleep(TURN_S)
            nursery.cancel_scope.cancel()

    async def _log_in(self, sidecar: liveness.Sidecar) -> None:
        """Everyone who stays. Their turns are as far apart as the rate has it."""
        options = self._options
        long_s = options.timeout_s + 3 * options.users / options.rate
        for number in range(options.users):
            conn, who = sidecar.new_conn(), uid(number)
            self._stayers[conn] = who
            sidecar.login(who, conn=conn, timeout=long_s)
            if number % LOGINS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        await sidecar.flush()

    async def _speak(self, sidecar: liveness.Sidecar) -> None:
        """Those who stay, in turns."""
        began, spoken, turns = time.perf_counter(), 0, cycle(self._stayers.items())
        while True:
            due = (time.perf_counter() - began) * self._options.rate
            while spoken < due:
                conn, who = next(turns)
                sidecar.keepalive(who, conn=conn)
                spoken += 1
            await trio.sleep(TURN_S)

    async def _come(self, sidecar: liveness.Sidecar, nursery: trio.Nursery) -> None:
        """Those who come all along, each for itself."""
        began = time.perf_counter()
        for number in count():
            if self.is_over.is_set():
                break
            nursery.start_soon(self._visit, sidecar, number)
            ahead_s = began + (number + 1) / COME_PER_S - time.perf_counter()
            await trio.sleep(max(0.0, ahead_s))

    async def _visit(self, sidecar: liveness.Sidecar, number: int) -> None:
        conn, who = sidecar.new_conn(), uid(number, "come")
        visit = self.visits[conn] = Visit(now(), leaves=number % 2 == 0)
        sidecar.login(who, conn=conn)
        if visit.leaves:
            # Who is gone before anyone could be told of it is nobody's event.
            await visit.is_online.wait()
            await trio.sleep(self._options.timeout_s / 2)
            sidecar.logout(who, conn=conn)

    async def _read_ends(self, sidecar: liveness.Sidecar) -> None:
        async for _ in sidecar.ended():
            self.false += 1

    async def _read_records(self, sidecar: liveness.Sidecar) -> None:
        async for record in sidecar.records():
            self.visits[record["conn"]].take(record)

    @property
    def owes(self) -> int:
        """How many of those who came have an event that is not told yet."""
        return sum(not (visit.onlines and visit.ends) for visit in self.visits.values())


def replacement(options: BenchOptions, stage: Stage) -> list[Figure]:
    """A planned replacement under load, then one after kill -9."""
    # That links end is what is measured, and no news.
    logger.addHandler(logging.NullHandler())
    after_s = options.timeout_s + AFTER_S
    with (
        replaceable(options.folder, timeout_s=options.timeout_s) as sidecar,
        ThreadPoolExecutor(1) as threads,
    ):
        sidecar.start()
        load = Load(options)
        stage("everyone logs in by the library", None)
        serving = threads.submit(trio.run, load.serve, sidecar.socket)
        try:
            _wait(load.has_begun, serving)
            stage("users come, speak, leave and fall silent", passing(after_s))
            _go_on(serving, after_s)
            stage("a planned replacement under load", passing(after_s))
            planned = _replaced(sidecar, sidecar.stop)
            _go_on(serving, after_s)
            stage("a replacement after kill -9 under load", passing(after_s))
            crash = _replaced(sidecar, sidecar.kill)
            _go_on(serving, after_s)
        finally:
            load.is_over.set()
        stage("what is owed is told", None)
        serving.result()
        sidecar.check()
    return [
        *_lateness(load, planned, crash, options.timeout_s),
        *_mistakes(load, options.timeout_s),
    ]


def _wait(event: threading.Event, serving: Future[None]) -> None:
    """Wait for what the load does, or for its end."""
    while not event.wait(TURN_S):
        if serving.done():
            serving.result()


def _go_on(serving: Future[None], seconds: float) -> None:
    """Let the load go on for so long; should it end before, that is told at once."""
    if wait([serving], seconds).done:
        serving.result()


def _replaced(sidecar: Server, end: Callable[[], object]) -> ReplacementLoad:
    ended = time.perf_counter()
    end()
    sidecar.start()
    return ReplacementLoad(ended, time.perf_counter())


def _lateness(
    load: Load, planned: ReplacementLoad, crash: ReplacementLoad, timeout_s: float
) -> Iterator[Figure]:
    """How late silence was told, by when it was due, beyond what is usual."""
    before, later, at_once, crashed = (list[float]() for _ in range(4))
    for visit in load.visits.values():
        if visit.leaves or not visit.ends:
            continue
        late_s, due = visit.late_s(timeout_s), visit.came.mono + timeout_s
        if due < planned.ended:
            before.append(late_s)
        elif due < planned.ready + timeout_s:
            # Clocks go on where they were: so much was left when they stopped.
            is_soon = due < planned.ended + AWAITED_S
            (at_once if is_soon else later).append(late_s - planned.took_s)
        elif crash.ended <= due < crash.ready + timeout_s:
            crashed.append(late_s - crash.took_s - timeout_s)
    usual_s = quantile(before, 0.5)
    for name, value, most in (
        ("usual lateness under load", usual_s, None),
        ("SIGTERM to ready under load", planned.took_s, None),
        ("late beyond that p99", _beyond(later, 0.99, usual_s), REPLACED_S),
        ("late beyond that, if due at once", _beyond(at_once, 1, usual_s), AWAITED_S),
        ("kill -9 to ready under load", crash.took_s, None),
        (
            "late beyond that and a timeout p99",
            _beyond(crashed, 0.99, usual_s),
            REPLACED_S,
        ),
    ):
        yield Figure("restart", name, value, "s", most)


def _beyond(late_s: list[float], q: float, usual_s: float) -> float:
    return quantile(late_s, q) - usual_s


def _mistakes(load: Load, timeout_s: float) -> Iterator[Figure]:
    visits = load.visits.values()
    left = [visit for visit in visits if visit.leaves]
    silent = [visit for visit in visits if not visit.leaves]
    told_wrong = [
        *(visit for visit in left if visit.reasons not in ([], [LOGOUT])),
        *(visit for visit in silent if len(visit.ends) > 1),
    ]
    for name, value in (
        ("logins lost", sum(not visit.onlines for visit in visits)),
        ("logouts lost", sum(not visit.ends for visit in left)),
        ("early", sum(visit.is_early(timeout_s) for visit in silent)),
        ("false", load.false + len(told_wrong)),
        ("missing", sum(not visit.ends for visit in silent)),
    ):
        yield Figure("restart", f"{name} under load", value, "", NONE)
