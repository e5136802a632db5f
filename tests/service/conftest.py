"""What the tests of the service share: a state directory, and time that jumps."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
import trio
from trio.testing import MockClock

from liveness.service.storage.log_store import LogStore
from tests.service.http.doors import Doors
from tests.service.rig import Rig, running

T = TypeVar("T")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with closing(LogStore(tmp_path)) as opened:
        yield opened


@pytest.fixture
def said() -> Iterator[list[Any]]:
    """The lines that the sidecar logs."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def jumping(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> MockClock:
    """Virtual time, which stands still while a thread is at work.

    trio's own does not know of threads: it would take a commit for idleness and jump
    to the next deadline, whichever that is.

    An async test has it also by `usefixtures`, or through another fixture: by itself
    pytest-trio takes a clock only from the test's own arguments.
    """

    def run(test: Any, **options: Any) -> None:
        trio.run(test, **{**options, "clock": autojump_clock})

    request.node.add_marker(pytest.mark.trio(run=run), append=False)
    at_work = 0
    run_sync = trio.to_thread.run_sync

    async def standing_still(
        work: Callable[..., T],
        *args: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        nonlocal at_work
        at_work += 1
        autojump_clock.autojump_threshold = inf
        try:
            return await run_sync(
                work, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter
            )
        finally:
            at_work -= 1
            if not at_work:
                autojump_clock.autojump_threshold = 0

    monkeypatch.setattr(trio.to_thread, "run_sync", standing_still)
    return autojump_clock


@pytest.fixture
async def rig(
    tmp_path: Path, jumping: MockClock, request: pytest.FixtureRequest
) -> AsyncIterator[Rig]:
    """A running service; `pytest.mark.rig(...)` has what `running` is called with."""
    marker = request.node.get_closest_marker("rig")
    async with running(tmp_path, **(marker.kwargs if marker else {})) as rig:
        yield rig


@pytest.fixture
async def doors(rig: Rig) -> Doors:
    """Both HTTP doors of the rig."""
    return Doors(rig)
