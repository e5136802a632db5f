"""`liveness.connect` under both event loops, against sidecars that are real processes."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from trio.testing import MockClock

import liveness
from liveness.client.task_runner import LAST_S
from liveness.console.admin_client import request_json
from tests.helpers.wire import packed
from tests.system.client import Client
from tests.system.conftest import QUICK_FLUSH_S, Start
from tests.system.gateway import EVERY_S, Gateway
from tests.system.sidecar import SOON_S, Sidecar, eventually

T = TypeVar("T")
Main = Callable[[], Awaitable[None]]
Run = Callable[[Main], None]
Users = list[tuple[str, int]]

BOUND_S: Final = 300.0  # of a whole test
# Of users that this process keeps alive, with room for its being slow.
TIMEOUT_S: Final = 1.5


@pytest.fixture(params=["trio", "asyncio"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def run(backend: str) -> Run:
    """Runs a gateway under the event loop, and not for ever."""

    def bounded(main: Main) -> None:
        async def in_time() -> None:
            with anyio.fail_after(BOUND_S):
                await main()

        anyio.run(in_time, backend=backend)

    return bounded


async def aside(call: Callable[[], T]) -> T:
    """Makes a blocking call in a thread, while the gateway goes on."""
    return await anyio.to_thread.run_sync(call)


async def until(is_so: Callable[[], bool]) -> None:
    """Asks until it is so; `run` sees that this ends."""
    while not is_so():  # noqa: ASYNC110 - nothing announces it
        await anyio.sleep(0.005)


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


def unacked(sidecar: Sidecar, name: str, count: int) -> None:
    """Waits until this gateway has this many unacknowledged records."""
    sidecar.metric_until(
        lambda value: value == count, "liveness_link_unacked", gateway=name
    )


# --- reporting ---------------------------------------------------------------------


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
            client.login(f"{name}:7", conn=11)
            await client.flush()
            client.message(f"{name}:message", conn=0)
            client.keepalive(f"{name}:keepalive", conn=1)
            client.logout(7, conn=10)
            client.logout(f"{name}:7", conn=11)
            ends.extend(await first(client.ended(), 2))

    run(main)
    watcher.until(lambda records: sum("last" in record for record in records) == 4)
    for conn, last in enumerate(["message", "keepalive"]):
        uid = f"{name}:{last}"
        assert (uid, conn, "silence") in facts(ends)
        assert of(watcher, uid) == [
            ("online", "login", conn, None),
            ("offline", "silence", conn, last),
        ]
    for whose, conn in ((7, 10), (f"{name}:7", 11)):
        assert [record[:3] for record in of(watcher, whose)] == [
            ("online", "login", conn),
            ("offline", "logout", conn),
        ]


def test_thousands_of_reports_of_few_users_become_few_events(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    users = [(f"{name}:{n}", n) for n in range(3)]

    def events() -> float:
        kinds = ("login", "keepalive", "message")
        return sum(
            sidecar.metric("liveness_events_total", event=kind) for kind in kinds
        )

    before = events()

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            for _ in range(5_000):
                for uid, conn in users:
                    client.login(uid, conn=conn)
                    client.keepalive(uid, conn=conn)
                    client.message(uid, conn=conn)
                assert client.stats().pending <= 3 * len(users)
            await client.flush()
            # A sign of life is written soon, without a flush.
            client.keepalive(users[0][0], conn=users[0][1])
            at_least = before + 2 * len(users) + 1
            await aside(lambda: eventually(lambda: events() >= at_least))
            assert client.stats().refused == 0

    run(main)
    # Of each writing: a login and a sign of life for each user.
    assert events() - before <= 12 * len(users)


# The shortcut for open connections, and the age, are the library's own; what else cannot
# be reported is in tests/client/test_reports.py.
BAD_REPORTS: Final[dict[str, Callable[[liveness.Sidecar], None]]] = {
    "a boolean in place of an open uid": lambda it: it.message(True, conn=7),
    "a fraction for an open conn": lambda it: it.keepalive("a", conn=8.0),  # type: ignore[arg-type]
    "a boolean for an open conn": lambda it: it.message(1, conn=True),
    "another user's activity": lambda it: it.keepalive("b", conn=8),
    "another user's message": lambda it: it.message("b", conn=8),
    "another user's conn": lambda it: it.login("b", conn=8),
    "a negative uid": lambda it: it.logout(-1, conn=9),
    "a negative age": lambda it: it.login("b", conn=9, age=-1),
    "an age that is no number": lambda it: it.login("b", conn=9, age=float("nan")),
    "an endless age": lambda it: it.login("b", conn=9, age=float("inf")),
}


@pytest.mark.parametrize("what", BAD_REPORTS)
def test_a_bad_report_raises_at_the_call_and_the_link_lives_on(
    run: Run, sidecar: Sidecar, name: str, what: str
) -> None:
    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login("a", conn=8)
            client.login(1, conn=1)
            client.login(7, conn=7)
            await client.flush()
            with pytest.raises(liveness.ReportError):
                BAD_REPORTS[what](client)
            client.keepalive("a", conn=8)
            client.message(1, conn=1)
            await client.flush()
            assert client.stats() == (3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)

    run(main)


def test_a_connection_of_any_age_is_taken(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    ages = [0, 0.001, 1e9, 1e15, 1e300, 1e308, 10**400]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for n, age in enumerate(ages):
                client.login(f"{name}:{n}", conn=n, age=age)
            await client.flush()
            assert client.stats().refused == 0

    run(main)
    uids = [f"{name}:{n}" for n in range(len(ages))]
    assert len(sidecar.watcher().where(*uids)) == len(ages)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/" + "x" * 107, "gw"), ("/tmp/\0", "gw"), ("", "gw"), ("/tmp/x", "")],
    ids=["long path", "nul", "no path", "no name"],
)
def test_a_path_or_name_that_cannot_be_is_refused_at_once(
    run: Run, path: str, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(path, name=name):
            raise AssertionError

    with pytest.raises(liveness.ReportError):
        run(main)


def test_flush_covers_a_login_reported_while_much_is_being_written(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            users = [(f"{name}:{n}", client.new_conn()) for n in range(20_000)]
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            online, _seq = await aside(lambda: sidecar.watcher().listed())
            ours = [(uid, row[2]) for uid, row in online.items() if row[0] == name]
            assert sorted(ours) == sorted(users)

            async def talk() -> None:
                while True:
                    for uid, conn in users:
                        client.message(uid, conn=conn)
                    await checkpoint()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk)
                while client.stats().unconfirmed < len(users):  # they are on their way
                    await checkpoint()
                client.login(f"{name}:late", conn=client.new_conn())
                await client.flush()
                # Nothing is written while this blocks.
                assert sidecar.watcher().where(f"{name}:late")
                tasks.cancel_scope.cancel()

    run(main)


# --- beginning, leaving and failing ---------------------------------------------------


def test_a_gateway_serves_without_a_sidecar_until_there_is_one(
    run: Run, make: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "liveness.client")
    sidecar = make()

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login("a", conn=1, timeout=70)
            client.login("gone", conn=2)
            client.message("a", conn=1)
            client.logout("gone", conn=2)
            assert client.state != "linked"
            assert client.stats() == (1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            await until(lambda: bool(caplog.messages))
            await aside(sidecar.launch)
            await client.connected()
            assert client.state == "linked"
            await client.flush()
            assert client.stats() == (1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
            watcher = sidecar.watcher(after=0)
            watcher.until(len)
            watcher.sync()
            assert [record["uid"] for record in watcher.records] == ["a"]

    run(main)
    missing = f"no link to the sidecar at {sidecar.socket}: it is not running"
    assert caplog.messages[0].startswith(f"{name}: {missing}")
    linked = f"{name}: linked to the sidecar at {sidecar.socket}"
    assert caplog.messages[-1] == linked
    assert len(set(caplog.messages)) == len(caplog.messages), "each is logged once"


def test_a_link_is_tried_again_within_a_second_and_leaving_takes_two_at_most(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with liveness.connect(tmp_path / "s", name="gw") as client:
            await trio.sleep(5)
            with closing(trio.socket.socket(socket.AF_UNIX)) as listener:
                await listener.bind(str(tmp_path / "s"))
                listener.listen()
                began = trio.current_time()
                connection, _ = await listener.accept()
                assert trio.current_time() - began < 1
            connection.close()
            client.login("a", conn=1)
            left_at = trio.current_time()
        assert trio.current_time() - left_at <= 2 * LAST_S

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_was_reported_is_written_even_if_the_gateway_leaves_at_once(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login(f"{name}:a", conn=1)

    run(main)
    assert sidecar.watcher().where(f"{name}:a")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("mine"),
        ExceptionGroup("mine", [ValueError(1), KeyError(2)]),
        ExceptionGroup("of one", [ValueError(1)]),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
    ],
    ids=["one", "group", "group of one", "base group"],
)
def test_an_error_inside_comes_out_and_the_last_reports_are_written(
    run: Run, sidecar: Sidecar, name: str, error: BaseException
) -> None:
    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login(f"{name}:a", conn=1)
            await client.flush()
            client.logout(f"{name}:a", conn=1)
            raise error

    with pytest.raises(type(error)) as caught:
        run(main)
    raised = caught.value  # trio makes a group anew, whatever it passes through
    assert raised is error or isinstance(raised, BaseExceptionGroup)
    assert getattr(raised, "exceptions", ()) == getattr(error, "exceptions", ())
    assert not sidecar.watcher().where(f"{name}:a")


def test_cancelling_what_is_inside_ends_there_and_writes_the_last_reports(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with liveness.connect(sidecar.socket, name=name) as client:
                client.login(f"{name}:a", conn=1)
                await client.flush()
                client.logout(f"{name}:a", conn=1)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    run(main)
    assert not sidecar.watcher().where(f"{name}:a")


def test_a_task_of_asyncio_can_be_cancelled_in_its_own_way(
    sidecar: Sidecar, name: str
) -> None:
    import asyncio  # noqa: TID251 - the loop that is tested

    async def serve(is_linked: asyncio.Event) -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login(f"{name}:a", conn=1)
            await client.flush()
            client.logout(f"{name}:a", conn=1)
            is_linked.set()
            async for _ in client.ended():
                pass

    async def main() -> None:
        is_linked = asyncio.Event()
        task = asyncio.create_task(serve(is_linked))
        await is_linked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not sidecar.watcher().where(f"{name}:a")


TWIN: Final = """
import sys
import liveness

