"""The scripted sidecar passes tests of the real one.

They are imported from where they are, all in which nobody falls silent and nobody looks
at the process, and collected again here, where the `sidecar` that they ask for is a
scripted one. What time they take passes there too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from liveness.testing import ScriptedSidecar, scripted_sidecar
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar
from tests.system.test_wire import (  # noqa: F401 - collected again here
    test_a_gateway_that_reconnects_after_a_restart_goes_on_without_a_record,
    test_a_hello_may_name_where_to_read_on,
    test_a_new_name_begins_at_now_and_a_crash_right_after_welcome_does_not_lose_that,
    test_a_timer_due_while_its_gateway_was_away_comes_when_it_is_back_fresh,
    test_a_timer_fires_once_for_its_gateway_with_all_that_it_was_given,
    test_after_a_crash_users_sessions_and_conns_are_as_they_were,
    test_what_was_not_acknowledged_comes_again_after_a_reconnect,
)

SOON_S: Final = 30.0
TICK_S: Final = 0.02


class Scripted(Sidecar):
    """A scripted sidecar in the place of a process."""

    def __init__(self, script: ScriptedSidecar, portal: BlockingPortal) -> None:
        super().__init__(script.path.parent)
        assert self.socket == script.path
        self.script = script
        self._portal = portal

    def start(self, timeout_s: float | None = None, **settings: object) -> "Scripted":
        assert timeout_s is None
        assert not settings
        self._hang_up()
        self._portal.call(self.script.start)
        return self

    def stop(self, *_: object, **__: object) -> int:
        self._portal.call(self.script.stop)
        for client in self._clients:
            client.leave()
        return 0

    def kill(self) -> None:
        self._portal.call(self.script.crash)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def portal(request: pytest.FixtureRequest) -> Iterator[BlockingPortal]:
    with start_blocking_portal(request.param) as started:
        yield started


@pytest.fixture
def sidecar(portal: BlockingPortal) -> Iterator[Scripted]:
    with (
        portal.wrap_async_context_manager(scripted_sidecar()) as script,
        Scripted(script, portal) as running,
        ticking(script, portal),
    ):
        yield running


@contextmanager
def ticking(script: ScriptedSidecar, portal: BlockingPortal) -> Iterator[None]:
    """Lets time pass there as it does here."""

    async def tick() -> None:
        while True:
            await anyio.sleep(TICK_S)
            await script.pass_time(TICK_S)

    task = portal.start_task_soon(tick)
    yield
    task.cancel()


@pytest.fixture
def start(sidecar: Scripted) -> Start:
    return lambda: sidecar


@pytest.fixture
def name() -> str:
    return "gw"
