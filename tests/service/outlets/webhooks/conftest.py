"""A log to read from, and a receiver, in virtual time."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.service.outlets.outlet_rig import OutletRig, outlet_rig
from tests.service.outlets.webhooks.receiver import Receiver, receiving


@pytest.fixture
def rig(tmp_path: Path, jumping: MockClock) -> Iterator[OutletRig]:
    with outlet_rig(tmp_path) as rig:
        yield rig


@pytest.fixture
async def receiver(jumping: MockClock) -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver
