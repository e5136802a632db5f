"""The process is replaced under load, and its socket kept: nothing is lost on the way.

A service manager holds the socket, as one that activates by socket does, and hands it to
each process; the gateways are those of the client library. They report users who log in,
speak, fall silent, log out and come again, all along. What they reported and when is then
held against what is on disk and what they were told. How late anything was is not asked:
`liveness bench restart` measures that.
"""

import select
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from time import time_ns
from typing import Any, Final

import anyio
import pytest

import liveness
from liveness.bench import activated
from liveness.core.records import OnlineRow, Record
from liveness.service.store import CursorRow
from tests import older
from tests.e2e.client import Client
from tests.e2e.conftest import QUICK_FLUSH_S, Start
from tests.e2e.sidecar import SOON_S, Sidecar

BOUND_S: Final = 50.0  # of a whole test
# With room for this process, which has hundreds of users, being slow.
TIMEOUT_S: Final = 2.0
SPEAKS_EVERY_S: Final = 0.3
COMES_EVERY_S: Final = 0.02  # a user, of each gateway
GATEWAYS: Final = ("gw-1", "gw-2")
KINDS: Final = ("online", "offline", "moved")
STAMP_MS: Final = 1  # `at` is a whole millisecond, cut off


@contextmanager
def kept(sidecar: Sidecar) -> Iterator[socket.socket]:
    """Keeps its socket over all its processes, each of which is handed it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(sidecar.socket))
        listener.listen(128)
        fd = listener.fileno()
        sidecar.handed = [fd]
        sidecar.under = [sys.executable, "-S", activated.__file__, str(fd), "gateway"]
        yield listener


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - of another process
        await anyio.sleep(0.05)


@dataclass(slots=True)
class Life:
    """One connection of a user, and what was reported of it."""

    uid: str
    conn: int
    fate: str  # "logs out" or "falls silent"
    signs: int  # how often the user speaks before that
    spoke: list[int] = field(default_factory=list)  # Unix milliseconds, before each


class Gateway:
    """A gateway with its users, and all that it is told."""

    def __init__(self, sidecar: liveness.Sidecar) -> None:
        self.sidecar = sidecar
        self.name = sidecar.name
        self.lives: list[Life] = []
        self.over = 0  # lives of which the last was reported
        self.is_open = True  # to new users
        self.records: list[dict[str, Any]] = []
        self.ends: list[tuple[object, int | None, str]] = []
        self._random = Random(self.name)

    @property
    def are_over(self) -> bool:
        """Whether all is reported, and all who fell silent were told."""
        return self.over == len(self.lives)

    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number in count():
                if not self.is_open:
                    break
                tasks.start_soon(self._user, f"{self.name}-{number}")
                await anyio.sleep(COMES_EVERY_S)

    async def _user(self, uid: str) -> None:
        await self._live(uid, self._random.choice(["logs out", "falls silent"]))
        if self._random.random() < 0.3:  # is back, on another connection
            await self._live(uid, "logs out")

    async def _live(self, uid: str, fate: str) -> None:
        conn, signs = self.sidecar.new_conn(), self._random.randrange(6)
        life = Life(uid, conn, fate, signs)
        self.lives.append(life)
        self._speaks(life, self.sidecar.login)
        # Who is gone again before anyone could be told is nobody's event.
        await self.sidecar.flush()
        for _ in range(life.signs):
            await anyio.sleep(SPEAKS_EVERY_S)
            self._speaks(life, self.sidecar.message)
        if fate == "logs out":
            self.sidecar.logout(uid, conn=conn)
        else:
            await until(lambda: any(end[1] == conn for end in self.ends))
        self.over += 1

    def _speaks(self, life: Life, report: Callable[..., None]) -> None:
        life.spoke.append(time_ns() // 1_000_000)
        report(life.uid, conn=life.conn)

    async def read_records(self) -> None:
        async for record in self.sidecar.records():
            self.records.append(dict(record))

    async def read_ends(self) -> None:
        async for end in self.sidecar.ended():
            self.ends.append((end.uid, end.conn, end.reason))


async def under_load(
    sidecar: Sidecar,
    replace: Callable[[], object],
    arrive: Callable[[Gateway], Awaitable[None]] | None = None,
) -> list[Gateway]:
    """Has the process replaced amid it all; the gateways as they are when all is told."""
    with anyio.fail_after(BOUND_S):
        async with (
            liveness.connect(sidecar.socket, name=GATEWAYS[0], kinds=KINDS) as one,
            liveness.connect(sidecar.socket, name=GATEWAYS[1], kinds=KINDS) as two,
            anyio.create_task_group() as tasks,
        ):
            gateways = [Gateway(one), Gateway(two)]
            for gateway in gateways:
                if arrive is not None:
                    await arrive(gateway)
                tasks.start_soon(gateway.read_records)
                tasks.start_soon(gateway.read_ends)
                tasks.start_soon(gateway.serve)
            if arrive is None:
                await until(lambda: all(len(one.ends) > 5 for one in gateways))
            before = [gateway.over for gateway in gateways]
            await anyio.to_thread.run_sync(replace)
            await until(
                lambda: all(
                    one.over > was + 60
                    for one, was in zip(gateways, before, strict=True)
                )
            )
            for gateway in gateways:
                gateway.is_open = False
            await until(lambda: all(one.are_over for one in gateways))
            for gateway in gateways:
                await gateway.sidecar.flush()
            newest = {one.gateway: one.seq for one in sidecar.log()}
            await until(
                lambda: all(
                    one.records[-1]["seq"] == newest[one.name] for one in gateways
                )
            )
            tasks.cancel_scope.cancel()
    return gateways


def of(log: list[Record], gateway: str) -> list[Record]:
    return [record for record in log if record.gateway == gateway]


def hold_against(log: list[Record], gateway: Gateway, *, after: int = 0) -> None:
    """Holds what a gateway reported against what is on disk and what it was told.

    Args:
        log: What is on disk.
        gateway: Whose users these are.
        after: Records up to here are of before its time.
    """
    seqs = [record.seq for record in log]
    assert seqs == [*range(1, len(log) + 1)]
    mine = of(log, gateway.name)
    known = {life.conn for life in gateway.lives}
    decided: dict[str, list[tuple[int | None, str, str]]] = {}
    for record in mine:
        if record.conn in known:
            reason = "silence" if record.reason == "gateway_lost" else record.reason
            seen = decided.setdefault(str(record.uid), [])
            seen.append((record.conn, record.kind, reason))
    reported: dict[str, list[tuple[int | None, str, str]]] = {}
    for life in gateway.lives:
        how = {"logs out": "logout", "falls silent": "silence"}[life.fate]
        reported.setdefault(life.uid, []).extend(
            [(life.conn, "online", "login"), (life.conn, "offline", how)]
        )
    assert decided == reported
    # Never before a whole timeout after the user's last word.
    by_conn = {life.conn: life for life in gateway.lives}
    for record in mine:
        if record.reason in ("silence", "gateway_lost") and record.conn in known:
            silence_ms = record.at + STAMP_MS - max(by_conn[record.conn].spoke)
            assert silence_ms >= TIMEOUT_S * 1000, record
    # It was told each record once, in order, and of each silent one once.
    told = [record["seq"] for record in gateway.records]
    assert told == [one.seq for one in mine if one.seq > after]
    silent = [life for life in gateway.lives if life.fate == "falls silent"]
    ends = [end for end in gateway.ends if end[1] in known]
    assert sorted(end[1] or 0 for end in ends) == sorted(life.conn for life in silent)


@pytest.mark.parametrize(
    ("ending", "backend"), [("planned", "trio"), ("kill -9", "asyncio")]
)
def test_a_process_that_is_replaced_under_load_loses_nothing_and_takes_nobody_for_silent(
    make: Start, ending: str, backend: str
) -> None:
    sidecar = make(TIMEOUT_S, flush_s=QUICK_FLUSH_S)

    def replace() -> None:
        sidecar.stop() if ending == "planned" else sidecar.kill()
        assert sidecar.socket.exists()
        sidecar.start()

    async def main() -> None:
        for gateway in await under_load(sidecar, replace):
            assert gateway.sidecar.stats().links == 2
            hold_against(sidecar.log(), gateway)

    with kept(sidecar):
        sidecar.start()
        anyio.run(main, backend=backend)
        assert sidecar.metric("liveness_early_offline_total") == 0
        sidecar.stop()


def test_a_new_version_takes_over_an_old_state_with_gateways_that_wait_for_it(
    make: Start,
) -> None:
    sidecar = make(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    began_ms = time_ns() // 1_000_000 - 60_000
    names = [(f"old-{n}", GATEWAYS[n % 2]) for n in range(200)]
    log = [
        Record(seq, "online", uid, gateway, seq, seq, "login", began_ms)
        for seq, (uid, gateway) in enumerate(names, 1)
    ]
    sidecar.state.mkdir(mode=0o700)
    older.schema_1(
        sidecar.database,
        log,
        [
            OnlineRow(one.seq, one.uid, began_ms, one.conn, one.gateway, None)
            for one in log
        ],
        {
            ("gateway", name): CursorRow(len(log), began_ms, None) for name in GATEWAYS
        },
    )  # fmt: skip
    speaking = {one.conn for one in log if one.seq % 4 < 2}
    quiet = {one.conn for one in log} - speaking

    async def keep(gateway: Gateway) -> None:
        while True:
            for one in of(log, gateway.name):
                if one.conn in speaking:
                    gateway.sidecar.keepalive(one.uid, conn=one.conn)
            await anyio.sleep(SPEAKS_EVERY_S)

    with kept(sidecar) as listener:

        def replace() -> None:
            # They are connected, and nobody is there yet.
            assert select.select([listener], [], [], SOON_S)[0]
            sidecar.start()

        async def main() -> None:
            async with anyio.create_task_group() as tasks:

                async def arrive(gateway: Gateway) -> None:
                    for one in of(log, gateway.name):
                        gateway.sidecar.login(one.uid, conn=one.conn, age=60)
                    tasks.start_soon(keep, gateway)

                gateways = await under_load(sidecar, replace, arrive)
                after = sidecar.log()
                tasks.cancel_scope.cancel()
            assert after[: len(log)] == log
            of_old = [one for one in after[len(log) :] if one.session <= len(log)]
            assert {(one.kind, one.conn) for one in of_old} == {
                ("offline", conn) for conn in quiet
            }
            assert len(of_old) == len(quiet)
            for gateway in gateways:
                assert gateway.sidecar.stats().links == 1
                hold_against(after, gateway, after=len(log))

        anyio.run(main, backend="trio")
        assert sidecar.line("an older file was migrated")["was"] == 1
        sidecar.stop()


def test_who_connects_while_the_process_stops_is_served_by_the_next_one(
    make: Start,
) -> None:
    sidecar = make()
    with kept(sidecar), ExitStack() as links:
        sidecar.start()
        first = links.enter_context(Client(sidecar.socket))
        first.hello("gw-1")
        sidecar.signal(signal.SIGTERM)
        first.expect("bye")
        # It still stops, as this link stays: what is said now is for its successor.
        second = links.enter_context(Client(sidecar.socket))
        second.say_hello("gw-1")
        second.send("login", "ada", {"conn": 1})
        second.send("ping", 1)
        assert sidecar.ended() == 0
        sidecar.launch()
        second.expect("welcome")
        assert second.expect("pong") == [1]
        assert second.where("ada") == [["ada", "gw-1", 1, 1]]
