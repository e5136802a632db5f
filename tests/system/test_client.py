"""`liveness.connect` and `connect_sync` against sidecars that are real processes.

Their rules are those of `tests/client`.
"""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
import pytest

import liveness
from tests.system.client import Client
from tests.system.conftest import QUICK_FLUSH_S, Start
from tests.system.gateway import EVERY_S
from tests.system.sidecar import SOON_S, Sidecar

T = TypeVar("T")
Main = Callable[[], Awaitable[None]]
Run = Callable[[Main], None]
Users = list[tuple[str, int]]

BOUND_S: Final = 300.0  # of a whole test
# Of users that this process keeps alive, with room for its being slow.
TIMEOUT_S: Final = 1.5


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a gateway under the event loop, and not for ever."""

    def bounded(main: Main) -> None:
        async def in_time() -> None:
            with anyio.fail_after(BOUND_S):
                await main()

        anyio.run(in_time, backend=request.param)

    return bounded


async def first(reading: AsyncIterator[T], count: int) -> list[T]:
    """Reads this many, and leaves the loop without finishing the last one."""
    taken = list[T]()
    async for item in reading:
        taken.append(item)
        if len(taken) == count:
            break
    return taken


@asynccontextmanager
async def talking(client: liveness.Sidecar, users: Users) -> AsyncIterator[None]:
    """Reports these users alive meanwhile."""

    async def talk() -> None:
        while True:
            for uid, conn in users:
                client.keepalive(uid, conn=conn)
            await anyio.sleep(EVERY_S)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        yield
        tasks.cancel_scope.cancel()


def facts(ends: list[liveness.End]) -> list[tuple[Any, ...]]:
    return [(end.uid, end.conn, end.reason) for end in ends]


def of(watcher: Client, uid: object) -> list[tuple[Any, ...]]:
    """The records of one user: kind, reason, conn, last activity."""
    return [
        (record["kind"], record["reason"], record.get("conn"), record.get("last"))
        for record in watcher.records
        if record["uid"] == uid
    ]


def test_a_watcher_sees_what_was_reported_and_the_gateway_the_silences(
    run: Run, quick: Sidecar, name: str
) -> None:
    watcher = quick.watcher()
    ends = list[liveness.End]()

    async def main() -> None:
        async with liveness.connect(quick.socket, name=name) as client:
            client.login(f"{name}:message", conn=0)
            client.login(f"{name}:keepalive", conn=1)
            client.login(7, conn=10)
            await client.flush()
            client.message(f"{name}:message", conn=0)
            client.keepalive(f"{name}:keepalive", conn=1)
            client.logout(7, conn=10)
            ends.extend(await first(client.ended(), 2))

    run(main)
    watcher.until(lambda records: sum("last" in record for record in records) == 3)
    for conn, last in enumerate(["message", "keepalive"]):
        uid = f"{name}:{last}"
        assert (uid, conn, "silence") in facts(ends)
        assert of(watcher, uid) == [
            ("online", "login", conn, None),
            ("offline", "silence", conn, last),
        ]
    assert [record[:3] for record in of(watcher, 7)] == [
        ("online", "login", 10),
        ("offline", "logout", 10),
    ]


async def _killed(sidecar: Sidecar) -> None:
    await anyio.to_thread.run_sync(sidecar.kill)
    await anyio.to_thread.run_sync(sidecar.start)


async def _frozen(sidecar: Sidecar) -> None:
    sidecar.signal(signal.SIGSTOP)
    await anyio.sleep(2 * TIMEOUT_S)  # this is how long it is frozen
    sidecar.signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize("outage", [_killed, _frozen])
def test_no_active_user_is_ended_by_an_outage_of_the_sidecar(
    run: Run, start: Start, name: str, outage: Callable[[Sidecar], Awaitable[None]]
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    users = [(f"u-{n}", n) for n in range(1, 101)]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login("silent", conn=0, timeout=3)
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            async with talking(client, users):
                await outage(sidecar)
                # Were one of the others to be ended, it would be before this one.
                (end,) = await first(client.ended(), 1)
                assert facts([end]) == [("silent", 0, "silence")]

    run(main)
    kinds = Counter(record.kind for record in sidecar.log())
    assert kinds == {"online": 101, "offline": 1}


def test_reports_of_many_threads_all_arrive(sidecar: Sidecar, name: str) -> None:
    threads, each = 8, 250

    with liveness.connect_sync(sidecar.socket, name=name) as client:

        def report(thread: int) -> None:
            for n in range(each):
                uid, conn = f"{name}:{thread}:{n}", client.new_conn()
                client.login(uid, conn=conn)
                client.message(uid, conn=conn)
                client.keepalive(uid, conn=conn)
                if n % 2:
                    client.logout(uid, conn=conn)
            client.flush()

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(report, range(threads), timeout=SOON_S))
        assert client.stats()[:4] == (threads * each // 2, 0, 0, 1)
    online, _seq = sidecar.watcher().listed()
    ours = [row[2] for row in online.values() if row[0] == name]
    assert len(ours) == len(set(ours)) == threads * each // 2
