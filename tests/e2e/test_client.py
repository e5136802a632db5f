"""`liveness.connect` under both event loops, against sidecars that are real processes."""

import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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
from tests.e2e.client import Client, packed
from tests.e2e.conftest import QUICK_FLUSH_S, Start
from tests.e2e.gateway import EVERY_S, Gateway
from tests.e2e.sidecar import SOON_S, Sidecar, eventually

T = TypeVar("T")
Main = Callable[[], Awaitable[None]]
Run = Callable[[Main], None]
Users = list[tuple[str, int]]

BOUND_S: Final = 30.0  # of a whole test
# Of users that this process keeps alive, with room for its being slow.
TIMEOUT_S: Final = 1.5
# Within a second, and the time in which the rest of it is done.
RELINKED_S: Final = 1.5


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
    """Does what blocks in a thread, as the gateway goes on."""
    return await anyio.to_thread.run_sync(call)


async def until(is_so: Callable[[], bool]) -> None:
    """Asks until it is so; `run` sees that this ends."""
    while not is_so():  # noqa: ASYNC110 - what is asked tells nobody
        await anyio.sleep(0.005)


async def first(reading: AsyncIterator[T], count: int) -> list[T]:
    """So many, and leaves the loop; it has not come back from the last one."""
    taken = list[T]()
    async for one in reading:
        taken.append(one)
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
    """What was recorded of one user: kind, reason, conn."""
    records = (one for one in watcher.records if one["uid"] == uid)
    return [(one["kind"], one["reason"], one.get("conn")) for one in records]


def unacked(sidecar: Sidecar, name: str, count: int) -> None:
    """Waits until this gateway has been told so many that it has not acknowledged."""
    sidecar.metric_until(
        lambda value: value == count, "liveness_link_unacked", gateway=name
    )


# --- reporting ---------------------------------------------------------------------


def test_the_ten_lines_of_the_docs_close_whom_the_sidecar_names(
    run: Run, quick: Sidecar, name: str
) -> None:
    uid = f"{name}:ada"
    closed = []

    async def main() -> None:
        async with liveness.connect(quick.socket, name=name) as sidecar:
            sidecar.login(uid, conn=1)
            sidecar.keepalive(uid, conn=1)
            async for end in sidecar.ended():
                closed.append(end)
                break

    run(main)
    assert facts(closed) == [(uid, 1, "silence")]
    assert closed[0].record["silence"] >= 1


def test_a_watcher_sees_what_was_reported(run: Run, quick: Sidecar, name: str) -> None:
    watcher = quick.watcher()
    users = {
        last: (f"{name}:{last}", n) for n, last in enumerate(["message", "keepalive"])
    }

    async def main() -> None:
        async with liveness.connect(quick.socket, name=name) as client:
            for uid, conn in users.values():
                client.login(uid, conn=conn)
            client.login(7, conn=10)
            client.login(f"{name}:7", conn=11)
            await client.flush()
            client.message(*users["message"][:1], conn=users["message"][1])
            client.keepalive(users["keepalive"][0], conn=users["keepalive"][1])
            client.logout(7, conn=10)
            client.logout(f"{name}:7", conn=11)
            await first(client.ended(), 2)

    run(main)
    watcher.until(lambda records: sum(one["kind"] == "offline" for one in records) == 4)
    for last, (uid, conn) in users.items():
        assert of(watcher, uid) == [
            ("online", "login", conn),
            ("offline", "silence", conn),
        ]
        (end,) = [one for one in watcher.records if one["uid"] == uid and "last" in one]
        assert end["last"] == last
    for whose, conn in ((7, 10), (f"{name}:7", 11)):
        assert of(watcher, whose) == [
            ("online", "login", conn),
            ("offline", "logout", conn),
        ]


