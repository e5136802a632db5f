"""`connect_sync`: a gateway of threads, beside a scripted sidecar."""

import inspect
import threading
from collections.abc import Iterator
from math import inf, nan
from types import FunctionType

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

import liveness
from liveness.testing import ScriptedSidecar, scripted_sidecar
from tests.helpers.log_peer import SOON_S


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
