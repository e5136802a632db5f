"""How `connect` and `connect_sync` begin and end, and gateways of threads."""

import inspect
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from math import inf, nan
from pathlib import Path
from types import FunctionType

import anyio
import pytest
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from trio.testing import MockClock

import liveness
from liveness.client.task_runner import LAST_S
from liveness.testing import ScriptedSidecar, scripted_sidecar
from tests.helpers.log_peer import SOON_S


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("mine"),
        ExceptionGroup("of one", [ValueError(1)]),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
    ],
    ids=["no error", "one", "group of one", "base group"],
)
def test_an_error_inside_comes_out_and_the_last_reports_are_written(
    backend: str, error: BaseException | None
) -> None:
    async def main() -> None:
        raised: BaseException | None = None
        async with scripted_sidecar(within=SOON_S) as script:
            try:
                async with liveness.connect(script.path, name="gw") as gateway:
                    gateway.login("ada", conn=1)
                    await gateway.flush()
                    gateway.logout("ada", conn=1)
                    gateway.login("eve", conn=2)
                    if error is not None:
                        raise error
            except (ValueError, BaseExceptionGroup) as caught:
                raised = caught
            # trio makes a group anew, whatever it passes through
            assert raised is error or isinstance(raised, BaseExceptionGroup)
            assert getattr(raised, "exceptions", ()) == getattr(error, "exceptions", ())
            await script.online("eve")
            assert set(script.users) == {"eve"}

    anyio.run(main, backend=backend)


def test_a_task_of_asyncio_can_be_cancelled_in_its_own_way() -> None:
    import asyncio  # noqa: TID251 - the loop that is tested

    async def serve(script: ScriptedSidecar, is_linked: asyncio.Event) -> None:
        async with liveness.connect(script.path, name="gw") as gateway:
            gateway.login("ada", conn=1)
            is_linked.set()
            async for _ in gateway.ended():
                pass

    async def main() -> None:
        async with scripted_sidecar(within=SOON_S) as script:
            is_linked = asyncio.Event()
            task = asyncio.create_task(serve(script, is_linked))
            await is_linked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await script.online("ada")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "name"),
    [("/" + "x" * 107, "gw"), ("/tmp/\0", "gw"), ("", "gw"), ("/tmp/x", "")],
    ids=["long path", "nul", "no path", "no name"],
)
async def test_a_path_or_name_that_cannot_be_is_refused_at_once(
    path: str, name: str
) -> None:
    with pytest.raises(liveness.ReportError):
        async with liveness.connect(path, name=name):
            raise AssertionError


async def test_a_link_is_tried_again_within_a_second_and_leaving_takes_two_at_most(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with liveness.connect(tmp_path / "s", name="gw") as gateway:
        await trio.sleep(5)
        with closing(trio.socket.socket(socket.AF_UNIX)) as listener:
            await listener.bind(str(tmp_path / "s"))
            listener.listen()
            began = trio.current_time()
            connection, _ = await listener.accept()
            assert trio.current_time() - began < 1
        connection.close()
        gateway.login("a", conn=1)
        left_at = trio.current_time()
    assert trio.current_time() - left_at <= 2 * LAST_S


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal("trio") as started:
        yield started


@pytest.fixture
def script(portal: BlockingPortal) -> Iterator[ScriptedSidecar]:
    with portal.wrap_async_context_manager(scripted_sidecar(within=SOON_S)) as script:
        yield script


def test_leaving_writes_the_last_reports_and_ends_every_loop(
    script: ScriptedSidecar, portal: BlockingPortal
) -> None:
    taken = list[liveness.End]()
    with liveness.connect_sync(script.path, name="gw") as gateway:
        thread = threading.Thread(target=lambda: taken.extend(gateway.ended()))
        thread.start()
        gateway.login("ada", conn=1)
        gateway.message("eve", conn=2)  # of no connection that is open
    thread.join(SOON_S)
    assert (thread.is_alive(), taken) == (False, [])
    portal.call(script.online, "ada")
    for wait in (gateway.flush, gateway.connected):
        with pytest.raises(anyio.ClosedResourceError):
            wait()
    assert list(gateway.ended()) == []


@pytest.mark.parametrize("age", [-1, nan, inf])
def test_an_age_that_cannot_be_raises_and_nothing_is_reported(
    script: ScriptedSidecar, age: float
) -> None:
    with liveness.connect_sync(script.path, name="gw") as gateway:
        with pytest.raises(liveness.ReportError, match="0 seconds or more"):
            gateway.login("ada", conn=1, age=age)
        assert gateway.stats().open == 0


def test_waiting_in_the_event_loops_own_thread_is_an_error_that_says_so(
    script: ScriptedSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    with liveness.connect_sync(
        script.path, name="gw", on_state=lambda _: gateway.connected()
    ) as gateway:
        gateway.connected()
        gateway.flush()
    assert "from the event loop thread" in caplog.text


def test_a_loop_that_comes_back_at_once_waits_for_the_next_record(
    script: ScriptedSidecar,
) -> None:
    taken = list[object]()
    with (
        liveness.connect_sync(script.path, name="gw") as gateway,
        liveness.watch_sync(script.path) as watch,
    ):
        watch.connected()
        gateway.login("ada", conn=1)
        assert next(watch)["uid"] == "ada"
        thread = threading.Thread(target=lambda: taken.append(next(watch)["uid"]))
        thread.start()
        gateway.login("eve", conn=2)
        thread.join(SOON_S)
    assert taken == ["eve"]


# Only for event loops.
ASYNC_ONLY = {"aclose"}
# What classes for threads write themselves, or do not need.
OWN = {
    "Sidecar": {"ended"},
    "Watch": {"batches", "is_closed", "take"},
    "ClusterWatch": {"batches", "finish", "has_event", "is_closed", "take"},
}


@pytest.mark.parametrize(
    ("loop", "threaded"),
    [
        (liveness.Sidecar, liveness.SyncSidecar),
        (liveness.Watch, liveness.SyncWatch),
        (liveness.ClusterWatch, liveness.SyncClusterWatch),
    ],
)
def test_a_class_for_threads_has_the_methods_of_the_one_for_loops(
    loop: type, threaded: type
) -> None:
    names = {name for name in dir(loop) if not name.startswith("_")} - ASYNC_ONLY
    names -= OWN[loop.__name__] - {*dir(threaded)}
    for name in names:
        method, sync = getattr(loop, name), getattr(threaded, name)
        if not isinstance(method, FunctionType):
            assert isinstance(sync, property)
        elif name not in OWN[loop.__name__]:
            assert inspect.signature(sync) == inspect.signature(method)
            if name not in {"keepalive", "message"}:
                assert sync.__doc__ == method.__doc__
        assert not inspect.iscoroutinefunction(sync)
