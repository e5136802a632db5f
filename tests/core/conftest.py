"""What the tests of the core share."""

from types import ModuleType

import pytest

from liveness.core import wheel, wire

try:
    from liveness.core import _wheel, _wire
except ImportError:  # not compiled here; tests/test_build.py says whether it should be
    WHEELS: list[ModuleType] = [wheel]
    READERS: list[ModuleType] = [wire]
else:
    WHEELS = [wheel, _wheel]
    READERS = [wire, _wire]


def is_compiled(module: ModuleType) -> str:
    """What a test of one of them is called."""
    return "compiled" if module.__name__.split(".")[-1][0] == "_" else "reference"


# For the session, not for a test: hypothesis asks one test for many examples.
@pytest.fixture(scope="session", params=WHEELS, ids=is_compiled)
def wheel_class(request: pytest.FixtureRequest) -> type[wheel.Wheel]:
    """Every implementation of the wheel there is."""
    implementation: type[wheel.Wheel] = request.param.Wheel
    return implementation


@pytest.fixture(scope="session", params=READERS, ids=is_compiled)
def reader_class(request: pytest.FixtureRequest) -> type[wire.Reader]:
    """Every implementation of the reader there is."""
    implementation: type[wire.Reader] = request.param.Reader
    return implementation
