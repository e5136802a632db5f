"""A log to read from, in virtual time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.service.outlets.outlet_rig import OutletRig, outlet_rig


@pytest.fixture
def rig(tmp_path: Path, jumping: MockClock) -> Iterator[OutletRig]:
    with outlet_rig(tmp_path) as rig:
        yield rig
