"""Shared by the tests of the service: a state directory, and virtual time."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from trio.testing import MockClock

from liveness.service.storage.log_store import LogStore
from tests.service.http.doors import Doors
from tests.service.rig import Rig, running


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