with liveness.connect_sync(sys.argv[1], name=sys.argv[2]) as sidecar:
    sidecar.connected()
    print("linked", flush=True)
    sys.stdin.read()
"""


def twin_of(sidecar: Sidecar, name: str) -> subprocess.Popen[bytes]:
    """Another process that says hello with this name."""
    return subprocess.Popen(
        [sys.executable, "-c", TWIN, sidecar.socket, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_a_gateway_serves_on_while_another_process_has_its_name_and_resumes(
    run: Run, sidecar: Sidecar, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        states = list[liveness.LinkState]()
        async with liveness.connect(
            sidecar.socket, name=name, on_state=states.append
        ) as client:
            client.login(f"{name}:1", conn=1)
            await client.flush()
            with await aside(lambda: twin_of(sidecar, name)) as twin:
                assert twin.stdin is not None
                assert twin.stdout is not None
                try:
                    assert await aside(twin.stdout.readline) == b"linked\n"
                    await until(lambda: client.state == "replaced")
                    client.login(f"{name}:2", conn=2)
                    client.keepalive(f"{name}:1", conn=1)
                    line = await aside(
                        lambda: sidecar.line(
                            "link replaced",
                            level="warning",
                            name=name,
                            pid=twin.pid,
                            older_pid=os.getpid(),
                        )
                    )
                    assert line["unix_user"] == line["older_unix_user"] == os.getuid()
                    (error,) = [
                        record.message
                        for record in caplog.records
                        if record.levelno == logging.ERROR
                    ]
                    assert f"process {twin.pid} said hello as {name!r}" in error
                    assert f"this process, {os.getpid()}, are not watched" in error
                    await client.resume()
                finally:
                    twin.kill()
            await client.flush()
            found = {f"{name}:{n}": n for n in (1, 2)}
            online, _seq = await aside(lambda: sidecar.watcher().listed())
            mine = {uid: row[2] for uid, row in online.items() if uid in found}
            assert mine == found
            assert states == ["linked", "replaced", "away", "linked"]
            troubles = (await aside(lambda: request_json(sidecar.socket, "/v1/wheel")))[
                "link_troubles"
            ]
            pids = [row["pid"] for row in troubles if row["name"] == name]
            assert pids == [twin.pid], "the latest to lose the name"

    run(main)


@contextmanager
def refusing(path: Path, *codes: str) -> Iterator[None]:
    """A socket where one hello after the other is refused, each with the next code."""

    def refuse() -> None:
        for code in codes:
            link, _ = listener.accept()
            with link:
                if not link.recv(1 << 16):
                    return  # ours, below
                error = {"code": code, "message": "no", "fatal": True, "n": 1}
                link.sendall(packed(["error", error]))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join(SOON_S)


def test_a_gateway_refused_for_load_asks_as_long_as_it_takes(
    tmp_path: Path, name: str
) -> None:
    async def main() -> None:
        is_refused = trio.Event()

        def on_state(state: liveness.LinkState) -> None:
            if state == "refused":
                is_refused.set()

        async with liveness.connect(tmp_path / "s", name=name, on_state=on_state):
            await is_refused.wait()

    # Nearly two hours of it, in virtual time: nothing waits but the client.
    codes = ["overloaded"] * 1_200 + ["not-allowed"]
    with refusing(tmp_path / "s", *codes):
        trio.run(main, clock=MockClock(autojump_threshold=0))


# --- ends -----------------------------------------------------------------------------


def test_only_what_the_loop_has_finished_is_acknowledged(
    run: Run, start: Start, name: str
) -> None:
    sidecar = start(1, flush_s=QUICK_FLUSH_S)
    users = [(f"{name}:{n}", n) for n in range(4)]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            await aside(lambda: unacked(sidecar, name, 4))
            ends = client.ended()
            assert {(await anext(ends)).uid for _ in users} == {uid for uid, _ in users}
            # It has not come back from the last one.
            await aside(lambda: unacked(sidecar, name, 1))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anext, ends)
                await aside(lambda: unacked(sidecar, name, 0))
                tasks.cancel_scope.cancel()

    run(main)


# --- outages of the sidecar -------------------------------------------------------------


async def _restarted(end: Callable[[Sidecar], object], sidecar: Sidecar) -> None:
    await aside(lambda: end(sidecar))
    await aside(sidecar.start)


async def _frozen(sidecar: Sidecar) -> None:
    sidecar.signal(signal.SIGSTOP)
    await anyio.sleep(2 * TIMEOUT_S)  # this is how long it is frozen
    sidecar.signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outage", "links"),
    [
        (partial(_restarted, Sidecar.stop), 2),
        (partial(_restarted, Sidecar.kill), 2),
        (_frozen, 1),
    ],
    ids=["stop", "kill -9", "frozen"],
)
def test_no_active_user_is_ended_by_an_outage_of_the_sidecar(
    run: Run,
    start: Start,
    name: str,
    outage: Callable[[Sidecar], Awaitable[None]],
    links: int,
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
                await until(lambda: client.stats().links == links)
                # Were one of the others to be ended, it would be before this one.
                (end,) = await first(client.ended(), 1)
                assert facts([end]) == [("silent", 0, "silence")]
                await client.flush()
                online, _seq = await aside(lambda: sidecar.watcher().listed())
                assert {(uid, row[2]) for uid, row in online.items()} == set(users)
            assert client.stats()[3:] == (links, 0, 0, 0, 0, 0, 0, 0)

    run(main)
    kinds = Counter(record.kind for record in sidecar.log())
    assert kinds == {"online": 101, "offline": 1}


# --- crashes and stalls of the gateway ----------------------------------------------------


@pytest.mark.slow
def test_users_of_a_stalled_gateway_are_held_and_those_of_an_idle_one_are_not(
    start: Start,
) -> None:
    timeout_s, stalled_s = 3, 5
    sidecar = start(flush_s=QUICK_FLUSH_S)
    made = partial(Gateway, sidecar, timeout=timeout_s)
    with (
        made("idle 0", backend="trio") as idle_trio,
        made("idle 1", backend="asyncio") as idle_asyncio,
        made("held up", backend="trio") as held_up,
        made("stopped", backend="asyncio") as stopped,
    ):
        idle = (idle_trio, idle_asyncio)
        stalling = {"held up": held_up, "stopped": stopped}
        for n, gateway in enumerate(idle):
            gateway.login((f"of idle {n}", n))
        for name, gateway in stalling.items():
            users = [(f"{name}: silent", 1), (f"{name}: speaks", 2)]
            gateway.login(*users)
            gateway.talk(users[1])
        held_up.hold_up(stalled_s)
        stopped.signal(signal.SIGSTOP)
        stalled_at = perf_counter()
        for n, gateway in enumerate(idle):
            assert gateway.end() == (f"of idle {n}", n, "silence")
        sidecar.metric_until(
            lambda value: value == 4, "liveness_users_held", why="mute"
        )
        assert sidecar.metric("liveness_users_online") == 4
        eventually(lambda: perf_counter() - stalled_at >= stalled_s)
        stopped.signal(signal.SIGCONT)
        for name, gateway in stalling.items():
            assert gateway.end() == (f"{name}: silent", 1, "silence")
        assert perf_counter() - stalled_at >= stalled_s + timeout_s
        online, _seq = sidecar.watcher().listed()
        assert set(online) == {"held up: speaks", "stopped: speaks"}
    for end in (record for record in sidecar.log() if record.kind == "offline"):
        # Those of the idle gateways were not held for one moment.
        longest = 1 if str(end.uid).startswith("of idle") else stalled_s + 2
        assert end.silence is not None
        assert timeout_s <= end.silence < timeout_s + longest, end