def test_thousands_of_reports_of_few_users_become_few_events(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    users = [(f"{name}:{n}", n) for n in range(3)]

    def heard() -> int:
        return int(
            sum(
                sidecar.metric("liveness_events_total", event=event)
                for event in ("login", "keepalive", "message")
            )
        )

    before = heard()

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
            reported_at = perf_counter()
            client.keepalive(*users[0][:1], conn=users[0][1])
            at_least = before + 2 * len(users) + 1
            await aside(lambda: eventually(lambda: heard() >= at_least))
            assert perf_counter() - reported_at < SOON_S
            assert client.stats().refused == 0

    run(main)
    # Those of one writing: a login and a sign of life of each, and what it was cut into.
    assert heard() - before <= 12 * len(users)


BAD_REPORTS: Final[dict[str, Callable[[liveness.Sidecar], None]]] = {
    "an empty uid": lambda it: it.login("", conn=9),
    "a long uid": lambda it: it.login("x" * 256, conn=9),
    "a control character": lambda it: it.keepalive("a\n", conn=9),
    "half a surrogate pair": lambda it: it.message("\ud800", conn=9),
    "a negative uid": lambda it: it.logout(-1, conn=9),
    "a boolean uid": lambda it: it.login(True, conn=9),
    "a boolean in place of an open uid": lambda it: it.message(True, conn=7),
    "a large uid": lambda it: it.login(2**63, conn=9),
    "no uid": lambda it: it.login(None, conn=9),  # type: ignore[arg-type]
    "bytes": lambda it: it.keepalive(b"a", conn=8),  # type: ignore[arg-type]
    "somebody else's conn": lambda it: it.login("b", conn=8),
    "somebody else's sign of life": lambda it: it.keepalive("b", conn=8),
    "a negative conn": lambda it: it.login("b", conn=-1),
    "a conn that is text": lambda it: it.login("b", conn="9"),  # type: ignore[arg-type]
    "an unknown conn that is none": lambda it: it.keepalive("b", conn=2**63),
    "a fraction for an open conn": lambda it: it.keepalive("a", conn=8.0),  # type: ignore[arg-type]
    "a boolean for an open conn": lambda it: it.message(1, conn=True),
    "a short timeout": lambda it: it.login("b", conn=9, timeout=0.5),
    "a long timeout": lambda it: it.login("b", conn=9, timeout=86_401),
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
            assert client.stats() == (3, 0, 0, 1, 0, 0, 0, 0, 0)

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
    "options",
    [
        {"name": ""},
        {"name": "x" * 65},
        {"name": "\ud800"},
        {"name": 7},
        {"timeout": 0.5},
        {"timeout": 86_401},
        {"timeout": float("nan")},
        {"timeout": True},
        {"kinds": "offline"},
        {"kinds": ["of"]},
        {"fresh": 1},
        {"path": "/" + "x" * 107},
        {"path": "/tmp/\0"},
        {"path": ""},
    ],
    ids="{!s:.60}".format,
)
def test_what_cannot_be_is_told_before_anything_is_opened(
    run: Run, name: str, options: dict[str, Any]
) -> None:
    async def main() -> None:
        with anyio.move_on_after(0.2):
            async with liveness.connect(**{"path": "/tmp/x", "name": name} | options):
                await anyio.sleep_forever()

    with pytest.raises(liveness.ReportError):
        run(main)


def test_twenty_thousand_users_are_logged_in_by_one_flush(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    uids = {f"{name}:{n}" for n in range(20_000)}

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for uid in uids:
                client.login(uid, conn=client.new_conn())
            await client.flush()
            online, _seq = await aside(lambda: sidecar.watcher().listed())
            assert {uid for uid, row in online.items() if row[0] == name} == uids
            assert len({row[2] for row in online.values() if row[0] == name}) == 20_000
            # It leaves no 20,000 users behind for the other tests.
            for whose, row in online.items():
                if row[0] == name:
                    client.logout(whose, conn=row[2])

    run(main)


def test_frames_keep_the_limits_that_the_sidecar_names(
    run: Run, start: Start, name: str
) -> None:
    sidecar = start(60, limits_max_batch=40, limits_max_frame_bytes=8_192)
    # The long ones meet the limit of bytes first, the short ones that of uids.
    users = [("é" * (n // 50 * 120) + f"{n:015}", n) for n in range(100)]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            for uid, conn in users:
                client.message(uid, conn=conn)
            await client.flush()
            assert len(sidecar.watcher().listed()[0]) == len(users)
            for uid, conn in users[1:]:
                client.logout(uid, conn=conn)
            await client.flush()
            assert set(sidecar.watcher().listed()[0]) == {users[0][0]}
            assert client.stats().refused == 0
            assert client.stats().links == 1

    run(main)


def test_flush_covers_what_was_reported_while_more_was_being_written(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    watcher = sidecar.watcher()

    async def main() -> None:
        async with (
            liveness.connect(sidecar.socket, name=name) as client,
            anyio.create_task_group() as tasks,
        ):
            users = [(f"{name}:{n}", client.new_conn()) for n in range(20_000)]
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            for turn in range(8):
                for uid, conn in users:
                    client.message(uid, conn=conn)
                tasks.start_soon(client.flush)
                while client.stats().pending == len(users):  # until it is being written
                    await checkpoint()
                late = f"{name}:late {turn}"
                client.login(late, conn=client.new_conn())
                await client.flush()
                assert watcher.where(late), turn  # nothing is written while this blocks

    run(main)


def test_the_heaviest_reporting_keeps_nothing_else_from_being_told(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            users = [(f"{name}:{n}", client.new_conn()) for n in range(10_000)]
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()

            async def talk() -> None:
                while True:
                    for uid, conn in users:
                        client.message(uid, conn=conn)
                    await checkpoint()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk)
                while client.stats().unconfirmed < len(users):  # signs are on their way
                    await checkpoint()
                client.login(f"{name}:late", conn=client.new_conn())
                with anyio.fail_after(4):
                    await client.flush()
                tasks.cancel_scope.cancel()
            assert sidecar.watcher().where(f"{name}:late")

    run(main)


# --- beginning, leaving and failing ---------------------------------------------------


def test_a_gateway_serves_without_a_sidecar_until_there_is_one(
    run: Run, make: Start, name: str
) -> None:
    sidecar = make()

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login("a", conn=1, timeout=70)
            client.login("gone", conn=2)
            client.message("a", conn=1)
            client.logout("gone", conn=2)
            assert not client.is_connected
            assert client.stats() == (1, 2, 0, 0, 0, 0, 0, 0, 0)
            await aside(sidecar.launch)
            await client.connected()
            assert client.is_connected
            await client.flush()
            assert client.stats() == (1, 0, 0, 1, 0, 0, 0, 0, 0)
            watcher = sidecar.watcher(after=0)
            watcher.until(len)
            watcher.settle()
            assert [one["uid"] for one in watcher.records] == ["a"]

    run(main)


def test_what_was_reported_last_is_written_on_leaving(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    watcher = sidecar.watcher()
    users = [(f"{name}:{n}", n) for n in range(100)]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.connected()
            for uid, conn in users[1:]:
                client.logout(uid, conn=conn)

    run(main)
    online, _seq = watcher.listed()
    assert [uid for uid, row in online.items() if row[0] == name] == [users[0][0]]


def test_what_was_reported_is_written_even_if_it_is_left_at_once(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login(f"{name}:a", conn=1)

    run(main)
    assert sidecar.watcher().where(f"{name}:a")


def test_leaving_does_not_wait_long_for_a_sidecar_that_is_not_there(
    run: Run, tmp_path: Path, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(tmp_path / "none", name=name) as client:
            client.login("a", conn=1)
            left_at = perf_counter()
        assert perf_counter() - left_at < SOON_S

    run(main)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("mine"),
        ExceptionGroup("mine", [ValueError(1), KeyError(2)]),
        ExceptionGroup("of one", [ValueError(1)]),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
    ],
    ids="{!a:.60}".format,
)
def test_an_error_inside_comes_out_as_it_is(
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
    told = caught.value  # trio makes a group anew, whatever it passes through
    assert told is error or isinstance(told, BaseExceptionGroup)
    assert getattr(told, "exceptions", ()) == getattr(error, "exceptions", ())
    assert not sidecar.watcher().where(
        f"{name}:a"
    )  # the logout was written all the same


def test_cancelling_what_is_inside_ends_there_and_writes_what_was_reported(
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


async def _flushing(client: liveness.Sidecar) -> None:
    client.login("a", conn=1)
    while True:
        await client.flush()


async def _reading(client: liveness.Sidecar) -> None:
    async for _ in client.ended():
        pass


async def _serving(_client: liveness.Sidecar) -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize("inside", [_serving, _reading, _flushing])
def test_the_older_of_twins_is_replaced_for_good_and_the_newer_one_goes_on(
    run: Run,
    sidecar: Sidecar,
    name: str,
    inside: Callable[[liveness.Sidecar], Awaitable[None]],
) -> None:
    async def older(is_linked: anyio.Event) -> None:
        with pytest.raises(liveness.Replaced) as caught:  # noqa: PT012
            async with liveness.connect(sidecar.socket, name=name) as client:
                await client.connected()
                is_linked.set()
                await inside(client)
        assert caught.value.code == "replaced"

    async def main() -> None:
        for turn in range(5):  # it may be met at any moment
            async with anyio.create_task_group() as tasks:
                is_linked = anyio.Event()
                tasks.start_soon(older, is_linked)
                await is_linked.wait()
                async with liveness.connect(
                    sidecar.socket, name=name, fresh=False
                ) as newer:
                    newer.login(f"{name}:{turn}", conn=turn)
                    await newer.flush()
                    assert newer.stats().links == 1
                    assert sidecar.watcher().where(f"{name}:{turn}")

    run(main)


async def _linking(client: liveness.Sidecar) -> None:
    await client.connected()


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


@pytest.mark.parametrize("inside", [_serving, _reading, _flushing, _linking])
def test_a_gateway_that_is_refused_for_good_is_told_so_whatever_it_waits_for(
    run: Run,
    tmp_path: Path,
    name: str,
    inside: Callable[[liveness.Sidecar], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with liveness.connect(tmp_path / "s", name=name) as client:
            await inside(client)

    code = "unsupported-protocol"  # as a much later version would say
    with (
        refusing(tmp_path / "s", code),
        pytest.raises(liveness.Refused, match="no") as caught,
    ):
        run(main)
    assert caught.value.code == code


def test_a_gateway_that_there_is_no_room_for_asks_as_long_as_it_takes(
    tmp_path: Path, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(tmp_path / "s", name=name):
            await trio.sleep_forever()

    # Nearly two hours of it, in virtual time: nothing waits but the client.
    codes = ["overloaded"] * 1_200 + ["not-allowed"]
    with refusing(tmp_path / "s", *codes), pytest.raises(liveness.Refused) as caught:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert caught.value.code == "not-allowed"


def test_a_gateway_that_may_not_be_one_ends_by_the_sidecars_word(
    run: Run, start: Start, name: str
) -> None:
    sidecar = start(access_gateways="54321", access_watchers="54321")

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name):
            await anyio.sleep_forever()

    with pytest.raises(liveness.Refused, match=r"access\.gateways") as caught:
        run(main)
    assert caught.value.code == "not-allowed"


# --- being told -----------------------------------------------------------------------


def test_an_end_is_given_again_to_the_loop_after_the_one_that_was_left(
    run: Run, quick: Sidecar, name: str
) -> None:
    users = [(f"{name}:{n}", n) for n in range(5)]

    async def main() -> None:
        async with liveness.connect(quick.socket, name=name) as client:
            for uid, conn in users:
                client.login(uid, conn=conn)
            one = await first(client.ended(), 1)
            two = await first(client.ended(), 2)
            four = await first(client.ended(), 4)
            assert two[0] == one[0]
            assert four[0] == two[1]
            assert {(end.uid, end.conn) for end in (*one, *four)} == set(users)
            assert client.stats().duplicates == 0

    run(main)


def test_an_end_is_given_again_also_while_another_loop_reads_records(
    run: Run, quick: Sidecar, name: str
) -> None:
    users = [(f"{name}:{n}", n) for n in range(5)]

    async def main() -> None:
        async with (
            liveness.connect(quick.socket, name=name) as client,
            anyio.create_task_group() as tasks,
        ):
            seen = list[Any]()

            async def note() -> None:
                async for record in client.records():
                    seen.append(record)

            tasks.start_soon(note)
            await checkpoint()
            for uid, conn in users:
                client.login(uid, conn=conn)
            one = await first(client.ended(), 1)
            await until(lambda: len(seen) == len(users))
            again = list[liveness.End]()
            with anyio.move_on_after(1):
                again += await first(client.ended(), 1)
            tasks.cancel_scope.cancel()
            assert again == one

    run(main)


def test_only_what_every_view_has_finished_is_acknowledged(
    run: Run, start: Start, name: str
) -> None:
    sidecar = start(1, flush_s=QUICK_FLUSH_S)
    users = [(f"{name}:{n}", n) for n in range(4)]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            ends, records = client.ended(), client.records()
            for _ in users:
                await anext(ends)
            await aside(lambda: unacked(sidecar, name, 4))
            uids = [(await anext(records))["uid"] for _ in users]
            assert set(uids) == {uid for uid, _conn in users}
            await aside(
                lambda: unacked(sidecar, name, 1)
            )  # neither has come back from the last one
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anext, ends)
                tasks.start_soon(anext, records)
                await aside(lambda: unacked(sidecar, name, 0))
                tasks.cancel_scope.cancel()

    run(main)


@pytest.mark.slow
def test_delivery_to_a_slow_consumer_goes_on_as_its_acks_do(
    run: Run, start: Start, name: str
) -> None:
    window = 5
    sidecar = start(1, flush_s=QUICK_FLUSH_S, limits_window=window)
    watcher = sidecar.watcher(kinds=["offline"])
    users = [(f"{name}:{n}", n) for n in range(30)]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            for uid, conn in users:
                client.login(uid, conn=conn)
            await aside(lambda: watcher.take(len(users)))
            taken = []
            async for end in client.ended():
                taken.append(end)
                # All before this one are acknowledged, and so many more have come.
                come = min(len(taken) - 1 + window, len(users))
                await until(lambda come=come: client.stats().open == len(users) - come)  # type: ignore[misc]
                if len(taken) == len(users):
                    break
            assert Counter((end.uid, end.conn) for end in taken) == Counter(users)
            assert client.stats().duplicates == 0
            await aside(
                lambda: unacked(sidecar, name, 1)
            )  # it has not come back from it

    run(main)


def test_each_user_has_the_timeout_of_its_login(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name, timeout=50) as client:
            client.login(f"{name}:gateway's", conn=1)
            client.login(f"{name}:own", conn=2, timeout=1)
            client.login(f"{name}:own, then gateway's", conn=3, timeout=1)
            await client.flush()
            client.login(f"{name}:own, then gateway's", conn=3)
            (end,) = await first(client.ended(), 1)
            assert facts([end]) == [(f"{name}:own", 2, "silence")]
            assert 1 <= end.record["silence"] < 5
            assert client.stats().open == 2

    run(main)


def test_a_user_who_comes_by_another_gateway_or_connection_has_moved(
    run: Run, sidecar: Sidecar, name: str
) -> None:
    uid = f"{name}:u"

    async def main() -> None:
        async with (
            liveness.connect(sidecar.socket, name=f"{name}a") as one,
            liveness.connect(sidecar.socket, name=f"{name}b") as other,
        ):
            one.login(uid, conn=1)
            await one.flush()
            one.login(uid, conn=2)
            assert facts(await first(one.ended(), 1)) == [(uid, 1, "moved")]
            one.keepalive(uid, conn=1)  # not closed yet
            one.logout(uid, conn=1)
            assert one.stats().ignored == 2
            other.login(uid, conn=1)
            ends = await first(one.ended(), 1)
            if ends[0].conn == 1:  # it was left without coming back from that one
                ends = (await first(one.ended(), 2))[1:]
            assert facts(ends) == [(uid, 2, "moved")]
            one.logout(uid, conn=2)
            await one.flush()
            assert one.stats().open == 0
            assert other.stats().open == 1
            ((_uid, gateway, _session, conn),) = await aside(
                lambda: sidecar.watcher().where(uid)
            )
            assert (gateway, conn) == (f"{name}b", 1)

    run(main)


def test_users_without_a_conn_are_ended_without_one(
    run: Run, quick: Sidecar, name: str
) -> None:
    silent, again, gone = (f"{name}:{what}" for what in ("silent", "again", "gone"))

    async def main() -> None:
        async with liveness.connect(quick.socket, name=name) as client:
            for uid in (silent, again, gone):
                client.login(uid)
            client.logout(gone)
            await until(lambda: client.stats().open == 0)  # their ends have come
            client.login(again, timeout=60)  # before it was closed: it is not to be
            ends = client.ended()
            assert facts([await anext(ends)]) == [(silent, None, "silence")]
            await client.flush()
            assert client.stats().open == 1
            with anyio.move_on_after(0.2):
                raise AssertionError(await anext(ends))
            client.keepalive(again)
            client.logout(again)
            client.login(again)
            await client.flush()
            assert await aside(lambda: quick.watcher().where(again))

    run(main)


def test_an_end_that_a_logout_has_overtaken_is_not_given(
    run: Run, quick: Sidecar, name: str
) -> None:
    async def main() -> None:
        async with liveness.connect(quick.socket, name=name) as client:
            client.login(f"{name}:a", conn=1)
            client.login(f"{name}:b", conn=2)
            await until(lambda: client.stats().open == 0)
            client.logout(f"{name}:a", conn=1)  # closed by itself meanwhile
            ends = client.ended()
            assert (await anext(ends)).uid == f"{name}:b"
            with anyio.move_on_after(0.2):
                raise AssertionError(await anext(ends))

    run(main)


# --- restarts of the sidecar ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ended", [Sidecar.stop, Sidecar.kill], ids=["stop", "kill -9"])
def test_nobody_who_speaks_is_ended_by_a_restart_of_the_sidecar(
    run: Run, start: Start, name: str, ended: Callable[[Sidecar], object]
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
                await aside(lambda: ended(sidecar))
                await aside(sidecar.start)
                ready_at = perf_counter()
                await until(lambda: client.stats().links == 2)
                assert perf_counter() - ready_at < RELINKED_S
                # Were anyone of them to be ended, it would be before this one.
                (end,) = await first(client.ended(), 1)
                assert facts([end]) == [("silent", 0, "silence")]
                await client.flush()
                online, _seq = await aside(lambda: sidecar.watcher().listed())
                assert {(uid, row[2]) for uid, row in online.items()} == set(users)
            assert client.stats()[3:] == (2, 0, 0, 0, 0, 0)

    run(main)
    kinds = Counter(one.kind for one in sidecar.log())
    assert kinds == {"online": 101, "offline": 1}


@pytest.mark.slow
def test_what_no_pong_has_covered_is_told_again(
    run: Run, start: Start, name: str
) -> None:
    sidecar = start()

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login("leaves", conn=1)
            await client.flush()
            sidecar.signal(signal.SIGSTOP)
            client.login("comes", conn=2)
            client.logout("leaves", conn=1)
            await until(lambda: client.stats().pending == 0)
            assert client.stats().unconfirmed == 2
            await aside(sidecar.kill)  # with all that unread
            await aside(sidecar.start)
            await client.flush()
            assert client.stats() == (1, 0, 0, 2, 0, 0, 0, 0, 0)
            online, _seq = await aside(lambda: sidecar.watcher().listed())
            assert {uid: row[2] for uid, row in online.items()} == {"comes": 2}

    run(main)


@pytest.mark.slow
def test_on_a_new_log_all_open_connections_are_declared(
    run: Run, start: Start, name: str
) -> None:
    sidecar = start()

    def online() -> dict[str, tuple[Any, ...]]:
        rows = sidecar.rows("select uid, conn, timeout, start from online")
        return {row[0]: row[1:] for row in rows}

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login("plain", conn=1)
            client.login("own timeout", conn=2, timeout=77)
            client.login("old", conn=3, age=1_000)
            client.login("without")
            client.login("gone", conn=4)
            await client.flush()
            client.logout("gone", conn=4)
            await client.flush()
            before = online()
            await aside(sidecar.stop)
            await aside(lambda: shutil.rmtree(sidecar.state))
            await aside(sidecar.start)
            await client.connected()
            await client.flush()
            after = online()
            assert set(after) == {"plain", "own timeout", "old", "without"}
            for uid, (conn, timeout, start_ms) in after.items():
                assert (conn, timeout) == before[uid][:2]
                # An age is told the less exactly, the higher it is.
                room_ms = 500 + (1_000_000 // 64 if uid == "old" else 0)
                assert abs(start_ms - before[uid][2]) < room_ms
            # Its records begin anew at 1, and are no duplicates of those before.
            sidecar.gateway("other").send("login", "plain", {"conn": 9})
            assert facts(await first(client.ended(), 1)) == [("plain", 1, "moved")]
            assert client.stats().links == 2

    run(main)


@pytest.mark.slow
def test_a_sidecar_that_was_frozen_ends_nobody_who_spoke(
    run: Run, start: Start, name: str
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    users = [(f"u-{n}", n) for n in range(1, 101)]

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            client.login("silent", conn=0)
            for uid, conn in users:
                client.login(uid, conn=conn)
            await client.flush()
            async with talking(client, users):
                sidecar.signal(signal.SIGSTOP)
                await anyio.sleep(2 * TIMEOUT_S)  # this is how long it is frozen
                sidecar.signal(signal.SIGCONT)
                (end,) = await first(client.ended(), 1)
                assert facts([end]) == [("silent", 0, "silence")]
                await client.flush()
            assert client.stats()[3:] == (1, 0, 0, 0, 0, 0)
            assert client.stats().open == len(users)

    run(main)


# --- restarts and stalls of the gateway ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [None, False])
def test_no_notice_of_an_earlier_process_closes_a_connection_of_a_later_one(
    quick: Sidecar, name: str, backend: str, fresh: bool | None
) -> None:
    watcher = quick.watcher(kinds=["offline"])
    uids = [f"{name}:{n}" for n in range(5)]
    held = f"{name}:held"
    with Gateway(quick, name, backend=backend, is_stuck=True) as old:
        old.login((held, 50), timeout=60)
        old.login(*((uid, conn) for conn, uid in enumerate(uids)))
        assert old.end()[0] in uids
        watcher.take(len(uids))
    # Five notices are pending now, and its last session is on.
    with Gateway(quick, name, backend=backend, fresh=fresh) as new:
        new.login(*((uid, 100 + conn) for conn, uid in enumerate(uids)))
        new.talk(*((uid, 100 + conn) for conn, uid in enumerate(uids[1:], 1)))
        assert new.end() == (uids[0], 100, "silence")
        assert len(quick.watcher().where(*uids)) == 4
    lost = [] if fresh is False else [(held, "gateway_lost", 50)]
    records = watcher.take(len(lost) + 1)
    ends = [(one["uid"], one["reason"], one["conn"]) for one in records]
    assert ends == [*lost, (uids[0], "silence", 100)]


def test_what_the_loop_did_not_come_back_from_goes_to_the_next_process(
    run: Run, quick: Sidecar, name: str, backend: str
) -> None:
    watcher = quick.watcher(kinds=["offline"])
    users = [(f"{name}:{n}", n) for n in range(3)]
    with Gateway(quick, name, backend=backend, is_stuck=True) as old:
        old.login(*users)
        told = old.end()
        watcher.take(len(users))

    async def main() -> None:
        async with liveness.connect(quick.socket, name=name, fresh=False) as second:
            records = await first(second.records(), len(users))
            assert {(one["uid"], one["conn"]) for one in records} == set(users)
            assert records[0]["uid"] == told[0]
        async with liveness.connect(quick.socket, name=name, fresh=False) as third:
            assert await first(third.records(), 1) == records[-1:]
            assert third.stats().open == 0

    run(main)


@pytest.mark.slow
def test_users_of_a_gateway_that_does_not_run_are_held_and_an_idle_one_is_not_taken_for_such(
    start: Start,
) -> None:
    timeout_s, stalled_s = 3, 5
    sidecar = start(flush_s=QUICK_FLUSH_S)
    made = partial(Gateway, sidecar, timeout=timeout_s)
    with (
        made("idle 0", backend="trio") as one,
        made("idle 1", backend="asyncio") as other,
        made("held up", backend="trio") as held_up,
        made("stopped", backend="asyncio") as stopped,
    ):
        idle, stalling = (one, other), {"held up": held_up, "stopped": stopped}
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
    for end in (one for one in sidecar.log() if one.kind == "offline"):
        # Those of the idle gateways were not held for one moment.
        longest = 1 if str(end.uid).startswith("of idle") else stalled_s + 2
        assert end.silence is not None
        assert timeout_s <= end.silence < timeout_s + longest, end


# --- what is logged --------------------------------------------------------------------


def test_why_there_is_no_link_is_logged_once_with_what_to_do(
    run: Run, make: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "liveness.client")
    sidecar = make()

    async def main() -> None:
        async with liveness.connect(sidecar.socket, name=name) as client:
            while not caplog.messages:
                await checkpoint()
            await anyio.to_thread.run_sync(sidecar.start)
            await client.connected()

    run(main)
    missing = f"no link to the sidecar at {sidecar.socket}: it is not running"
    linked = f"{name}: linked to the sidecar at {sidecar.socket}"
    assert caplog.messages[0].startswith(f"{name}: {missing}")
    assert caplog.messages[-1] == linked
    assert len(set(caplog.messages)) == len(caplog.messages)
